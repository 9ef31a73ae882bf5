"""Files forged so that a reader crashes, never ends, or takes all memory: each is refused."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from headgate.builds.bundle import check_bundle
from headgate.errors import (
    FileDamaged,
    ImpossibleTableChange,
    Invalid,
    InvalidSchemaFile,
    InvalidScript,
    InvalidSource,
)
from headgate.rows.schema_file import parse_schema
from headgate.rows.sources import read_sources
from headgate.tables.creation import read_external_metadata
from headgate.tables.manifests import check_all_manifests, parse_manifest_list
from tests.support.metadata import add, schema, table
from tests.support.processes import run
from tests.support.rows import graph_store

_PLACE = "file:///wh/m.avro"
_SYNC = b"0123456789abcdef"


def _number(value: int) -> bytes:
    """Encode a number as Avro does."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _avro(fields: list[Any], block: bytes, *, records: int = 1, codec: str = "null") -> bytes:
    """Return an Avro file of one block."""
    kind = {"type": "record", "name": "manifest_file", "fields": fields}
    meta = {b"avro.schema": json.dumps(kind).encode(), b"avro.codec": codec.encode()}
    header = b"Obj\x01" + _number(len(meta))
    for name, value in meta.items():
        header += _number(len(name)) + name + _number(len(value)) + value
    return header + b"\0" + _SYNC + _number(records) + _number(len(block)) + block + _SYNC


def _forged_list() -> bytes:
    """Return a manifest list with a field to skip, of a length far beyond the end of the file."""
    fields = [
        {"name": "manifest_path", "field-id": 500, "type": "string"},
        {"name": "manifest_length", "field-id": 501, "type": "long"},
        {"name": "other", "field-id": 900, "type": "bytes"},
        {"name": "last", "field-id": 901, "type": "long"},
    ]
    return _avro(fields, _number(1) + b"x" + _number(5) + _number(2**40) + b"\0" * 9)


def _read_list() -> None:
    with pytest.raises(FileDamaged):
        parse_manifest_list(_forged_list(), _PLACE)


def _read_list_by_library(file: Path) -> None:
    """Read it as a scan of its table does."""
    check_all_manifests()
    file.write_bytes(_forged_list())
    path = NestedField(500, "manifest_path", StringType(), required=True)
    with (
        AvroFile[Any](PyArrowFileIO().new_input(str(file)), Schema(path)) as records,
        pytest.raises(ValueError, match="bytes follow"),
    ):
        next(records)


def test_manifest_list_with_a_forged_length_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    assert run(_read_list) == 0
    assert run(_read_list_by_library, tmp_path / "snap.avro") == 0


def test_manifest_list_of_values_without_bytes_is_refused(tmp_path: Path) -> None:
    nothing = {"type": "array", "items": "null", "element-id": 601}
    fields = [{"name": "none", "field-id": 600, "type": nothing}]
    with pytest.raises(FileDamaged, match="has no end"):
        parse_manifest_list(_avro(fields, _number(2**40) + b"\0"), _PLACE)
    with pytest.raises(FileDamaged, match="records"):
        parse_manifest_list(_avro([], b"", records=2**40), _PLACE)


def test_manifest_list_that_unpacks_to_far_more_than_its_size_is_refused() -> None:
    bomb = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    block = b"".join(bomb.compress(bytes(1024**2)) for _ in range(300)) + bomb.flush()
    fields = [{"name": "path", "field-id": 500, "type": "string"}]
    with pytest.raises(FileDamaged, match="a block has over"):
        parse_manifest_list(_avro(fields, block, codec="deflate"), _PLACE)


def _parquet() -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"text": pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())})
    parquet.write_table(rows, sink)
    return sink.getvalue()


def _arrow_with_a_name() -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"name": [1]})
    with ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().replace(b"name", b"n\xffme")


@pytest.mark.parametrize("make", [_parquet, _arrow_with_a_name])
def test_source_with_text_that_is_not_text_is_refused(make: Callable[[], bytes]) -> None:
    with pytest.raises(InvalidSource):
        list(read_sources(make()))


def _zip(*names: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, b"0")
    return sink.getvalue()


