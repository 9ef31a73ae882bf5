"""Files that Iceberg's manifests refer to, read with no more of each entry than that.

Also the check that the content of such a file is undamaged.

Needs the extra `arrow`; `referenced_files.open_manifests` imports this module on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as parquet
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import NoneReader, Reader, StructReader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.typedef import Record

from headgate.errors import FileDamaged
from headgate.tables.referenced_files import FileRef, ManifestRef

Ids: TypeAlias = tuple[int, ...]

_ADDED, _DELETED = 1, 2
_PARQUET = b"PAR1"
_ROWS = 64 * 1024
# Field ids of Iceberg's specification. A manifest list: path, length, files added, files existing.
_LIST = (500, 501, 504, 505)
# An entry of a manifest: status and file; of the file: path, size and rows.
_ENTRY, _FILE = (0, 2), (100, 104, 103)


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

    def find_damage(self, file: FileRef, local: Path) -> str | None:
        """Return the defect of a Parquet file, of which `local` is a copy; None of other formats.

        Every page is read. Writers of Headgate and Spark write a checksum with each page.
        """
        with local.open("rb") as opened:
            if opened.read(len(_PARQUET)) != _PARQUET and not file.path.endswith(".parquet"):
                return None
        try:
            with parquet.ParquetFile(local, page_checksum_verification=True) as pages:
                found = sum(batch.num_rows for batch in pages.iter_batches(batch_size=_ROWS))
        except (pa.ArrowException, OSError, ValueError) as error:
            return str(error)
        return None if found == file.rows else f"it has {found} rows instead of {file.rows}"


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
        FileRef(path=file[0], size=file[1], rows=file[2], is_added=status == _ADDED)
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
        decoder = _Decoder(content)
        header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
        schema, codec = header.get_schema(), header.compression_codec()
        reader = _only(resolve_reader(schema, schema), ids, inside)
        while decoder.at < len(content):
            count, packed = decoder.read_int(), decoder.read_bytes()
            block = _Decoder(codec.decompress(packed) if codec else packed)
            # A record has at least one byte; a false count would go on for years.
            if count > len(block.content):
                raise ValueError(f"a block of {len(block.content)} bytes has {count} records")
            for _ in range(count):
                yield reader.read(block)
            if block.at != len(block.content):
                raise ValueError("a block has more bytes than its records")
            if decoder.read(SYNC_SIZE) != header.sync:
                raise ValueError("a block does not end with the file's sync marker")
    # The library's errors on bytes that are not an Avro file have no common base class.
    except Exception as error:
        reason = f"it is not a complete Avro file: {error}"
        raise FileDamaged(where=location, reason=reason) from error


class _Decoder(BinaryDecoder):  # type: ignore[misc]  # the library has no types
    """Decodes bytes, and raises `EOFError` at their end.

    The library's compiled decoder follows a damaged length beyond the bytes, which ends the
    process or returns other memory of it.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def tell(self) -> int:
        return self.at

    def read(self, n: int) -> bytes:
        start = self.at
        self.skip(n)
        return self.content[start : self.at]

    def skip(self, n: int) -> None:
        if not 0 <= n <= len(self.content) - self.at:
            raise EOFError(f"{n} bytes are expected at {self.at}, and it has {len(self.content)}")
        self.at += n

    def read_int(self) -> int:
        content, at = self.content, self.at
        value = shift = 0
        try:
            while (byte := content[at]) & 0x80:
                value |= (byte & 0x7F) << shift
                shift += 7
                at += 1
        except IndexError:
            raise EOFError("a number is cut short") from None
        self.at = at + 1
        value |= byte << shift
        return (value >> 1) ^ -(value & 1)

    def skip_int(self) -> None:
        content, at = self.content, self.at
        try:
            while content[at] & 0x80:
                at += 1
        except IndexError:
            raise EOFError("a number is cut short") from None
        self.at = at + 1
