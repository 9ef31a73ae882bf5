"""Updates of how a table's rows are laid out: partition specs and sort orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate.tables.schemas import current_schema, field_ids
from headgate.tables.shape import (
    LAST_ADDED,
    Json,
    read_int,
    read_ints,
    read_object,
    read_objects,
    read_str,
)
from headgate.tables.state import State, refuse

# The specification numbers partition fields from 1000.
FIRST_PARTITION_FIELD_ID = 1000
UNSORTED_ORDER_ID = 0


def add_spec(state: State, update: Json) -> State:
    """Adds a partition spec under the next id, or finds the equal one that is there."""
    fields = read_objects(read_object(update, "spec"), "fields")
    specs = state.items("partition-specs")
    for known in specs:
        if _spec_meaning(known["fields"]) == _spec_meaning(fields):
            return replace(state, last_spec_id=known["spec-id"])
    _check_sources(state, fields, "add-spec")
    _check_partition_names(fields)
    numbered, last_id = _number(state, fields)
    spec_id = max((known["spec-id"] for known in specs), default=-1) + 1
    added = state.put(
        partition_specs=[*specs, {"spec-id": spec_id, "fields": numbered}],
        last_partition_id=last_id,
    )
    return replace(added, last_spec_id=spec_id)


def set_default_spec(state: State, update: Json) -> State:
    """Makes a partition spec the one that writers use."""
    spec_id = read_int(update, "spec-id")
    if spec_id == LAST_ADDED:
        if state.last_spec_id is None:
            raise refuse("set-default-spec -1", "this commit has added no partition spec")
        spec_id = state.last_spec_id
    if spec_id not in {spec["spec-id"] for spec in state.items("partition-specs")}:
        raise refuse(f"set-default-spec {spec_id}", "there is no partition spec with that id")
    return state.put(default_spec_id=spec_id)


def remove_partition_specs(state: State, update: Json) -> State:
    """Removes partition specs that are not the default one."""
    doomed = set(read_ints(update, "spec-ids"))
    if state.metadata.get("default-spec-id") in doomed:
        raise refuse("remove-partition-specs", "one of them is the default spec")
    kept = [spec for spec in state.items("partition-specs") if spec["spec-id"] not in doomed]
    return state.put(partition_specs=kept)


def add_sort_order(state: State, update: Json) -> State:
    """Adds a sort order under the next id, or finds the equal one; unsorted is always id 0."""
    order = read_object(update, "sort-order")
    fields = read_objects(order, "fields")
    orders = state.items("sort-orders")
    for known in orders:
        if known["fields"] == fields:
            return replace(state, last_order_id=known["order-id"])
    _check_sources(state, fields, "add-sort-order")
    for field in fields:
        read_str(field, "direction")
        read_str(field, "null-order")
    order_id = UNSORTED_ORDER_ID
    if fields:
        order_id = max([*(known["order-id"] for known in orders), UNSORTED_ORDER_ID]) + 1
    added = state.put(sort_orders=[*orders, {**order, "order-id": order_id}])
    return replace(added, last_order_id=order_id)


def set_default_sort_order(state: State, update: Json) -> State:
    """Makes a sort order the one that writers use."""
    order_id = read_int(update, "sort-order-id")
    if order_id == LAST_ADDED:
        if state.last_order_id is None:
            raise refuse("set-default-sort-order -1", "this commit has added no sort order")
        order_id = state.last_order_id
    if order_id not in {order["order-id"] for order in state.items("sort-orders")}:
        raise refuse(f"set-default-sort-order {order_id}", "there is no sort order with that id")
    return state.put(default_sort_order_id=order_id)


def check_layout_fits(metadata: Json) -> None:
    """The default spec and order refer only to columns that the current schema has."""
    known = set(field_ids(current_schema(metadata) or {"fields": []}))
    for spec in metadata.get("partition-specs") or []:
        if spec["spec-id"] == metadata.get("default-spec-id"):
            # A dropped source column leaves a void transform behind in version 1.
            fields = [field for field in spec["fields"] if field.get("transform") != "void"]
            _check_known(fields, known, "the default partition spec")
    for order in metadata.get("sort-orders") or []:
        if order["order-id"] == metadata.get("default-sort-order-id"):
            _check_known(order["fields"], known, "the default sort order")


def _check_sources(state: State, fields: list[Json], change: str) -> None:
    schema = current_schema(state.metadata)
    if schema is None:
        raise refuse(change, "the table has no current schema yet")
    for field in fields:
        read_str(field, "transform")
    _check_known(fields, set(field_ids(schema)), change)


def _check_known(fields: list[Json], known: set[int], change: str) -> None:
    for field in fields:
        for source in _sources(field):
            if source not in known:
                raise refuse(change, f"its source column {source} is not in the current schema")


def _sources(field: Json) -> list[int]:
    """A transform of several arguments has `source-ids` in place of `source-id`."""
    if "source-ids" in field:
        return read_ints(field, "source-ids")
    return [read_int(field, "source-id")]


def _check_partition_names(fields: list[Json]) -> None:
    names = [read_str(field, "name") for field in fields]
    if len(set(names)) != len(names):
        raise refuse("add-spec", "two partition fields have the same name")


def _spec_meaning(fields: list[Json]) -> list[Any]:
    """What makes two specs equal: the fields in order, without their assigned ids."""
    return [(_sources(field), field.get("name"), field.get("transform")) for field in fields]


def _number(state: State, fields: list[Json]) -> tuple[list[Json], int]:
    """Fields with their ids: as sent, else the id of an equal earlier field, else the next one."""
    last_id = int(state.metadata.get("last-partition-id", FIRST_PARTITION_FIELD_ID - 1))
    earlier = {
        (tuple(_sources(field)), field["transform"]): field["field-id"]
        for spec in state.items("partition-specs")
        for field in spec["fields"]
        if "field-id" in field
    }
    numbered = []
    for field in fields:
        field_id = field.get("field-id")
        if field_id is None:
            field_id = earlier.get((tuple(_sources(field)), field["transform"]))
        if field_id is None:
            field_id = last_id + 1
        field_id = read_int({"field-id": field_id}, "field-id")
        last_id = max(last_id, field_id)
        numbered.append({**field, "field-id": field_id})
    if len({field["field-id"] for field in numbered}) != len(numbered):
        raise refuse("add-spec", "two partition fields have the same id")
    return numbered, last_id
