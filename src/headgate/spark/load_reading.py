"""Files as Spark reads them: rows in the types of a table, each with its place where it is asked.

What Spark can refuse while it writes (a value of another type, a missing one) is not looked for
beforehand: that would be one more pass over the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import functions as sf

from headgate.spark.load_casting import cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The place of a row: the number of its file, and how far it is in it.
FILE, ROW = "__file", "__row"
PLACE = (FILE, ROW)
_PATH = "__path"
_MISSING = "\x01missing\x01"
# Spark writes one slash behind it here, and three there.
_SCHEME = re.compile("^file:/+")
# Of the number that Spark gives to a row: the part of the file that it counts in, and from where.
_PART_SHIFT = 33


class UnknownColumn(Exception):
    """A file has a column that the table does not have; which file it is, its reader finds."""


@dataclass(frozen=True, kw_only=True)
class SparkLoad:
    """One table: files with their formats, and how its rows are told apart."""

    # As SQL names it, quoted.
    table: str
    dataset: str
    # Absolute paths on a disk that Spark sees too, each with its format.
    files: Sequence[tuple[str, str]]
    key: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # How much comes, in times of what the table holds.
    share: float = 1.0


def read_rows(session: SparkSession, load: SparkLoad, *, placed: bool = False) -> list[DataFrame]:
    """The rows in the table's types, one frame for each set of columns that files in a row have.

    Where each row of a Parquet file stands is told only if asked for: it costs a tenth of a merge.
    """
    # Without it a value that does not fit would become a missing one.
    session.conf.set("spark.sql.ansi.enabled", "true")
    # A moment without a zone means the same on every machine.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    fitted = [_fitted(session, load, frame, text) for frame, text in _frames(session, load, placed)]
    grouped = groupby(fitted, key=lambda frame: frame.columns)
    return [reduce(lambda one, other: one.union(other), frames) for _, frames in grouped]


def given_columns(rows: DataFrame) -> list[str]:
    """The columns that the files have."""
    return [column for column in rows.columns if column not in PLACE]


def holds_replacements(rows: Sequence[DataFrame]) -> bool:
    """Whether a character is there that Spark puts in place of bytes which are not UTF-8."""
    for frame in rows:
        texts = [f.name for f in frame.schema.fields if f.dataType.typeName() == "string"]
        signs = [sf.col(quote(name)).contains("\ufffd") for name in texts if name not in PLACE]
        if signs and frame.where(reduce(lambda a, b: a | b, signs)).limit(1).collect():
            return True
    return False


def rows_before(placed: Sequence[DataFrame], file: int, row: int) -> int:
    """How many rows stand before a row in its file, by the number that `placed` frames give it."""
    part, offset = row >> _PART_SHIFT, row & ((1 << _PART_SHIFT) - 1)
    if not part:
        return offset
    earlier = [
        frame.where((sf.col(FILE) == file) & (sf.shiftright(sf.col(ROW), _PART_SHIFT) < part))
        for frame in placed
    ]
    return offset + sum(int(frame.count()) for frame in earlier)


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _frames(
    session: SparkSession, load: SparkLoad, placed: bool
) -> Iterator[tuple[DataFrame, bool]]:
    """What there is to read, in order: text file by file, since each has its own columns."""
    numbered = list(enumerate(load.files))
    for format, several in groupby(numbered, key=lambda item: item[1][1]):
        files = [(number, path) for number, (path, _) in several]
        for part in [files] if format == "parquet" else [[file] for file in files]:
            frame = _read(session, [path for _, path in part], format)
            if not placed:
                yield (
                    frame.select("*", *(sf.lit(None).alias(c) for c in PLACE)),
                    format != "parquet",
                )
            elif format == "parquet":
                yield _place_parquet(session, frame, part), False
            else:
                # Counts within a file's parts, and those upwards.
                row = sf.monotonically_increasing_id()
                yield frame.select("*", sf.lit(part[0][0]).alias(FILE), row.alias(ROW)), True


def _place_parquet(
    session: SparkSession, frame: DataFrame, files: Sequence[tuple[int, str]]
) -> DataFrame:
    """Files by their number: their paths come in another order than they were given."""
    numbers = {path: number for number, path in files}
    spelt = [_SCHEME.sub("/", uri) for uri in frame.inputFiles()]
    known = session.createDataFrame(
        [(path, numbers[unquote(path)]) for path in dict.fromkeys(spelt)],
        f"{_PATH} string, {FILE} int",
    )
    path = sf.regexp_replace(sf.col("_metadata.file_path"), _SCHEME.pattern, "/")
    placed = frame.select("*", path.alias(_PATH), sf.col("_metadata.row_index").alias(ROW))
    # A row must not get lost because its file is spelt in yet another way.
    unknown = sf.raise_error(sf.concat(sf.lit("which file is "), sf.col(_PATH))).cast("int")
    columns = [sf.col(quote(column)) for column in frame.columns]
    return placed.join(sf.broadcast(known), _PATH, "left").select(
        *columns, sf.coalesce(FILE, unknown).alias(FILE), ROW
    )


def _read(session: SparkSession, paths: Sequence[str], format: str) -> DataFrame:
    places = [f"file://{path}" for path in paths]
    match format:
        case "csv":
            reader = session.read.options(
                header=True,
                multiLine=True,
                escape='"',
                mode="FAILFAST",
                enforceSchema=False,
                # What is missing is told from what is empty and in quotes.
                nullValue=_MISSING,
                emptyValue="",
            )
            return reader.option("sep", "\t" if paths[0].lower().endswith(".tsv") else ",").csv(
                places
            )
        case "jsonl":
            return session.read.options(
                mode="FAILFAST", allowSingleQuotes=False, allowNonNumericNumbers=False
            ).json(places)
        case _:
            return session.read.option("mergeSchema", len(places) > 1).parquet(*places)


def _fitted(session: SparkSession, load: SparkLoad, frame: DataFrame, text: bool) -> DataFrame:
    types = {f.name.lower(): f for f in session.table(load.table).schema.fields}
    fitted = []
    for name in given_columns(frame):
        if name.lower() not in types:
            raise UnknownColumn(name)
        target = types[name.lower()]
        given = frame.schema[name].dataType
        fitted.append(cast(sf.col(quote(name)), name, given, target.dataType).alias(target.name))
    placed = frame.select(*fitted, *PLACE)
    # Text is understood once, and cut off from how: MERGE takes no source that could come out
    # otherwise, and every further look would understand it again.
    return placed.localCheckpoint() if text else placed
