"""Spark, when the response to an applied commit is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from headgate.spark.session import LocalSpark
from tests.support.iceberg import Front, Served
from tests.support.proxy import Cut, Proxy, proxy_before
from tests.support.spark import bind
from tests.support.stores import new_store

pytestmark = pytest.mark.xdist_group("spark")

Sql = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def served(made_sqlite_url: str, tmp_path: Path, front: Front) -> Iterator[Served]:
    with new_store(made_sqlite_url, tmp_path) as store:
        yield Served(store, front)


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    def is_commit(data: bytes) -> bool:
        return data.startswith(b"POST ") and b"/tables/" in data.partition(b"\r\n")[0]

    with proxy_before(urlsplit(served.url).port or 0, is_commit) as made:
        yield made


@pytest.fixture
def session(local_spark: LocalSpark, served: Served, proxy: Proxy) -> Callable[[], Sql]:
    """Factory of sessions on master whose requests all go through the proxy."""

    def make() -> Sql:
        url = f"http://127.0.0.1:{proxy.port}"
        spark = bind(local_spark.session, uri=url, context="master", token=served.token)
        return lambda text: [tuple(row) for row in spark.sql(text).collect()]

    make()("create namespace db")
    return make


class Keyless:
    """The same application, without the announcement of idempotency keys."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        is_config = scope["path"].endswith("/v1/config")
        await self._app(scope, receive, hold if is_config else send)
        if is_config:
            start, body = held
            told = orjson.loads(body["body"])
            told.pop("idempotency-key-lifetime", None)
            content = orjson.dumps(told)
            headers = [(k, v) for k, v in start["headers"] if k != b"content-length"]
            length = (b"content-length", str(len(content)).encode())
            await send({**start, "headers": [*headers, length]})
            await send({**body, "body": content})


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("insert into db.t values (2)", [(1,), (2,)]),
        ("update db.t set id = 5", [(5,)]),
        ("create or replace table db.t as select 7L as id", [(7,)]),
    ],
)
def test_statement_whose_commit_got_no_reply_succeeds_and_is_applied_once(
    session: Callable[[], Sql], served: Served, proxy: Proxy, statement: str, rows: list[Any]
) -> None:
    sql = session()
    sql("create table db.t as select 1L as id")
    before, proxy.cut = served.publications, Cut.AFTER
    sql(statement)
    assert proxy.cut is Cut.NEVER, "no reply was lost"
    assert served.publications == before + 1
    assert session()("select id from db.t order by id") == rows


def test_statement_without_a_key_leaves_its_rows_once_and_their_files_whole(
    session: Callable[[], Sql], served: Served, proxy: Proxy, front: Front
) -> None:
    front.app = Keyless(served.app)
    sql = session()
    sql("create table db.t as select 1L as id")
    before, proxy.cut = served.publications, Cut.AFTER
    # Spark raises an error if it cannot find out whether the commit landed.
    with suppress(Exception):
        sql("insert into db.t values (2)")
    assert proxy.cut is Cut.NEVER, "no reply was lost"
    assert served.publications == before + 1
    assert session()("select id from db.t order by id") == [(1,), (2,)]
