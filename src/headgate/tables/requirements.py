"""What a commit asserts about a table, one small function per kind.

Each takes the table's metadata, or None where there is no table, and returns what does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headgate.errors import MalformedRequest, RequirementFailed
from headgate.tables.shape import Json, Metadata, read_int, read_str


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """One requirement that does not hold."""

    requirement: str
    expected: Any
    actual: Any

    def to_error(self) -> RequirementFailed:
        return RequirementFailed(
            requirement=self.requirement, expected=self.expected, actual=self.actual
        )


def assert_create(metadata: Metadata | None, _requirement: Json) -> Unmet | None:
    """The table must not exist."""
    if metadata is None:
        return None
    return Unmet(requirement="assert-create", expected="no table", actual=metadata["table-uuid"])


def assert_table_uuid(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The table is the one that the client knows, whatever letters its UUID is written with."""
    expected = read_str(requirement, "uuid")
    actual = (metadata or {}).get("table-uuid")
    if actual is not None and str(actual).lower() == expected.lower():
        return None
    return Unmet(requirement="assert-table-uuid", expected=expected, actual=actual)


def assert_ref_snapshot_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The named ref is at that snapshot; null: there is no such ref."""
    name = read_str(requirement, "ref")
    expected = None
    if requirement.get("snapshot-id") is not None:
        expected = read_int(requirement, "snapshot-id")
    ref = ((metadata or {}).get("refs") or {}).get(name)
    actual = ref["snapshot-id"] if ref else None
    if actual == expected:
        return None
    return Unmet(requirement=f"assert-ref-snapshot-id {name!r}", expected=expected, actual=actual)


def assert_last_assigned_field_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """No column was added since."""
    return _same(metadata, requirement, "last-assigned-field-id", "last-column-id")


def assert_current_schema_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The current schema is that one."""
    return _same(metadata, requirement, "current-schema-id", "current-schema-id")


def assert_last_assigned_partition_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """No partition field was added since."""
    return _same(metadata, requirement, "last-assigned-partition-id", "last-partition-id")


def assert_default_spec_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The default partition spec is that one."""
    return _same(metadata, requirement, "default-spec-id", "default-spec-id")


def assert_default_sort_order_id(metadata: Metadata | None, requirement: Json) -> Unmet | None:
    """The default sort order is that one."""
    return _same(metadata, requirement, "default-sort-order-id", "default-sort-order-id")


def _same(metadata: Metadata | None, requirement: Json, asked: str, held: str) -> Unmet | None:
    expected = read_int(requirement, asked)
    actual = (metadata or {}).get(held)
    if actual == expected:
        return None
    return Unmet(requirement=str(requirement["type"]), expected=expected, actual=actual)


Requirement = Callable[[Metadata | None, Json], Unmet | None]

REQUIREMENTS: dict[str, Requirement] = {
    "assert-create": assert_create,
    "assert-table-uuid": assert_table_uuid,
    "assert-ref-snapshot-id": assert_ref_snapshot_id,
    "assert-last-assigned-field-id": assert_last_assigned_field_id,
    "assert-current-schema-id": assert_current_schema_id,
    "assert-last-assigned-partition-id": assert_last_assigned_partition_id,
    "assert-default-spec-id": assert_default_spec_id,
    "assert-default-sort-order-id": assert_default_sort_order_id,
}


def find_unmet(metadata: Metadata | None, requirements: Iterable[Json]) -> Unmet | None:
    """The first requirement that does not hold; an unknown kind is refused, as the protocol asks.

    Every kind is looked up before any is evaluated, so that a malformed request is malformed
    whatever state the table is in.
    """
    pairs = [(_kind(requirement), requirement) for requirement in requirements]
    for check, requirement in pairs:
        if unmet := check(metadata, requirement):
            return unmet
    return None


def _kind(requirement: Json) -> Requirement:
    kind = read_str(requirement, "type")
    if kind not in REQUIREMENTS:
        raise MalformedRequest(what=f"requirement {kind!r}", reason="this kind is not known")
    return REQUIREMENTS[kind]
