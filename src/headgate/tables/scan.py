"""A table version opened by PyIceberg: its files, chosen by conditions, and their rows in Arrow.

Needs the extra `arrow`.
"""

import base64
import datetime
import decimal
import functools
import itertools
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from headgate import errors
from headgate.storage.address import first_set
from headgate.tables.manifests import check_all_manifests
from headgate.tables.metadata import MAIN, Json, Metadata, Row, not_finite
from headgate.tables.snapshots import current_snapshot
from headgate.tables.versions import StoredVersion, WeighedCache

check_all_manifests()

# Of rows that a document or a page shows.
_SHOWN_BYTES = 64 * 1024 * 1024
T = TypeVar("T", bound=Hashable)

# --- conditions on the rows to read, so that files without such rows are skipped ------------


@dataclass(frozen=True, kw_only=True)
class Among:
    """The column has one of these values."""

    column: str
    values: frozenset[Any]


@dataclass(frozen=True, kw_only=True)
class Within:
    """The column is neither below nor above; None means no bound."""

    column: str
    low: Any = None
    high: Any = None


# All of them hold together.
Condition: TypeAlias = Among | Within
Conditions: TypeAlias = Sequence[Condition]

# Above this many values, reading each file costs less than comparing them with its statistics.
AMONG_LIMIT = 2_000


# From this many files on, reading only the columns of the conditions first pays for itself.
_PROBED_FROM = 2
# PyIceberg's names for the variables that S3 clients share; of two the first that is set counts.
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


# Manifests and lists of them never change, so those used last are kept, by address.
_lists: WeighedCache[tuple[ManifestFile, ...]] = WeighedCache(limit=20_000)
_entries: WeighedCache[list[ManifestEntry]] = WeighedCache(limit=50_000)


class _KeptManifest(ManifestFile):  # type: ignore[misc]  # the library has no types
    """A manifest whose live entries are read once."""

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        if not discard_deleted:
            return super().fetch_manifest_entry(io, discard_deleted)  # type: ignore[no-any-return]
        found = _entries.find(self.manifest_path)
        if found is None:
            found = super().fetch_manifest_entry(io)
            keep_entries(self.manifest_path, found)
        return found


def keep_entries(path: str, live: list[ManifestEntry]) -> None:
    """Keep the entries of a manifest, as they are read from it."""
    _entries.put(path, live, weight=len(live))


def keep_manifests(path: str, listed: Iterable[ManifestFile]) -> tuple[ManifestFile, ...]:
    """Keep the manifests of a manifest list, and return them."""
    kept = tuple(
        one if isinstance(one, _KeptManifest) else _KeptManifest(*one._data) for one in listed
    )
    _lists.put(path, kept, weight=len(kept))
    return kept


