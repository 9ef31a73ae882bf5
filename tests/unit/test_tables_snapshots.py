"""Updates of snapshots and refs."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import ImpossibleTableChange, MalformedRequest, RequirementFailed
from tests.support.metadata import NOW, add, change, commit, point, table


def test_snapshot_is_kept_exactly_as_sent() -> None:
    made = table(*commit(1, summary={"streaming.id": "q"}, **{"key-id": "k"}))
    assert made["snapshots"][0]["summary"] == {"operation": "append", "streaming.id": "q"}
    assert made["snapshots"][0]["key-id"] == "k"
    assert (made["current-snapshot-id"], made["last-sequence-number"]) == (1, 1)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("parent", [1, None])
def test_snapshot_prepared_on_an_older_table_is_a_conflict(
    version: int, parent: int | None
) -> None:
    rows = {"first-row-id": 0, "added-rows": 0} if version == 3 else {}
    held = table(*commit(1, **rows), version=version)
    stale = add(2, parent=parent, **{"sequence-number": 1}, **rows)
    with pytest.raises(RequirementFailed, match="sequence-number"):
        change(held, stale)


def test_row_ids_advance_and_those_assigned_twice_are_a_conflict() -> None:
    held = table(*commit(1, **{"first-row-id": 0, "added-rows": 10}), version=3)
    assert held["next-row-id"] == 10
    with pytest.raises(RequirementFailed, match="first-row-id"):
        change(held, add(2, parent=1, **{"first-row-id": 9, "added-rows": 1}))
    with pytest.raises(MalformedRequest):
        change(held, add(2, parent=1))


def test_snapshot_that_exists_already_is_a_conflict() -> None:
    with pytest.raises(RequirementFailed, match="snapshot-id"):
        change(table(*commit(1)), add(1, **{"sequence-number": 5}))


def test_snapshot_with_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ImpossibleTableChange, match="not known"):
        change(table(), add(1, op="sing"))


def test_log_shows_only_the_last_of_the_snapshots_that_one_commit_made() -> None:
    held = table(*commit(1))
    made = change(held, *commit(2, parent=1), *commit(3, parent=2))
    assert [entry["snapshot-id"] for entry in made["snapshot-log"]] == [1, 3]


def test_rollback_enters_the_log_at_the_time_of_the_commit() -> None:
    held = change(table(*commit(1)), *commit(2, parent=1))
    made = change(held, point(1), now=NOW + 77)
    assert made["snapshot-log"][-1] == {"snapshot-id": 1, "timestamp-ms": NOW + 77}
    assert made["current-snapshot-id"] == 1


@pytest.mark.parametrize(
    "update", [point(9), point(1, kind="tag"), point(1, ref="x", kind="song")], ids=str
)
def test_ref_to_nowhere_or_of_a_wrong_kind_is_refused(update: dict[str, Any]) -> None:
    with pytest.raises(ImpossibleTableChange):
        change(table(*commit(1)), update)


def test_tag_keeps_its_retention_and_leaves_main_alone() -> None:
    made = change(table(*commit(1)), point(1, ref="eoy", kind="tag", **{"max-ref-age-ms": 5}))
    assert made["refs"]["eoy"] == {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 5}
    assert len(made["snapshot-log"]) == 1


def test_table_without_main_has_no_current_snapshot() -> None:
    made = change(table(*commit(1)), {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert "current-snapshot-id" not in made
    assert made["refs"] == {}
    assert len(made["snapshots"]) == 1


def test_removed_snapshots_take_their_refs_statistics_and_log_with_them() -> None:
    held = change(change(table(*commit(1)), *commit(2, parent=1)), *commit(3, parent=2))
    statistics = {"snapshot-id": 2, "statistics-path": "p"}
    held = change(
        held,
        point(2, ref="old", kind="tag"),
        {"action": "set-statistics", "statistics": statistics},
    )
    made = change(held, {"action": "remove-snapshots", "snapshot-ids": [2]})
    assert [one["snapshot-id"] for one in made["snapshots"]] == [1, 3]
    assert set(made["refs"]) == {"main"}
    assert made["statistics"] == []
    assert [entry["snapshot-id"] for entry in made["snapshot-log"]] == [3]
