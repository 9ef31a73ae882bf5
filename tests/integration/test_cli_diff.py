"""`headgate diff`: of tables by metadata, files and rows, of files, and of all datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import headgate
from tests.support.cli import Cli, new_store_cli, put
from tests.support.tables import create_tables, iceberg_client

ORDERS = "shop.orders"
NONE = {"added": 0, "removed": 0, "changed": 0}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_store_cli(tmp_path, monkeypatch, capsys)


def orders(count: int) -> list[dict[str, Any]]:
    return [{"id": at, "name": f"n{at}"} for at in range(count)]


def make(cli: Cli, count: int = 3) -> None:
    """Create the table shop.orders on master, and a branch feature of it."""
    with headgate.open() as hg:
        create_tables(hg, "master", orders=orders(count))
    cli.ok("branch", "create", ORDERS, "feature", "--from", "master")


def change(act: Callable[[Table], Any], context: str = "feature", name: str = ORDERS) -> None:
    with headgate.open() as hg, iceberg_client(hg, context) as client:
        act(client.load_table(name))


def diff(cli: Cli, *more: str, before: str = "master", after: str = "feature") -> Any:
    return cli.json("diff", ORDERS, "--from", before, "--to", after, *more)


def add_rows(*rows: dict[str, Any]) -> Callable[[Table], Any]:
    return lambda found: found.append(pa.Table.from_pylist(list(rows), found.schema().as_arrow()))


def make_keyed(cli: Cli, count: int = 4) -> None:
    """Create the same tables as `make`, with the key id."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "name", StringType()),
        identifier_field_ids=[1],
    )
    with headgate.open() as hg, iceberg_client(hg, "master") as client:
        client.create_namespace("shop")
        add_rows(*orders(count))(client.create_table(ORDERS, schema))
    cli.ok("branch", "create", ORDERS, "feature", "--from", "master")


def test_diff_of_the_same_content_is_known_without_looking(cli: Cli) -> None:
    make(cli)
    found = diff(cli)
    assert found["from"] == found["to"] is not None
    assert (found["identical"], found["basis"]) == (True, "content")
    assert found["counts"] == {"from": 3, "to": 3, **NONE}
    assert (
        "3 → 3 rows, the same" in cli.ok("diff", ORDERS, "--from", "master", "--to", "feature").out
    )


def test_diff_of_appended_rows_is_counted_by_metadata(cli: Cli) -> None:
    make(cli)
    change(add_rows({"id": 7, "name": "x"}))
    change(add_rows({"id": 8, "name": "y"}, {"id": 9, "name": "z"}))
    found = diff(cli, "--rows", "2")
    assert (found["identical"], found["basis"]) == (False, "metadata")
    assert found["counts"] == {"from": 3, "to": 6, **NONE, "added": 3}
    assert found["samples"]["added"] == [{"id": 8, "name": "y"}, {"id": 9, "name": "z"}]
    back = diff(cli, before="feature", after="master")
    assert (back["counts"]["removed"], len(back["samples"]["removed"])) == (3, 3)


def test_diff_samples_appended_rows_also_where_manifests_were_merged(cli: Cli) -> None:
    make(cli)
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "1"}
    change(lambda found: found.transaction().set_properties(merging).commit_transaction())
    change(add_rows({"id": 7, "name": "x"}))
    assert diff(cli)["samples"]["added"] == [{"id": 7, "name": "x"}]


def test_diff_of_a_property_change_finds_the_same_rows(cli: Cli) -> None:
    make(cli)
    change(lambda found: found.transaction().set_properties(a="b").commit_transaction())
    assert diff(cli)["identical"] is True


def test_diff_by_the_tables_own_key_pairs_rows(cli: Cli) -> None:
    make_keyed(cli)
    change(lambda found: found.delete("id = 0"))
    change(
        lambda found: found.upsert(
            pa.Table.from_pylist(
                [{"id": 1, "name": "new"}, {"id": 9, "name": "n9"}], found.schema().as_arrow()
            )
        )
    )
    found = diff(cli)
    assert (found["key"], found["basis"]) == (["id"], "rows")
    assert found["counts"] == {"from": 4, "to": 4, "added": 1, "removed": 1, "changed": 1}
    assert found["samples"] == {
        "added": [{"id": 9, "name": "n9"}],
        "removed": [{"id": 0, "name": "n0"}],
        "changed": [{"key": {"id": 1}, "from": {"name": "n1"}, "to": {"name": "new"}}],
    }
    said = cli.ok("diff", ORDERS, "--from", "master", "--to", "feature").out
    assert "4 → 4 rows: 1 added, 1 removed, 1 changed by id" in said and "n9" in said


