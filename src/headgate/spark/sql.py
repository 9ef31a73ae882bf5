"""One SQL text in a bound session, its rows as plain values that JSON can carry."""

from __future__ import annotations

import base64
import datetime
import decimal
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.errors import (
    ClientCleanupRefused,
    Exists,
    HeadgateError,
    InvalidStatement,
    StatementFailed,
    UnknownInStatement,
)
from headgate.errors.families import kinds_by_code, rebuild

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Errors that PySpark raises are told once: by whoever catches them.

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def told_once() -> Iterator[None]:
    """Within the block PySpark does not also log its errors, a screenful of JSON for each."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415  (optional, and slow)

    # PySpark's own way to get at them: made otherwise they could not take what it says.
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


# `org.apache.iceberg.exceptions.ForbiddenException: ` and the like.
_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")
# As the endpoint words its refusals, and Iceberg's client passes them on.
_TOLD = re.compile(r"^(?:[A-Z][a-z]+(?: [a-z]+)*: )?(?P<message>.+) \[(?P<code>[a-z_]+)\]$")
# As Iceberg's client words it before it asks anybody.
_KEPT_FROM_CLIENTS = "GC is disabled"
# Spark's own words for a name that means nothing.
_UNKNOWN = ("[TABLE_OR_VIEW_NOT_FOUND]", "[SCHEMA_NOT_FOUND]")
_TAKEN = ("[TABLE_OR_VIEW_ALREADY_EXISTS]", "[SCHEMA_ALREADY_EXISTS]")


@dataclass(frozen=True, kw_only=True)
class SqlResult:
    """What a statement answered: its columns in order, and its rows."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]


def run_sql(session: SparkSession, text: str) -> SqlResult:
    """Runs one statement; a statement that answers nothing has no columns and no rows."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  (optional: PySpark brings it)
    from pyspark.errors import (  # noqa: PLC0415  (optional, and slow)
        AnalysisException,
        PySparkException,
    )

    try:
        with told_once():
            return _run(session, text)
    except (PySparkException, Py4JJavaError) as error:
        raise failure_of(str(error), analysed=isinstance(error, AnalysisException)) from error


def _run(session: SparkSession, text: str) -> SqlResult:
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


def failure_of(details: str, *, analysed: bool) -> HeadgateError:
    """What went wrong: what the catalog refused, as itself; what Spark did, by whose fault it is.

    `analysed`: Spark found it in the statement, before it began to work.
    """
    reason = _reason(details)
    if told := _TOLD.search(reason):
        kind = kinds_by_code().get(told["code"])
        if kind is not None:
            return rebuild(kind, told["message"], {"details": details})
    if _KEPT_FROM_CLIENTS in reason:
        return ClientCleanupRefused(what="what deletes a table's files or history")
    if reason.startswith(_UNKNOWN):
        return UnknownInStatement(reason=reason, details=details)
    if reason.startswith(_TAKEN):
        return Exists(f"Spark cannot do this: {reason}", reason=reason, details=details)
    if analysed:
        return InvalidStatement(reason=reason, details=details)
    return StatementFailed(reason=reason, details=details)


def _reason(details: str) -> str:
    """The first line that says what went wrong, without the class of the error before it."""
    lines = details.removeprefix("An error occurred while calling ").strip().splitlines()
    spoken = next((line for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return _CLASS.sub("", spoken.removeprefix(": ")).strip()


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
