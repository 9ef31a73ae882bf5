"""Columns of a file that are rewritten for Spark: only those with types that it does not read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.rows.load_spark_files import schema_for_spark

_NS, _US = pa.timestamp("ns"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (_NS, _US),
        (pa.timestamp("ns", tz="UTC"), pa.timestamp("us", tz="UTC")),
        (pa.time64("us"), pa.string()),
        (pa.float16(), pa.float32()),
        (pa.list_(_NS), pa.list_(_US)),
        (pa.list_(_NS, 2), pa.list_(_US)),
        (pa.map_(pa.string(), _NS), pa.map_(pa.string(), _US)),
        (pa.struct([("a", pa.large_list(_NS))]), pa.struct([("a", pa.large_list(_US))])),
        (pa.list_view(pa.int64()), pa.large_list(pa.int64())),
    ],
    ids=str,
)
def test_type_that_spark_does_not_read_becomes_one_that_it_reads(
    given: pa.DataType, read: pa.DataType
) -> None:
    assert schema_for_spark(pa.schema([("x", given)])) == pa.schema([("x", read)])


@pytest.mark.parametrize(
    "kind",
    [_US, pa.date32(), pa.list_(pa.float32(), 768), pa.list_(pa.date32(), 2), pa.binary(16)],
    ids=str,
)
def test_type_that_spark_reads_stays(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("x", kind, nullable=False)], {"k": "v"})
    assert schema_for_spark(schema).equals(schema, check_metadata=True)