def test_diff_without_a_key_adds_and_removes(cli: Cli) -> None:
    make(cli)
    change(lambda found: found.overwrite(pa.Table.from_pylist([*orders(2), *orders(1)])))
    found = diff(cli)
    assert found["counts"] == {"from": 3, "to": 3, "added": 1, "removed": 1, "changed": 0}
    assert found["samples"]["added"] == [{"id": 0, "name": "n0"}]
    by_key = diff(cli, "--key", "id", "--rows", "0")
    assert (by_key["key"], by_key["counts"]["changed"], by_key["samples"]["added"]) == (
        ["id"],
        0,
        [],
    )


def test_diff_with_a_key_that_is_no_column_is_refused(cli: Cli) -> None:
    make(cli)
    change(add_rows({"id": 7, "name": "x"}))
    words = ("diff", ORDERS, "--from", "master", "--to", "feature", "--key", "id,nope")
    assert cli.error(*words, code=2) == "invalid"


def test_diff_reads_only_files_that_the_sides_do_not_share(cli: Cli) -> None:
    make(cli, 3)
    for at in range(10, 13):
        change(add_rows({"id": at, "name": "more"}), "master")
    cli.ok("branch", "create", ORDERS, "second", "--from", "master")
    change(lambda found: found.delete("id = 11"), "second")
    for file in _data_files_of("second"):
        file.unlink()
    found = diff(cli, after="second", before="master")
    assert (found["basis"], found["counts"]["removed"]) == ("files", 1)
    assert found["samples"]["removed"] == [{"id": 11, "name": "more"}]


def _data_files_of(context: str) -> list[Path]:
    with headgate.open() as hg, iceberg_client(hg, context) as client:
        tasks = client.load_table(ORDERS).scan().plan_files()
        return [Path(task.file.file_path.removeprefix("file://")) for task in tasks]


def test_diff_of_schemas_follows_field_ids(cli: Cli) -> None:
    make(cli)

    def evolve(found: Table) -> None:
        with found.update_schema() as update:
            update.rename_column("name", "title")
            update.add_column("price", DoubleType())

    change(evolve)
    change(add_rows({"id": 5, "title": "t", "price": 0.5}))
    found = diff(cli)
    assert found["schema"]["renamed"] == [{"from": "name", "to": "title"}]
    assert found["schema"]["added"] == [{"name": "price", "type": "double", "required": False}]
    assert found["counts"] == {"from": 3, "to": 4, **NONE, "added": 1}
    said = cli.ok("diff", ORDERS, "--from", "master", "--to", "feature").out
    assert "~ column name is now title" in said and "+ column price double" in said


def test_diff_of_rows_across_a_renamed_and_widened_column(cli: Cli) -> None:
    with headgate.open() as hg, iceberg_client(hg, "master") as client:
        client.create_namespace("shop")
        rows = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]})
        client.create_table(ORDERS, rows.schema).append(rows)
    cli.ok("branch", "create", ORDERS, "feature", "--from", "master")

    def evolve(found: Table) -> None:
        with found.update_schema() as update:
            update.update_column("id", LongType())
            update.rename_column("name", "title")

    change(evolve)
    change(lambda found: found.overwrite(pa.table({"id": [1, 2], "title": ["a", "c"]})))
    found = diff(cli, "--key", "id")
    assert found["schema"]["retyped"] == [{"name": "id", "from": "int", "to": "long"}]
    assert found["samples"]["changed"] == [
        {"key": {"id": 2}, "from": {"name": "b"}, "to": {"title": "c"}}
    ]
    assert found["counts"]["changed"] == 1


def test_diff_of_transactions_needs_no_dataset(cli: Cli) -> None:
    make(cli)
    [old] = [entry["transaction"] for entry in cli.json("history", ORDERS)][:1]
    change(add_rows({"id": 7, "name": "x"}), "master")
    new = cli.json("history", ORDERS)[0]["transaction"]
    found = cli.json("diff", "--from", old, "--to", new)
    assert (found["dataset"], found["from"], found["to"]) == (ORDERS, old, new)
    assert found["counts"]["added"] == 1


def test_diff_with_nothing_on_one_side_has_all_rows(cli: Cli) -> None:
    make(cli)
    cli.ok("branch", "create", ORDERS, "empty", "--root")
    found = diff(cli, before="empty", after="master")
    assert (found["from"], found["counts"]) == (None, {"from": 0, "to": 3, **NONE, "added": 3})
    assert [field["name"] for field in found["schema"]["added"]] == ["id", "name"]
    assert len(found["samples"]["added"]) == 3
    nothing = diff(cli, before="empty", after="empty")
    assert nothing["identical"] is True


def test_diff_at_a_moment_and_on_a_chain(cli: Cli) -> None:
    make(cli)
    moment = cli.json("log")[0]["publication"]
    change(add_rows({"id": 7, "name": "x"}), "master")
    found = diff(cli, before=f"master@{moment}", after="missing>master")
    assert found["counts"]["added"] == 1


