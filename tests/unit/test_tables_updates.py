"""Updates of schemas, layouts, properties, statistics and encryption keys."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import ImpossibleTableChange, MalformedRequest
from headgate.tables.creation import DEFAULT_PROPERTIES
from headgate.tables.updates import UPDATES, apply_create, apply_updates
from tests.support.metadata import LOCATION, NOW, change, column, commit, schema, table, two_columns


def add_schema(*extra: dict[str, Any]) -> dict[str, Any]:
    columns = [column(1, "id"), column(2, "day", "date"), *extra]
    return {"action": "add-schema", "schema": schema(*columns)}


SET_SCHEMA = {"action": "set-current-schema", "schema-id": -1}
SET_SPEC = {"action": "set-default-spec", "spec-id": -1}
SET_ORDER = {"action": "set-default-sort-order", "sort-order-id": -1}


def add_spec(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"action": "add-spec", "spec": {"spec-id": 77, "fields": list(fields)}}


def by(source: int, transform: str, name: str, **more: Any) -> dict[str, Any]:
    return {"source-id": source, "transform": transform, "name": name, **more}


def order_by(source: int) -> dict[str, Any]:
    field = {
        "source-id": source,
        "transform": "identity",
        "direction": "asc",
        "null-order": "nulls-first",
    }
    return {"action": "add-sort-order", "sort-order": {"order-id": 9, "fields": [field]}}


def test_add_schema_takes_the_next_id_and_raises_the_last_column_id() -> None:
    made = change(table(), add_schema(column(7, "x")), SET_SCHEMA)
    assert made["current-schema-id"] == 1
    assert made["last-column-id"] == 7
    assert [one["schema-id"] for one in made["schemas"]] == [0, 1]


def test_add_schema_equal_to_a_known_one_is_that_one() -> None:
    wider = change(table(), add_schema(column(3, "x")), SET_SCHEMA)
    back = change(wider, {"action": "add-schema", "schema": two_columns()}, SET_SCHEMA)
    assert back["current-schema-id"] == 0
    assert len(back["schemas"]) == 2


def test_add_schema_keeps_fields_it_does_not_know() -> None:
    made = change(table(), add_schema(column(3, "x", doc="why", colour="red")))
    assert made["schemas"][1]["fields"][2]["colour"] == "red"


@pytest.mark.parametrize(
    "extra",
    [
        column(1, "again"),
        column(3, "id"),
        column(3, "v", "variant"),
        column(3, "d", **{"initial-default": 1}),
    ],
)
def test_add_schema_that_version_2_cannot_have_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ImpossibleTableChange):
        change(table(), add_schema(extra))


def test_add_schema_with_a_variant_and_a_default_is_accepted_by_version_3() -> None:
    extra = [column(3, "v", "variant"), column(4, "d", **{"initial-default": 1})]
    made = change(table(version=3), add_schema(*extra))
    assert made["schemas"][1]["fields"][3]["initial-default"] == 1


@pytest.mark.parametrize("update", [SET_SCHEMA, SET_SPEC, SET_ORDER], ids=lambda u: u["action"])
def test_minus_one_without_anything_added_is_refused(update: dict[str, Any]) -> None:
    with pytest.raises(ImpossibleTableChange, match="has added no"):
        change(table(), update)


def test_schema_without_the_partition_column_cannot_become_current() -> None:
    parted = change(table(), add_spec(by(2, "month", "m")), SET_SPEC)
    only_id = {"action": "add-schema", "schema": schema(column(1, "id"))}
    with pytest.raises(ImpossibleTableChange, match="source column 2"):
        change(parted, only_id, SET_SCHEMA)


def test_remove_schemas_keeps_the_current_one() -> None:
    made = change(table(), add_schema(column(3, "x")), SET_SCHEMA)
    left = change(made, {"action": "remove-schemas", "schema-ids": [0]})
    assert [one["schema-id"] for one in left["schemas"]] == [1]
    with pytest.raises(ImpossibleTableChange):
        change(made, {"action": "remove-schemas", "schema-ids": [1]})


def test_add_spec_numbers_specs_and_fields() -> None:
    made = change(table(), add_spec(by(2, "month", "m"), by(1, "bucket[4]", "b")), SET_SPEC)
    assert made["default-spec-id"] == 1
    assert [f["field-id"] for f in made["partition-specs"][1]["fields"]] == [1000, 1001]
    assert made["last-partition-id"] == 1001


def test_add_spec_gives_an_earlier_field_its_earlier_id() -> None:
    first = change(table(), add_spec(by(2, "month", "m")), SET_SPEC)
    second = change(first, add_spec(by(1, "bucket[4]", "b"), by(2, "month", "m2")), SET_SPEC)
    assert [f["field-id"] for f in second["partition-specs"][2]["fields"]] == [1001, 1000]


def test_add_spec_equal_to_a_known_one_is_that_one() -> None:
    first = change(table(), add_spec(by(2, "month", "m")), SET_SPEC)
    back = change(first, add_spec(), SET_SPEC)
    again = change(back, add_spec(by(2, "month", "m", **{"field-id": 1000})), SET_SPEC)
    assert (back["default-spec-id"], again["default-spec-id"]) == (0, 1)
    assert len(again["partition-specs"]) == 2


def test_add_spec_on_an_unknown_column_is_refused() -> None:
    with pytest.raises(ImpossibleTableChange, match="source column 9"):
        change(table(), add_spec(by(9, "identity", "x")))


def test_remove_partition_specs_keeps_the_default_one() -> None:
    made = change(table(), add_spec(by(2, "month", "m")), SET_SPEC)
    left = change(made, {"action": "remove-partition-specs", "spec-ids": [0]})
    assert [spec["spec-id"] for spec in left["partition-specs"]] == [1]
    with pytest.raises(ImpossibleTableChange):
        change(made, {"action": "remove-partition-specs", "spec-ids": [1]})


def test_sort_orders_count_from_one_and_unsorted_is_zero() -> None:
    made = change(table(), order_by(1), SET_ORDER)
    assert made["default-sort-order-id"] == 1
    unsorted = {"action": "add-sort-order", "sort-order": {"order-id": 3, "fields": []}}
    back = change(made, unsorted, SET_ORDER)
    again = change(back, order_by(1), SET_ORDER)
    assert (back["default-sort-order-id"], again["default-sort-order-id"]) == (0, 1)
    assert len(again["sort-orders"]) == 2


def test_properties_are_set_and_removed_and_never_hold_the_format_version() -> None:
    first = change(table(), {"action": "set-properties", "updates": {"a": "1", "b": "2"}})
    second = change(first, {"action": "remove-properties", "removals": ["a", "zz"]})
    third = change(second, {"action": "set-properties", "updates": {"format-version": "3"}})
    assert third["properties"] == {**DEFAULT_PROPERTIES, "b": "2"}
    assert (third["format-version"], third["next-row-id"]) == (3, 0)


def test_format_version_never_goes_back() -> None:
    with pytest.raises(ImpossibleTableChange):
        change(table(version=3), {"action": "upgrade-format-version", "format-version": 2})


def test_table_of_version_1_takes_only_an_upgrade() -> None:
    old = {
        "format-version": 1,
        "table-uuid": "u",
        "location": LOCATION,
        "schema": two_columns(),
        "partition-spec": [by(2, "month", "m")],
        "current-snapshot-id": 5,
        "snapshots": [{"snapshot-id": 5, "timestamp-ms": 1, "manifest-list": "m"}],
        "odd_field": 1,
    }
    with pytest.raises(ImpossibleTableChange, match="format-version"):
        change(old, {"action": "set-properties", "updates": {"a": "b"}})
    made = change(old, {"action": "upgrade-format-version", "format-version": 2})
    assert made["refs"] == {"main": {"snapshot-id": 5, "type": "branch"}}
    assert made["snapshots"][0]["sequence-number"] == 0
    assert made["partition-specs"][0]["fields"][0]["field-id"] == 1000
    assert made["odd_field"] == 1
    assert "schema" not in made


def test_uuid_of_a_table_is_never_reassigned() -> None:
    other = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
    with pytest.raises(ImpossibleTableChange):
        change(table(), {"action": "assign-uuid", "uuid": other})


@pytest.mark.parametrize("kind", ["statistics", "partition-statistics"])
def test_statistics_are_one_file_for_each_snapshot(kind: str) -> None:
    def set_to(path: str) -> dict[str, Any]:
        return {"action": f"set-{kind}", kind: {"snapshot-id": 1, "statistics-path": path}}

    made = change(table(*commit(1)), set_to("a"), set_to("b"))
    assert [file["statistics-path"] for file in made[kind]] == ["b"]
    assert change(made, {"action": f"remove-{kind}", "snapshot-id": 1})[kind] == []


def test_encryption_keys_need_version_3_and_are_added_once() -> None:
    key = {"key-id": "k", "encrypted-key-metadata": "aGk="}
    update = {"action": "add-encryption-key", "encryption-key": key}
    made = change(table(version=3), update, update)
    assert made["encryption-keys"] == [key]
    gone = change(made, {"action": "remove-encryption-key", "key-id": "k"})
    assert gone["encryption-keys"] == []
    with pytest.raises(ImpossibleTableChange):
        change(table(), update)


def test_metadata_log_keeps_as_many_files_as_the_table_sets() -> None:
    made = table(properties={"write.metadata.previous-versions-max": "2"})
    for number in range(4):
        made = change(made, {"action": "set-properties", "updates": {"n": str(number)}}, now=number)
    assert [entry["timestamp-ms"] for entry in made["metadata-log"]] == [NOW, NOW]
    assert made["last-updated-ms"] == NOW


def test_updates_that_change_nothing_return_the_same_metadata() -> None:
    held = table(properties={"a": "1"})
    update = {"action": "set-properties", "updates": {"a": "1"}}
    assert apply_updates(held, [update], now_ms=NOW + 9, base_location="x") is held


def test_updates_leave_the_metadata_they_start_from_alone() -> None:
    held = table(*commit(1))
    before = repr(held)
    change(held, *commit(2, parent=1), add_schema(column(3, "x")), SET_SCHEMA)
    assert repr(held) == before


def test_unknown_update_is_malformed_before_any_is_applied() -> None:
    with pytest.raises(MalformedRequest, match="add-sunshine"):
        change(table(), {"action": "set-location"}, {"action": "add-sunshine"})


def test_staged_creation_needs_every_part_of_a_table() -> None:
    with pytest.raises(MalformedRequest, match="table-uuid"):
        apply_create([add_schema(), SET_SCHEMA], now_ms=NOW)


def test_every_update_of_the_protocol_has_its_function() -> None:
    assert len(UPDATES) == 23
    assert len(set(map(repr, UPDATES.values()))) == 23
