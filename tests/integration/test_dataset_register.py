"""`headgate dataset register`: reads and writes tables of other catalogs without a change there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import headgate
from headgate.tables.scan import file_properties
from tests.support.cli import Cli, new_cli, new_store_cli
from tests.support.s3 import running_s3
from tests.support.tables import iceberg_client

ORDERS = "shop.orders"
# Raised by SQLAlchemy for SQLite, under PyIceberg's own catalog, which only these tests use.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    home = tmp_path / "home"
    home.mkdir()
    return new_store_cli(home, monkeypatch, capsys)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A foreign catalog, with its own warehouse."""
    made = SqlCatalog("else", uri=f"sqlite:///{tmp_path}/e.db", warehouse=f"file://{tmp_path}/else")
    made.create_namespace("theirs")
    yield made
    made.close()


def their_table(catalog: SqlCatalog, **properties: str) -> Table:
    """Create a table with three rows in two files."""
    data = pa.table({"id": [1, 2], "name": ["a", "b"]})
    made = catalog.create_table("theirs.orders", data.schema, properties=properties)
    made.append(data)
    made.append(pa.table({"id": [3], "name": ["c"]}))
    return made


def register(cli: Cli, location: str, *more: str, code: int = 0) -> Any:
    words = ("dataset", "register", ORDERS, "--metadata-location", location, *more)
    return cli.json(*words, code=code)


def rows(cli: Cli) -> list[dict[str, Any]]:
    found = cli.json("dataset", "show", ORDERS, "--rows", "99")["rows"]
    return sorted(found, key=lambda row: int(row["id"]))


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file with its bytes and modification time."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def append(context: str, *ids: int) -> Table:
    with headgate.open() as hg, iceberg_client(hg, context) as client:
        table = client.load_table(ORDERS)
        table.append(pa.table({"id": list(ids), "name": ["new" for _ in ids]}))
        return client.load_table(ORDERS)


def test_registered_table_is_a_dataset_with_its_rows(cli: Cli, elsewhere: SqlCatalog) -> None:
    made = register(cli, their_table(elsewhere).metadata_location)
    assert made["branches"] == ["master"]
    assert made["transaction"] == cli.json("history", ORDERS)[0]["transaction"]
    assert [row["name"] for row in rows(cli)] == ["a", "b", "c"]
    with headgate.open() as hg:
        assert hg.dataset(ORDERS).load().owned is False


def test_registered_table_grows_below_our_warehouse(
    cli: Cli, elsewhere: SqlCatalog, tmp_path: Path
) -> None:
    places = {"write.data.path": f"{tmp_path}/else/d", "write.metadata.path": f"{tmp_path}/else/m"}
    register(cli, their_table(elsewhere, **places).metadata_location)
    before = contents(tmp_path / "else")
    table = append("master", 4)
    assert contents(tmp_path / "else") == before
    ours = f"file://{cli.directory}/.headgate/warehouse/tables/"
    paths = [task.file.file_path for task in table.scan().plan_files()]
    assert sum(path.startswith(ours) for path in paths) == 1
    assert table.metadata_location.startswith(ours)
    assert table.current_snapshot().manifest_list.startswith(ours)
    assert [row["id"] for row in rows(cli)] == [1, 2, 3, 4]


def test_registered_table_can_be_replaced_and_dropped_without_touching_it(
    cli: Cli, elsewhere: SqlCatalog, tmp_path: Path
) -> None:
    register(cli, their_table(elsewhere).metadata_location)
    before = contents(tmp_path / "else")
    with headgate.open() as hg, iceberg_client(hg, "master") as client:
        client.load_table(ORDERS).overwrite(pa.table({"id": [9], "name": ["z"]}))
        assert rows(cli) == [{"id": 9, "name": "z"}]
        client.drop_table(ORDERS)
    assert contents(tmp_path / "else") == before
    assert elsewhere.load_table("theirs.orders").scan().count() == 3


def test_registered_table_has_branches_as_any_other(cli: Cli, elsewhere: SqlCatalog) -> None:
    register(cli, their_table(elsewhere).metadata_location)
    append("feature>master", 4)
    found = cli.json("diff", ORDERS, "--from", "master", "--to", "feature")
    assert (found["counts"]["added"], found["basis"]) == (1, "metadata")
    assert len(rows(cli)) == 3


