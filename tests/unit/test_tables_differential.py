"""Differential test: PyIceberg applies the same updates to the same table.

PyIceberg takes part only where it follows the specification: format version 2, no field that it
does not know, ids as a client of that table would send them, and main moved once in a commit (it
logs snapshots that were never visible).
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableUpdate, update_table_metadata

from tests.support.metadata import add, change, column, commit, point, schema, table

_UPDATES: TypeAdapter[tuple[Any, ...]] = TypeAdapter(tuple[TableUpdate, ...])
# Set from PyIceberg's own clock, or written differently where empty.
_OWN = {"last-updated-ms", "metadata-log", "statistics", "partition-statistics"}

SPEC = {
    "spec-id": 1,
    "fields": [{"source-id": 2, "field-id": 1000, "name": "m", "transform": "month"}],
}
ORDER_FIELD = {
    "source-id": 1,
    "transform": "identity",
    "direction": "asc",
    "null-order": "nulls-first",
}
WIDER = schema(
    column(1, "id"), column(2, "day", "date"), column(3, "x", "string"), **{"schema-id": 1}
)

CASES: dict[str, list[dict[str, Any]]] = {
    "append": commit(1),
    "snapshot off main": [add(1), *commit(2, parent=1, op="overwrite")],
    "schema": [
        {"action": "add-schema", "schema": WIDER},
        {"action": "set-current-schema", "schema-id": -1},
    ],
    "spec": [{"action": "add-spec", "spec": SPEC}, {"action": "set-default-spec", "spec-id": -1}],
    "sort order": [
        {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [ORDER_FIELD]}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ],
    "properties": [
        {"action": "set-properties", "updates": {"a": "1", "b": "2"}},
        {"action": "remove-properties", "removals": ["a"]},
    ],
    "tag": [*commit(1), point(1, ref="t", kind="tag", **{"max-ref-age-ms": 9})],
    "branch removed": [
        *commit(1),
        point(1, ref="side"),
        {"action": "remove-snapshot-ref", "ref-name": "side"},
    ],
    "snapshot removed": [
        *commit(1),
        add(2, parent=1),
        {"action": "remove-snapshots", "snapshot-ids": [2]},
    ],
}


def by_pyiceberg(metadata: dict[str, Any], updates: list[dict[str, Any]]) -> dict[str, Any]:
    base = TableMetadataUtil.parse_raw(orjson.dumps(metadata).decode())
    parsed = _UPDATES.validate_json(orjson.dumps(updates))
    return _comparable(orjson.loads(update_table_metadata(base, parsed).model_dump_json()))


def _comparable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata without empty fields, and without fields that each side chooses."""
    kept = {key: value for key, value in metadata.items() if key not in _OWN}
    return {key: _plain(value) for key, value in kept.items() if value not in (None, [], {})}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item not in (None, [])}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", CASES)
def test_updates_come_out_as_pyiceberg_applies_them(name: str) -> None:
    held = table()
    assert _comparable(change(held, *CASES[name])) == by_pyiceberg(held, CASES[name])


@given(names=st.lists(st.sampled_from(sorted(CASES)), unique=True, max_size=4))
def test_commits_in_any_order_come_out_as_pyiceberg_applies_them(names: list[str]) -> None:
    ours = theirs = table()
    for at, name in enumerate(names):
        updates = _shifted(CASES[name], by=10 * at)
        theirs = by_pyiceberg(theirs, updates)
        ours = change(ours, *updates)
    assert _comparable(ours) == _comparable(theirs)


def _shifted(updates: list[dict[str, Any]], *, by: int) -> list[dict[str, Any]]:
    """Return the same updates with snapshot ids and sequence numbers of no earlier commit."""
    shifted = []
    for update in updates:
        if "snapshot" in update:
            moved = {
                key: value + by if key in {"snapshot-id", "sequence-number"} else value
                for key, value in update["snapshot"].items()
            }
            if "parent-snapshot-id" in moved:
                moved["parent-snapshot-id"] += by
            shifted.append({**update, "snapshot": moved})
        elif "snapshot-ids" in update:
            shifted.append({**update, "snapshot-ids": [at + by for at in update["snapshot-ids"]]})
        elif "snapshot-id" in update:
            shifted.append({**update, "snapshot-id": update["snapshot-id"] + by})
        else:
            shifted.append(update)
    return shifted
