"""What Iceberg's manifests name, read with no more of each entry than that.

Needs the extra `arrow`; `naming.open_manifests` imports this module when somebody asks.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import NoneReader, Reader, StructReader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import InputFile, InputStream
from pyiceberg.typedef import Record

from headgate.errors import StorageUnavailable
from headgate.tables.named_files import ManifestRef, NamedFile

_DELETED = 2
# Field ids of Iceberg's specification. A manifest list: path, length, files added, files existing.
_LIST = (500, 501, 504, 505)
# An entry of a manifest: status and file; of the file: path and size.
_ENTRY, _FILE = (0, 2), (100, 104)


class ManifestReader:
    """Reads manifest lists and manifests, from wherever `get` finds the bytes of an address."""

    def __init__(self, get: Callable[[str], bytes]) -> None:
        self._get = get

    def manifests(self, location: str) -> list[ManifestRef]:
        """The manifests that a manifest list names."""
        return parse_manifest_list(self._get(location), location)

    def files(self, manifest: ManifestRef) -> list[NamedFile]:
        """The files that a manifest names as alive."""
        return parse_manifest(self._get(manifest.path), manifest)

    def paths(self, manifest: ManifestRef) -> list[str]:
        """The addresses of those files."""
        return [file.path for file in self.files(manifest)]


def parse_manifest_list(content: bytes, location: str) -> list[ManifestRef]:
    """All manifests of a snapshot; what cannot be read whole is `StorageUnavailable`."""
    return [
        ManifestRef(
            path=path,
            length=length,
            files=None if added is None or existing is None else added + existing,
        )
        for path, length, added, existing in _records(content, location, _list_reader)
    ]


def parse_manifest(content: bytes, manifest: ManifestRef) -> list[NamedFile]:
    """The live files of a manifest, of whatever content; a part of one is refused."""
    if len(content) != manifest.length:
        reason = f"it has {len(content)} bytes instead of {manifest.length}"
        raise StorageUnavailable(where=manifest.path, reason=reason)
    found = [
        NamedFile(path=file[0], size=file[1])
        for status, file in _records(content, manifest.path, _entry_reader)
        if status != _DELETED
    ]
    if manifest.files is not None and len(found) != manifest.files:
        reason = f"it names {len(found)} files, where its list counts {manifest.files}"
        raise StorageUnavailable(where=manifest.path, reason=reason)
    return found


def _list_reader(whole: StructReader) -> StructReader:
    return _only(whole, _LIST)


def _entry_reader(whole: StructReader) -> StructReader:
    status, file = _ENTRY
    return _only(_with(whole, file, lambda reader: _only(reader, _FILE)), (status, file))


def _with(
    whole: StructReader, id: int, change: Callable[[StructReader], StructReader]
) -> StructReader:
    readers = tuple(
        (position, change(reader) if field.field_id == id else reader)
        for field, (position, reader) in zip(whole.struct.fields, whole.field_readers, strict=True)
    )
    return StructReader(readers, Record, whole.struct)


def _only(whole: StructReader, ids: tuple[int, ...]) -> StructReader:
    """Reads these fields, in this order, and passes over all others without making them."""
    places = {id: place for place, id in enumerate(ids)}
    readers: list[tuple[int | None, Reader]] = []
    for field, (_, reader) in zip(whole.struct.fields, whole.field_readers, strict=True):
        readers.append((places.pop(field.field_id, None), reader))
    # What older writers left out is None.
    readers += [(place, NoneReader()) for place in places.values()]
    return StructReader(tuple(readers), Record, whole.struct)


def _records(
    content: bytes, location: str, project: Callable[[StructReader], StructReader]
) -> Iterator[Any]:
    try:
        if _has_blocks(content):
            with AvroFile[Any](_InMemory(content, location)) as file:
                file.reader = project(file.reader)
                yield from file
    # The library's errors on what is no Avro file have no common root.
    except Exception as error:
        reason = f"it is no whole Avro file: {error}"
        raise StorageUnavailable(where=location, reason=reason) from error


def _has_blocks(content: bytes) -> bool:
    """Whether records follow the header; what was cut off anywhere is a `ValueError`.

    The library's fast decoder would read on beyond the end of the bytes.
    """
    decoder = StreamingBinaryDecoder(content)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    if not content.endswith(header.sync):
        raise ValueError("its end is missing")
    return int(decoder.tell()) < len(content)


class _InMemory(InputFile):  # type: ignore[misc]  # the library's types are not known
    """Bytes that were read already, as the library wants to open them."""

    def __init__(self, content: bytes, location: str) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._content)