def test_diff_of_files_lists_paths(cli: Cli) -> None:
    for path, text in (("a", "1"), ("b", "2"), ("c", "3")):
        first = put(cli, path, text)
    put(cli, "b", "changed")
    put(cli, "d")
    cli.ok("files", "rm", "raw.scans", "-b", "master", "a")
    found = cli.json("diff", "raw.scans", "--from", first, "--to", "master")
    assert (found["kind"], found["identical"], found["schema"]) == ("files", False, {})
    assert found["counts"] == {"from": 3, "to": 3, "added": 1, "removed": 1, "changed": 1}
    assert [entry["path"] for entry in found["samples"]["added"]] == ["d"]
    assert found["samples"]["changed"][0]["to"]["size"] == 7
    said = cli.ok("diff", "raw.scans", "--from", first, "--to", "master").out
    assert "+ d" in said and "- a" in said and "~ b" in said
    assert cli.json("diff", "raw.scans", "--from", first, "--to", first)["identical"] is True


def test_diff_without_dataset_lists_what_differs(cli: Cli) -> None:
    make(cli)
    put(cli, "a")
    with headgate.open() as hg:
        create_tables(hg, "feature", fresh=[{"x": 1}])
        create_tables(hg, "master", other=[{"x": 1}])
    change(add_rows({"id": 7, "name": "x"}))
    found = cli.json("diff", "--from", "master", "--to", "feature")
    assert [entry["dataset"] for entry in found] == ["shop.fresh", ORDERS]
    assert [entry["counts"]["to"] for entry in found] == [1, 4]
    said = cli.ok("diff", "--from", "master", "--to", "feature").out
    assert "shop.fresh" in said and "3 → 4 rows: 1 added" in said and "shop.other" not in said
    assert cli.json("diff", "--from", "master", "--to", "master") == []
    assert "no differences" in cli.ok("diff", "--from", "master", "--to", "master").err


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ([ORDERS, "--from", "master", "--to", "nope"], 3, "branch_not_found"),
        (["shop.none", "--from", "master", "--to", "master"], 3, "dataset_not_found"),
        (["--from", "master", "--to", "nope"], 3, "no_such_branch"),
        ([ORDERS, "--from", "master", "--to", "a>a"], 2, "invalid_context"),
        ([ORDERS, "--from", "master"], 2, "usage"),
    ],
)
def test_diff_of_what_is_not_there_says_so(
    cli: Cli, words: list[str], code: int, error: str
) -> None:
    make(cli)
    assert cli.json("diff", *words, code=code)["code"] == error


def test_diff_with_a_transaction_of_another_dataset_or_an_aborted_one_is_refused(cli: Cli) -> None:
    make(cli)
    other = put(cli, "a")
    assert cli.error("diff", ORDERS, "--from", "master", "--to", other, code=3) == "not_in_history"
    txn = cli.json("txn", "open", "raw.scans", "-b", "master")["transaction"]
    assert cli.json("diff", "raw.scans", "--from", other, "--to", txn)["identical"] is True
    cli.ok("txn", "abort", txn)
    words = ("diff", "raw.scans", "--from", other, "--to", txn)
    assert cli.error(*words, code=4) == "transaction_not_committed"


def test_diff_of_a_branch_shows_what_its_merge_would_change(cli: Cli) -> None:
    make_keyed(cli)
    cli.ok("mutate", "-b", "feature", "update shop.orders set name = 'new' where id = 1")
    cli.ok("mutate", "-b", "master", "delete from shop.orders where id = 3")
    [found] = cli.json("diff", "feature")
    assert found["counts"] == {"from": 3, "to": 3, "added": 0, "removed": 0, "changed": 1}
    assert cli.json("diff", "feature", ORDERS, "--into", "master") == [found]
    said = cli.ok("diff", "feature").out
    assert "3 → 3 rows: 0 added, 0 removed, 1 changed by id" in said and "new" in said
    # Two versions are compared as they are.
    assert diff(cli)["counts"]["added"] == 1
    cli.ok("mutate", "-b", "master", "update shop.orders set name = 'other' where id = 1")
    [found] = cli.json("diff", "feature")
    assert [one["kind"] for one in found["conflicts"]] == ["update_update"]
    said = cli.ok("diff", "feature").out
    assert "both sides changed it" in said and '"name":"other"' in said
    cli.ok("branch", "create", ORDERS, "same", "--from", "master")
    assert "would change nothing" in cli.ok("diff", "same").err


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["nope"], 3, "no_such_branch"),
        (["feature", "shop.none"], 3, "dataset_not_found"),
        (["feature", "--into", "nope"], 3, "no_such_branch"),
        (["feature", "--key", "id"], 2, "usage"),
        (["feature", "--into", "master", "--to", "feature"], 2, "usage"),
        ([], 2, "usage"),
    ],
)
def test_diff_of_a_branch_that_is_not_there_or_half_asked_is_refused(
    cli: Cli, words: list[str], code: int, error: str
) -> None:
    make(cli)
    assert cli.json("diff", *words, code=code)["code"] == error
