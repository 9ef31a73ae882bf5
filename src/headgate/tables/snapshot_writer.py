"""New snapshots of a table, written without a JVM: data files, manifests, and the next metadata.

Nothing here commits: the result is a value, and `publish` shows its version or never does.
Needs the extras `arrow` and, for bucketed tables, `mutations`. See ADR 0031.
"""

import io
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    ParquetFormatModel,
    ParquetFormatWriter,
    pyarrow_to_schema,
    write_file,
)
from pyiceberg.manifest import (
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import WriteTask

from headgate.errors import NeedsSparkToWrite
from headgate.tables.metadata import MAIN, Json, Metadata
from headgate.tables.scan import DataFile, TableScan, keep_entries, keep_manifests, library_errors
from headgate.tables.snapshots import current_snapshot, total_counts
from headgate.tables.updates import apply_updates
from headgate.tables.versions import uuid_with_digest

# The newest format version that PyIceberg writes.
_NEWEST_WRITTEN = 2


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Files that a snapshot removes and adds; the added ones follow the default partition spec."""

    operation: str
    removed: Sequence[DataFile] = ()
    added: Sequence[Any] = ()
    # True: all earlier files are removed.
    replaces_all: bool = False


def check_writable(scan: TableScan) -> None:
    """Raise if the table's format version is one that PyIceberg reads but does not write."""
    held = scan.metadata.format_version
    if held > _NEWEST_WRITTEN:
        raise NeedsSparkToWrite(
            where=scan.version.location, format_version=held, newest=_NEWEST_WRITTEN
        )


def next_metadata(
    scan: TableScan,
    change: FileChange,
    *,
    now_ms: int,
    base: Metadata | None = None,
    is_first: bool = False,
) -> Metadata:
    """Return the metadata after the change; `base` has earlier updates that change no files.

    `is_first`: no metadata of the table is stored yet.
    """
    metadata = base if base is not None else scan.version.metadata
    check_writable(scan)
    with library_errors(scan.version.location):
        snapshot = _write_snapshot(scan, metadata, change, now_ms)
    return apply_updates(
        metadata,
        [
            {"action": "add-snapshot", "snapshot": snapshot},
            {
                "action": "set-snapshot-ref",
                "ref-name": MAIN,
                "type": "branch",
                "snapshot-id": snapshot["snapshot-id"],
            },
        ],
        now_ms=now_ms,
        base_location=None if is_first else scan.version.location,
    )


# --- data files: split by partition, sorted by key, with their statistics --------------------


class _CheckedWriter(ParquetFormatWriter):  # type: ignore[misc]  # the library has no types
    """Writes a checksum with each page, by which `doctor --deep` finds a damaged one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._parquet_writer_kwargs["write_page_checksum"] = True


class _CheckedParquet(ParquetFormatModel):  # type: ignore[misc]
    def create_writer(self, *arguments: Any) -> _CheckedWriter:
        return _CheckedWriter(*arguments)


# No property of a table asks for it, and `register` rejects a second model of a format.
FileFormatFactory._registry[FileFormat.PARQUET] = _CheckedParquet()

# In memory; on disk the rows are several times smaller.
_FILE_BYTES = 512 * 1024 * 1024
_MARK = "\x00partition-"


def write_rows(scan: TableScan, rows: pa.Table, sort: Sequence[str] = ()) -> list[Any]:
    """Write rows as data files below the table's location, which nothing refers to yet."""
    if rows.num_rows == 0:
        return []
    with library_errors(scan.version.location):
        tasks = list(_tasks(scan, rows, sort))
        return list(write_file(scan.io, scan.metadata, iter(tasks)))


def _tasks(scan: TableScan, rows: pa.Table, sort: Sequence[str]) -> Iterator[WriteTask]:
    write_uuid = uuid4()
    names = scan.metadata.schema().name_mapping
    schema = pyarrow_to_schema(
        rows.schema, name_mapping=names, format_version=scan.metadata.format_version
    )
    number = 0
    for key, part in _split(scan, rows, sort):
        for piece in _pieces(part):
            yield WriteTask(
                write_uuid=write_uuid,
                task_id=number,
                schema=schema,
                record_batches=piece.to_batches(),
                partition_key=key,
            )
            number += 1


def _split(
    scan: TableScan, rows: pa.Table, sort: Sequence[str]
) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """Yield the rows of each partition, found by one sort however many there are."""
    spec, schema = scan.metadata.spec(), scan.metadata.schema()
    order = [(name, "ascending") for name in sort]
    if spec.is_unpartitioned():
        yield None, rows.sort_by(order) if order else rows
        return
    marked = rows
    marks = [f"{_MARK}{at}" for at in range(len(spec.fields))]
    for mark, part in zip(marks, spec.fields, strict=True):
        source = schema.find_field(part.source_id)
        transform = part.transform.pyarrow_transform(source.field_type)
        column = _narrow_offsets(rows.column(source.name))
        marked = marked.append_column(mark, transform(column))
    keys = marked.select([*marks, *sort])
    marked = marked.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))
    groups = marked.select(marks).group_by(marks, use_threads=False).aggregate([([], "count_all")])
    start = 0
    for group in groups.to_pylist():
        values = [
            PartitionFieldValue(field=field, value=group[mark])
            for mark, field in zip(marks, spec.fields, strict=True)
        ]
        part = marked.slice(start, group["count_all"]).drop_columns(marks)
        start += group["count_all"]
        yield PartitionKey(field_values=values, partition_spec=spec, schema=schema), part


