"""E06: many appenders on one table, by two engines and through two servers, lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import headgate
from headgate.cli.init import settings_text
from headgate.spark.session import LocalSpark
from tests.support.iceberg import Front, Served
from tests.support.serving import serving
from tests.support.spark import bind
from tests.support.stores import new_settings

pytestmark = pytest.mark.xdist_group("spark")

_EACH = 16
_TABLE = (
    "create table db.t (id bigint) using iceberg tblproperties ("
    "'commit.retry.num-retries' = '0', 'format-version' = '{}')"
)


@pytest.fixture
def servers(
    made_catalog_url: str, tmp_path: Path, front: Front
) -> Iterator[tuple[Served, tuple[str, str]]]:
    """An endpoint in this process and a server in another, on one store."""
    new_settings(made_catalog_url, tmp_path)
    text = settings_text(catalog=made_catalog_url, warehouse="warehouse", branch="master")
    (tmp_path / "headgate.toml").write_text(text)
    with serving(tmp_path) as (url, token, _), headgate.open(tmp_path, actor="ana") as store:
        assert isinstance(store, headgate.Store)
        yield Served(store, front), (url, token)


def at_once(acts: list[Callable[[], Any]]) -> None:
    """Call all functions at the same moment; raise the first error."""
    together = Barrier(len(acts))

    def run(act: Callable[[], Any]) -> None:
        together.wait()
        act()

    with ThreadPoolExecutor(len(acts)) as pool:
        list(pool.map(run, acts))


def test_e06_thirty_two_appenders_of_two_engines_and_servers_lose_no_row(
    servers: tuple[Served, tuple[str, str]], local_spark: LocalSpark
) -> None:
    served, (url, token) = servers
    spark = bind(local_spark.session, uri=served.url, context="master", token=served.token)
    spark.sql("create namespace db")
    spark.sql(_TABLE.format(2))
    remote = bind(local_spark.session, uri=url, context="master", token=token)

    def client(number: int) -> Any:
        uri, bearer = ((served.url, served.token), (url, token))[number % 2]
        return RestCatalog("headgate", uri=uri, warehouse="master", token=bearer).load_table("db.t")

    tables = [client(number) for number in range(_EACH)]
    by_spark = [
        partial((spark, remote)[id % 2].sql, f"insert into db.t values ({id})")
        for id in range(_EACH)
    ]
    by_arrow = [
        partial(table.append, pa.table({"id": pa.array([id], pa.int64())}))
        for id, table in enumerate(tables, start=_EACH)
    ]
    at_once([*by_spark, *by_arrow])
    found = [row.id for row in spark.sql("select id from db.t order by id").collect()]
    assert found == list(range(2 * _EACH))
    assert served.publications == 1 + 2 * _EACH
    total = client(0).current_snapshot().summary["total-records"]
    assert total == str(2 * _EACH)


def test_e06_rows_that_sessions_append_at_once_have_ids_of_their_own_in_version_3(
    servers: tuple[Served, tuple[str, str]], local_spark: LocalSpark
) -> None:
    served, _ = servers
    sessions = [
        bind(local_spark.session, uri=served.url, context="master", token=served.token)
        for _ in range(4)
    ]
    sessions[0].sql("create namespace db")
    sessions[0].sql(_TABLE.format(3))
    at_once(
        [
            partial(sessions[id % 4].sql, f"insert into db.t values ({id}), ({100 + id})")
            for id in range(8)
        ]
    )
    rows = sessions[0].sql("select id, _row_id, _last_updated_sequence_number as at from db.t")
    found = rows.collect()
    assert sorted(row.id for row in found) == [*range(8), *range(100, 108)]
    assert sorted(row._row_id for row in found) == list(range(16))
    assert {row.at for row in found} == set(range(1, 9))
