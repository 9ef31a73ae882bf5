"""Parquet files that Spark reads as they are: those with the types of their table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.rows.load_spark_files import TableFormat

_NS, _US, _UTC = pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def _reads(table: pa.DataType, file: pa.DataType) -> bool:
    made = TableFormat("shop.item", pa.schema([pa.field("x", table, nullable=False)]), {})
    return made.reads(pa.schema([("X", file)], {"k": "v"}))


@pytest.mark.parametrize(
    ("table", "file"),
    [
        (pa.int64(), pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.large_string(), pa.dictionary(pa.int8(), pa.string())),
        (_UTC, pa.timestamp("us", tz="Europe/Berlin")),
        (pa.large_list(pa.float32()), pa.list_(pa.float32(), 768)),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
    ],
    ids=str,
)
def test_file_with_the_types_of_its_table_is_read_as_it_is(
    table: pa.DataType, file: pa.DataType
) -> None:
    assert _reads(table, file)


@pytest.mark.parametrize(
    ("table", "file"),
    [
        (pa.int64(), pa.int32()),
        (_US, _NS),
        (_US, _UTC),
        (pa.large_string(), pa.binary()),
        (pa.large_string(), pa.time64("us")),
        (pa.float32(), pa.float16()),
        (pa.uuid(), pa.uuid()),
        (pa.uuid(), pa.string()),
        (pa.large_list(_US), pa.list_(_NS)),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
    ],
    ids=str,
)
def test_file_with_other_types_is_converted(table: pa.DataType, file: pa.DataType) -> None:
    assert not _reads(table, file)
