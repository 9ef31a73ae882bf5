"""`headgate serve`: the store for a team."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headgate import store
from headgate.catalog.tokens import create_token, list_tokens
from headgate.cli.output import JsonOption, note, show_json
from headgate.model.access import Role
from headgate.server.serving import serve as serve_store
from headgate.store import Store

app = typer.Typer()


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 8181,
    json: JsonOption = False,
) -> None:
    """Serve the store: one Iceberg REST URL, a branch or chain as its warehouse.

    Example: headgate serve --port 8181
    """
    with store.open() as hg:
        url = f"http://{host}:{port}/iceberg"
        secret = _first_token(hg)
        if json:
            show_json({"url": url, "token": secret})
            # Whoever started this reads the document while it serves.
            sys.stdout.flush()
        else:
            note(f"Iceberg REST at {url}; the warehouse is a context: `master`, `feature>master`")
            if secret is not None:
                note(f"an admin token, shown only now: {secret}")
        serve_store(hg, host=host, port=port)


def _first_token(hg: Store) -> str | None:
    """A store that has never had a token gets one for its admin, else nobody could come in."""
    if hg.database.read(list_tokens):
        return None
    secret, _ = create_token(
        hg.database,
        actor=hg.settings.actor,
        role=Role.ADMIN,
        branches=("*",),
        lifetime_seconds=None,
        created_by=hg.settings.actor,
    )
    return secret
