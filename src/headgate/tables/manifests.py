"""Files that Iceberg's manifests refer to, read with no more of each entry than that.

Needs the extra `arrow`; `referenced_files.open_manifests` imports this module on first use.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import NoneReader, Reader, StructReader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import InputFile, InputStream
from pyiceberg.typedef import Record

from headgate.errors import FileDamaged
from headgate.tables.referenced_files import FileRef, ManifestRef

Ids: TypeAlias = tuple[int, ...]

_ADDED, _DELETED = 1, 2
# Field ids of Iceberg's specification. A manifest list: path, length, files added, files existing.
_LIST = (500, 501, 504, 505)
# An entry of a manifest: status and file; of the file: path and size.
_ENTRY, _FILE = (0, 2), (100, 104)


class ManifestReader:
    """Reads manifest lists and manifests; `get` returns the bytes of an address."""

    def __init__(self, get: Callable[[str], bytes]) -> None:
        self._get = get

    def manifests(self, location: str) -> list[ManifestRef]:
        """Return the manifests of a manifest list."""
        return parse_manifest_list(self._get(location), location)

    def files(self, manifest: ManifestRef) -> list[FileRef]:
        """Return the live files of a manifest."""
        return parse_manifest(self._get(manifest.path), manifest)

    def paths(self, manifest: ManifestRef) -> list[str]:
        """Return the addresses of the live files of a manifest."""
        return [file.path for file in self.files(manifest)]


def parse_manifest_list(content: bytes, location: str) -> list[ManifestRef]:
    """Return all manifests of a snapshot; raise `FileDamaged` for a damaged list."""
    return [
        ManifestRef(
            path=path,
            length=length,
            files=None if added is None or existing is None else added + existing,
        )
        for path, length, added, existing in _records(content, location, _LIST)
    ]


def parse_manifest(content: bytes, manifest: ManifestRef) -> list[FileRef]:
    """Return the live files of a manifest, data and deletes; raise if it is incomplete."""
    if len(content) != manifest.length:
        reason = f"it has {len(content)} bytes instead of {manifest.length}"
        raise FileDamaged(where=manifest.path, reason=reason)
    found = [
        FileRef(path=file[0], size=file[1], is_added=status == _ADDED)
        for status, file in _records(content, manifest.path, _ENTRY, {_ENTRY[1]: _FILE})
        if status != _DELETED
    ]
    if manifest.files is not None and len(found) != manifest.files:
        reason = f"it has {len(found)} live files, but its manifest list counts {manifest.files}"
        raise FileDamaged(where=manifest.path, reason=reason)
    return found


def _only(whole: StructReader, ids: Ids, inside: Mapping[int, Ids] | None = None) -> StructReader:
    """Return a reader of these fields, in this order, that skips the others.

    `inside` names the fields to read of a field that is a struct.
    """
    places = {id: place for place, id in enumerate(ids)}
    readers: list[tuple[int | None, Reader]] = []
    for field, (_, reader) in zip(whole.struct.fields, whole.field_readers, strict=True):
        if inside and field.field_id in inside:
            reader = _only(reader, inside[field.field_id])
        readers.append((places.pop(field.field_id, None), reader))
    # Fields that older writers left out are None.
    readers += [(place, NoneReader()) for place in places.values()]
    return StructReader(tuple(readers), Record, whole.struct)


def _records(
    content: bytes, location: str, ids: Ids, inside: Mapping[int, Ids] | None = None
) -> Iterator[Any]:
    try:
        if _has_blocks(content):
            with AvroFile[Any](_InMemory(content, location)) as file:
                file.reader = _only(file.reader, ids, inside)
                yield from file
    # The library's errors on bytes that are not an Avro file have no common base class.
    except Exception as error:
        reason = f"it is not a complete Avro file: {error}"
        raise FileDamaged(where=location, reason=reason) from error


def _has_blocks(content: bytes) -> bool:
    """Return whether records follow the header; raise `ValueError` for a truncated file.

    The library's fast decoder would read on beyond the end of the bytes.
    """
    decoder = StreamingBinaryDecoder(content)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    if not content.endswith(header.sync):
        raise ValueError("its end is missing")
    return int(decoder.tell()) < len(content)


class _InMemory(InputFile):  # type: ignore[misc]  # the library has no types
    """Bytes in memory, as a file for the library to open."""

    def __init__(self, content: bytes, location: str) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._content)
