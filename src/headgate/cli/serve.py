"""`headgate serve` and `headgate token`: the server and its bearer tokens."""

import enum
import os
import re
import sys
from functools import partial
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option, Typer, echo

from headgate import connection
from headgate.cli import output
from headgate.errors import Exists, MissingExtra
from headgate.model.access import Role
from headgate.settings import load_settings, parse_duration_seconds
from headgate.storage.local import make_private_directory, storage_errors
from headgate.store.embedded import Store

# More than a token has bytes.
_TOKEN_ROOM = 64


class CodeFrom(enum.StrEnum):
    """Lowest role whose code the server's processes run."""

    ADMIN = Role.ADMIN.value
    WRITER = Role.WRITER.value


def _check_url(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"https?://[^/?#@\s]+/?", value):
        raise BadParameter(f"{value!r} is not an address such as https://headgate.internal")
    return value


@output.command
def serve(
    host: Annotated[str, Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", min=1, max=65535, help="Port to listen on.")] = 8181,
    code_from: Annotated[
        CodeFrom, Option("--code-from", help="Lowest role that may publish JobSpecs over HTTP.")
    ] = CodeFrom.ADMIN,
    no_builds: Annotated[
        bool, Option("--no-builds", help="Run no builds on the server; clients run their own.")
    ] = False,
    public_url: Annotated[
        str | None,
        Option(
            "--public-url",
            callback=_check_url,
            help="Address of the pages in a browser, if a proxy does not pass on `Host`.",
        ),
    ] = None,
    json: output.JsonOption = False,
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
        serve_store(
            hg,
            host=host,
            port=port,
            code_from=Role(code_from),
            runs_builds=not no_builds,
            public_url=public_url,
            announce=partial(_announce, hg, f"http://{host}:{port}", json=json),
        )


def _announce(hg: Store, root: str, *, json: bool) -> None:
    """Print the addresses of a server that listens, and create its first token."""
    file = _first_token(hg)
    if json:
        written = str(file) if file is not None else None
        output.show_json({"url": f"{root}/iceberg", "api": f"{root}/api/v1", "token_file": written})
        # The parent process reads the document while the server runs.
        sys.stdout.flush()
        return
    output.note(f"web pages: {root}/")
    output.note(f"HTTP API: {root}/api/v1 (OpenAPI: {root}/api/openapi.json)")
    output.note(f"Iceberg REST: {root}/iceberg (warehouse: a context, such as `feature>master`)")
    if file is not None:
        output.note(f"admin token: in {file}, which only this user can read")


def _first_token(hg: Store) -> Path | None:
    """Create an admin token for a store without tokens, which no client could use otherwise.

    It is written to a file that only this user can read: output ends up in logs and journals.
    """
    if hg.tokens():
        return None
    file = hg.settings.root / ".headgate" / "admin-token"
    with storage_errors(file):
        make_private_directory(file.parent)
        try:
            # Never a file, or a link, that another process has put there.
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError as error:
            if hg.tokens():
                # Of another server that started at the same time.
                return None
            raise Exists(
                f"{file} already exists, but the store has no tokens: an earlier start was "
                "interrupted, or the file is not Headgate's. Delete it, then start the server "
                "again.",
                file=str(file),
            ) from error
        with os.fdopen(descriptor, "r+b", buffering=0) as opened:
            _write_token(hg, opened, file)
    return file


def _write_token(hg: Store, opened: FileIO, file: Path) -> None:
    try:
        # Takes the space before there is a token that a full disk could lose.
        opened.write(b" " * _TOKEN_ROOM)
        os.fsync(opened.fileno())
        made = hg.create_token(actor=hg.settings.actor, role=Role.ADMIN)
    except BaseException:
        file.unlink()
        raise
    opened.seek(0)
    opened.write(f"{made['token']}\n".encode())
    opened.truncate()
    os.fsync(opened.fileno())


token_app = Typer(no_args_is_help=True, help="Create, list and revoke bearer tokens.")


@token_app.command()
def create(
    actor: Annotated[str, Option("--actor", help="Actor of the token.")],
    role: Annotated[Role, Option("--role", help="Role of the token.")],
    branches: Annotated[
        str, Option("--branches", help="Branches that it may write: `feature/*,ana/*`.")
    ] = "*",
    reads: Annotated[str, Option("--read", help="Branches that it may read: `main,ana/*`.")] = "*",
    datasets: Annotated[
        str, Option("--datasets", help="Datasets that it may read and write: `gold.*`.")
    ] = "*",
    expires: Annotated[str, Option("--expires", help="30d, 24h or `never`.")] = "30d",
    json: output.JsonOption = False,
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
        output.show_json(made)
        return
    output.note(f"token {made['id']} for {actor} ({role}), shown once:")
    echo(made["token"])


@token_app.command("list")
def list_(json: output.JsonOption = False) -> None:
    """List tokens without their secrets.

    Example: headgate token list
    """
    with connection.open() as hg:
        found = hg.tokens()
    columns: output.Columns = {
        "ID": "id",
        "ACTOR": "actor",
        "ROLE": "role",
        "WRITES": lambda record: "" if record["role"] == Role.READER else record["branches"],
        "READS": "reads",
        "DATASETS": "datasets",
        "EXPIRES": lambda record: record["expires_at"] or "never",
        "REVOKED": "revoked_at",
    }
    empty = "no tokens; create one with `headgate token create`."
    output.show_list(found, columns, empty=empty, json=json)


@token_app.command()
def revoke(
    token: Annotated[str, Argument(metavar="ID", help="Token id, from `token list`.")],
    json: output.JsonOption = False,
) -> None:
    """Revoke a token.

    Example: headgate token revoke tok-01m7f8gggmxzttp51zc67s
    """
    with connection.open() as hg:
        record = hg.revoke_token(token)
    output.show_result(record, f"token {record['id']} of {record['actor']} is revoked.", json=json)
