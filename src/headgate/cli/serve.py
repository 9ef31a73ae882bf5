"""`headgate serve`: the store for a team."""

from __future__ import annotations

import enum
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from headgate import connection
from headgate.cli.output import JsonOption, note, show_json, show_table
from headgate.errors import MissingExtra
from headgate.model.access import Role
from headgate.settings import load_settings, parse_duration_seconds
from headgate.store.embedded import Store

serve_app = typer.Typer()


class CodeFrom(enum.StrEnum):
    """The least role whose code the server's own processes may run."""

    ADMIN = Role.ADMIN.value
    WRITER = Role.WRITER.value


@serve_app.command()
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
    from headgate.server.app import serve as serve_store  # noqa: PLC0415  (optional: FastAPI)

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


# `headgate token`: bearer tokens for the server.

token_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke bearer tokens.")


@token_app.command()
def create(
    actor: Annotated[str, typer.Option("--actor", help="Who the token stands for.")],
    role: Annotated[Role, typer.Option("--role", help="What it may do.")],
    branches: Annotated[
        str, typer.Option("--branches", help="Branches it may write: `feature/*,ana/*`.")
    ] = "*",
    expires: Annotated[str, typer.Option("--expires", help="30d, 24h or `never`.")] = "30d",
    json: JsonOption = False,
) -> None:
    """Make a token; it is shown once and stored nowhere.

    Example: headgate token create --actor ana --role writer --branches "ana/*" --expires 30d
    """
    lifetime = None if expires == "never" else parse_duration_seconds(expires, what="--expires")
    with connection.open() as hg:
        made = hg.create_token(actor=actor, role=role, branches=branches, lifetime_seconds=lifetime)
    if json:
        show_json(made)
        return
    note(f"token {made['id']} for {actor}, a {role}; it is shown only now:")
    typer.echo(made["token"])


@token_app.command("list")
def list_(json: JsonOption = False) -> None:
    """Tokens and what they stand for; never the tokens themselves.

    Example: headgate token list
    """
    with connection.open() as hg:
        found = hg.tokens()
    if json:
        show_json(found)
        return
    show_table(
        ("ID", "ACTOR", "ROLE", "BRANCHES", "EXPIRES", "REVOKED"),
        (
            (
                record["id"],
                record["actor"],
                record["role"],
                ", ".join(record["branches"]),
                record["expires_at"] or "never",
                record["revoked_at"] or "",
            )
            for record in found
        ),
        empty="no token yet; `headgate token create` makes one.",
    )


@token_app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `token list` shows it.")],
    json: JsonOption = False,
) -> None:
    """Refuse a token from now on.

    Example: headgate token revoke tok-01m7f8gggmxzttp51zc67s
    """
    with connection.open() as hg:
        record = hg.revoke_token(token)
    if json:
        show_json(record)
    else:
        note(f"token {record['id']} of {record['actor']} is revoked.")
