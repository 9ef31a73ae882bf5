"""A table version opened by PyIceberg: its files, and their rows as Arrow batches.

Needs the extra `arrow`; `reading` and `comparing` import this room's Arrow modules when they do.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, StaticTable
from pyiceberg.table.metadata import TableMetadataUtil

from headgate.errors import HeadgateError, NeedsSpark, StorageUnavailable
from headgate.tables.rows import Row
from headgate.tables.versions import StoredVersion

# Arrow's values as JSON has them.


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


# What PyIceberg calls the variables that S3 clients share; of two the first that is set counts.
_S3_PROPERTIES = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3.access-key-id": ("AWS_ACCESS_KEY_ID",),
    "s3.secret-access-key": ("AWS_SECRET_ACCESS_KEY",),
    "s3.session-token": ("AWS_SESSION_TOKEN",),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.force-virtual-addressing": ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",),
    "s3.anonymous": ("AWS_SKIP_SIGNATURE",),
}
_REASON_LIMIT = 300


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A data file with the delete files that apply to it."""

    path: str
    deletes: frozenset[str]
    # Before deletes.
    row_count: int
    size_bytes: int
    task: Any

    @property
    def identity(self) -> tuple[str, frozenset[str]]:
        """Files never change, so equal identities hold equal rows."""
        return self.path, self.deletes


class ArrowTable:
    """One version, read through PyIceberg; whatever it cannot read is `NeedsSpark`."""

    def __init__(self, version: StoredVersion, options: Mapping[str, str]) -> None:
        self._location = version.location
        with asking(self._location):
            self._metadata = TableMetadataUtil.parse_obj(version.metadata)
            # Not with the table's own properties: they could name a class to be loaded.
            self._io = load_file_io(file_properties(options), location=version.location)
            self._table = StaticTable(
                identifier=("version", version.location),
                metadata=self._metadata,
                metadata_location=version.location,
                io=self._io,
                catalog=NoopCatalog("version"),
            )
            self.schema = schema_to_pyarrow(self._metadata.schema(), include_field_ids=False)

    def files(self) -> list[DataFile]:
        """All data files, from all manifests."""
        with asking(self._location):
            return [to_data_file(task) for task in self._table.scan().plan_files()]

    def first_files(self, rows: int) -> list[DataFile]:
        """Enough files for this many rows, from as few manifests as it takes."""
        with asking(self._location):
            snapshot = self._table.current_snapshot()
            manifests = list(snapshot.manifests(self._io)) if snapshot else []
            if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
                # Which deletes apply to a file is known only when all of them are.
                return self.files()
            entries = (
                entry.data_file
                for manifest in manifests
                for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            )
            return _enough(entries, rows)

    def files_added_by(self, snapshots: Iterable[int], rows: int) -> list[DataFile]:
        """Enough files for this many rows, of those that these append snapshots added."""
        with asking(self._location):
            return _enough(self._added_by(snapshots), rows)

    def _added_by(self, snapshots: Iterable[int]) -> Iterator[Any]:
        for id in snapshots:
            snapshot = self._metadata.snapshot_by_id(id)
            for manifest in snapshot.manifests(self._io) if snapshot else ():
                if manifest.content != ManifestContent.DATA or manifest.added_snapshot_id != id:
                    continue
                for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                    # A merged manifest repeats what earlier snapshots added.
                    if entry.status == ManifestEntryStatus.ADDED:
                        yield entry.data_file

    def batches(
        self, files: Iterable[DataFile], limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these files in the current schema, one file in memory at a time.

        With a limit each file is read only that far.
        """
        for file in files:
            with asking(self._location):
                schema = self._metadata.schema()
                scan = ArrowScan(self._metadata, self._io, schema, AlwaysTrue(), limit=limit)
                found = [_conform(b, self.schema) for b in scan.to_record_batches([file.task])]
            yield from found

    def count(self, files: Iterable[DataFile]) -> int:
        """How many rows these files show; only those with deletes are read."""
        total, others = 0, []
        for file in files:
            if file.deletes:
                others.append(file)
            else:
                total += file.row_count
        for batch in self.batches(others):
            total += batch.num_rows
        return total

    def rows(self, files: Iterable[DataFile], limit: int) -> list[Row]:
        """The first rows of these files, as JSON has them."""
        found: list[Row] = []
        for batch in self.batches(files, limit) if limit else ():
            with asking(self._location):
                found += plain_rows(batch.slice(0, limit - len(found)))
            if len(found) >= limit:
                break
        return found


def file_properties(options: Mapping[str, str]) -> dict[str, str]:
    """PyIceberg's settings for storage, from AWS_* variables by name."""
    found = {
        name: next((options[variable] for variable in variables if options.get(variable)), None)
        for name, variables in _S3_PROPERTIES.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _enough(files: Iterable[Any], rows: int) -> list[DataFile]:
    chosen: list[DataFile] = []
    missing = rows
    for file in files:
        chosen.append(to_data_file(FileScanTask(data_file=file)))
        missing -= file.record_count
        if missing <= 0:
            break
    return chosen


def to_data_file(task: Any) -> DataFile:
    return DataFile(
        path=task.file.file_path,
        deletes=frozenset(file.file_path for file in task.delete_files),
        row_count=task.file.record_count,
        size_bytes=task.file.file_size_in_bytes,
        task=task,
    )


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Files differ in how wide they write offsets, and so would their batches."""
    return batch if batch.schema.equals(schema) else batch.cast(schema)


@contextmanager
def asking(location: str) -> Iterator[None]:
    """The door to the library, whose errors have no common root."""
    try:
        yield
    except HeadgateError:
        raise
    except OSError as error:
        raise StorageUnavailable(where=location, reason=_first_words(error)) from error
    except Exception as error:
        raise NeedsSpark(where=location, reason=_first_words(error)) from error


def _first_words(error: Exception) -> str:
    """A library's message may run over lines and pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Pydantic ends with a dump of what it was given.
    said = " ".join(itertools.islice(lines, 3)).partition(" [type=")[0]
    words = said.rstrip(". ") or type(error).__name__
    return words if len(words) <= _REASON_LIMIT else f"{words[: _REASON_LIMIT - 3]}..."
