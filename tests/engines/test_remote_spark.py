"""Spark as the client of a server: local JVM, remote endpoint and authorization."""

from __future__ import annotations

from pathlib import Path

import pytest

import headgate
from headgate.model.access import Role
from headgate.spark import workplace
from headgate.spark.session import LocalSpark
from tests.support.api import Api
from tests.support.spark import BorrowedSpark

pytestmark = pytest.mark.xdist_group("spark")


def test_spark_of_a_served_store_writes_what_its_token_may_and_no_more(
    small_api: Api, local_spark: LocalSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workplace, "launch_request", lambda *_: None)
    monkeypatch.setattr(workplace, "start", lambda _: BorrowedSpark(local_spark))
    token = small_api.token("walt", Role.WRITER, "walt/*")
    with headgate.open(small_api.url, token=token) as hg:
        spark = hg.spark("walt/try>master")
        spark.sql("create namespace shop")
        spark.sql("create table shop.a as select 1 as id")
        assert spark.sql("select id from shop.a").collect()[0]["id"] == 1
        shown = hg.dataset("shop.a").show("walt/try", rows=5)
        assert (shown["row_count"], shown["rows"]) == (1, [{"id": 1}])
        assert {p.actor for p in hg.publications()} == {"walt"}
        with pytest.raises(Exception, match="may not write"):
            hg.spark("master").sql("create table shop.b as select 1 as id")
    refused = small_api.admin.get("/events", kind="refused")
    assert {(e["actor"], e["wanted"], e["branch"]) for e in refused} == {
        ("walt", "iceberg_write", "master")
    }
