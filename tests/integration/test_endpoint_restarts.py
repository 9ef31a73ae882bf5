"""Replacing commits of clients that loaded the table from another server, or before a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from headgate.iceberg.app import IcebergApp
from headgate.iceberg.service import ServedVersions
from tests.support.iceberg import Front, RestClient, Served, at, create, load, refusal, send
from tests.support.metadata import commit

_DROP_MAIN = {"action": "remove-snapshot-ref", "ref-name": "main"}
_STALE = (409, "stale_replacement")
# As Iceberg's Java library sends it: Spark, Trino and Flink.
_JAVA = "Apache Iceberg 1.12.0 (commit 0000000000000000000000000000000000000000)"


class Servers:
    """Servers of one store behind one address; one of them answers."""

    def __init__(self, served: Served, front: Front) -> None:
        self._front = front
        self._service = served.service
        self.first = served.app

    def new(self) -> IcebergApp:
        """Return another server of the store, or this one after a restart."""
        return IcebergApp(replace(self._service, served=ServedVersions()))

    def use(self, app: IcebergApp) -> None:
        self._front.app = app


@pytest.fixture
def servers(served: Served, front: Front) -> Servers:
    return Servers(served, front)


@pytest.fixture(params=[_JAVA, ""], ids=["java", "unnamed"])
def spark(
    client: RestClient, served: Served, request: pytest.FixtureRequest
) -> Iterator[RestClient]:
    """A client that loads as Spark does, with a table of one snapshot."""
    create(client)
    send(client, *commit(1)).raise_for_status()
    with served.client() as made:
        made.http.headers["x-client-version"] = request.param
        made.configure()
        yield made


def insert_overwrite(client: RestClient, id: int, parent: int) -> Any:
    """Commit as a static `INSERT OVERWRITE` does: it refreshes its base just before."""
    load(client, query="")
    summary = {"deleted-data-files": "1"}
    made = commit(id, parent=parent, op="overwrite", summary=summary)
    return send(client, *made, requirements=[at(parent)])


def replace_table(client: RestClient) -> Any:
    """Commit as `REPLACE TABLE` does: nothing is required of the rows."""
    load(client, query="")
    return send(client, _DROP_MAIN)


def append_by_another(served: Served, id: int, parent: int) -> None:
    with served.client() as other:
        send(other, *commit(id, parent=parent), requirements=[at(parent)]).raise_for_status()


def test_overwrite_that_was_planned_before_a_restart_is_409_however_often_it_is_sent(
    spark: RestClient, served: Served, servers: Servers
) -> None:
    load(spark)
    append_by_another(served, 2, parent=1)
    servers.use(servers.new())
    before = served.publications
    for _ in range(5):
        assert refusal(insert_overwrite(spark, 3, parent=2)) == _STALE
    assert served.publications == before
    load(spark)
    assert insert_overwrite(spark, 4, parent=2).status_code == 200


def test_replacement_that_was_planned_before_a_restart_is_409_until_it_is_planned_again(
    spark: RestClient, served: Served, servers: Servers
) -> None:
    load(spark)
    append_by_another(served, 2, parent=1)
    servers.use(servers.new())
    for _ in range(2):
        response = replace_table(spark)
        assert refusal(response) == _STALE
        assert "was not read from this server" in response.json()["error"]["message"]
    load(spark)
    assert replace_table(spark).status_code == 200


@pytest.mark.parametrize("replaces", [insert_overwrite, replace_table])
def test_replacement_that_was_planned_at_another_server_is_409(
    spark: RestClient, served: Served, servers: Servers, replaces: Any
) -> None:
    load(spark)
    append_by_another(served, 2, parent=1)
    servers.use(servers.new())
    arguments = () if replaces is replace_table else (3, 2)
    for _ in range(2):
        assert refusal(replaces(spark, *arguments)) == _STALE
    # The one that planned it compares what it sent.
    servers.use(servers.first)
    assert refusal(replaces(spark, *arguments)) == _STALE
    load(spark)
    arguments = () if replaces is replace_table else (4, 2)
    assert replaces(spark, *arguments).status_code == 200


def test_own_append_after_a_restart_proves_no_later_refresh(
    spark: RestClient, served: Served, servers: Servers
) -> None:
    load(spark)
    servers.use(servers.new())
    send(spark, *commit(2, parent=1), requirements=[at(1)]).raise_for_status()
    append_by_another(served, 3, parent=2)
    assert refusal(insert_overwrite(spark, 4, parent=3)) == _STALE


def test_append_and_row_delete_that_were_planned_before_a_restart_are_taken(
    spark: RestClient, servers: Servers
) -> None:
    load(spark)
    servers.use(servers.new())
    assert send(spark, *commit(2, parent=1), requirements=[at(1)]).status_code == 200
    made = commit(3, parent=2, op="delete")
    assert send(spark, *made, requirements=[at(2)]).status_code == 200


def test_refresh_at_the_server_that_configured_a_java_client_is_no_read(
    client: RestClient, served: Served, servers: Servers
) -> None:
    create(client)
    send(client, *commit(1)).raise_for_status()
    with served.client() as spark:
        spark.http.headers["x-client-version"] = _JAVA
        spark.configure()
        servers.use(servers.new())
        load(spark)
        append_by_another(served, 2, parent=1)
        servers.use(servers.first)
        assert refusal(insert_overwrite(spark, 3, parent=2)) == _STALE


def test_client_that_marks_no_loads_replaces_what_it_read(
    client: RestClient, served: Served
) -> None:
    create(client)
    send(client, *commit(1)).raise_for_status()
    with served.client() as plain:
        load(plain, query="")
        append_by_another(served, 2, parent=1)
        assert refusal(send(plain, _DROP_MAIN)) == _STALE
        load(plain, query="")
        assert send(plain, _DROP_MAIN).status_code == 200


def test_pyiceberg_overwrites_after_a_restart_once_it_has_read_again(
    client: RestClient, served: Served, servers: Servers
) -> None:
    catalog = RestCatalog("headgate", uri=served.url, warehouse="master", token=served.token)
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    catalog.create_table("db.p", rows.schema).append(rows)
    servers.use(servers.new())
    catalog.load_table("db.p").overwrite(rows.slice(1), overwrite_filter="id = 1")
    found = catalog.load_table("db.p").scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == [2, 2]
