"""Differences of schemas: matching fields, and their changes."""

from __future__ import annotations

from typing import Any

from headgate.tables.diff import (
    Pair,
    SchemaChanges,
    common_columns,
    identifier_columns,
    schema_changes,
)
from headgate.tables.schemas import widest
from tests.support.metadata import change, column, schema, table


def with_schema(metadata: dict[str, Any], *columns: dict[str, Any]) -> dict[str, Any]:
    """The table with another current schema."""
    return change(
        metadata,
        {"action": "add-schema", "schema": schema(*columns)},
        {"action": "set-current-schema", "schema-id": -1},
    )


def paths(pairs: tuple[Pair, ...] | list[Pair]) -> list[tuple[str, str]]:
    return [(old.path, new.path) for old, new in pairs]


def test_schemas_of_one_version_do_not_differ() -> None:
    made = table()
    assert not schema_changes(made, made)


def test_schema_changes_follow_field_ids() -> None:
    made = table()
    later = with_schema(made, column(2, "on", "date"), column(1, "id", "int"), column(3, "new"))
    found = schema_changes(made, later)
    assert [field.path for field in found.added] == ["new"]
    assert found.removed == ()
    assert paths(found.renamed) == [("day", "on")]
    assert [(old.type, new.type) for old, new in found.retyped] == [("long", "int")]


def test_schema_changes_backwards_are_the_other_way_round() -> None:
    made = table()
    later = with_schema(made, column(1, "key"), column(3, "new"))
    found = schema_changes(later, made)
    assert [field.path for field in found.added] == ["day"]
    assert [field.path for field in found.removed] == ["new"]
    assert paths(found.renamed) == [("key", "id")]


def test_schema_changes_of_a_field_that_became_required() -> None:
    made = table()
    later = with_schema(made, column(1, "id") | {"required": True}, column(2, "day", "date"))
    found = schema_changes(made, later)
    assert paths(found.required) == [("id", "id")]
    assert found == SchemaChanges(required=found.required)


def test_columns_that_two_branches_added_are_not_one_renamed_column() -> None:
    made = table()
    keep = column(1, "id"), column(2, "day", "date")
    one, other = with_schema(made, *keep, column(3, "x")), with_schema(made, *keep, column(3, "y"))
    found = schema_changes(one, other)
    assert found.renamed == ()
    assert [field.path for field in found.added] == ["y"]
    assert [field.path for field in found.removed] == ["x"]


def test_column_that_two_branches_added_alike_is_one_column() -> None:
    made = table()
    keep = column(1, "id"), column(2, "day", "date")
    one = with_schema(made, *keep, column(3, "x"))
    other = with_schema(made, *keep, column(3, "x", doc="mine"))
    assert not schema_changes(one, other)


def test_column_dropped_and_added_again_is_another_column() -> None:
    made = table()
    later = with_schema(made, column(1, "id"), column(3, "day", "date"))
    found = schema_changes(made, later)
    assert [field.id for field in found.added] == [3]
    assert [field.id for field in found.removed] == [2]
    assert paths(common_columns(made, later)) == [("id", "id")]


def test_tables_made_apart_are_matched_by_name() -> None:
    one = table()
    other = table(schema=schema(column(1, "day", "date"), column(2, "id")))
    assert not schema_changes(one, other)
    assert paths(common_columns(one, other)) == [("day", "day"), ("id", "id")]


def test_schema_changes_inside_a_struct_name_the_innermost_field() -> None:
    def struct(*fields: dict[str, Any]) -> dict[str, Any]:
        return column(1, "s", {"type": "struct", "fields": list(fields)})

    made = table(schema=schema(struct(column(2, "a"))))
    later = with_schema(made, struct(column(2, "b", "int"), column(3, "c")))
    found = schema_changes(made, later)
    assert paths(found.renamed) == [("s.a", "s.b")]
    assert paths(found.retyped) == [("s.a", "s.b")]
    assert [field.path for field in found.added] == ["s.c"]
    assert common_columns(made, later) == []


def test_column_with_a_dot_in_its_name_is_a_column() -> None:
    made = table(schema=schema(column(1, "a.b"), column(2, "c")))
    assert paths(common_columns(made, made)) == [("a.b", "a.b"), ("c", "c")]


def test_struct_that_is_new_is_one_change() -> None:
    inner = {"type": "struct", "fields": [column(4, "a"), column(5, "b")]}
    elements = {"type": "list", "element-id": 6, "element": inner, "element-required": False}
    made = table()
    keep = column(1, "id"), column(2, "day", "date")
    found = schema_changes(made, with_schema(made, *keep, column(3, "l", elements)))
    assert [field.path for field in found.added] == ["l"]


def test_no_version_has_no_fields() -> None:
    found = schema_changes(None, table())
    assert [field.path for field in found.added] == ["id", "day"]
    assert [field.path for field in schema_changes(table(), None).removed] == ["id", "day"]


def test_columns_with_types_that_do_not_compare_are_left_out() -> None:
    made = table()
    later = with_schema(made, column(1, "id", "string"), column(2, "day", "date"))
    assert paths(common_columns(made, later)) == [("day", "day")]


def test_widest_of_two_types_holds_the_values_of_both() -> None:
    assert widest("int", "long") == widest("long", "int") == "long"
    assert widest("double", "float") == "double"
    assert widest("decimal(9, 2)", "decimal(18, 2)") == "decimal(18, 2)"
    assert widest("decimal(9, 2)", "decimal(18, 3)") is None
    assert widest("date", "date") == "date"
    assert widest("date", "string") is None


def test_identifier_columns_are_named() -> None:
    made = table(schema=schema(column(7, "a"), column(9, "b"), **{"identifier-field-ids": [9]}))
    assert identifier_columns(made) == ["b"]
    assert identifier_columns(table()) == []
