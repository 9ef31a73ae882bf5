"""Snapshots that a table still lists, by the time they were last current."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.tables.snapshots import forget_snapshots
from tests.support.metadata import NOW, add, change, commit, point, table

_AT_LEAST = "history.expire.min-snapshots-to-keep"


def listed(metadata: dict[str, Any]) -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]]


def three() -> dict[str, Any]:
    """Snapshots 1, 2 and 3, at one millisecond after the other."""
    return table(*commit(1), *commit(2, parent=1), *commit(3, parent=2))


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (NOW + 1, [1, 2, 3]),
        # The first was shown until the second came.
        (NOW + 2, [1, 2, 3]),
        (NOW + 3, [2, 3]),
        (NOW + 4, [3]),
        (NOW + 10**12, [3]),
    ],
)
def test_snapshot_is_listed_until_it_was_long_replaced(before: int, kept: list[int]) -> None:
    assert listed(forget_snapshots(three(), before)) == kept


def test_metadata_with_nothing_to_forget_is_the_same_object() -> None:
    held = three()
    assert forget_snapshots(held, 0) is held
    alone = table(*commit(1))
    assert forget_snapshots(alone, NOW + 99) is alone


def test_snapshot_that_a_ref_names_is_listed_however_old() -> None:
    held = change(three(), point(1, ref="audit", kind="tag"))
    assert listed(forget_snapshots(held, NOW + 99)) == [1, 3]


@pytest.mark.parametrize(
    ("update", "kept"),
    [
        ({**point(3), "min-snapshots-to-keep": 2}, [2, 3]),
        ({**point(3), "min-snapshots-to-keep": 9}, [1, 2, 3]),
        ({"action": "set-properties", "updates": {_AT_LEAST: "2"}}, [2, 3]),
        ({"action": "set-properties", "updates": {_AT_LEAST: "many"}}, [3]),
    ],
)
def test_branch_with_a_minimum_of_snapshots_keeps_them(
    update: dict[str, Any], kept: list[int]
) -> None:
    assert listed(forget_snapshots(change(three(), update), NOW + 99)) == kept


def test_rollback_keeps_what_was_shown_until_then() -> None:
    rolled_back = change(three(), point(1), now=NOW + 50)
    assert listed(forget_snapshots(rolled_back, NOW + 40)) == [1, 3]
    assert listed(forget_snapshots(rolled_back, NOW + 60)) == [1]


def test_staged_snapshot_is_listed_while_it_is_young() -> None:
    staged = change(three(), add(4, parent=3))
    assert listed(forget_snapshots(staged, NOW + 4)) == [3, 4]
    assert listed(forget_snapshots(staged, NOW + 5)) == [3]


def test_statistics_and_log_go_with_their_snapshot() -> None:
    stats = {"snapshot-id": 1, "statistics-path": "file:///s", "file-size-in-bytes": 1}
    held = change(three(), {"action": "set-statistics", "statistics": stats})
    left = forget_snapshots(held, NOW + 99)
    assert (left["statistics"], left["current-snapshot-id"]) == ([], 3)
    assert [entry["snapshot-id"] for entry in left["snapshot-log"]] == [3]


def test_table_without_snapshots_has_nothing_to_forget() -> None:
    empty = table()
    assert forget_snapshots(empty, NOW + 99) is empty
