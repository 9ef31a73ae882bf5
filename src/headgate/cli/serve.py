"""`headgate serve` and `headgate token`: the server and its bearer tokens."""

from __future__ import annotations

import enum
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from headgate import connection
from headgate.cli.output import JsonOption, note, show_json, show_result, show_table
from headgate.errors import MissingExtra
from headgate.model.access import Role
from headgate.settings import load_settings, parse_duration_seconds
from headgate.store.embedded import Store

serve_app = typer.Typer()


class CodeFrom(enum.StrEnum):
    """Lowest role whose code the server's processes run."""

    ADMIN = Role.ADMIN.value
    WRITER = Role.WRITER.value


@serve_app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")
    ] = 8181,
    code_from: Annotated[
        CodeFrom,
        typer.Option("--code-from", help="Lowest role that may publish JobSpecs over HTTP."),
    ] = CodeFrom.ADMIN,
    no_builds: Annotated[
        bool,
        typer.Option("--no-builds", help="Run no builds on the server; clients run their own."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Serve the store to a team: web pages, an HTTP API and an Iceberg REST catalog.

    Clients set HEADGATE_URL and HEADGATE_TOKEN and use the same commands. By default the server
    accepts only local connections. For other hosts, use a reverse proxy with TLS.

    Example: headgate serve --port 8181
    """
    if find_spec("fastapi") is None or find_spec("nicegui") is None:
        raise MissingExtra(feature="headgate serve", extra="server")
    from headgate.server.app import serve as serve_store  # noqa: PLC0415  (optional: FastAPI)

    # The embedded store, even if HEADGATE_URL names a server.
    with Store(load_settings()) as hg:
        root = f"http://{host}:{port}"
        secret = _first_token(hg)
        if json:
            show_json({"url": f"{root}/iceberg", "api": f"{root}/api/v1", "token": secret})
            # The parent process reads the document while the server runs.
            sys.stdout.flush()
        else:
            note(f"web pages: {root}/")
            note(f"HTTP API: {root}/api/v1 (OpenAPI: {root}/api/openapi.json)")
            note(f"Iceberg REST: {root}/iceberg (warehouse: a context, such as `feature>master`)")
            if secret is not None:
                note(f"admin token (shown once): {secret}")
        serve_store(hg, host=host, port=port, code_from=Role(code_from), runs_builds=not no_builds)


def _first_token(hg: Store) -> str | None:
    """Create an admin token for a store without tokens, which no client could use otherwise."""
    if hg.tokens():
        return None
    return str(hg.create_token(actor=hg.settings.actor, role=Role.ADMIN)["token"])


token_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke bearer tokens.")


@token_app.command()
def create(
    actor: Annotated[str, typer.Option("--actor", help="Actor of the token.")],
    role: Annotated[Role, typer.Option("--role", help="Role of the token.")],
    branches: Annotated[
        str, typer.Option("--branches", help="Branches that it may write: `feature/*,ana/*`.")
    ] = "*",
    reads: Annotated[
        str,
        typer.Option("--read", help="Branches that it may read: `main,ana/*`."),
    ] = "*",
    datasets: Annotated[
        str,
        typer.Option("--datasets", help="Datasets that it may read and write: `gold.*`."),
    ] = "*",
    expires: Annotated[str, typer.Option("--expires", help="30d, 24h or `never`.")] = "30d",
    json: JsonOption = False,
) -> None:
    """Create a token. It is printed once; the store keeps only its digest.

    Example: headgate token create --actor ana --role writer --branches "ana/*" --expires 30d
    Example: headgate token create --actor bi --role reader --read main --datasets "gold.*"
    """
    lifetime = None if expires == "never" else parse_duration_seconds(expires, what="--expires")
    with connection.open() as hg:
        made = hg.create_token(
            actor=actor,
            role=role,
            branches=branches,
            reads=reads,
            datasets=datasets,
            lifetime_seconds=lifetime,
        )
    if json:
        show_json(made)
        return
    note(f"token {made['id']} for {actor} ({role}), shown once:")
    typer.echo(made["token"])


@token_app.command("list")
def list_(json: JsonOption = False) -> None:
    """List tokens without their secrets.

    Example: headgate token list
    """
    with connection.open() as hg:
        found = hg.tokens()
    if json:
        show_json(found)
        return
    show_table(
        ("ID", "ACTOR", "ROLE", "WRITES", "READS", "DATASETS", "EXPIRES", "REVOKED"),
        (
            (
                record["id"],
                record["actor"],
                record["role"],
                "" if record["role"] == Role.READER else ", ".join(record["branches"]),
                ", ".join(record["reads"]),
                ", ".join(record["datasets"]),
                record["expires_at"] or "never",
                record["revoked_at"] or "",
            )
            for record in found
        ),
        empty="no tokens; create one with `headgate token create`.",
    )


@token_app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Token id, from `token list`.")],
    json: JsonOption = False,
) -> None:
    """Revoke a token.

    Example: headgate token revoke tok-01m7f8gggmxzttp51zc67s
    """
    with connection.open() as hg:
        record = hg.revoke_token(token)
    show_result(record, f"token {record['id']} of {record['actor']} is revoked.", json=json)
