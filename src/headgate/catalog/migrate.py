"""Numbered migrations, from any older schema to the schema of this release; copies of catalogs.

Each is a file of SQL statements in `migrations`. A merged migration never changes.
`tests/contract/test_catalog_schema.py` compares all of them with the tables in `schema.py`.

A SQLite catalog is migrated when it is opened, under an exclusive lock and after a backup. A
PostgreSQL catalog is migrated only by `headgate migrate`, because other processes may use it.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, delete, insert, inspect, select, text

from headgate import errors
from headgate.catalog.database import MIGRATION_LOCK, Database, read_version
from headgate.catalog.schema import metadata
from headgate.catalog.warehouse import name_catalog
from headgate.storage.local import create_private

MIGRATIONS = Path(__file__).with_name("migrations")
NEWEST = len(list(MIGRATIONS.glob("*.sql")))
_ROWS = 1_000


def find_version(connection: Connection) -> int:
    """Return the schema version of a catalog; 0 for an empty database."""
    names = set(inspect(connection).get_table_names())
    if not names:
        return 0
    if "store" not in names or "log_counter" not in names:
        raise errors.CatalogBroken(
            where=connection.engine.url.render_as_string(hide_password=True),
            reason="it has tables, but they are not Headgate's",
            remedy="Give Headgate a database of its own.",
        )
    return read_version(connection)


WITHOUT_CATALOG = (
    "Restore a backup with `headgate restore DIR`, check `[store] catalog`, or create a new store "
    "with `headgate init`."
)


def ensure_schema(database: Database, *, create: bool = False) -> None:
    """Migrate an older SQLite catalog; raise for any other catalog without this release's schema.

    With `create`, an empty database and an older PostgreSQL catalog are migrated too.
    """
    try:
        _ensure(database, create=create)
        database.schema_version = NEWEST
    except errors.HeadgateError:
        # After an error the caller has nothing to close, so no connection may stay open.
        database.close()
        raise


def _ensure(database: Database, *, create: bool) -> None:
    is_missing = database.path is not None and not Path(database.path).exists()
    if is_missing and not create:
        # Opening it would create it.
        raise errors.CatalogBroken(
            where=database.where, reason="the file does not exist", remedy=WITHOUT_CATALOG
        )
    with database.raw() as connection:
        found = find_version(connection)
    if found > NEWEST:
        raise errors.StoreTooNew(found=found, known=NEWEST)
    if found == NEWEST:
        return
    if found == 0 and not create:
        raise errors.CatalogBroken(
            where=database.where, reason="it is empty", remedy=WITHOUT_CATALOG
        )
    is_migrated_here = database.dialect == "sqlite" and not database.is_read_only
    if found != 0 and not is_migrated_here and not create:
        raise errors.StoreTooOld(found=found, known=NEWEST)
    migrate(database, to=NEWEST)


def migrate(database: Database, *, to: int = NEWEST) -> tuple[int, int]:
    """Apply missing migrations, one per SQL transaction; return the versions (from, to)."""
    with database.raw() as connection:
        before = find_version(connection)
    if before > NEWEST:
        raise errors.StoreTooNew(found=before, known=NEWEST)
    if 0 < before < to and database.path is not None:
        _back_up(Path(database.path), before)
    for number in range(1, to + 1):
        database.write(partial(_apply, number=number))
    return before, to


def _apply(connection: Connection, number: int) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    # Read under the lock: another process may have applied it first.
    if find_version(connection) >= number:
        return
    (migration,) = MIGRATIONS.glob(f"{number:04}_*.sql")
    # A statement ends with a semicolon at the end of a line.
    for statement in migration.read_text().removesuffix(";\n").split(";\n"):
        connection.execute(text(statement))
    if number == 1:
        sql = "INSERT INTO store (\"key\", value) VALUES ('schema_version', :number)"
    else:
        sql = "UPDATE store SET value = :number WHERE \"key\" = 'schema_version'"
    connection.execute(text(sql), {"number": str(number)})
    if number == 1:
        name_catalog(connection)


def _back_up(path: Path, version: int) -> None:
    """Write a consistent copy beside the catalog."""
    _copy_file(path, path.with_name(f"{path.name}.before-v{version + 1}"))


# --- copies ---------------------------------------------------------------------------------


def copy_catalog(database: Database, target: Path) -> None:
    """Write one consistent state of a catalog to a new SQLite file, whatever its database.

    The schema is the same on both databases, so the copy of a PostgreSQL catalog is a catalog too.
    """
    if database.path is not None:
        _copy_file(Path(database.path), target)
        return
    with closing_database(f"sqlite:///{target}") as copy:
        migrate(copy)
        database.read(lambda rows: copy.write(lambda into: _copy_rows(rows, into)))


def check_no_catalog(database: Database) -> None:
    """Raise if a database has a catalog or other tables; an empty SQLite file may exist."""
    if database.path is not None and not Path(database.path).exists():
        # The log of another catalog would be applied to the restored one.
        is_taken = Path(f"{database.path}-wal").exists()
    else:
        is_taken = _has_tables(database)
    if is_taken:
        raise errors.CatalogBroken(
            where=database.where,
            reason="a backup is restored to a new catalog, and this one exists",
            remedy="Move it away, with its `-wal` file, or set another `[store] catalog`.",
        )


def _has_tables(database: Database) -> bool:
    try:
        with database.raw() as connection:
            return find_version(connection) != 0
    except errors.CatalogBroken:
        if database.path is None:
            raise
        # Damaged, or something else.
        return True
    finally:
        # Nothing of the empty file stays open.
        database.close()


def load_catalog(copy: Database, database: Database) -> None:
    """Write a copy of a catalog to a new catalog, which must not exist."""
    check_no_catalog(database)
    if database.path is not None and copy.path is not None:
        Path(database.path).parent.mkdir(parents=True, exist_ok=True)
        _copy_file(Path(copy.path), Path(database.path))
        return
    migrate(database)
    copy.read(lambda rows: database.write(lambda into: _copy_rows(rows, into)))


@contextmanager
def closing_database(url: str) -> Iterator[Database]:
    """Yield a database, and close its connections after the block."""
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def _copy_file(path: Path, target: Path) -> None:
    """Copy a SQLite catalog by SQLite's own backup, while it is in use."""
    try:
        with suppress(FileExistsError):
            os.close(create_private(target))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except OSError as error:
        raise errors.storage_error(error, target) from error
    except sqlite3.Error as error:
        raise errors.StorageUnavailable(
            where=str(target), reason=f"the copy of the catalog failed: {error}"
        ) from error


def _copy_rows(rows: Connection, into: Connection) -> None:
    for table in reversed(metadata.sorted_tables):
        # A new catalog has its identity and its counter.
        into.execute(delete(table))
    for table in metadata.sorted_tables:
        found = rows.execute(select(table).execution_options(yield_per=_ROWS)).mappings()
        for part in found.partitions():
            into.execute(insert(table), [dict(row) for row in part])
