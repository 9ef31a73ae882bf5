"""Migrations on both databases: they add up to the schema, and reject a newer catalog."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from headgate.catalog import migrate as migrations
from headgate.catalog.database import Database
from headgate.catalog.migrate import NEWEST, closing_database, ensure_schema, find_version, migrate
from headgate.catalog.schema import metadata
from headgate.errors import CatalogBroken, StoreTooNew, StoreTooOld, Unavailable
from headgate.store.embedded import Store
from tests.support import processes
from tests.support.stores import everything, files_branch, new_settings, new_store, put
from tests.support.task_runs import wait_for


def _shape(connection: Connection) -> dict[str, Any]:
    """Return the definition of a database's tables, in a form that can be compared."""
    found = inspect(connection)
    return {
        table: {
            "columns": {c["name"]: _column(c) for c in found.get_columns(table)},
            "primary key": found.get_pk_constraint(table)["constrained_columns"],
            "unique": sorted(
                (str(u["name"]), u["column_names"]) for u in found.get_unique_constraints(table)
            ),
            "foreign keys": sorted(
                (f["constrained_columns"], f["referred_table"], f["referred_columns"])
                for f in found.get_foreign_keys(table)
            ),
            "indexes": {str(i["name"]): _index(dict(i)) for i in found.get_indexes(table)},
        }
        for table in found.get_table_names()
    }


def _column(column: Any) -> tuple[str, bool, object]:
    return str(column["type"]), bool(column["nullable"]), column["default"]


def _index(index: dict[str, Any]) -> tuple[list[str], bool, str | None]:
    options = index.get("dialect_options", {})
    where = options.get("sqlite_where", options.get("postgresql_where"))
    shown = str(where).replace("(", "").replace(")", "") if where is not None else None
    return index["column_names"], bool(index["unique"]), shown


def test_chained_migrations_are_the_schema(catalog_url: str) -> None:
    database = Database(catalog_url)
    for number in range(1, NEWEST + 1):
        migrate(database, to=number)
    engine = create_engine(database.url)
    with engine.begin() as connection:
        migrated = _shape(connection)
        metadata.drop_all(connection)
    for index in [one for table in metadata.tables.values() for one in table.indexes]:
        # Declared for SQLite alone: naming PostgreSQL would load its dialect in every command.
        index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
    with engine.begin() as connection:
        metadata.create_all(connection)
        declared = _shape(connection)
        metadata.drop_all(connection)
    engine.dispose()
    database.close()
    assert migrated.keys() == declared.keys()
    for table in declared:
        assert migrated[table] == declared[table], table
    partial = [i for t in migrated.values() for i in t["indexes"].values() if i[2]]
    assert len(partial) >= 4


def test_many_who_create_one_catalog_at_once_make_it_once(catalog_url: str) -> None:
    def create(_: int) -> None:
        database = Database(catalog_url)
        ensure_schema(database, create=True)
        database.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(create, range(6)))
    database = Database(catalog_url)
    rows = "SELECT count(*) FROM log_counter"
    assert database.read(lambda c: c.execute(text(rows)).scalar_one()) == 1
    assert database.read(find_version) == NEWEST
    database.close()


def test_newer_store_is_refused_and_left_alone(catalog_url: str, tmp_path: Path) -> None:
    settings = new_settings(catalog_url, tmp_path)
    with Store(settings) as store:
        put(files_branch(store), a="1")
        _set_version(Database(catalog_url), NEWEST + 1)
        before = everything(store)
        for attempt in (lambda: Store(settings), lambda: migrate(store.database)):
            with pytest.raises(StoreTooNew) as refused:
                attempt()
            assert refused.value.facts == {"found": NEWEST + 1, "known": NEWEST}
        assert everything(store) == before


@pytest.mark.parametrize("change", [1, -1])
def test_store_that_another_release_migrated_is_read_and_no_longer_written(
    catalog_url: str, tmp_path: Path, change: int
) -> None:
    with Store(new_settings(catalog_url, tmp_path)) as store:
        branch = files_branch(store)
        put(branch, a="1")
        _set_version(Database(catalog_url), NEWEST + change)
        before = everything(store)
        with pytest.raises(StoreTooNew if change > 0 else StoreTooOld) as refused:
            put(branch, a="2")
        assert refused.value.facts == {"found": NEWEST + change, "known": NEWEST}
        assert branch.read("a") == b"1"
        assert everything(store) == before


