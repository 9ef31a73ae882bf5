"""Runs one SQL statement in a bound session: rows as JSON values, failures as Headgate's errors.

Also quotes identifiers and texts for the SQL that other modules of this room generate.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate import errors
from headgate.errors.families import kinds_by_code, rebuild
from headgate.tables.metadata import not_finite

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


# A killed process closes its connections before it can be waited for.
_END_SECONDS = 3.0
# Exceptions of a connection that has ended, also in the middle of an answer.
_LOST = {"Py4JError", "ConnectionError", "EOFError"}


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, kw_only=True)
class SqlResult:
    """The result of a statement: its columns in order, and its rows."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]


def run_sql(session: SparkSession, text: str) -> SqlResult:
    """Run one statement; a statement without a result set has no columns and no rows."""
    with translated_errors():
        frame = session.sql(text)
        columns = distinct_names(frame.columns)
        types = [field.dataType for field in frame.schema.fields]
        rows = [map(_json_value, row, types) for row in frame.collect()]
    return SqlResult(columns=columns, rows=[dict(zip(columns, row, strict=True)) for row in rows])


def arrow_of(session: SparkSession, text: str) -> pa.Table:
    """Run one statement and return its rows as an Arrow table."""
    with translated_errors():
        frame = session.sql(text)
        found: pa.Table = frame.toDF(*distinct_names(frame.columns)).toArrow()
        return found


@contextmanager
def translated_errors() -> Iterator[None]:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  (optional: PySpark brings it)
    from pyspark import errors as pyspark  # noqa: PLC0415  (optional, and slow)

    try:
        with reporting_end(), without_error_log():
            yield
    except (pyspark.PySparkException, Py4JJavaError) as error:
        analysed = isinstance(error, pyspark.AnalysisException)
        raise failure_of(str(error), analysed=analysed) from error


@contextmanager
def without_error_log() -> Iterator[None]:
    """Keep PySpark from logging errors that the caller reports: a screenful of JSON for each."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415  (optional, and slow)

    # From PySpark's own factory: loggers of another class reject the arguments that it logs with.
    loggers = [
        PySparkLogger.getLogger(name)
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
    ]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


@contextmanager
def reporting_end() -> Iterator[None]:
    """Raise `SparkStopped` for an exception whose cause is that this process's JVM has ended."""
    try:
        yield
    except Exception as error:
        # A process that did not import PySpark has no JVM.
        context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
        jvm = getattr(getattr(context, "_gateway", None), "jvm_process", None)
        kinds = {kind.__name__ for kind in type(error).__mro__}
        lost = kinds & _LOST and "Py4JJavaError" not in kinds
        if not lost or jvm is None or (stopped := jvm.find_end(_END_SECONDS)) is None:
            raise
        raise stopped from error


# `org.apache.iceberg.exceptions.ForbiddenException: ` and the like.
_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")
# The form in which the endpoint sends errors, with the prefix that Iceberg's client may add. Some
# messages of the endpoint start like a prefix themselves.
_ENDPOINT_ERROR = re.compile(
    r"^(?:(?!Table |Namespace |Requirement )[A-Z][a-z]+(?: [a-z]+)*: )?"
    r"(?P<message>.+) \[(?P<code>[a-z_]+)\]$"
)
# Raised by Iceberg's client itself: the tables have `gc.enabled` off.
# Spark does not say which of its disks is full.
SPARK_DISKS = "of Spark (its local directories, or the warehouse)"
_GC_DISABLED = "GC is disabled"
_NOT_FOUND = ("[TABLE_OR_VIEW_NOT_FOUND]", "[SCHEMA_NOT_FOUND]")
_ALREADY_EXISTS = ("[TABLE_OR_VIEW_ALREADY_EXISTS]", "[SCHEMA_ALREADY_EXISTS]")


def failure_of(details: str, *, analysed: bool) -> errors.HeadgateError:
    """Return the error for Spark's message; an error of the catalog is rebuilt from its code.

    `analysed`: Spark rejected the statement before it started to execute it.
    """
    reason = _reason(details)
    if sent := _ENDPOINT_ERROR.search(reason):
        kind = kinds_by_code().get(sent["code"])
        if kind is not None:
            return rebuild(kind, sent["message"], {"details": details})
    if _GC_DISABLED in reason:
        return errors.ClientCleanupRefused(what="deleting a table's files or history")
    if reason.startswith(_NOT_FOUND):
        return errors.UnknownInStatement(reason=reason, details=details)
    if reason.startswith(_ALREADY_EXISTS):
        return errors.Exists(f"Spark cannot do this: {reason}", reason=reason, details=details)
    if failure := errors.find_quoted_failure(details, SPARK_DISKS):
        return failure
    if analysed:
        return errors.InvalidStatement(reason=reason, details=details)
    return errors.StatementFailed(reason=reason, details=details)


def _reason(details: str) -> str:
    """Return the first line with a message, without the class of the exception before it."""
    lines = details.removeprefix("An error occurred while calling ").strip().splitlines()
    message = next((line for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return _CLASS.sub("", message.removeprefix(": ")).strip()


def _json_value(value: Any, kind: Any) -> Any:
    """Return a value of this Spark type as JSON; types that JSON does not have become text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else not_finite(value)
        case datetime.datetime() if kind.typeName() == "timestamp":
            # PySpark returns it in the local time of this process, without a zone.
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
            return {
                str(_json_value(key, kind.keyType)): _json_value(item, kind.valueType)
                for key, item in value.items()
            }
        case list():
            return [_json_value(item, kind.elementType) for item in value]
        case tuple() if kind.typeName() == "struct":
            return {
                field.name: _json_value(item, field.dataType)
                for field, item in zip(kind.fields, value, strict=True)
            }
    return str(value)


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return column names that can be keys: a repeated name gets a number."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(result)
