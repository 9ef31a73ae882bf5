"""Local Spark on the Java runtime of a wheel: quiet, with a catalog for each session."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headgate.errors import InvalidStatement, StatementFailed, UnknownInStatement
from headgate.spark.session import LocalSpark, bind_catalog, iceberg_catalog_conf
from headgate.spark.sql import run_sql
from tests.support.spark import bind

pytestmark = pytest.mark.xdist_group("spark")


def hadoop_catalog(warehouse: Path) -> dict[str, str]:
    return iceberg_catalog_conf({"type": "hadoop", "warehouse": str(warehouse)})


def test_sessions_bound_to_two_warehouses_see_their_own_tables(
    local_spark: LocalSpark, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = bind_catalog(local_spark.session, hadoop_catalog(tmp_path / "one"))
    two = bind_catalog(local_spark.session, hadoop_catalog(tmp_path / "two"))
    one.sql("create table sales.orders using iceberg as select 1 as id")
    two.sql("create table sales.orders using iceberg as select 2 as id")
    assert run_sql(one, "select id, current_catalog() as c from sales.orders").rows == [
        {"id": 1, "c": "headgate"}
    ]
    assert run_sql(two, "select id from headgate.sales.orders").rows == [{"id": 2}]
    assert capfd.readouterr() == ("", "")


class Endpoint(BaseHTTPRequestHandler):
    """Responds like an Iceberg endpoint, and records the requests."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        answer: dict[str, Any] = {"namespaces": [["sales"]]}
        if self.path.startswith("/v1/config"):
            answer = {"defaults": {}, "overrides": {"prefix": "c-abc"}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_bound_sessions_ask_the_endpoint_with_their_own_context_and_token(
    local_spark: LocalSpark,
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    uri = f"http://127.0.0.1:{server.server_port}"
    for context, token in (("feature>master", "one"), ("master@7", "two")):
        session = bind(local_spark.session, uri=uri, context=context, token=token)
        assert run_sql(session, "show namespaces").rows == [{"namespace": "sales"}]
    server.shutdown()
    server.server_close()
    assert Endpoint.asked[0] == ("/v1/config?warehouse=feature%3Emaster", "Bearer one")
    assert {(path.partition("?")[0], token) for path, token in Endpoint.asked} == {
        (path, f"Bearer {token}")
        for path in ("/v1/config", "/v1/c-abc/namespaces")
        for token in ("one", "two")
    }


def test_local_spark_on_wheel_java_runs_on_java_21(local_spark: LocalSpark) -> None:
    jvm = local_spark.session.sparkContext._jvm
    assert jvm.java.lang.System.getProperty("java.specification.version") == "21"


def test_run_sql_of_many_types_far_from_utc_gives_values_json_can_carry(
    local_spark: LocalSpark, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(time.tzset)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    result = run_sql(
        local_spark.session,
        "select date'2026-01-02' as d, timestamp'2026-01-02 03:04:05' as t, 1.50bd as n,"
        " timestamp_ntz'2026-01-02 03:04:05' as w, x'00ff' as b, map(1, 'x') as m,"
        " named_struct('a', array(1, null)) as s,"
        " double('NaN') as f, 1 as same, 2 as same",
    )
    assert result.columns[-2:] == ("same", "same_2")
    assert result.rows == [
        {
            "d": "2026-01-02",
            "t": "2026-01-02T03:04:05+00:00",
            "w": "2026-01-02T03:04:05",
            "n": "1.50",
            "b": "AP8=",
            "m": {"1": "x"},
            "s": {"a": [1, None]},
            "f": "NaN",
            "same": 1,
            "same_2": 2,
        }
    ]


def test_run_sql_of_a_statement_without_answer_has_no_rows(
    local_spark: LocalSpark, tmp_path: Path
) -> None:
    session = bind_catalog(local_spark.session, hadoop_catalog(tmp_path))
    result = run_sql(session, "create namespace sales")
    assert (result.columns, result.rows) == ((), [])


def test_run_sql_of_what_spark_refuses_says_so_once(
    local_spark: LocalSpark, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownInStatement, match="TABLE_OR_VIEW_NOT_FOUND"):
        run_sql(local_spark.session, "select * from nowhere.here")
    with pytest.raises(InvalidStatement, match="Syntax error at or near 'selec'"):
        run_sql(local_spark.session, "selec 1")
    with pytest.raises(StatementFailed, match="DIVIDE_BY_ZERO"):
        run_sql(local_spark.session, "select 1 / 0")
    assert capfd.readouterr() == ("", "")
