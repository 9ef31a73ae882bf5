"""`headgate init`: a store where there was none."""

from __future__ import annotations

import json as json_text
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from headgate.builds.project import Repository, find_repository
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.cli.output import JsonOption, note, show_json
from headgate.errors import Exists, GitUnusable, Invalid, StorageUnavailable
from headgate.model.names import check_branch_name
from headgate.settings import FILE_NAME, Settings, load_settings
from headgate.storage.address import open_store
from headgate.upkeep.reachability import probe

EMBEDDED = ".headgate"
CATALOG = f"{EMBEDDED}/catalog.db"
WAREHOUSE = f"{EMBEDDED}/warehouse"
# Where no repository says otherwise.
PRIMARY = "master"

app = typer.Typer()


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to make it.")] = Path(),
    catalog: Annotated[
        str, typer.Option("--catalog", help="A SQLite file, or postgresql://user@host/name.")
    ] = CATALOG,
    warehouse: Annotated[
        str, typer.Option("--warehouse", help="A directory, or s3://bucket/prefix.")
    ] = WAREHOUSE,
    json: JsonOption = False,
) -> None:
    """Make a store: headgate.toml, a catalog and a place for data.

    Example: headgate init
    """
    file = directory.absolute() / FILE_NAME
    _check_no_password(catalog)
    try:
        repository = _find_repository(file.parent)
        branch = check_branch_name(
            repository.default_branch() or PRIMARY if repository else PRIMARY
        )
        settings = make_store(file, catalog=catalog, warehouse=warehouse, branch=branch)
        ignored = repository is not None and _ignore_embedded(file.parent, catalog, warehouse)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(error.filename or file), reason=reason) from error
    if json:
        show_json(
            {
                "settings": str(file),
                "catalog": settings.catalog,
                "warehouse": settings.warehouse,
                "branch": branch,
                "ignored": ignored,
            }
        )
        return
    note(f"{file} is written; the primary branch is {branch}.")
    if ignored:
        note(f"{EMBEDDED}/ is added to .gitignore: commit {FILE_NAME}, not the data.")
    note("Next: headgate dataset create raw.scans --kind files")
    note("      headgate files put raw.scans --branch " + f"{branch} README.md docs/README.md")
    note("or watch the worked example: headgate demo")


def settings_text(*, catalog: str, warehouse: str, branch: str) -> str:
    """`headgate.toml`, with what was chosen and nothing else."""
    return (
        "[store]\n"
        f"catalog = {_quoted(catalog)}\n"
        f"warehouse = {_quoted(warehouse)}\n"
        "\n"
        "[builds]\n"
        "# The primary branch: where datasets begin, and what builds fall back to.\n"
        f"branch = {_quoted(branch)}\n"
    )


def _quoted(text: str) -> str:
    # A JSON string is a TOML string, except that TOML wants DEL escaped too.
    return json_text.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _find_repository(directory: Path) -> Repository | None:
    """The Git repository that the directory is in, or will be in once it is made."""
    existing = next((d for d in (directory, *directory.parents) if d.is_dir()), directory)
    try:
        return find_repository(existing)
    except GitUnusable:
        return None


def _check_no_password(catalog: str) -> None:
    name, at, _ = catalog.partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in name:
        raise Invalid(
            "the catalog's URL has a password in it, and headgate.toml is for everybody to read. "
            "Leave it out here and give it by PGPASSWORD or HEADGATE_STORE_CATALOG."
        )


def make_store(file: Path, *, catalog: str, warehouse: str, branch: str) -> Settings:
    """Makes or joins the catalog, then the file that names it: the store exists with that."""
    if file.exists():
        raise Exists(
            f"{file} exists already: this is a store. Nothing was changed.", file=str(file)
        )
    made_here = not file.parent.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{FILE_NAME}.{secrets.token_hex(8)}")
    draft.write_text(settings_text(catalog=catalog, warehouse=warehouse, branch=branch))
    try:
        settings = load_settings(draft)
        objects = open_store(settings.warehouse, settings.environ)
        if objects.url.startswith("s3:"):
            # A bucket that is not there, or not ours, is told now and not at the first write.
            probe(objects)
        _make_catalog(Database(settings.catalog))
        os.link(draft, file)
    except FileExistsError as error:
        raise Exists(f"{file} was just made by somebody else.", file=str(file)) from error
    finally:
        draft.unlink()
        if made_here and not file.exists():
            _remove_if_empty(file.parent)
    return settings


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _make_catalog(database: Database) -> None:
    if database.path is not None:
        Path(database.path).parent.mkdir(parents=True, exist_ok=True)
    try:
        ensure_schema(database, create=True)
    finally:
        database.close()


def _ignore_embedded(directory: Path, catalog: str, warehouse: str) -> bool:
    """Keeps the embedded store out of Git; False where it is so already, or is elsewhere."""
    if not any(place.startswith(f"{EMBEDDED}/") for place in (catalog, warehouse)):
        return False
    file = directory / ".gitignore"
    text = file.read_text() if file.exists() else ""
    if {EMBEDDED, f"{EMBEDDED}/", f"/{EMBEDDED}", f"/{EMBEDDED}/"} & set(text.split("\n")):
        return False
    joint = "" if not text or text.endswith("\n") else "\n"
    file.write_text(f"{text}{joint}{EMBEDDED}/\n")
    return True
