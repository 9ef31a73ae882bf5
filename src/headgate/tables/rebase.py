"""Appends that were prepared on an older snapshot, moved onto the current one.

Added files inherit their sequence number and row ids from the manifest list of their snapshot. An
append is therefore moved by a new manifest list: the manifests of the current snapshot, and its
own. Its data files and most of its manifests stay as the client wrote them. The model `appends`
checks the conditions.

Needs the extra `arrow`, like all reading of manifests.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from headgate.errors import FileDamaged, ObjectNotFound
from headgate.storage.address import canonical
from headgate.tables.manifests import read_header, read_records, select_fields
from headgate.tables.metadata import MAIN, Json, Metadata, read_int, read_object, read_str
from headgate.tables.referenced_files import check_place
from headgate.tables.schemas import same_schema
from headgate.tables.snapshots import current_snapshot, snapshots_since, total_counts

_APPEND = "append"
_REF = "assert-ref-snapshot-id"
# Version 1 has neither sequence numbers nor refs.
_OLDEST_FORMAT, _NEWEST_FORMAT = 2, 3
_LIST = MANIFEST_LIST_FILE_SCHEMAS[_NEWEST_FORMAT]
_AT = {field.name: place for place, field in enumerate(_LIST.fields)}
# Field ids of a manifest's entries and of the file in each.
_STATUS, _SNAPSHOT, _SEQUENCE, _FILE, _FIRST_ROW = 0, 1, 3, 2, 142

Get = Callable[[str], bytes]
# Stores a file of the table's metadata directory by its name, and returns its address.
Put = Callable[[str, bytes], str]


class _Unmovable(Exception):
    """The append cannot be moved; its client must prepare it again."""


def find_appends(updates: Sequence[Json]) -> list[Json]:
    """Return the snapshots of a commit that only appends to main, oldest first; else nothing."""
    added = [read_object(u, "snapshot") for u in updates if u["action"] == "add-snapshot"]
    refs = [u for u in updates if u["action"] == "set-snapshot-ref"]
    if len(added) + len(refs) != len(updates) or not added or not refs:
        return []
    named = [(ref.get("ref-name"), ref.get("snapshot-id")) for ref in refs]
    moves = [(MAIN, snapshot.get("snapshot-id")) for snapshot in added]
    if named[-1] != moves[-1] or not set(named) <= set(moves):
        return []
    operations = {read_object(snapshot, "summary").get("operation") for snapshot in added}
    follows = all(
        later.get("parent-snapshot-id") == earlier.get("snapshot-id")
        for earlier, later in pairwise(added)
    )
    return added if operations == {_APPEND} and follows else []


def without_parent(requirements: Sequence[Json], snapshots: Sequence[Json]) -> list[Json]:
    """Return the requirements without the one that main still is the parent of the appends."""
    parent = snapshots[0].get("parent-snapshot-id")
    return [
        item
        for item in requirements
        if not (
            item.get("type") == _REF
            and item.get("ref") == MAIN
            and item.get("snapshot-id") == parent
        )
    ]


def rebase_appends(
    metadata: Metadata, snapshots: Sequence[Json], *, get: Get, put: Put
) -> list[Json] | None:
    """Return the snapshots as appends to the current one; None if they cannot be moved.

    The parent must be an ancestor of the current snapshot, so an append never continues what a
    reset or a replacement removed. Schemas and partition specs of its manifests must be those of
    the table.
    """
    parent = snapshots[0].get("parent-snapshot-id")
    version = int(metadata.get("format-version", 1))
    if not _OLDEST_FORMAT <= version <= _NEWEST_FORMAT:
        return None
    if snapshots_since(metadata, parent) is None:
        return None
    current = current_snapshot(metadata)
    try:
        moving = _Moving(metadata=metadata, version=version, get=get, put=put)
        moving.manifests = moving.read_list(current["manifest-list"]) if current else []
        rebased: list[Json] = []
        for snapshot in snapshots:
            current = moving.add(snapshot, current)
            rebased.append(current)
    except (_Unmovable, FileDamaged, ObjectNotFound, LookupError, TypeError, ValueError):
        # Of files that are not what they should be; the conflict stays the answer.
        return None
    return rebased


@dataclass(kw_only=True)
class _Moving:
    """The manifests of a table while appends are moved onto it."""

    metadata: Metadata
    version: int
    get: Get
    put: Put
    manifests: list[Record] = field(default_factory=list)

    @property
    def _roots(self) -> list[str]:
        return [canonical(self.metadata["location"])]

    def read_list(self, location: str) -> list[Record]:
        return list(read_records(self.get(location), location, _list_reader))

    def add(self, snapshot: Json, parent: Json | None) -> Json:
        """Add the manifests of a snapshot, write the new list, and return the moved snapshot."""
        if "key-id" in snapshot:
            raise _Unmovable
        id, place = read_int(snapshot, "snapshot-id"), read_str(snapshot, "manifest-list")
        check_place(place, self._roots, "manifest-list")
        last = parent["sequence-number"] if parent else 0
        sequence = max(int(self.metadata.get("last-sequence-number", 0)), last) + 1
        own = [
            self._own_manifest(record, id, sequence)
            for record in self.read_list(place)
            if record[_AT["added_snapshot_id"]] == id
        ]
        self.manifests = [*own, *self.manifests]
        summary: Json = snapshot["summary"]
        counts = {key: int(value) for key, value in summary.items() if str(value).isdecimal()}
        kept = {key: value for key, value in summary.items() if not key.startswith(_TOTAL)}
        moved = {
            **snapshot,
            "sequence-number": sequence,
            "summary": {**kept, **total_counts(parent, counts)},
        }
        moved.pop("parent-snapshot-id", None)
        if parent is not None:
            moved["parent-snapshot-id"] = parent["snapshot-id"]
            at = read_int(snapshot, "timestamp-ms")
            moved["timestamp-ms"] = max(at, parent["timestamp-ms"])
        if self.version >= 3:
            moved |= self._assign_rows(parent)
        moved["manifest-list"] = self._write_list(moved)
        return moved

    def _own_manifest(self, record: Record, id: int, sequence: int) -> Record:
        """Return an entry of the new list for a manifest that the client wrote."""
        path = record[_AT["manifest_path"]]
        if record[_AT["content"]] != ManifestContent.DATA or record[_AT["key_metadata"]]:
            raise _Unmovable
        check_place(path, self._roots, "manifest")
        content = self.get(path)
        self._check_layout(content, path, record[_AT["partition_spec_id"]])
        if record[_AT["existing_files_count"]] or record[_AT["deleted_files_count"]]:
            # A merge of earlier manifests: their files are in the current ones, or were removed.
            name, content = _only_added(content, path, id)
            record[_AT["manifest_path"]] = self.put(name, content)
            record[_AT["manifest_length"]] = len(content)
            for count in ("existing_files", "existing_rows", "deleted_files", "deleted_rows"):
                record[_AT[f"{count}_count"]] = 0
        else:
            _check_added(content, path, id)
        record[_AT["sequence_number"]] = record[_AT["min_sequence_number"]] = sequence
        record[_AT["first_row_id"]] = None
        return record

    def _check_layout(self, content: bytes, path: str, spec_id: int) -> None:
        """Raise unless the schema and spec of a manifest are those of the table, by value."""
        meta = read_header(content, path).meta
        schema, fields = orjson.loads(meta["schema"]), orjson.loads(meta["partition-spec"])
        specs = {spec["spec-id"]: spec["fields"] for spec in self.metadata["partition-specs"]}
        known = {item["schema-id"]: item for item in self.metadata["schemas"]}
        held = known.get(schema["schema-id"])
        if held is None or not same_schema(held, schema) or specs.get(spec_id) != fields:
            raise _Unmovable

    def _assign_rows(self, parent: Json | None) -> Json:
        """Give rows of added files the next free ids; return the range of the snapshot."""
        first = int(self.metadata.get("next-row-id", 0))
        if parent is not None and "first-row-id" in parent:
            first = max(first, parent["first-row-id"] + parent["added-rows"])
        free = first
        for record in self.manifests:
            is_data = record[_AT["content"]] == ManifestContent.DATA
            if is_data and record[_AT["first_row_id"]] is None:
                record[_AT["first_row_id"]] = free
                free += record[_AT["existing_rows_count"]] + record[_AT["added_rows_count"]]
        return {"first-row-id": first, "added-rows": free - first}

    def _write_list(self, snapshot: Json) -> str:
        id, parent = snapshot["snapshot-id"], snapshot.get("parent-snapshot-id")
        meta = {
            "snapshot-id": str(id),
            "parent-snapshot-id": "null" if parent is None else str(parent),
            "sequence-number": str(snapshot["sequence-number"]),
            "format-version": str(self.version),
        }
        if self.version >= 3:
            meta["first-row-id"] = str(snapshot["first-row-id"])
        schema = MANIFEST_LIST_FILE_SCHEMAS[self.version]
        content = _encode(schema, "manifest_file", self.manifests, meta, record_schema=_LIST)
        return self.put(f"snap-{id}-{{uuid}}.avro", content)


class _Memory(io.BytesIO):
    """An output file of the library; its bytes outlive its closing."""

    content = b""

    def create(self, *, overwrite: bool) -> _Memory:
        return self

    def close(self) -> None:
        if not self.closed:
            self.content = self.getvalue()
        super().close()


def _encode(
    schema: Any,
    name: str,
    records: Sequence[Record],
    meta: dict[str, str],
    record_schema: Any = None,
) -> bytes:
    file = _Memory()
    with AvroOutputFile(file, schema, name, record_schema=record_schema, metadata=meta) as writer:
        writer.write_block(list(records))
    return file.content


def _check_added(content: bytes, path: str, id: int) -> None:
    """Raise unless all entries of a manifest are new files, which inherit their numbers."""
    for status, snapshot, sequence, file in read_records(content, path, _entry_reader):
        if not _is_own(status, snapshot, id) or sequence is not None or file[0] is not None:
            raise _Unmovable


def _only_added(content: bytes, path: str, id: int) -> tuple[str, bytes]:
    """Return a copy of a merged manifest that has only the files added by the snapshot."""
    header = read_header(content, path)
    schema = header.get_schema()
    place = {field.field_id: at for at, field in enumerate(schema.fields)}
    entries = [
        entry
        for entry in read_records(content, path, _whole_reader)
        if _is_own(entry[place[_STATUS]], entry[place[_SNAPSHOT]], id)
    ]
    if any(entry[place[_SEQUENCE]] is not None for entry in entries):
        raise _Unmovable
    meta = {key: value for key, value in header.meta.items() if not key.startswith("avro.")}
    return "{uuid}-m0.avro", _encode(schema, "manifest_entry", entries, meta)


def _list_reader(schema: Schema) -> Reader:
    return resolve_reader(schema, _LIST)


def _entry_reader(schema: Schema) -> Reader:
    return select_fields(schema, (_STATUS, _SNAPSHOT, _SEQUENCE, _FILE), {_FILE: (_FIRST_ROW,)})


def _whole_reader(schema: Schema) -> Reader:
    return resolve_reader(schema, schema)


def _is_own(status: int, snapshot: int | None, id: int) -> bool:
    """Return whether an entry is a file that the snapshot adds; it may inherit the id."""
    return status == ManifestEntryStatus.ADDED and snapshot in {None, id}


_TOTAL = "total-"
