"""Requirements of a commit on a table."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import MalformedRequest, RequirementFailed
from headgate.tables.updates import REQUIREMENTS, find_unmet
from tests.support.metadata import commit, table

KINDS = [
    ("assert-last-assigned-field-id", "last-assigned-field-id", 2),
    ("assert-current-schema-id", "current-schema-id", 0),
    ("assert-last-assigned-partition-id", "last-assigned-partition-id", 999),
    ("assert-default-spec-id", "default-spec-id", 0),
    ("assert-default-sort-order-id", "default-sort-order-id", 0),
]


@pytest.mark.parametrize(("kind", "field", "held"), KINDS)
def test_requirement_on_a_number_holds_only_for_the_number_held(
    kind: str, field: str, held: int
) -> None:
    assert find_unmet(table(), [{"type": kind, field: held}]) is None
    unmet = find_unmet(table(), [{"type": kind, field: held + 1}])
    assert unmet is not None
    assert unmet.facts == {"requirement": kind, "expected": held + 1, "actual": held}


@pytest.mark.parametrize("kind", sorted(set(REQUIREMENTS) - {"assert-create"}))
def test_requirement_without_its_value_is_malformed(kind: str) -> None:
    with pytest.raises(MalformedRequest):
        find_unmet(table(), [{"type": kind}])


def test_assert_create_holds_only_where_there_is_no_table() -> None:
    assert find_unmet(None, [{"type": "assert-create"}]) is None
    assert find_unmet(table(), [{"type": "assert-create"}]) is not None


def test_assert_table_uuid_ignores_the_case_of_letters() -> None:
    held = table()
    requirement = {"type": "assert-table-uuid", "uuid": held["table-uuid"].upper()}
    assert find_unmet(held, [requirement]) is None
    assert find_unmet(table(), [requirement]) is not None


@pytest.mark.parametrize(
    ("ref", "expected", "holds"),
    [("main", 1, True), ("main", 2, False), ("main", None, False), ("tag", None, True)],
)
def test_assert_ref_snapshot_id_compares_the_ref_and_null_means_no_ref(
    ref: str, expected: int | None, holds: bool
) -> None:
    requirement: dict[str, Any] = {"type": "assert-ref-snapshot-id", "ref": ref}
    unmet = find_unmet(table(*commit(1)), [{**requirement, "snapshot-id": expected}])
    assert (unmet is None) is holds


def test_unknown_requirement_is_malformed_even_behind_one_that_fails() -> None:
    failing = {"type": "assert-default-spec-id", "default-spec-id": 5}
    with pytest.raises(MalformedRequest):
        find_unmet(table(), [failing, {"type": "assert-sunshine"}])


def test_unmet_requirement_becomes_a_conflict_with_its_facts() -> None:
    unmet = find_unmet(table(), [{"type": "assert-default-spec-id", "default-spec-id": 5}])
    assert unmet is not None
    assert isinstance(unmet, RequirementFailed)
    assert unmet.facts == {"requirement": "assert-default-spec-id", "expected": 5, "actual": 0}