def test_older_store_is_migrated_on_sqlite_and_refused_on_postgresql(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = new_settings(catalog_url, tmp_path)
    with Store(settings) as store:
        put(files_branch(store), a="1")
    _add_a_migration(monkeypatch, tmp_path)
    if settings.catalog.startswith("postgresql"):
        with pytest.raises(StoreTooOld):
            Store(settings)
        database = Database(catalog_url)
        assert migrate(database, to=NEWEST + 1) == (NEWEST, NEWEST + 1)
        database.close()
    with Store(settings) as store:
        assert store.database.read(find_version) == NEWEST + 1
        assert store.dataset("raw.scans").branch("master").read("a") == b"1"
    copies = list(tmp_path.glob("catalog.db.before-v*"))
    assert len(copies) == (1 if settings.catalog.startswith("sqlite") else 0)
    for copy in copies:
        kept = Database(f"sqlite:///{copy}")
        assert kept.read(find_version) == NEWEST
        kept.close()


def _migrate_further(url: str, folder: str, is_held: bool) -> None:
    """Migrate as a later release; signal the last statement, and then wait if `is_held`."""
    with closing_database(url) as database:

        def apply(connection: Connection) -> None:
            migrations.MIGRATIONS = Path(folder) / "migrations"
            migrations._apply(connection, NEWEST + 1)
            (Path(folder) / "applied").touch()
            if is_held:
                wait_for(lambda: (Path(folder) / "go").exists())

        database.write(apply)


def test_migration_by_another_process_waits_for_a_write_that_was_not_refused(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_store(catalog_url, tmp_path) as store, ThreadPoolExecutor(1) as pool:
        _add_a_migration(monkeypatch, tmp_path)
        began, go = threading.Event(), threading.Event()

        def work(_: Connection) -> bool:
            began.set()
            return go.wait(60)

        writing = pool.submit(store.database.write, work)
        assert began.wait(60)
        migrating = processes.start(_migrate_further, catalog_url, str(tmp_path), False)
        migrating.join(3)
        assert migrating.is_alive() and not (tmp_path / "applied").exists()
        go.set()
        assert writing.result(60)
        assert processes.finish(migrating) == 0
        with pytest.raises(StoreTooNew):
            store.database.write(work)


def test_write_during_a_migration_by_another_process_is_refused_once_it_ends(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_store(catalog_url, tmp_path) as store, ThreadPoolExecutor(1) as pool:
        _add_a_migration(monkeypatch, tmp_path)
        migrating = processes.start(_migrate_further, catalog_url, str(tmp_path), True)
        wait_for(lambda: (tmp_path / "applied").exists())
        writing = pool.submit(store.database.write, lambda _: "written")
        is_early = bool(wait([writing], 1).done)
        (tmp_path / "go").touch()
        assert processes.finish(migrating) == 0
        with pytest.raises(StoreTooNew):
            writing.result(60)
        assert not is_early


def test_failed_migration_changes_nothing(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        before = everything(store)
        _add_a_migration(monkeypatch, tmp_path, "CREATE TABLE more (id TEXT)", "CREATE NONSENSE")
        with pytest.raises(Unavailable):
            migrate(store.database, to=NEWEST + 1)
        assert everything(store) == before
        names = store.database.read(lambda c: inspect(c).get_table_names())
        assert "more" not in names


def test_database_with_somebody_elses_tables_is_refused(catalog_url: str) -> None:
    database = Database(catalog_url)
    database.write(lambda c: c.execute(text("CREATE TABLE invoices (id TEXT)")))
    with pytest.raises(CatalogBroken, match="not Headgate's"):
        ensure_schema(database, create=True)
    database.close()


def test_empty_database_is_refused_unless_it_is_to_be_created(catalog_url: str) -> None:
    database = Database(catalog_url)
    with pytest.raises(CatalogBroken, match="empty"):
        ensure_schema(database)
    database.close()


def _set_version(database: Database, version: int) -> None:
    statement = text("UPDATE store SET value = :v WHERE \"key\" = 'schema_version'")
    database.write(lambda c: c.execute(statement, {"v": str(version)}))
    database.close()


def _add_a_migration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *statements: str) -> None:
    """Add one more migration, as in a later release."""
    added = statements or ("CREATE TABLE more (id TEXT)",)
    copied = tmp_path / "migrations"
    shutil.copytree(migrations.MIGRATIONS, copied)
    (copied / f"{NEWEST + 1:04}_more.sql").write_text("".join(f"{s};\n" for s in added))
    monkeypatch.setattr(migrations, "MIGRATIONS", copied)
    monkeypatch.setattr(migrations, "NEWEST", NEWEST + 1)
