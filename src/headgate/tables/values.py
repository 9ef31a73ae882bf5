"""Arrow's values as JSON has them."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headgate.tables.rows import Row


def plain_rows(rows: pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows by column name; what JSON has no number or text for is text."""
    fields = list(rows.schema)
    return [
        {field.name: plain(row[field.name], field.type) for field in fields}
        for row in rows.to_pylist()
    ]


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value of this Arrow type, nested ones included."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else _unreal(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal():
            # As text: a reader's float would round it.
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {field.name: plain(value[field.name], field.type) for field in kind}
        case list() if pa.types.is_map(kind):
            return _map(value, kind)
        case list():
            return [plain(item, kind.value_type) for item in value]
    return str(value)


def _map(pairs: Iterable[tuple[Any, Any]], kind: pa.MapType) -> dict[str, Any]:
    return {str(plain(key, kind.key_type)): plain(value, kind.item_type) for key, value in pairs}


def _unreal(value: float) -> str:
    """JSON has no word for these; SQL spells them so."""
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