def _forged_zip(record: bytes, place: int) -> bytes:
    """Return a zip with a large number in a record of its directory."""
    whole = bytearray(_zip("a.py"))
    at = whole.rindex(record) + place
    whole[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    return bytes(whole)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "make",
    [
        lambda: _forged_zip(b"PK\x05\x06", 16),
        lambda: _forged_zip(b"PK\x01\x02", 24),
        lambda: _zip("a.py", "a.py"),
        lambda: _zip("a", "a/b.py"),
    ],
    ids=["offset of the directory", "size of a file", "twice", "file and folder"],
)
def test_bundle_that_cannot_be_unpacked_is_refused(make: Callable[[], bytes]) -> None:
    with pytest.raises(Invalid, match="bundle"):
        check_bundle(make())


@pytest.mark.parametrize(
    "line",
    [
        "references = 5",
        "cardinality = {}",
        'references = [{column = true, dataset = "a.b"}]',
        'references = [{column = ["id"], dataset = "a.b"}]',
        'references = [{column = "id", dataset = "a.b", on_delete = []}]',
        'cardinality = [{per = ["id"], max = 1}]',
    ],
)
def test_schema_file_with_a_value_of_the_wrong_type_is_refused(line: str) -> None:
    text = f'[dataset."a.b"]\ncolumns = {{id = "long"}}\n{line}\n'
    with pytest.raises(InvalidSchemaFile):
        parse_schema(text, "schema.toml")


def _typed(kind: str) -> str:
    return f'[dataset."a.b"]\ncolumns = {{id = "{kind}"}}\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a" + ".a" * 2_000 + " = 1", "over 20 parts"),
        ("a" + ' . "a"' * 2_000 + " = 1", "over 20 parts"),
        ("[a" + ".'a'" * 2_000 + "]", "over 20 parts"),
        ("x = " + "[" * 5_000, "nested too deeply"),
        ("x = " + "{a=" * 5_000, "nested too deeply"),
        ("x = " + "9" * 5_000, "digits"),
        (_typed("list<" * 2_000 + "int" + ">" * 2_000), "levels of nested types"),
        (_typed("struct<a: " * 2_000 + "int" + ">" * 2_000), "levels of nested types"),
        (_typed(f"decimal({'9' * 5_000}, 2)"), "is not an Iceberg type"),
        (_typed(f"fixed[{'9' * 5_000}]"), "is not an Iceberg type"),
    ],
    ids=lambda value: value[:12],
)
def test_schema_file_that_takes_the_parser_long_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaFile, match=reason):
        parse_schema(text, "schema.toml")


def test_schema_file_with_many_dots_and_levels_is_accepted() -> None:
    kind = "list<" * 32 + "int" + ">" * 32
    text = f"# {'.' * 500}\n{_typed(kind)}"
    assert parse_schema(text, "schema.toml").datasets[0].columns[0].type == kind


_COLUMN = {"id": 1, "name": "id", "type": "long"}


@pytest.mark.parametrize(
    "changed",
    [
        {"schemas": [{**schema(_COLUMN), "schema-id": 0}]},
        {"partition-specs": [{"spec-id": 0, "fields": 1.5}]},
        {"partition-specs": "none"},
        {"snapshots": True},
        {"refs": {"main": 5}},
        {"current-snapshot-id": "x"},
        {"properties": {"a": 1}},
        {"format-version": 1, "schemas": []},
        {"format-version": 1, "partition-spec": [{"name": "day"}]},
        {"format-version": True},
    ],
)
def test_metadata_with_a_member_of_the_wrong_type_is_not_registered(changed: Any) -> None:
    content = json.dumps({**table(add(1)), **changed}).encode()
    with pytest.raises(ImpossibleTableChange):
        read_external_metadata(lambda _: content, "file:///elsewhere/v1.metadata.json")


def test_script_with_a_set_that_assigns_nothing_is_refused(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        upsert = "insert into graph.person (id) values ('a') on conflict (id) do update set "
        with pytest.raises(InvalidScript, match="column = value"):
            store.mutate("master", upsert + "name")
        deep = "+".join(["1"] * 3000)
        with pytest.raises(InvalidScript):
            store.mutate("master", f"insert into graph.person (age) select {deep}")
