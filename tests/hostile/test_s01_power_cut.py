"""S01: an acknowledged write is readable after a power cut at the acknowledgement."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from headgate.model.access import Role
from headgate.settings import Settings
from headgate.spark.session import LocalSpark
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.storage.local import LocalStore
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.catalogs import make_catalog
from tests.support.duckdb_engine import attached
from tests.support.engine_packages import DUCKDB
from tests.support.engines import Engines
from tests.support.iceberg import Front
from tests.support.power_cut import Disk
from tests.support.rows import GRAPH, PERSON, apply_text, insert_people, made_settings, rows_of

# The rows of the graph, and the files of the files dataset, by branch.
Shown = dict[str, Any]
SCANS = "raw.scans"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a disk that can lose power."""
    made = Disk(tmp_path)
    try:
        made.mount()
        yield made
    finally:
        made.unmount()


@dataclass(frozen=True)
class World:
    """A store on the disk, with an endpoint for engines."""

    disk: Disk
    catalog: str
    store: Store
    endpoint: EmbeddedEndpoint

    def client(self) -> RestCatalog:
        token = self.endpoint.issue("ana")
        return RestCatalog("headgate", uri=self.endpoint.url, warehouse="master", token=token)

    def shown(self) -> Shown:
        return _shown(self.store)


def _settings(catalog: str, root: Path) -> Settings:
    """Return settings of a store whose tables may also lie beside the warehouse."""
    return replace(made_settings(catalog, root), allowed_locations=(f"{root}/lake",))


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, disk: Disk) -> Iterator[World]:
    """Open a store with three people and one file; SQLite's catalog is on the same disk."""
    if request.param == "sqlite":
        catalog = f"sqlite:///{disk.root}/catalog.db"
    else:
        catalog = request.getfixturevalue("postgres_url")
    settings = _settings(catalog, disk.root)
    make_catalog(catalog)
    with Store(settings) as store:
        apply_text(store, GRAPH)
        store.mutate("master", insert_people("a", "b", "c"))
        store.dataset(SCANS).create(kind="files")
        _put_file(store, "first", b"1")
        # The cut follows what one write left to be flushed, not what came before it.
        disk.flush()
        endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules)
        try:
            yield World(disk, catalog, store, endpoint)
        finally:
            endpoint.stop()


def _mutate(world: World) -> None:
    world.store.mutate("master", "update graph.person set name = 'X' where id = 'a'")


def _load(world: World) -> None:
    world.store.load("master", {PERSON: [{"id": "d", "name": "D"}]}, mode="merge")


def _merge(world: World) -> None:
    world.store.dataset(PERSON).branch("side").create(parent="master")
    world.store.mutate("side", insert_people("e"))
    world.disk.flush()
    world.store.mutate("master", insert_people("f"))
    world.store.merge("side", into="master")


def _optimize(world: World) -> None:
    for id in "ghij":
        world.store.mutate("master", insert_people(id))
    world.disk.flush()
    done = world.store.rows.optimize(PERSON, branch="master", keep_snapshots=1)
    assert done.to_json()["publication"] is not None


def _put(world: World) -> None:
    _put_file(world.store, "a/second", b"2" * 100_000)


def _append_by_pyiceberg(world: World) -> None:
    rows = pa.table(
        {"id": ["p"], "name": ["P"], "age": pa.array([1], pa.int32())},
        schema=world.client().load_table(PERSON).schema().as_arrow(),
    )
    world.client().load_table(PERSON).append(rows)


def _create_by_pyiceberg(world: World) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    with world.client().create_table_transaction("graph.made", rows.schema) as transaction:
        transaction.append(rows)