def test_register_of_a_directory_takes_what_a_hadoop_catalog_would(
    cli: Cli, elsewhere: SqlCatalog, tmp_path: Path
) -> None:
    made = their_table(elsewhere)
    metadata = Path(made.metadata_location.removeprefix("file://"))
    directory = tmp_path / "hadoop" / "orders"
    (directory / "metadata").mkdir(parents=True)
    shutil.copy(metadata, directory / "metadata" / "v10.metadata.json")
    (directory / "metadata" / "v9.metadata.json").write_text("{}")
    (directory / "metadata" / "version-hint.text").write_text("9")
    register(cli, f"{directory}/")
    assert len(rows(cli)) == 3


def test_register_of_a_relative_path_is_from_here(cli: Cli, elsewhere: SqlCatalog) -> None:
    metadata = Path(their_table(elsewhere).metadata_location.removeprefix("file://"))
    shutil.copy(metadata, cli.directory / "copy.metadata.json")
    cli.ok("dataset", "register", ORDERS, "--metadata-location", "copy.metadata.json")
    assert len(rows(cli)) == 3


def test_register_of_another_catalogs_directory_asks_for_the_file(
    cli: Cli, elsewhere: SqlCatalog
) -> None:
    directory = Path(their_table(elsewhere).metadata_location.removeprefix("file://")).parents[1]
    refused = register(cli, str(directory), code=2)
    assert "metadata.json" in refused["error"] and refused["code"] == "invalid"


def test_register_on_a_branch_that_shows_the_table_is_refused(
    cli: Cli, elsewhere: SqlCatalog
) -> None:
    location = their_table(elsewhere).metadata_location
    register(cli, location)
    assert register(cli, location, code=4)["code"] == "table_exists"
    cli.ok("dataset", "create", "raw.other", "--kind", "files", "--branch", "other", "--create")
    assert register(cli, location, "-b", "other")["branches"] == ["master", "other"]


def test_register_with_a_key_is_done_once(cli: Cli, elsewhere: SqlCatalog) -> None:
    location = their_table(elsewhere).metadata_location
    first = register(cli, location, "--idempotency-key", "k")
    assert register(cli, location, "--idempotency-key", "k") == first
    assert len(cli.json("history", ORDERS)) == 1
    again = register(cli, f"{location}.gz", "--idempotency-key", "k", code=2)
    assert again["code"] == "idempotency_key_reused"


def test_register_under_the_name_of_files_is_refused(cli: Cli, elsewhere: SqlCatalog) -> None:
    location = their_table(elsewhere).metadata_location
    words = ("dataset", "register", "raw.scans", "--metadata-location", location)
    assert cli.error(*words, code=2) == "invalid"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("none.metadata.json", None, 3),
        ("nothing", None, 3),
        ("bad.metadata.json", "no", 2),
        ("bad.metadata.json", "{}", 2),
        ("new.metadata.json", '{"format-version": 9, "table-uuid": "u"}', 2),
        ("hollow.metadata.json", '{"format-version": 2, "table-uuid": "u"}', 2),
    ],
)
def test_register_of_what_is_no_table_changes_nothing(
    cli: Cli, name: str, text: str | None, code: int
) -> None:
    if text is not None:
        cli.file(name, text)
    register(cli, str(cli.directory / name), code=code)
    assert [found["dataset"] for found in cli.json("dataset", "list")] == ["raw.scans"]


def test_register_of_a_table_in_s3(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_s3(tmp_path) as s3:
        for name, value in s3.options.items():
            monkeypatch.setenv(name, value)
        cli = new_cli(tmp_path, monkeypatch, capsys)
        lake, bucket = s3.create_bucket(), s3.create_bucket()
        cli.ok("init", "--warehouse", f"s3://{bucket}/warehouse")
        elsewhere = SqlCatalog(
            "else",
            uri="sqlite:///:memory:",
            warehouse=f"s3://{lake}",
            **file_properties(s3.options),
        )
        elsewhere.create_namespace("theirs")
        register(cli, their_table(elsewhere).metadata_location)
        elsewhere.close()
        paths = [task.file.file_path for task in append("master", 4).scan().plan_files()]
        assert len(rows(cli)) == 4
    assert sorted({path.split("/")[2] for path in paths}) == sorted([lake, bucket])
