"""The first metadata of a table."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import ImpossibleTableChange, MalformedRequest
from headgate.tables.creation import DEFAULT_PROPERTIES, create_metadata
from tests.support.metadata import LOCATION, NOW, column, schema


def create(**request: Any) -> dict[str, Any]:
    return create_metadata(request, location=LOCATION, now_ms=NOW)


def nested() -> dict[str, Any]:
    point = schema(column(31, "x"), column(32, "y"))
    points = {"type": "list", "element-id": 21, "element": point, "element-required": True}
    tags = {
        "type": "map",
        "key-id": 40,
        "key": "string",
        "value-id": 41,
        "value": "string",
        "value-required": False,
    }
    return schema(column(10, "points", points), column(11, "tags", tags), column(12, "id"))


def test_field_ids_are_assigned_level_by_level() -> None:
    made = create(schema=nested())["schemas"][0]["fields"]
    assert [field["id"] for field in made] == [1, 2, 3]
    assert made[0]["type"]["element-id"] == 4
    assert [field["id"] for field in made[0]["type"]["element"]["fields"]] == [5, 6]
    assert (made[1]["type"]["key-id"], made[1]["type"]["value-id"]) == (7, 8)


def test_partitions_order_and_identifiers_follow_the_new_ids() -> None:
    sort = {
        "source-id": 12,
        "transform": "identity",
        "direction": "asc",
        "null-order": "nulls-last",
    }
    made = create(
        schema={**nested(), "identifier-field-ids": [12]},
        **{
            "partition-spec": {
                "fields": [{"source-id": 12, "transform": "bucket[2]", "name": "b"}]
            },
            "write-order": {"order-id": 1, "fields": [sort]},
        },
    )
    assert made["schemas"][0]["identifier-field-ids"] == [3]
    assert made["partition-specs"][0]["fields"][0] == {
        "source-id": 3,
        "transform": "bucket[2]",
        "name": "b",
        "field-id": 1000,
    }
    assert made["sort-orders"][0]["fields"][0]["source-id"] == 3
    assert (made["default-sort-order-id"], made["last-column-id"]) == (1, 8)


def test_format_version_is_taken_from_the_properties_and_not_kept_there() -> None:
    made = create(
        schema=schema(column(1, "v", "variant")), properties={"format-version": "3", "a": "b"}
    )
    assert (made["format-version"], made["next-row-id"]) == (3, 0)
    assert made["properties"] == {**DEFAULT_PROPERTIES, "a": "b"}


def test_compression_is_set_unless_the_request_names_one() -> None:
    codec = "write.parquet.compression-codec"
    one = schema(column(1, "id"))
    assert create(schema=one)["properties"] == {codec: "zstd"}
    assert create(schema=one, properties={codec: "snappy"})["properties"] == {codec: "snappy"}
    assert create(schema=schema())["format-version"] == 2


def test_table_of_format_version_1_is_created_at_version_2() -> None:
    made = create(schema=schema(column(1, "id")), properties={"format-version": "1"})
    assert made["format-version"] == 2
    assert made["properties"] == DEFAULT_PROPERTIES


@pytest.mark.parametrize("version", ["0", "4", "two"])
def test_format_version_that_is_not_supported_is_refused(version: str) -> None:
    with pytest.raises(ImpossibleTableChange):
        create(schema=schema(column(1, "id")), properties={"format-version": version})


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"schema": []},
        {"schema": {"type": "struct"}},
        {"schema": schema({"id": 1, "name": "a", "required": False})},
        {"schema": schema(column(1, "a", {"type": "song"}))},
        {"schema": schema(), "properties": {"a": 1}},
        {"schema": schema(column(True, "a"))},
    ],
    ids=str,
)
def test_create_request_of_a_wrong_shape_is_malformed(request_: dict[str, Any]) -> None:
    with pytest.raises(MalformedRequest):
        create(**request_)


def test_partition_by_a_missing_column_is_refused() -> None:
    spec = {"fields": [{"source-id": 9, "transform": "identity", "name": "x"}]}
    with pytest.raises(ImpossibleTableChange, match="no column 9"):
        create(schema=schema(column(1, "id")), **{"partition-spec": spec})