def _create_outside(world: World) -> None:
    """Create a table beside the warehouse, in new directories, and append to it by PyIceberg."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    place = f"file://{world.disk.root}/lake/new/table"
    made = world.client().create_table("graph.outside", rows.schema, location=place)
    made.append(rows)
    assert list((world.disk.root / "lake/new/table/data").iterdir())


_VECTORS = "('format-version' = 3, 'write.delete.mode' = 'merge-on-read')"
WRITES: list[Callable[[World], None]] = [
    _mutate,
    _load,
    _merge,
    _optimize,
    _put,
    _append_by_pyiceberg,
    _create_by_pyiceberg,
    _create_outside,
]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
def test_s01_acknowledged_write_is_readable_after_a_power_cut(
    world: World, write: Callable[[World], None]
) -> None:
    _check(world, lambda: write(world))


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "statements",
    [
        ["insert into graph.person values ('s', 'S', 1), ('t', 'T', 2)"],
        [
            "create table graph.made (id bigint, part string) using iceberg partitioned by (part)",
            "insert into graph.made select id, string(id % 7) from range(50)",
        ],
        [
            f"create table graph.made tblproperties {_VECTORS} as select id from range(9)",
            "delete from graph.made where id = 4",
        ],
        ["call headgate.system.compute_table_stats('graph.person')"],
    ],
    ids=["insert", "partitions", "deletion-vectors", "statistics"],
)
def test_s01_acknowledged_statement_of_spark_is_readable_after_a_power_cut(
    world: World, local_spark: LocalSpark, statements: list[str]
) -> None:
    engines = Engines(world.store, world.endpoint, local_spark, world.disk.root)
    session = engines.session("master")

    def run() -> None:
        for statement in statements:
            session.sql(statement)

    _check(world, run)
    if "compute_table_stats" in statements[0]:
        assert list(world.disk.root.rglob("*.stats"))


def test_s01_acknowledged_statement_of_duckdb_is_readable_after_a_power_cut(
    world: World, front: Front
) -> None:
    packages, api = DUCKDB.require(), Api(world.store, front)
    token = api.token("ana", Role.WRITER)
    with attached(packages, url=api.url, token=token, context="master") as duck:
        duck("CREATE TABLE lake.graph.made AS SELECT range AS id FROM range(50)")
        duck("DELETE FROM lake.graph.made WHERE id = 4")
        world.disk.cut()
    api.close()
    # The server's connection to the catalog ends with it.
    front.app = None
    del api
    gc.collect()
    _check_restored(world)


@pytest.mark.parametrize("write", [_mutate, _append_by_pyiceberg, _create_outside])
def test_s01_write_that_is_not_flushed_is_lost_by_the_cut(
    world: World, write: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases above can fail: without the flush of new files, this disk loses rows."""
    monkeypatch.setattr(LocalStore, "sync", lambda store, keys: None)
    with pytest.raises((AssertionError, OSError, ValueError)):
        _check(world, lambda: write(world))


def _check(world: World, write: Callable[[], None]) -> None:
    """Write, cut the power at the acknowledgement, and compare what the restored store shows."""
    write()
    world.disk.cut()
    _check_restored(world)


def _check_restored(world: World) -> None:
    before = world.shown()
    world.endpoint.stop()
    world.store.close()
    world.disk.restore()
    with Store(_settings(world.catalog, world.disk.root)) as store:
        report = store.examine(deep=True)
        assert report["ok"], report
        assert _shown(store) == before


def _put_file(store: Store, path: str, content: bytes) -> None:
    source = store.settings.root / "source"
    source.write_bytes(content)
    store.dataset(SCANS).branch("master").put(source, path)


def _shown(store: Store) -> Shown:
    tables = {
        (str(dataset.name), branch.name): rows_of(store, str(dataset.name), branch.name)
        for dataset in store.datasets()
        if dataset.kind == "table"
        for branch in store.dataset(str(dataset.name)).branches()
    }
    files = store.dataset(SCANS).branch("master")
    return {
        "tables": tables,
        "files": {entry.path: files.read(entry.path) for entry in files.files()},
        # No row needs them, and doctor reads their footers alone.
        "statistics": {
            path.name: path.read_bytes() for path in store.settings.root.rglob("*.stats")
        },
    }
