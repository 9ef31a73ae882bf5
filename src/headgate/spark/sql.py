"""One SQL text in a bound session, its rows as plain values that JSON can carry."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class SqlResult:
    """What a statement answered: its columns in order, and its rows."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]


def run_sql(session: SparkSession, text: str) -> SqlResult:
    """Runs one statement; a statement that answers nothing has no columns and no rows."""
    frame = session.sql(text)
    columns = _distinct(frame.columns)
    types = [field.dataType for field in frame.schema.fields]
    return SqlResult(
        columns=columns,
        rows=[
            dict(zip(columns, (plain(*pair) for pair in zip(row, types, strict=True)), strict=True))
            for row in frame.collect()
        ],
    )


def plain(value: Any, kind: Any) -> Any:
    """A value of this Spark type as JSON has it: what has no number or text of its own is text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            # JSON has no word for these; Spark's SQL spells them so.
            return value if value - value == 0 else _unreal(value)
        case datetime.datetime() if kind.typeName() == "timestamp":
            # PySpark gives a moment in the local time of this process and does not say so.
            return value.astimezone(datetime.UTC).isoformat()
        case decimal.Decimal():
            # As text: a reader's float would round it.
            return str(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case dict():
            return {_key(key, kind): plain(item, kind.valueType) for key, item in value.items()}
        case list():
            return [plain(item, kind.elementType) for item in value]
        case tuple() if kind.typeName() == "struct":
            return {
                field.name: plain(item, field.dataType)
                for field, item in zip(kind.fields, value, strict=True)
            }
    return str(value)


def _unreal(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _key(key: Any, kind: Any) -> str:
    made = plain(key, kind.keyType)
    return made if isinstance(made, str) else str(made)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Column names that can be keys: a name used before gets a number."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(result)
