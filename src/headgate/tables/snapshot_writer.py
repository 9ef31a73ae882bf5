"""The next metadata of a table from files that come and go: manifests, their list, a snapshot.

Nothing here commits: the outcome is a value, and its version is shown by the one door or never.
Needs the extra `arrow`.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.manifest import (
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
from headgate.tables.arrow import DataFile, asking
from headgate.tables.inspect import current_snapshot
from headgate.tables.scan import TableScan
from headgate.tables.shape import MAIN, Json, Metadata
from headgate.tables.updates import apply_updates
from headgate.tables.versions import WeighedCache

# Writing rows as data files: split by partition, sorted by key, with their statistics.
#
# Needs the extras `arrow` and, for bucketed tables, `mutations`.

# Rows in memory; on disk they are several times smaller.
_FILE_BYTES = 512 * 1024 * 1024
_MARK = "\x00partition-"


def write_rows(scan: TableScan, rows: pa.Table, sort: Sequence[str] = ()) -> list[Any]:
    """Data files below the table's location that hold these rows; nothing refers to them yet."""
    if rows.num_rows == 0:
        return []
    with asking(scan.version.location):
        tasks = list(_tasks(scan, rows, sort))
        return list(write_file(scan.io, scan.metadata, iter(tasks)))


def _tasks(scan: TableScan, rows: pa.Table, sort: Sequence[str]) -> Iterator[WriteTask]:
    write_uuid = uuid.uuid4()
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
    """One stretch of rows for each partition, found by one sort however many there are."""
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
        column = _plain(rows.column(source.name))
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


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The transforms know fewer spellings of a type than Arrow has."""
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


# What a snapshot says of itself: how many files and rows came, went, and are there now.

_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
}
_KEPT = ("total-delete-files", "total-position-deletes", "total-equality-deletes")


def summarize(
    parent: Json | None,
    operation: str,
    removed: Sequence[DataFile],
    added: Sequence[Any],
    facts: Mapping[str, str],
    *,
    replaces_all: bool = False,
) -> dict[str, str]:
    """The summary of a snapshot on top of its parent's."""
    counts = {
        "added-data-files": len(added),
        "added-records": sum(file.record_count for file in added),
        "added-files-size": sum(file.file_size_in_bytes for file in added),
        "deleted-data-files": len(removed),
        "deleted-records": sum(file.row_count for file in removed),
        "removed-files-size": sum(file.size_bytes for file in removed),
    }
    before: Mapping[str, str] = (parent or {}).get("summary") or {}
    summary = {"operation": operation, **facts}
    summary |= {name: str(count) for name, count in counts.items() if count}
    for name, (plus, minus) in _TOTALS.items():
        known = str(before.get(name, "0" if parent is None else "?"))
        if known.isdigit():
            summary[name] = str(int(known) + counts[plus] - counts[minus])
    for name in _KEPT:
        # Files of deletes stay listed, also where all that they apply to is gone.
        if parent is None or replaces_all:
            summary[name] = "0"
        elif name in before:
            summary[name] = str(before[name])
    return summary


# A change rewrites the manifests of the files that it takes away: they are kept short.
_ENTRIES_WANTED = 32
# Over so many manifests they are written together, as readers open each of them.
_MANIFESTS_AT_MOST = 50
_COMPRESSION: Any = "gzip"
_NEWEST_WRITTEN = 2

_entries: WeighedCache[list[ManifestEntry]] = WeighedCache(limit=50_000)


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Files that a snapshot takes away and adds; added ones are laid out by the default spec."""

    operation: str
    removed: Sequence[DataFile] = ()
    added: Sequence[Any] = ()
    # None of the files that were there stays.
    replaces_all: bool = False
    facts: Json = field(default_factory=dict)


def check_writable(scan: TableScan) -> None:
    """Refuses a table that Iceberg's Python library reads but cannot write."""
    held = scan.metadata.format_version
    if held > _NEWEST_WRITTEN:
        raise NeedsSparkToWrite(
            where=scan.version.location, format_version=held, newest=_NEWEST_WRITTEN
        )


def next_metadata(
    scan: TableScan, change: FileChange, *, now_ms: int, base: Metadata | None = None
) -> Metadata:
    """The metadata after the change; `base` is what was changed of it before, without files."""
    metadata = base if base is not None else scan.version.metadata
    check_writable(scan)
    with asking(scan.version.location):
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
        base_location=scan.version.location,
    )


