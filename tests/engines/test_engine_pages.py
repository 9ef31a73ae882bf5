"""Engines set up by the code of their pages: on a branch, a chain of branches and a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from headgate.model.access import Role
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.duckdb_engine import attached
from tests.support.engine_packages import DUCKDB, FRAMES, blocks_of_page
from tests.support.iceberg import Front
from tests.support.rows import ids_of
from tests.support.s3 import SIGNING, VENDED, S3Server, delegating_settings, running_s3

_CONTEXT, _TOKEN_LINE = '"trial>master"', '    token=os.environ["HEADGATE_TOKEN"],\n'
_HEADER = f'    **{{"header.X-Iceberg-Access-Delegation": "{VENDED}"}},\n'
# How each library returns the ids of the table that its page calls `orders`.
_IDS = {
    "pyiceberg": 'orders["id"].to_pylist()',
    "polars": 'orders["id"].to_list()',
    "daft": 'orders.to_pydict()["id"]',
}


def _run(engine: str, api: Api, code: str) -> list[int]:
    given = {"HEADGATE_URL": api.url, "HEADGATE_TOKEN": api.token("ana", Role.WRITER)}
    if engine != "pyiceberg":
        given["PYTHONPATH"] = str(FRAMES.require())
    return _ids(f"{code}\nids = {_IDS[engine]}", given)


def _ids(program: str, given: Mapping[str, str]) -> list[int]:
    """Return the `ids` of a program, in a process with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json\nprint('IDS', json.dumps(sorted(ids)))"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("IDS ")]
    found: list[int] = json.loads(line.removeprefix("IDS "))
    return found


def _page(engine: str, context: str, *, mode: str | None = None) -> str:
    """Return the code of a page that reads, on this context in place of the page's."""
    code = blocks_of_page(engine, "python")[0]
    assert code.count(_CONTEXT) == 1 and code.count(_TOKEN_LINE) == 1
    if mode is not None:
        code = code.replace(_TOKEN_LINE, _TOKEN_LINE + _HEADER)
    return code.replace(_CONTEXT, json.dumps(context))


def _append(api: Api, context: str, id: int, **properties: str) -> int:
    """Append a row, creating the table if necessary, and return the number of the publication."""
    token = api.token("ana", Role.WRITER)
    catalog = RestCatalog(
        "headgate", uri=f"{api.url}/iceberg", warehouse=context, token=token, **properties
    )
    rows = pa.table({"id": pa.array([id], pa.int64())})
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table_if_not_exists("shop.orders", rows.schema).append(rows)
    return int(api.admin.get("/log")[0]["publication"])


@pytest.mark.parametrize("engine", _IDS)
def test_engine_reads_a_branch_its_fallback_and_a_moment(engine: str, api: Api) -> None:
    first = _append(api, "master", 1)
    contexts = ("trial>master", "master", f"master@{first}")
    assert [_run(engine, api, _page(engine, one)) for one in contexts] == [[1]] * 3
    _append(api, "trial>master", 2)
    _append(api, "master", 3)
    found = [_run(engine, api, _page(engine, one)) for one in contexts]
    assert found == [[1, 2], [1, 3], [1]]


# How each library appends what its page read to the table.
_APPENDS = {
    "pyiceberg": 'catalog.load_table("shop.orders").append(orders)',
    "polars": 'orders.write_iceberg(table, mode="append")',
    "daft": 'orders.write_iceberg(catalog.load_table("shop.orders"))',
}


@pytest.mark.parametrize("engine", _IDS)
def test_engine_appends_to_a_branch_and_in_a_unit_and_not_at_a_moment(
    engine: str, small_api: Api
) -> None:
    first = _append(small_api, "master", 1)
    appends = f"\n{_APPENDS[engine]}"
    _run(engine, small_api, _page(engine, "trial>master") + appends)
    with small_api.store.transaction(branch="trial") as unit:
        _run(engine, small_api, _page(engine, unit.context) + appends)
        assert _run(engine, small_api, _page(engine, unit.context)) == [1, 1, 1, 1]
        assert _run(engine, small_api, _page(engine, "trial>master")) == [1, 1]
    assert ids_of(small_api.store, "shop.orders", "trial") == [1, 1, 1, 1]
    with pytest.raises(AssertionError, match="is a moment in the past and can only be read"):
        _run(engine, small_api, _page(engine, f"master@{first}") + appends)
    assert ids_of(small_api.store, "shop.orders") == [1]


def test_page_on_pyiceberg_followed_to_the_letter_writes_to_its_branch(api: Api) -> None:
    _append(api, "master", 1)
    _append(api, "trial>master", 2)
    _run("pyiceberg", api, "\n".join(blocks_of_page("pyiceberg", "python")))
    assert len(_run("pyiceberg", api, _page("pyiceberg", "trial>master"))) == 3
    assert _run("pyiceberg", api, _page("pyiceberg", "master")) == [1]


# Without a key for the bucket


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3"), "enforce") as running:
        yield running


@pytest.fixture
def keyless(
    request: pytest.FixtureRequest,
    made_sqlite_url: str,
    tmp_path: Path,
    front: Front,
    server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Api]:
    """A server of a store in a bucket, to which the engines have no key of their own.

    A parameter is the only way of access that the store offers.
    """
    for name in server.options:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    settings = delegating_settings(made_sqlite_url, tmp_path, server)
    if only := getattr(request, "param", None):
        settings = replace(settings, access_delegation=(only,))
    with Store(settings) as store:
        served = Api(store, front)
        yield served
        served.close()


def _append_to_bucket(api: Api) -> None:
    for context, id in (("master", 1), ("trial>master", 2)):
        _append(api, context, id, **{"header.X-Iceberg-Access-Delegation": VENDED})


@pytest.mark.parametrize("engine", _IDS)
def test_engine_reads_a_bucket_by_vended_credentials(engine: str, keyless: Api) -> None:
    _append_to_bucket(keyless)
    assert _run(engine, keyless, _page(engine, "trial>master", mode=VENDED)) == [1, 2]


def test_duckdb_writes_to_a_bucket_by_vended_credentials(keyless: Api) -> None:
    _append_to_bucket(keyless)
    token = keyless.token("ana", Role.WRITER)
    with attached(
        DUCKDB.require(), url=keyless.url, token=token, mode="vended_credentials"
    ) as duck:
        duck("INSERT INTO lake.shop.orders VALUES (3)")
        assert duck("SELECT id FROM lake.shop.orders ORDER BY id") == [[1], [2], [3]]


_SPARK = """
import headgate

with headgate.open() as hg:
    spark = hg.spark("trial>master")
    spark.sql("create namespace shop")
    spark.sql("create table shop.orders as select 1L as id")
    spark.sql("insert into shop.orders values (2), (3)")
    spark.sql("delete from shop.orders where id = 2")
    ids = [row["id"] for row in spark.table("shop.orders").collect()]
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("keyless", [VENDED, SIGNING], indirect=True)
def test_spark_of_a_served_store_writes_to_a_bucket_without_a_key(
    keyless: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "client").mkdir()
    monkeypatch.chdir(tmp_path / "client")
    given = {"HEADGATE_URL": keyless.url, "HEADGATE_TOKEN": keyless.token("ana", Role.WRITER)}
    assert _ids(_SPARK, given) == [1, 3]
