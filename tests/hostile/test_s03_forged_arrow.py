"""S03: an Arrow stream with forged offsets is rejected; the server lives, and stores nothing."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import ipc

from headgate.errors import InvalidSource
from headgate.rows.sources import read_sources
from headgate.store.embedded import Store
from tests.support.rows import apply_text, made_settings, rows_of
from tests.support.serving import ServerProcess

TABLE = "raw.notes"
SCHEMA = """
[dataset."raw.notes"]
key = ["id"]
[dataset."raw.notes".columns]
id = "long"
text = "string"
bytes = "binary"
tags = "list<string>"
marks = "map<string, long>"
"""
# Each column has lengths of its own, so that its offsets occur once in the stream.
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": pa.array(["a" * 3, "b" * 5, "c" * 11]),
        "bytes": pa.array([b"d" * 7, b"e" * 13, b"f" * 2], pa.binary()),
        "tags": pa.array([["g" * 17, "h" * 4], ["i" * 19], ["j" * 6]], pa.list_(pa.string())),
        "marks": pa.array(
            [[("k" * 23, 1)], [("l" * 8, 2), ("m" * 29, 3), ("n" * 9, 4)], [("o" * 31, 5)]],
            pa.map_(pa.string(), pa.int64()),
        ),
    }
)
# Of types that no table has, but that a stream may have.
OTHERS = pa.table(
    {
        "wide": pa.array(["a" * 3, "b" * 5, "c" * 11], pa.large_string()),
        "lists": pa.array([[1, 2, 3], [4] * 7, [5]], pa.large_list(pa.int64())),
        "coded": pa.DictionaryArray.from_arrays(
            pa.array([2, 1, 0], pa.int32()), pa.array(["p" * 12, "q" * 14, "r" * 15])
        ),
    }
)


def _stream(rows: pa.Table, *, as_file: bool = False) -> bytes:
    sink = io.BytesIO()
    make = ipc.new_file if as_file else ipc.new_stream
    with make(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def _offset_buffers(array: pa.Array) -> Iterator[tuple[bytes, int]]:
    """Yield the buffers of offsets of an array and its children, and the width of an offset."""
    kind = array.type
    buffers = array.buffers()
    if pa.types.is_dictionary(kind):
        yield from _offset_buffers(array.dictionary)
        yield array.indices.buffers()[1].to_pybytes()[: 4 * len(array)], 4
        return
    wide = pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
    if wide or pa.types.is_string(kind) or pa.types.is_binary(kind):
        width = 8 if wide else 4
        yield buffers[1].to_pybytes()[: width * (len(array) + 1)], width
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        yield buffers[1].to_pybytes()[: 4 * (len(array) + 1)], 4
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _offset_buffers(array.values)
    if pa.types.is_map(kind):
        yield from _offset_buffers(array.keys)
        yield from _offset_buffers(array.items)


def _forged(rows: pa.Table, *, as_file: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield a stream for each offset of each buffer: too large, far too large, and negative."""
    whole = _stream(rows, as_file=as_file)
    for name in rows.column_names:
        for buffer, width in _offset_buffers(rows.column(name).chunk(0)):
            assert whole.count(buffer) == 1, f"{name}: its offsets are not unique"
            start = whole.index(buffer)
            for at in range(len(buffer) // width):
                for value in (100_000, 2**31 - 1, -1):
                    place, forged = start + at * width, value.to_bytes(width, "little", signed=True)
                    stream = whole[:place] + forged + whole[place + width :]
                    yield f"{name}, offset {at} = {value}", stream


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("rows", [ROWS, OTHERS], ids=["columns", "others"])
def test_s03_forged_offset_is_rejected_wherever_it_is(rows: pa.Table, as_file: bool) -> None:
    [source] = read_sources(_stream(rows, as_file=as_file))
    assert source.rows.equals(rows)
    tried = 0
    for where, stream in _forged(rows, as_file=as_file):
        tried += 1
        try:
            [source] = read_sources(stream)
        except InvalidSource:
            continue
        pytest.fail(f"{where} is accepted: {source.rows.to_pylist()}")
    assert tried >= 40


@pytest.fixture
def server(made_sqlite_url: str, tmp_path: Path) -> Iterator[tuple[ServerProcess, str]]:
    """Start a server as a process of its own; yield it with a writer's token."""
    (tmp_path / "headgate.toml").write_text(
        f'[store]\ncatalog = "{made_sqlite_url}"\nwarehouse = "{tmp_path}/warehouse"\n'
    )
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        apply_text(store, SCHEMA)
        token = str(store.create_token(actor="walt", role="writer")["token"])
    with ServerProcess(tmp_path) as started:
        yield started, token


def test_s03_server_that_gets_forged_offsets_answers_400_lives_and_stores_nothing(
    server: tuple[ServerProcess, str], made_sqlite_url: str, tmp_path: Path
) -> None:
    process, token = server
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{process.url}/api/v1", headers=headers, timeout=60) as client:
        before = process.pid
        for where, stream in _forged(ROWS):
            answer = _load(client, stream)
            assert answer.status_code == 400, where
            assert answer.json()["code"] == "invalid_source", where
        assert _load(client, _stream(ROWS)).status_code == 200
        assert process.pid == before
    assert process.end() == 0
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        assert [row["id"] for row in rows_of(store, TABLE)] == [1, 2, 3]


def _load(client: httpx.Client, stream: bytes) -> httpx.Response:
    body: dict[str, Any] = {"branch": "master", "mode": "merge"}
    return client.post("/load", json={**body, "arrow": {TABLE: base64.b64encode(stream).decode()}})
