"""Files that Iceberg's manifests refer to, read with no more of each entry than that.

Also the check that the content of such a file is undamaged.

Needs the extra `arrow`; `referenced_files.open_manifests` imports this module on first use.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as parquet
from pyiceberg.avro import file as avro_file
from pyiceberg.avro.codecs import KNOWN_CODECS, Codec
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import NoneReader, Reader, StructReader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import FixedType, ListType, MapType, StructType, UnknownType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

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
# Of a block, unpacked: writers begin a new one long before.
_BLOCK_BYTES = 256 * 1024 * 1024
_LONGEST_SHIFT = 70
_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
_SCHEMA = "avro.schema"
# In letters; the schemas of clients may be of any length, and are not remembered beyond it.
_LONGEST_SCHEMA = 32 * 1024


class ManifestReader:
    """Reads manifest lists and manifests; `get` returns the bytes of an address."""

    def __init__(self, get: Callable[[str], bytes]) -> None:
        self._get = get

    def manifests(self, location: str) -> list[ManifestRef]:
        return parse_manifest_list(self._get(location), location)

    def files(self, manifest: ManifestRef) -> list[FileRef]:
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
    found = []
    for path, length, added, existing in read_records(content, location, _list_reader):
        _check_kinds(location, path, length)
        counted = isinstance(added, int) and isinstance(existing, int)
        files = added + existing if counted else None
        found.append(ManifestRef(path=path, length=length, files=files))
    return found


def parse_manifest(content: bytes, manifest: ManifestRef) -> list[FileRef]:
    """Return the live files of a manifest, data and deletes; raise if it is incomplete."""
    if len(content) != manifest.length:
        reason = f"it has {len(content)} bytes instead of {manifest.length}"
        raise FileDamaged(where=manifest.path, reason=reason)
    found = []
    for status, file in read_records(content, manifest.path, _entry_reader):
        if not isinstance(file, Record):
            raise FileDamaged(where=manifest.path, reason="an entry has no file")
        _check_kinds(manifest.path, file[0], file[1])
        if status != _DELETED:
            found.append(
                FileRef(path=file[0], size=file[1], rows=file[2], is_added=status == _ADDED)
            )
    if manifest.files is not None and len(found) != manifest.files:
        reason = f"it has {len(found)} live files, but its manifest list counts {manifest.files}"
        raise FileDamaged(where=manifest.path, reason=reason)
    return found


def _list_reader(schema: Schema) -> Reader:
    return select_fields(schema, _LIST)


def _entry_reader(schema: Schema) -> Reader:
    return select_fields(schema, _ENTRY, {_ENTRY[1]: _FILE})


def _check_kinds(location: str, path: object, size: object) -> None:
    if not isinstance(path, str) or not isinstance(size, int):
        raise FileDamaged(where=location, reason="an entry has no path, or no size")


def select_fields(schema: Schema, ids: Ids, inside: Mapping[int, Ids] | None = None) -> Reader:
    """Return a reader of these fields of a file, in this order, that skips the others.

    `inside` names the fields to read of a field that is a struct.
    """
    return _only(resolve_reader(schema, schema), ids, inside)


def _only(whole: StructReader, ids: Ids, inside: Mapping[int, Ids] | None = None) -> StructReader:
    places = {id: place for place, id in enumerate(ids)}
    readers: list[tuple[int | None, Reader]] = []
    for field, (_, reader) in zip(whole.struct.fields, whole.field_readers, strict=True):
        if inside and field.field_id in inside:
            reader = _only(reader, inside[field.field_id])
        readers.append((places.pop(field.field_id, None), reader))
    # Fields that older writers left out are None.
    readers += [(place, NoneReader()) for place in places.values()]
    return StructReader(tuple(readers), Record, whole.struct)


def read_header(content: bytes, location: str) -> AvroFileHeader:
    """Return the header of an Avro file, with its schema and metadata."""
    with _damage_of(location):
        return _HEADER.read(CheckedDecoder(content))


def read_records(
    content: bytes, location: str, reader_of: Callable[[Schema], Reader]
) -> Iterator[Any]:
    """Yield the records of an Avro file, as a reader for its schema returns them.

    :param reader_of: a function of a module, as readers are remembered by it.
    """
    with _damage_of(location):
        decoder = CheckedDecoder(content)
        header = _HEADER.read(decoder)
        codec = header.compression_codec()
        schema = header.meta[_SCHEMA]
        make = _remembered_reader if len(schema) <= _LONGEST_SCHEMA else _make_reader
        reader = make(schema, reader_of)
        while decoder.tell() < len(content):
            count, block = decoder.read_int(), decoder.read_bytes()
            if codec is not None:
                block = _decompress(codec, block)
            if not 0 <= count <= len(block):
                raise ValueError(f"a block of {len(block)} bytes has {count} records")
            inner = CheckedDecoder(block)
            for _ in range(count):
                yield reader.read(inner)
            if inner.tell() != len(block) or decoder.read(SYNC_SIZE) != header.sync:
                raise ValueError("a block does not end where it should")


def _make_reader(schema: str, reader_of: Callable[[Schema], Reader]) -> Reader:
    found = AvroSchemaConversion().avro_to_iceberg(json.loads(schema))
    _check_sizes(found.as_struct())
    return reader_of(found)


# Making a reader takes longer than reading a manifest with it, and most tables share the schemas.
_remembered_reader = lru_cache(maxsize=64)(_make_reader)


@contextmanager
def _damage_of(location: str) -> Iterator[None]:
    try:
        yield
    # The library's errors on bytes that are not an Avro file have no common base class.
    except Exception as error:
        reason = f"it is not a complete Avro file: {error}"
        raise FileDamaged(where=location, reason=reason) from error


def _check_sizes(kind: Any, *, repeated: bool = False) -> bool:
    """Return whether a value takes bytes; raise for a list of values that do not.

    Such a list may have any number of them, and would be read for ever.
    """
    match kind:
        case StructType():
            takes = [_check_sizes(field.field_type) for field in kind.fields]
            found = any(takes)
        case ListType():
            found = _check_sizes(kind.element_type, repeated=True)
        case MapType():
            _check_sizes(kind.key_type, repeated=True)
            found = _check_sizes(kind.value_type, repeated=True)
        case FixedType():
            found = len(kind) > 0
        case _:
            found = not isinstance(kind, UnknownType)
    if repeated and not found:
        raise ValueError(f"a list of {kind} has no end")
    return found


def _decompress(codec: type[Codec], block: bytes) -> bytes:
    """Return the bytes of a block; raise if they are more than any manifest has."""
    if codec is KNOWN_CODECS["deflate"]:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        found = inflate.decompress(block, _BLOCK_BYTES)
        if inflate.unconsumed_tail:
            raise ValueError(f"a block has over {_BLOCK_BYTES} bytes")
        return found
    return bytes(codec.decompress(block))


class CheckedDecoder(BinaryDecoder):  # type: ignore[misc]  # the library has no types
    """Decodes bytes, and never reads or skips beyond their ends.

    The library's own fast decoder does, where a length is forged: that crashes the process, or
    discloses its memory.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, n: int) -> bytes:
        start = self._at
        self.skip(n)
        return self._data[start : self._at]

    def skip(self, n: int) -> None:
        end = self._at + n
        if n < 0 or end > len(self._data):
            if self._at == len(self._data):
                raise EOFError
            raise ValueError(f"{n} bytes follow at {self._at}, and {len(self._data)} are there")
        self._at = end

    def read_int(self) -> int:
        data, at = self._data, self._at
        if at == len(data):
            raise EOFError
        try:
            byte = data[at]
            number, shift = byte & 0x7F, 7
            while byte & 0x80:
                at += 1
                byte = data[at]
                number |= (byte & 0x7F) << shift
                shift += 7
        except IndexError:
            raise ValueError("a number is cut short") from None
        if shift > _LONGEST_SHIFT:
            raise ValueError("a number has over 64 bits")
        self._at = at + 1
        return (number >> 1) ^ -(number & 1)

    def skip_int(self) -> None:
        self.read_int()

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())


def check_all_manifests() -> None:
    """Let the library decode manifests in this way too, where it finds the files of a scan."""
    avro_file.new_decoder = CheckedDecoder