class TableScan:
    """The files and rows of one version; raises `NeedsSpark` for what PyIceberg cannot read."""

    def __init__(self, version: StoredVersion, options: Mapping[str, str]) -> None:
        self.version = version
        with library_errors(version.location):
            self.metadata = _slim_metadata(version.metadata)
            # Without the table's own properties: they could name a class to be loaded.
            self.io: FileIO = load_file_io(file_properties(options), location=version.location)
            self.schema: pa.Schema = schema_to_pyarrow(
                self.metadata.schema(), include_field_ids=False
            )

    def plan(self, where: Conditions = ()) -> list[DataFile]:
        """Return the files that may hold such rows, by partitions and statistics."""
        with library_errors(self.version.location):
            planner = ManifestGroupPlanner(self.metadata, self.io, _expression(where))
            return [_data_file(task) for task in planner.plan_files(self.manifests())]

    def manifests(self) -> Sequence[ManifestFile]:
        """Return the manifests of the version."""
        with library_errors(self.version.location):
            snapshot = self.metadata.current_snapshot()
            if snapshot is None:
                return ()
            found = _lists.find(snapshot.manifest_list)
            return found or keep_manifests(snapshot.manifest_list, snapshot.manifests(self.io))

    def files_of(self, manifests: Iterable[ManifestFile]) -> list[DataFile]:
        """Return the live files of manifests of data files, to which no delete files apply."""
        with library_errors(self.version.location):
            return [
                _data_file(FileScanTask(data_file=entry.data_file))
                for entry in self._live(manifests)
            ]

    def narrow(self, files: Sequence[DataFile], where: Conditions) -> list[DataFile]:
        """Return the files that do hold such rows, by reading only the columns of the conditions.

        Too few files are returned as they are.
        """
        if len(files) < _PROBED_FROM or not where:
            return list(files)
        columns = sorted({condition.column for condition in where})
        with library_errors(self.version.location):
            schema = self.metadata.schema().select(*columns)
            scan = ArrowScan(self.metadata, self.io, schema, _expression(where))
            return [
                file
                for file in files
                if any(batch.num_rows for batch in scan.to_record_batches([file.task]))
            ]

    def first_files(self, rows: int) -> list[DataFile]:
        """Return enough files for this many rows, from as few manifests as possible."""
        with library_errors(self.version.location):
            manifests = self.manifests()
            if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
                # The deletes of a file are known only when all manifests are read.
                return self.plan()
            return _enough((entry.data_file for entry in self._live(manifests)), rows)

    def _live(self, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
        for manifest in manifests:
            yield from manifest.fetch_manifest_entry(self.io)

    def files_added_by(self, snapshots: Iterable[Json], rows: int) -> list[DataFile]:
        """Return enough files for this many rows, of those that these append snapshots added."""
        with library_errors(self.version.location):
            return _enough(self._added_by(snapshots), rows)

    def _added_by(self, snapshots: Iterable[Json]) -> Iterator[Any]:
        for snapshot in map(Snapshot.model_validate, snapshots):
            id = snapshot.snapshot_id
            own = (one for one in snapshot.manifests(self.io) if one.added_snapshot_id == id)
            for entry in self._live(one for one in own if one.content == ManifestContent.DATA):
                # A merged manifest repeats the files that earlier snapshots added.
                if entry.status == ManifestEntryStatus.ADDED:
                    yield entry.data_file

    def batches(
        self,
        files: Iterable[DataFile],
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        where: Conditions = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these files in the current schema, one file in memory at a time.

        With a limit, each file is read only that far; with conditions, only rows that meet them.
        """
        schema = self._schema_of(columns)
        for file in files:
            with library_errors(self.version.location):
                whole = self.metadata.schema()
                projected = whole if columns is None else whole.select(*columns)
                scan = ArrowScan(self.metadata, self.io, projected, _expression(where), limit=limit)
                found = [_conform(b, schema) for b in scan.to_record_batches([file.task])]
            yield from found

    def read(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of one file in the order of their positions; all columns unless named."""
        batches = self.batches([file], columns=columns)
        return pa.Table.from_batches(list(batches), self._schema_of(columns))

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        if columns is None:
            return self.schema
        return pa.schema([field for field in self.schema if field.name in columns])

    def count(self, files: Iterable[DataFile]) -> int:
        """Return the number of rows in these files; only those with deletes are read."""
        counted = list(files)
        read = self.batches(file for file in counted if file.deletes)
        total = sum(file.row_count for file in counted if not file.deletes)
        return int(total + sum(batch.num_rows for batch in read))

    def rows(self, files: Iterable[DataFile], limit: int) -> list[Row]:
        """Return the first rows of these files as JSON values; raise if they are too large."""
        found: list[Row] = []
        size = 0
        for batch in self.batches(files, limit=limit) if limit else ():
            with library_errors(self.version.location):
                wanted = batch.slice(0, limit - len(found))
                size += wanted.nbytes
                if size > _SHOWN_BYTES:
                    raise errors.Invalid(
                        f"the {limit} rows asked for have over {_SHOWN_BYTES} bytes. Ask for "
                        "fewer, or read the table by an engine."
                    )
                found += json_rows(wanted)
            if len(found) >= limit:
                break
        return found


def file_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return PyIceberg's settings for storage, from AWS_* variables by name."""
    found = {name: first_set(options, names) for name, names in _S3_PROPERTIES.items()}
    return {name: value for name, value in found.items() if value is not None}


def _slim_metadata(metadata: Metadata) -> TableMetadata:
    """Return the version as PyIceberg's value, with the current snapshot alone.

    The library takes time for each snapshot of the history, which no row needs.
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


def _enough(files: Iterable[Any], rows: int) -> list[DataFile]:
    chosen: list[DataFile] = []
    missing = rows
    for file in files:
        chosen.append(_data_file(FileScanTask(data_file=file)))
        missing -= file.record_count
        if missing <= 0:
            break
    return chosen


def _data_file(task: Any) -> DataFile:
    return DataFile(
        path=task.file.file_path,
        deletes=frozenset(file.file_path for file in task.delete_files),
        row_count=task.file.record_count,
        size_bytes=task.file.file_size_in_bytes,
        task=task,
    )


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    # Parquet's reader does not check text, and the file may be any client's.
    batch.validate(full=True)
    # Files differ in the width of their offsets, and so do their batches.
    if batch.schema.equals(schema):
        return batch
    return batch.select(schema.names).cast(schema)


def _expression(where: Conditions) -> expressions.BooleanExpression:
    parts = [part for condition in where for part in _parts(condition)]
    return functools.reduce(operator.and_, parts) if parts else expressions.AlwaysTrue()


def _parts(condition: Condition) -> list[Any]:
    if isinstance(condition, Among):
        return [expressions.In(condition.column, condition.values)]
    bounds = (
        (expressions.GreaterThanOrEqual, condition.low),
        (expressions.LessThanOrEqual, condition.high),
    )
    return [compare(condition.column, value) for compare, value in bounds if value is not None]


@contextmanager
def library_errors(location: str) -> Iterator[None]:
    """Translate the errors of the library, which have no common base class."""
    try:
        yield
    except (errors.HeadgateError, MemoryError):
        raise
    except Exception as error:
        failure: errors.HeadgateError | None = None
        kind: type[errors.StorageUnavailable | errors.NeedsSpark] = errors.NeedsSpark
        if isinstance(error, OSError):
            failure = errors.find_quoted_failure(str(error), location)
            kind = errors.NeedsSpark if _is_damage(error) else errors.StorageUnavailable
        raise failure or kind(where=location, reason=_first_words(error)) from error


def _is_damage(error: OSError) -> bool:
    """Return whether Arrow could read the bytes of a file, but not make sense of them."""
    return type(error) is OSError and error.errno is None and "AWS Error" not in str(error)


def _first_words(error: Exception) -> str:
    """Return the start of a message, which may run over lines and pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Pydantic's messages end with a dump of the input.
    message = " ".join(itertools.islice(lines, 3)).partition(" [type=")[0]
    words = message.rstrip(". ") or type(error).__name__
    return words if len(words) <= _REASON_LIMIT else f"{words[: _REASON_LIMIT - 3]}..."


def changed_files(
    before: TableScan | None, after: TableScan | None
) -> tuple[list[DataFile], list[DataFile]]:
    """Return the files that were removed and added; manifests that both have are not read."""
    held = {one.manifest_path: one for one in (before.manifests() if before else ())}
    named = {one.manifest_path: one for one in (after.manifests() if after else ())}
    if any(one.content == ManifestContent.DELETES for one in (*held.values(), *named.values())):
        old = before.plan() if before else []
        new = after.plan() if after else []
    else:
        old = before.files_of(held[path] for path in held if path not in named) if before else []
        new = after.files_of(named[path] for path in named if path not in held) if after else []
    gone, come = unmatched([file.identity for file in old], [file.identity for file in new])
    return [old[at] for at in gone], [new[at] for at in come]


def unmatched(old: Sequence[T], new: Sequence[T]) -> tuple[list[int], list[int]]:
    """Return the positions of items that the other side lacks, or has fewer times."""
    spare = Counter(new)
    gone = [at for at, item in enumerate(old) if not _take(spare, item)]
    come = [at for at, item in enumerate(new) if _take(spare, item)]
    return gone, come


def _take(spare: Counter[T], item: T) -> bool:
    if spare[item] > 0:
        spare[item] -= 1
        return True
    return False


def json_rows(rows: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return rows by column name."""
    fields = list(rows.schema)
    return [
        {field.name: json_value(row[field.name], field.type) for field in fields}
        for row in rows.to_pylist()
    ]


def json_value(value: Any, kind: pa.DataType) -> Any:
    """Return a value of this Arrow type for JSON; text where JSON has no such value."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else not_finite(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal():
            # As text: a reader's float would round it.
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {field.name: json_value(value[field.name], field.type) for field in kind}
        case list() if pa.types.is_map(kind):
            keys, items = kind.key_type, kind.item_type
            return {str(json_value(key, keys)): json_value(item, items) for key, item in value}
        case list():
            return [json_value(item, kind.value_type) for item in value]
    return str(value)