def _narrow_offsets(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # The library's transforms do not take the large variants of these types.
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    if pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    return column


def _pieces(part: pa.Table) -> Iterator[pa.Table]:
    share = max(1, part.nbytes // _FILE_BYTES + 1)
    size = -(-part.num_rows // share)
    for start in range(0, part.num_rows, size):
        yield part.slice(start, size)


_COMPRESSION: Any = "gzip"


def _write_snapshot(scan: TableScan, metadata: Metadata, change: FileChange, now_ms: int) -> Json:
    parent = current_snapshot(metadata)
    id, sequence = secrets.randbits(63), int(metadata.get("last-sequence-number", 0)) + 1
    properties = metadata.get("properties") or {}
    place: str = properties.get("write.metadata.path") or f"{metadata['location']}/metadata"
    place = place.rstrip("/")
    manifests = list(_manifests(scan, parent, change, (id, sequence), place))
    output = _NamedByDigest(scan.io, lambda uuid: f"{place}/snap-{id}-0-{uuid}.avro")
    with write_manifest_list(
        format_version=2,
        output_file=output,
        snapshot_id=id,
        parent_snapshot_id=parent["snapshot-id"] if parent else None,
        sequence_number=sequence,
        avro_compression=_COMPRESSION,
    ) as writer:
        writer.add_manifests(manifests)
    # The writer has given them their sequence numbers.
    keep_manifests(output.location, manifests)
    snapshot = {
        "snapshot-id": id,
        "sequence-number": sequence,
        "timestamp-ms": max(now_ms, int(metadata.get("last-updated-ms", 0))),
        "manifest-list": output.location,
        "summary": _summary(parent, change),
        "schema-id": metadata["current-schema-id"],
    }
    return {**snapshot, "parent-snapshot-id": parent["snapshot-id"]} if parent else snapshot


def _summary(parent: Json | None, change: FileChange) -> dict[str, str]:
    """Return the counts of files and rows that are added, removed, and in the table then."""
    counts = {
        "added-data-files": len(change.added),
        "added-records": sum(file.record_count for file in change.added),
        "added-files-size": sum(file.file_size_in_bytes for file in change.added),
        "deleted-data-files": len(change.removed),
        "deleted-records": sum(file.row_count for file in change.removed),
        "removed-files-size": sum(file.size_bytes for file in change.removed),
    }
    summary = {"operation": change.operation}
    summary |= {name: str(count) for name, count in counts.items() if count}
    return summary | total_counts(parent, counts, without_deletes=change.replaces_all)


# A change rewrites the manifests of the files that it removes, so they are kept short.
_ENTRIES_WANTED = 32
# From this many manifests on they are merged, as readers open each of them.
_MANIFESTS_AT_MOST = 50


def _manifests(
    scan: TableScan, parent: Json | None, change: FileChange, new: tuple[int, int], place: str
) -> Iterator[ManifestFile]:
    """Yield manifests without a removed file as they are, others rewritten by snapshot `new`."""
    spec = scan.metadata.default_spec_id
    mixed: dict[int, list[ManifestEntry]] = {spec: []} if change.added else {}
    gone = {file.path for file in change.removed}
    held = scan.manifests() if parent else ()
    too_many = len(held) >= _MANIFESTS_AT_MOST
    for manifest in held:
        if manifest.content == ManifestContent.DELETES:
            if not change.replaces_all:
                yield manifest
            continue
        rewritten = change.replaces_all or too_many
        entries = manifest.fetch_manifest_entry(scan.io) if rewritten or gone else []
        if rewritten or any(e.data_file.file_path in gone for e in entries):
            mixed.setdefault(manifest.partition_spec_id, []).extend(
                _kept_or_deleted(entry, gone, everything=change.replaces_all) for entry in entries
            )
        else:
            yield manifest
    mixed.setdefault(spec, []).extend(
        ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, sequence_number=None, data_file=file
        )
        for file in change.added
    )
    for spec_id, entries in mixed.items():
        for part in _shares(entries):
            yield _write_manifest(scan, spec_id, part, new, place)


def _kept_or_deleted(entry: ManifestEntry, gone: set[str], *, everything: bool) -> ManifestEntry:
    goes = everything or entry.data_file.file_path in gone
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.DELETED if goes else ManifestEntryStatus.EXISTING,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _shares(entries: list[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    """Yield even parts of about the wanted length; a little more than one part stays one."""
    count = max(1, len(entries) // _ENTRIES_WANTED)
    size = -(-len(entries) // count) if entries else 1
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def _write_manifest(
    scan: TableScan,
    spec_id: int,
    entries: Sequence[ManifestEntry],
    new: tuple[int, int],
    place: str,
) -> ManifestFile:
    (id, sequence), status = new, ManifestEntryStatus
    with write_manifest(
        format_version=2,
        spec=scan.metadata.specs()[spec_id],
        schema=scan.metadata.schema(),
        output_file=_NamedByDigest(scan.io, lambda uuid: f"{place}/{uuid}-m0.avro"),
        snapshot_id=id,
        avro_compression=_COMPRESSION,
    ) as writer:
        add = {status.ADDED: writer.add, status.DELETED: writer.delete}
        for entry in entries:
            add.get(entry.status, writer.existing)(entry)
    written = writer.to_manifest_file()
    live = [entry for entry in entries if entry.status != status.DELETED]
    for entry in live:
        entry.data_file.spec_id = spec_id
        if entry.status == status.ADDED:
            # A reader takes these from the manifest list.
            entry.snapshot_id = id
            entry.sequence_number = entry.file_sequence_number = sequence
    # Avro gives numbers back as they were written, but not all other values of partitions.
    if all(isinstance(v, int | None) for entry in live for v in entry.data_file.partition._data):
        keep_entries(written.manifest_path, live)
    return written


class _NamedByDigest(io.BytesIO):
    """A small output file of the library, with its digest in its name; written when closed."""

    def __init__(self, files: FileIO, name: Callable[[str], str]) -> None:
        super().__init__()
        self._files, self._name = files, name
        self.location, self._size = "", 0

    def __len__(self) -> int:
        return self._size

    def create(self, overwrite: bool = False) -> Self:
        return self

    def close(self) -> None:
        content = None if self.closed else self.getvalue()
        super().close()
        if content is not None:
            self.location, self._size = self._name(uuid_with_digest(content)), len(content)
            # The name is new; without this, the library would ask the storage whether it exists.
            with self._files.new_output(self.location).create(overwrite=True) as stream:
                stream.write(content)
