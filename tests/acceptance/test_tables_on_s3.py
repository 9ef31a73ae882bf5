"""A store in an S3-compatible server from end to end: builds on Spark, rows by Arrow, upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headgate.connection import open as open_store
from headgate.tables.scan import file_properties
from tests.support.repositories import Work, new_repository
from tests.support.s3 import S3Server, running_s3
from tests.support.serving import serving
from tests.support.shell import headgate_json, run_headgate
from tests.support.table_upkeep import rows
from tests.support.tables import create_tables, iceberg_client, read_table
from tests.support.upkeep import stored_keys, tidy_later

pytestmark = [
    pytest.mark.timeout(900),
    # Raised by SQLAlchemy for SQLite, under PyIceberg's own catalog.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
# Merge-on-read, so that Spark writes deletion vectors; names that need escaping in a path.
DAILY = """\
from headgate.transforms import Input, Output, transform

@transform(daily=Output("shop.daily"), a=Input("shop.a"))
def daily(daily, a):
    frame = a.dataframe().selectExpr("id", "concat('100% ', id, '/=ü') as day")
    daily.write_dataframe(frame, partition_cols=["day"])
"""

LOG = """\
from headgate.transforms import Input, Output, transform

@transform(log=Output("shop.log", kind="files"), daily=Input("shop.daily"))
def log(log, daily):
    with log.filesystem().open("count.txt", "w") as file:
        file.write(str(daily.dataframe().count()))
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with running_s3(tmp_path) as server:
        for name, value in server.options.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def work(tmp_path: Path, server: S3Server) -> Work:
    """A repository with one transform, and a store in a new bucket."""
    root = tmp_path / "work"
    work = new_repository(root)
    warehouse = f"s3://{server.create_bucket()}/warehouse"
    headgate_json("init", "--warehouse", warehouse, cwd=root)
    work.write(pipeline__daily=DAILY, pipeline____init__="")
    work.commit("daily")
    with open_store(root) as store:
        create_tables(store, "master", a=[{"id": 1}, {"id": 2}, {"id": 3}])
    return work


def test_store_in_s3_is_built_shown_compared_and_cleaned(work: Work, server: S3Server) -> None:
    root = work.root
    headgate_json("jobspecs", "publish", cwd=root)
    built = headgate_json("build", "shop.daily", "-b", "master", cwd=root)
    assert built["state"] == "succeeded"
    shown = headgate_json("dataset", "show", "shop.daily", "--rows", "9", cwd=root)
    days = sorted(row["day"] for row in shown["rows"])
    assert days == ["100% 1/=ü", "100% 2/=ü", "100% 3/=ü"]
    with open_store(root) as store:
        with iceberg_client(store, "feature>master") as client:
            client.load_table("shop.a").overwrite(rows(1, 2, 9))
        found = headgate_json(*("diff", "shop.a", "--from", "master", "--to", "feature"), cwd=root)
        assert (found["counts"]["added"], found["counts"]["removed"]) == (1, 1)
        assert tidy_later(store, 40).condemned > 0
        assert tidy_later(store, 42).deleted > 0
        assert tidy_later(store, 44).deleted == 0
        assert [row["id"] for row in read_table(store, "master", "shop.a")] == [1, 2, 3]
        assert len(read_table(store, "master", "shop.daily")) == 3
        assert any("%25" in key for key in stored_keys(store))
        # The cleanups ran by clocks that were ahead.
        checks = store.examine(deep=True)["checks"]
        assert [check["check"] for check in checks if not check["ok"]] == ["clock"]
    for path in root.rglob("*"):
        if path.is_file():
            assert server.options["AWS_SECRET_ACCESS_KEY"].encode() not in path.read_bytes(), path


def test_client_of_a_server_builds_in_s3_with_credentials_alone(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets the location of S3 from the server; files and rows pass through it."""
    work.write(pipeline__log=LOG)
    work.commit("log")
    (tmp_path / "client").mkdir()
    with serving(work.root) as (url, token, _):
        for name, value in {"URL": url.removesuffix("/iceberg"), "TOKEN": token}.items():
            monkeypatch.setenv(f"HEADGATE_{name}", value)
        for name in ("AWS_ENDPOINT_URL", "AWS_REGION"):
            monkeypatch.delenv(name)
        build = ("build", "shop.log", "--upstream", "-b", "master")
        with open_store(url.removesuffix("/iceberg"), token=token) as client:
            client.publish_jobspecs(work.root)
            built = headgate_json(*build, cwd=tmp_path / "client")
            assert built["state"] == "succeeded"
            client.dataset("shop.log").shown(branch="master").download(tmp_path / "got")
    assert (tmp_path / "got" / "count.txt").read_text() == "3"


def test_table_in_another_bucket_is_registered_by_a_client(work: Work, server: S3Server) -> None:
    lake = f"s3://{server.create_bucket()}"
    theirs = SqlCatalog(
        "theirs", uri="sqlite:///:memory:", warehouse=lake, **file_properties(server.options)
    )
    theirs.create_namespace("db")
    table = theirs.create_table("db.t", rows(1).schema)
    table.append(rows(4, 5))
    with open_store(work.root) as store, iceberg_client(store, "master") as client:
        taken = client.register_table("shop.taken", table.metadata_location)
        taken.append(rows(6))
        assert sorted(taken.scan().to_arrow()["id"].to_pylist()) == [4, 5, 6]
        tidy_later(store, 40)
        assert tidy_later(store, 42).deleted > 0
        assert [row["id"] for row in read_table(store, "master", "shop.taken")] == [6, 4, 5]
    assert theirs.load_table("db.t").scan().count() == 2
    theirs.close()


def test_init_in_a_bucket_that_is_not_there_says_so(tmp_path: Path, server: S3Server) -> None:
    words = ("init", "--warehouse", "s3://nobody-made-this/warehouse")
    refused = run_headgate(*words, cwd=tmp_path)
    assert refused.returncode == 6 and "the bucket does not exist" in refused.stderr
    assert not (tmp_path / "headgate.toml").exists()
