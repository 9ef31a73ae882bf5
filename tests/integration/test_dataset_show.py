"""`headgate dataset show`: the view of a table in a context, read without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, TruncateTransform
from pyiceberg.types import LongType, NestedField, TimestampType

import headgate
from tests.support.cli import Cli, new_cli, new_store_cli, put
from tests.support.metadata import column, schema, table
from tests.support.s3 import S3Server, running_s3
from tests.support.tables import create_tables, iceberg_client

ORDERS = "shop.orders"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def show(cli: Cli, *more: str, name: str = ORDERS) -> Any:
    return cli.json("dataset", "show", name, *more)


def make(*rows: dict[str, Any], branch: str = "master") -> None:
    with headgate.open() as hg:
        create_tables(hg, branch, orders=list(rows))


def test_show_has_schema_count_and_rows(cli: Cli) -> None:
    make(*({"id": at, "name": f"[bold]{at}"} for at in range(7)))
    found = show(cli, "--rows", "2")
    assert found["transaction"] == found["shown"]["transaction"]
    assert found["schema"][0] == {"name": "id", "type": "long", "required": False}
    assert (found["row_count"], found["rows"][0]) == (7, {"id": 0, "name": "[bold]0"})
    assert len(found["rows"]) == 2
    said = cli.ok("dataset", "show", ORDERS, "--rows", "9")
    assert "[bold]6" in said.out and "7 rows" in said.err


def test_show_without_rows_reads_metadata_alone(cli: Cli) -> None:
    make({"id": 1})
    for file in (cli.directory / ".headgate" / "warehouse").rglob("*.avro"):
        file.unlink()
    found = show(cli)
    assert (found["row_count"], found["rows"]) == (1, [])


def test_show_follows_chains_moments_and_branches(cli: Cli) -> None:
    make({"id": 1})
    moment = cli.json("log")[0]["publication"]
    with headgate.open() as hg, iceberg_client(hg, "feature>master") as client:
        client.load_table(ORDERS).append(pa.table({"id": [2]}))
    assert show(cli, "-b", "feature>master")["row_count"] == 2
    assert show(cli, "-b", "other>master", "--rows", "5")["rows"] == [{"id": 1}]
    assert show(cli, "-b", f"feature>master@{moment}", "--rows", "5")["rows"] == [{"id": 1}]


def test_show_of_few_rows_reads_few_files(cli: Cli) -> None:
    make({"id": 0})
    with headgate.open() as hg, iceberg_client(hg, "master") as client:
        for at in range(1, 4):
            client.load_table(ORDERS).append(pa.table({"id": [at]}))
        newest = client.load_table(ORDERS)
        manifests = newest.current_snapshot().manifests(newest.io)
        files = [
            entry.data_file.file_path for entry in manifests[0].fetch_manifest_entry(newest.io)
        ]
    needed = " ".join([*files, manifests[0].manifest_path, newest.current_snapshot().manifest_list])
    for file in (cli.directory / ".headgate" / "warehouse").rglob("*"):
        if file.suffix in {".avro", ".parquet"} and str(file) not in needed:
            file.unlink()
    found = show(cli, "--rows", "1")
    assert (found["row_count"], len(found["rows"])) == (4, 1)
    assert cli.error("dataset", "show", ORDERS, "--rows", "4", code=6) == "storage_unavailable"


def test_show_has_partitioning_and_properties(cli: Cli) -> None:
    columns = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestampType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, TruncateTransform(10), "id_trunc"),
        PartitionField(2, 1001, DayTransform(), "at_day"),
    )
    with headgate.open() as hg, iceberg_client(hg, "master") as client:
        client.create_namespace("shop")
        client.create_table(ORDERS, columns, partition_spec=spec, properties={"owner": "ana"})
    found = show(cli, "--rows", "3")
    assert found["partitioning"] == ["truncate(10, id)", "day(at)"]
    assert (found["properties"]["owner"], found["rows"], found["row_count"]) == ("ana", [], 0)
    said = cli.ok("dataset", "show", ORDERS)
    assert "partitioned by truncate(10, id), day(at)" in said.err and "owner = ana" in said.err


def test_show_of_values_that_json_has_no_word_for(cli: Cli) -> None:
    kinds = {"x": pa.float64(), "b": pa.binary(), "m": pa.map_(pa.string(), pa.int64())}
    data = pa.table(
        {name: pa.array([value], kinds[name]) for name, value in _STRANGE.items()},
    )
    with headgate.open() as hg, iceberg_client(hg, "master") as client:
        client.create_namespace("shop")
        client.create_table(ORDERS, data.schema).append(data)
    assert show(cli, "--rows", "1")["rows"] == [{"x": "NaN", "b": "AP8=", "m": {"k": 1}}]


_STRANGE = {"x": float("nan"), "b": b"\x00\xff", "m": [("k", 1)]}


def test_show_of_what_only_spark_can_read_says_so(cli: Cli) -> None:
    odd = table(version=3, schema=schema(column(1, "v", "variant")))
    file = cli.file("odd.metadata.json", json.dumps(odd))
    cli.ok("dataset", "register", "shop.odd", "--metadata-location", str(file))
    assert show(cli, name="shop.odd")["schema"][0]["type"] == "variant"
    assert cli.error("dataset", "show", "shop.odd", "--rows", "1", code=6) == "needs_spark"
    assert "headgate sql" in cli("dataset", "show", "shop.odd", "--rows", "1").err


def test_show_of_a_dropped_table_has_no_columns(cli: Cli) -> None:
    make({"id": 1})
    with headgate.open() as hg, iceberg_client(hg, "master") as client:
        client.drop_table(ORDERS)
    found = show(cli, "--rows", "1")
    assert (found["schema"], found["rows"], found["row_count"]) == ([], [], 0)
    assert "dropped here" in cli.ok("dataset", "show", ORDERS).err


def test_show_of_files_lists_the_first_paths(cli: Cli) -> None:
    for path in ("b", "a/x", "c"):
        put(cli, path, "12")
    found = show(cli, "--rows", "2", name="raw.scans")
    assert (found["files"], found["bytes"], found["paths"]) == (3, 6, ["a/x", "b"])
    assert show(cli, name="raw.scans")["paths"] == []
    assert "a/x" in cli.ok("dataset", "show", "raw.scans", "--rows", "1").out


def test_show_reads_a_table_in_s3(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    s3: S3Server,
) -> None:
    for name, value in s3.options.items():
        monkeypatch.setenv(name, value)
    cli = new_cli(tmp_path, monkeypatch, capsys)
    cli.ok("init", "--warehouse", f"s3://{s3.create_bucket()}/warehouse")
    make({"id": 1}, {"id": 2})
    found = show(cli, "--rows", "5")
    assert (found["rows"], found["row_count"]) == ([{"id": 1}, {"id": 2}], 2)


def test_show_of_a_branch_or_a_publication_that_is_not_there_is_an_error(cli: Cli) -> None:
    put(cli, "a.txt")
    assert cli.error("dataset", "show", "raw.scans", "-b", "feature", code=3) == "branch_not_found"
    assert show(cli, "-b", "feature>master", name="raw.scans")["files"] == 1
    assert show(cli, "-b", "master@2", name="raw.scans")["files"] == 1
    assert cli.error("dataset", "show", "raw.scans", "-b", "master@99", code=3) == "not_found"
    cli.ok("dataset", "create", "raw.other", "--kind", "files", "--branch", "feature", "--create")
    assert show(cli, name="raw.other")["branches"] == ["feature"]
