"""Reading the rows of a version that somebody is about to change: the files that may hold them.

Needs the extra `arrow`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import (
    AlwaysTrue,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
)
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from headgate.tables.arrow import DataFile, asking, file_properties, to_data_file
from headgate.tables.inspect import current_snapshot
from headgate.tables.shape import MAIN, Metadata
from headgate.tables.versions import StoredVersion

# What is known of the rows that somebody looks for, so that files without them are left alone.


@dataclass(frozen=True, kw_only=True)
class Among:
    """The column has one of these values."""

    column: str
    values: frozenset[Any]


@dataclass(frozen=True, kw_only=True)
class Within:
    """The column is neither below nor above; None is no bound."""

    column: str
    low: Any = None
    high: Any = None


# All of them hold together.
Condition: TypeAlias = Among | Within
Conditions: TypeAlias = Sequence[Condition]

# Over so many values a look into each file costs less than the comparison with its statistics.
AMONG_LIMIT = 2_000


# Over so many files a look at the columns in question pays for itself.
_PROBED_FROM = 2


class TableScan:
    """One version's files, chosen by what is known of the rows; whole rows or some columns."""

    def __init__(self, version: StoredVersion, options: Mapping[str, str]) -> None:
        self.version = version
        with asking(version.location):
            self.metadata = slim_metadata(version.metadata)
            self.io: FileIO = load_file_io(file_properties(options), location=version.location)
            self._table = StaticTable(
                identifier=("version", version.location),
                metadata=self.metadata,
                metadata_location=version.location,
                io=self.io,
                catalog=NoopCatalog("version"),
            )
            self.schema: pa.Schema = schema_to_pyarrow(
                self.metadata.schema(), include_field_ids=False
            )

    def plan(self, where: Conditions = ()) -> list[DataFile]:
        """The files that may hold such rows, as partitions and statistics tell."""
        with asking(self.version.location):
            tasks = self._table.scan(row_filter=_expression(where)).plan_files()
            return [to_data_file(task) for task in tasks]

    def narrow(self, files: Sequence[DataFile], where: Conditions) -> list[DataFile]:
        """Those of the files that do hold such rows, found by reading only the columns asked."""
        if len(files) < _PROBED_FROM or not where:
            return list(files)
        columns = sorted({condition.column for condition in where})
        with asking(self.version.location):
            schema = self.metadata.schema().select(*columns)
            scan = ArrowScan(self.metadata, self.io, schema, _expression(where))
            return [file for file in files if _any_row(scan, file)]

    def read(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of one file, in the order of its positions; all columns unless named."""
        chosen = self.schema if columns is None else _chosen(self.schema, columns)
        with asking(self.version.location):
            whole = self.metadata.schema()
            schema = whole if columns is None else whole.select(*columns)
            scan = ArrowScan(self.metadata, self.io, schema, AlwaysTrue())
            batches = [
                batch.select(chosen.names).cast(chosen)
                for batch in scan.to_record_batches([file.task])
            ]
            return pa.Table.from_batches(batches, chosen)


def slim_metadata(metadata: Metadata) -> TableMetadata:
    """The version as PyIceberg's value, with the current snapshot alone.

    Making its values costs time for each snapshot of the history, which no row needs.
    """
    snapshot = current_snapshot(metadata)
    slim = {
        **metadata,
        "snapshots": [snapshot] if snapshot else [],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
        "refs": (
            {MAIN: {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}} if snapshot else {}
        ),
    }
    return TableMetadataUtil.parse_obj(slim)


def _chosen(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    wanted = set(columns)
    return pa.schema([field for field in schema if field.name in wanted])


def _any_row(scan: ArrowScan, file: DataFile) -> bool:
    return any(batch.num_rows for batch in scan.to_record_batches([file.task]))


def _expression(where: Conditions) -> BooleanExpression:
    parts = [part for condition in where for part in _parts(condition)]
    return functools.reduce(operator.and_, parts) if parts else AlwaysTrue()


def _parts(condition: Condition) -> list[Any]:
    if isinstance(condition, Among):
        return [In(condition.column, condition.values)]
    found: list[Any] = []
    if condition.low is not None:
        found.append(GreaterThanOrEqual(condition.column, condition.low))
    if condition.high is not None:
        found.append(LessThanOrEqual(condition.column, condition.high))
    return found
