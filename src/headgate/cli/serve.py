"""`headgate serve`: the store for a team."""

from __future__ import annotations

import enum
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from headgate.cli.output import JsonOption, note, show_json
from headgate.errors import MissingExtra
from headgate.model.access import Role
from headgate.settings import load_settings
from headgate.store import Store

app = typer.Typer()


class CodeFrom(enum.StrEnum):
    """The least role whose code the server's own processes may run."""

    ADMIN = Role.ADMIN.value
    WRITER = Role.WRITER.value


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 8181,
    code_from: Annotated[
        CodeFrom,
        typer.Option("--code-from", help="Least role that may publish JobSpecs over HTTP."),
    ] = CodeFrom.ADMIN,
    no_builds: Annotated[
        bool,
        typer.Option("--no-builds", help="Run no builds here: clients compute their own."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Serve the store to a team: pages, an HTTP API, and one Iceberg REST URL for all contexts.

    Other machines set HEADGATE_URL and HEADGATE_TOKEN, and use the same commands. It listens on
    this machine only unless told otherwise; beyond it, put something that speaks TLS in front.

    Example: headgate serve --port 8181
    """
    if find_spec("fastapi") is None or find_spec("nicegui") is None:
        raise MissingExtra(feature="headgate serve", extra="server")
    from headgate.server.serving import serve as serve_store  # noqa: PLC0415  (optional: FastAPI)

    # Its own store, whatever server HEADGATE_URL names to the other commands.
    with Store(load_settings()) as hg:
        root = f"http://{host}:{port}"
        secret = _first_token(hg)
        if json:
            show_json({"url": f"{root}/iceberg", "api": f"{root}/api/v1", "token": secret})
            # Whoever started this reads the document while it serves.
            sys.stdout.flush()
        else:
            note(f"pages at {root}/, for a browser")
            note(f"API at {root}/api/v1, described at {root}/api/openapi.json")
            note(f"Iceberg REST at {root}/iceberg; the warehouse is a context: `feature>master`")
            if secret is not None:
                note(f"an admin token, shown only now: {secret}")
        serve_store(hg, host=host, port=port, code_from=Role(code_from), runs_builds=not no_builds)


def _first_token(hg: Store) -> str | None:
    """A store that has never had a token gets one for its admin, else nobody could come in."""
    if hg.tokens():
        return None
    return str(hg.create_token(actor=hg.settings.actor, role=Role.ADMIN)["token"])
