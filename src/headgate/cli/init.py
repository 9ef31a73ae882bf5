"""`headgate init`: create a store."""

import json as json_text
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from headgate import errors
from headgate.builds.project import Repository, find_repository
from headgate.catalog import warehouse as owner
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.cli.output import JsonOption, command, note, show_json
from headgate.model.names import check_branch_name
from headgate.model.object_store import ObjectStore
from headgate.settings import FILE_NAME, Settings, load_settings
from headgate.storage.address import open_store
from headgate.storage.local import make_private_directory
from headgate.upkeep.reachability import probe

EMBEDDED = ".headgate"
CATALOG = f"{EMBEDDED}/catalog.db"
WAREHOUSE = f"{EMBEDDED}/warehouse"
# Without a Git repository.
PRIMARY = "master"


@command
def init(
    directory: Annotated[Path, Argument(metavar="DIR", help="Directory of the store.")] = Path(),
    catalog: Annotated[
        str, Option("--catalog", help="SQLite file, or postgresql://user@host/name.")
    ] = CATALOG,
    warehouse: Annotated[
        str, Option("--warehouse", help="Directory, or s3://bucket/prefix.")
    ] = WAREHOUSE,
    adopt_warehouse: Annotated[
        bool,
        Option(
            "--adopt-warehouse",
            help="Make a new catalog over a warehouse with data; cleanup waits for a confirmation.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Create a store: headgate.toml, a catalog and a warehouse.

    A warehouse that belongs to another store, or has data of one, is rejected.

    Example: headgate init
    """
    file = directory.absolute() / FILE_NAME
    _check_no_password(catalog)
    try:
        repository = _find_repository(file.parent)
        branch = check_branch_name(
            repository.default_branch() or PRIMARY if repository else PRIMARY
        )
        settings = make_store(
            file, catalog=catalog, warehouse=warehouse, branch=branch, adopt=adopt_warehouse
        )
        ignored = repository is not None and _ignore_embedded(file.parent, catalog, warehouse)
    except OSError as error:
        raise errors.storage_error(error, error.filename or file) from error
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
    note(f"wrote {file}; the primary branch is {branch}.")
    if ignored:
        note(f"added {EMBEDDED}/ to .gitignore: commit {FILE_NAME}, not the data.")
    note("Next: headgate dataset create raw.scans --kind files")
    note(f"      headgate files put raw.scans --branch {branch} scan.txt 2026/scan.txt")
    note("or run the worked example: headgate demo")


def settings_text(*, catalog: str, warehouse: str, branch: str) -> str:
    """Return the text of `headgate.toml`."""
    return (
        "[store]\n"
        f"catalog = {_quoted(catalog)}\n"
        f"warehouse = {_quoted(warehouse)}\n"
        "\n"
        "[builds]\n"
        "# The primary branch: the first branch of a dataset, and the fallback of builds.\n"
        f"branch = {_quoted(branch)}\n"
    )


def _quoted(text: str) -> str:
    # A JSON string is a TOML string, except that TOML requires DEL to be escaped.
    return json_text.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _find_repository(directory: Path) -> Repository | None:
    """Return the Git repository around a directory, which may not exist yet."""
    existing = next((d for d in (directory, *directory.parents) if d.is_dir()), directory)
    try:
        return find_repository(existing)
    except errors.GitUnusable:
        return None


def _check_no_password(catalog: str) -> None:
    name, at, _ = catalog.partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in name:
        raise errors.Invalid(
            "the catalog URL contains a password, and headgate.toml is not a secret file. "
            "Leave the password out and set PGPASSWORD or HEADGATE_STORE_CATALOG."
        )


def make_store(
    file: Path, *, catalog: str, warehouse: str, branch: str, adopt: bool = False
) -> Settings:
    """Create the catalog or connect to it, then write headgate.toml, which makes it a store."""
    if file.exists():
        raise errors.Exists(
            f"{file} already exists: this is a store; nothing changed.", file=str(file)
        )
    places = (file.parent / part for part in (f"{WAREHOUSE}/.incoming", WAREHOUSE, EMBEDDED, ""))
    missing = [place for place in places if not place.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{FILE_NAME}.{secrets.token_hex(8)}")
    draft.write_text(settings_text(catalog=catalog, warehouse=warehouse, branch=branch))
    try:
        settings = load_settings(draft)
        objects = open_store(settings.warehouse, settings.environ)
        _try_warehouse(objects)
        _make_catalog(Database(settings.catalog), objects, adopt=adopt)
        os.link(draft, file)
    except FileExistsError as error:
        raise errors.Exists(
            f"{file} already exists: another process created it. Nothing was changed.",
            file=str(file),
        ) from error
    finally:
        draft.unlink()
        if not file.exists():
            for place in missing:
                with suppress(OSError):  # not empty
                    place.rmdir()
    return settings


def _try_warehouse(objects: ObjectStore) -> None:
    """Raise for a warehouse that is missing or not writable, before the first write would."""
    try:
        probe(objects)
    except errors.StorageUnavailable as error:
        raise errors.Unavailable(
            f"the warehouse {objects.url} cannot be used: {error.message} No store was created; "
            "correct the warehouse, or choose another with --warehouse.",
            warehouse=objects.url,
        ) from error


def _make_catalog(database: Database, objects: ObjectStore, *, adopt: bool) -> None:
    """Create the catalog, or connect to it, for a warehouse that may be its own."""
    try:
        is_new = database.path is not None and not Path(database.path).exists()
        if is_new and not adopt:
            owner.check_new_catalog(objects)
        if database.path is not None:
            make_private_directory(Path(database.path).parent)
        ensure_schema(database, create=True)
        if adopt:
            owner.adopt(database, objects)
        else:
            owner.check(database, objects)
    finally:
        database.close()


def _ignore_embedded(directory: Path, catalog: str, warehouse: str) -> bool:
    """Add the embedded store to .gitignore; return False if it is there or not needed."""
    if not any(place.startswith(f"{EMBEDDED}/") for place in (catalog, warehouse)):
        return False
    file = directory / ".gitignore"
    text = file.read_text() if file.exists() else ""
    if {EMBEDDED, f"{EMBEDDED}/", f"/{EMBEDDED}", f"/{EMBEDDED}/"} & set(text.split("\n")):
        return False
    newline = "" if not text or text.endswith("\n") else "\n"
    file.write_text(f"{text}{newline}{EMBEDDED}/\n")
    return True