def _write_snapshot(scan: TableScan, metadata: Metadata, change: FileChange, now_ms: int) -> Json:
    parent = current_snapshot(metadata)
    id, sequence = secrets.randbits(63), int(metadata.get("last-sequence-number", 0)) + 1
    place = _metadata_place(metadata)
    manifests = list(_manifests(scan, parent, change, id, place))
    location = f"{place}/snap-{id}-0-{uuid4()}.avro"
    with write_manifest_list(
        format_version=2,
        output_file=scan.io.new_output(location),
        snapshot_id=id,
        parent_snapshot_id=parent["snapshot-id"] if parent else None,
        sequence_number=sequence,
        avro_compression=_COMPRESSION,
    ) as writer:
        writer.add_manifests(manifests)
    snapshot = {
        "snapshot-id": id,
        "sequence-number": sequence,
        "timestamp-ms": max(now_ms, int(metadata.get("last-updated-ms", 0))),
        "manifest-list": location,
        "summary": summarize(
            parent,
            change.operation,
            change.removed,
            change.added,
            change.facts,
            replaces_all=change.replaces_all,
        ),
        "schema-id": metadata["current-schema-id"],
    }
    return {**snapshot, "parent-snapshot-id": parent["snapshot-id"]} if parent else snapshot


def _manifests(
    scan: TableScan, parent: Json | None, change: FileChange, id: int, place: str
) -> Iterator[ManifestFile]:
    """Manifests without a file that goes stay as they are; the others are written anew."""
    spec = scan.metadata.default_spec_id
    mixed: dict[int, list[ManifestEntry]] = {spec: []} if change.added else {}
    gone = {file.path for file in change.removed}
    held = _parent_manifests(scan, parent)
    too_many = len(held) >= _MANIFESTS_AT_MOST
    for manifest in held:
        if manifest.content == ManifestContent.DELETES:
            if not change.replaces_all:
                yield manifest
            continue
        entries = _live_entries(scan, manifest)
        if change.replaces_all or any(e.data_file.file_path in gone for e in entries) or too_many:
            mixed.setdefault(manifest.partition_spec_id, []).extend(
                _marked(entry, gone, everything=change.replaces_all) for entry in entries
            )
        else:
            yield manifest
    mixed.setdefault(spec, []).extend(_added(file) for file in change.added)
    for spec_id, entries in mixed.items():
        for part in _shares(entries):
            yield _write_manifest(scan, spec_id, part, id, place)


def _shares(entries: list[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    """Even parts of about the wanted length; a little more than one part stays one."""
    count = max(1, len(entries) // _ENTRIES_WANTED)
    size = -(-len(entries) // count) if entries else 1
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def _write_manifest(
    scan: TableScan, spec_id: int, entries: Sequence[ManifestEntry], id: int, place: str
) -> ManifestFile:
    with write_manifest(
        format_version=2,
        spec=scan.metadata.specs()[spec_id],
        schema=scan.metadata.schema(),
        output_file=scan.io.new_output(f"{place}/{uuid4()}-m0.avro"),
        snapshot_id=id,
        avro_compression=_COMPRESSION,
    ) as writer:
        for entry in entries:
            match entry.status:
                case ManifestEntryStatus.ADDED:
                    writer.add(entry)
                case ManifestEntryStatus.DELETED:
                    writer.delete(entry)
                case _:
                    writer.existing(entry)
    return writer.to_manifest_file()


def _marked(entry: ManifestEntry, gone: set[str], *, everything: bool) -> ManifestEntry:
    goes = everything or entry.data_file.file_path in gone
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.DELETED if goes else ManifestEntryStatus.EXISTING,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _added(file: Any) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, sequence_number=None, data_file=file
    )


def _parent_manifests(scan: TableScan, parent: Json | None) -> list[ManifestFile]:
    snapshot = scan.metadata.current_snapshot() if parent else None
    return list(snapshot.manifests(scan.io)) if snapshot else []


def _live_entries(scan: TableScan, manifest: ManifestFile) -> list[ManifestEntry]:
    """What a manifest holds; manifests never change, so those seen last are kept in memory."""
    found = _entries.find(manifest.manifest_path)
    if found is None:
        found = manifest.fetch_manifest_entry(scan.io, discard_deleted=True)
        _entries.put(manifest.manifest_path, found, weight=len(found))
    return found


def _metadata_place(metadata: Metadata) -> str:
    properties = metadata.get("properties") or {}
    place: str = properties.get("write.metadata.path") or f"{metadata['location']}/metadata"
    return place.rstrip("/")
