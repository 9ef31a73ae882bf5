"""Cleanup of files that Spark writes and leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.catalog.branches import protect_branch
from headgate.errors import StorageUnavailable
from headgate.spark.session import LocalSpark
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from headgate.tables.referenced_files import ManifestRef, get_below, open_manifests
from headgate.upkeep.doctor import examine
from tests.support.spark import bind
from tests.support.stores import new_store
from tests.support.upkeep import let_days_pass, stored_keys, tidy_twice

pytestmark = pytest.mark.xdist_group("spark")
Sql = Callable[[str], list[tuple[Any, ...]]]
MERGE_ON_READ = "'write.delete.mode'='merge-on-read', 'format-version'"


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_sqlite_url, tmp_path) as store:
        yield store


@contextmanager
def connected(store: Store, local_spark: LocalSpark) -> Iterator[Sql]:
    """Yield Spark SQL on master, through an endpoint with empty caches."""
    endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules)
    token = endpoint.tokens.issue("ana")
    session = bind(local_spark.session, uri=endpoint.url, context="master", token=token)
    yield lambda text: [tuple(row) for row in session.sql(text).collect()]
    endpoint.stop()


@pytest.fixture
def sql(store: Store, local_spark: LocalSpark) -> Iterator[Sql]:
    with connected(store, local_spark) as sql:
        yield sql


def write_much(sql: Sql) -> None:
    """Write both kinds of delete files, statistics, and a history that no view needs."""
    sql("create namespace db")
    for version in (2, 3):
        name = f"db.t{version}"
        made = f"create table {name} tblproperties ({MERGE_ON_READ}='{version}')"
        sql(f"{made} as select id, id % 2 as part from range(10)")
        sql(f"insert overwrite {name} select id, id % 3 as part from range(20)")
        sql(f"delete from {name} where id in (3, 4)")
        sql(f"call headgate.system.compute_table_stats('{name}')")


def leave_behind(store: Store, sql: Sql) -> set[str]:
    """Run a CREATE TABLE AS SELECT whose commit is rejected; return its files."""
    before = stored_keys(store)
    protect_branch(store.database, "master", actor="ana")
    with pytest.raises(Exception, match="protected"):
        sql("create table db.refused as select 1L as id")
    return stored_keys(store) - before


def test_tables_that_spark_wrote_are_whole_after_cleanup_and_its_leavings_gone(
    store: Store, sql: Sql, local_spark: LocalSpark
) -> None:
    write_much(sql)
    left = leave_behind(store, sql)
    assert any(key.endswith(".parquet") for key in left)
    let_days_pass(store, 40)
    cleaned = tidy_twice(store)
    kinds = {"data file", "delete file", "statistics file", "manifest", "manifest list"}
    assert kinds - {"delete file", "statistics file"} <= {item.what for item in cleaned.items}
    assert kinds <= {kept.what for kept in cleaned.kept}
    assert not left & stored_keys(store)
    with connected(store, local_spark) as later:
        for version in (2, 3):
            assert later(f"select count(*), sum(id) from db.t{version}") == [(18, 190 - 7)]
            files = later(f"select file_path from db.t{version}.all_files")
            assert len(set(files)) == len(later(f"select * from db.t{version}.files"))
    # Not deep: letting days pass has rewritten metadata files.
    assert examine(store.settings).ok


def test_manifest_of_another_size_is_named(store: Store, sql: Sql) -> None:
    sql("create namespace db")
    sql("create table db.t as select 1L as id")
    key = next(k for k in sorted(stored_keys(store)) if k.endswith("-m0.avro") and "/." not in k)
    reader = open_manifests(partial(get_below, store.objects))
    manifest = ManifestRef(path=f"{store.objects.url}/{key}", length=7, files=1)
    with pytest.raises(StorageUnavailable, match="bytes instead of 7"):
        reader.paths(manifest)
