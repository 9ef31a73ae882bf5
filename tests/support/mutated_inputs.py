"""Mutated inputs for each format that clients may send, and the code that reads them.

The same seed gives the same inputs. They are read in a process that a crash may end. To repeat a
format: `python -m tests.support.mutated_inputs FORMAT SEED COUNT NEW_DIRECTORY REPORT`.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import resource
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
from starlette.testclient import TestClient

from headgate.builds.bundle import check_bundle, make_bundle, unpack_bundle
from headgate.catalog.log import list_publications
from headgate.errors import HeadgateError
from headgate.files.objects import digest_of, encode_frame, read_frames
from headgate.rows.cast import cast_rows
from headgate.rows.mutate import script_write
from headgate.rows.outcome import Request
from headgate.rows.script import parse_script
from headgate.rows.sources import (
    FILE_METADATA,
    GIVEN_METADATA,
    TEXT_METADATA,
    read_sources,
)
from headgate.rows.write import write_tables
from headgate.server.api.openapi import find_example
from headgate.server.app import create_server
from headgate.store.embedded import Store
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.inspect import read_rows
from headgate.tables.manifests import parse_manifest, parse_manifest_list
from headgate.tables.referenced_files import ManifestRef
from tests.support import mutated_files as files
from tests.support.catalogs import make_catalog
from tests.support.manifests import ADDED, EXISTING, manifest, manifest_list
from tests.support.metadata import add, point, table, two_columns
from tests.support.rows import GRAPH, PERSON, graph_store
from tests.support.views import SPARK, to_replace, view_schema, view_version

# Reads one input; raises an error of our hierarchy, or any other if there is a fault.
Reader: TypeAlias = Callable[[bytes], None]

# Of this process, beyond what it uses at first.
_MEMORY_BYTES = 2 * 1024**3
# Changes of an input: most have one, and so get far.
_COUNTS = (1, 1, 1, 2, 4)
# The share of changes after which a text may still be parsed.
_KEEPS_SYNTAX = 0.7
_FAULTS_SHOWN = 5
_ROWS = pa.table(
    {
        "id": pa.array(["a", "b", "c", None]),
        "n": pa.array([1, -2, None, 2**40], pa.int64()),
        "x": pa.array([1.5, float("nan"), None, -0.0]),
        "ok": pa.array([True, False, None, True]),
        "day": pa.array([0, 1, 20_000, None], pa.date32()),
        "at": pa.array([0, 1, -5, None], pa.timestamp("us", tz="UTC")),
        "cost": pa.array([None, None, None, None], pa.decimal128(9, 2)),
        "raw": pa.array([b"\x00\xff", b"", None, b"abc"], pa.binary()),
        "tags": pa.array([["x", None], [], None, ["y"]], pa.list_(pa.string())),
        "marks": pa.array([[("k", 1)], [], None, [("l", None)]], pa.map_(pa.string(), pa.int64())),
        "place": pa.array(
            [{"city": "Bern", "zip": 3000}, None, {"city": None, "zip": 1}, None],
            pa.struct([("city", pa.string()), ("zip", pa.int32())]),
        ),
        "coded": pa.DictionaryArray.from_arrays([0, 1, None, 0], ["p", "q"]),
    }
)


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format: intact inputs, and a reader of inputs for a new directory."""

    samples: Callable[[], Sequence[bytes]]
    reader: Callable[[Path], AbstractContextManager[Reader]]
    # It is read in an evaluator, which reports that its memory is not enough.
    has_limit: bool = False
    # Text: mutations replace words and numbers too.
    words: Sequence[bytes] = ()
    # One document: mutations replace its members.
    is_json: bool = False
    # A reader that refused intact inputs would test nothing. Some requests cannot be repeated.
    takes_samples: bool = True


# --- mutations ------------------------------------------------------------------------------

_EXTREMES = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**32 - 1)
_LONG = (2**53 + 1, 2**63 - 1, -(2**63))
_JSON_VALUES = (
    b"null",
    b"true",
    b"{}",
    b"[]",
    b'""',
    b"-1",
    b"0",
    b"1.5",
    b"9223372036854775808",
    b'"x"',
    b'"' + b"x" * 3000 + b'"',
    b'"../../etc"',
    b'"\\u0000"',
    b'"\\ud800"',
    b"[[[[1]]]]",
    b'{"type": "struct", "fields": []}',
)


def mutate(random: random.Random, samples: Sequence[bytes], format: Format) -> bytes:
    """Return one of the samples after a few changes."""
    data = bytearray(random.choice(samples))
    changes = [_flip, _set, _number, _truncate, _cut, _duplicate, _insert, _splice]
    for _ in range(random.choice(_COUNTS)):
        kind = random.random()
        if format.is_json and kind < _KEEPS_SYNTAX:
            _member(random, data)
        elif format.words and kind < _KEEPS_SYNTAX:
            _word(random, data, format.words)
        else:
            random.choice(changes)(random, data, samples)
    return bytes(data)


def _place(random: random.Random, data: bytearray) -> int:
    return random.randrange(len(data)) if data else 0


def _range(random: random.Random, data: bytearray) -> tuple[int, int]:
    start = _place(random, data)
    return start, min(len(data), start + random.choice((1, 2, 4, 8, 30, 200, 2000)))


def _flip(random: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[_place(random, data)] ^= 1 << random.randrange(8)


def _set(random: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[_place(random, data)] = random.choice((0, 0xFF, 0x7F, 0x80, random.randrange(256)))


def _number(random: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Replace a number, at an aligned place more often than not."""
    width = random.choice((1, 2, 4, 8))
    value = random.choice(_EXTREMES + (_LONG if width == 8 else ()))
    at = _place(random, data)
    at -= at % width if random.random() < 0.7 else 0
    order = "<" if random.random() < 0.8 else ">"
    data[at : at + width] = (
        struct.pack(order + "q", value)[:width]
        if order == "<"
        else (struct.pack(">q", value)[-width:])
    )


def _truncate(random: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_place(random, data) :]


def _cut(random: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, end = _range(random, data)
    del data[start:end]


def _duplicate(random: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, end = _range(random, data)
    data[start:start] = data[start:end] * random.choice((1, 2, 50))


def _insert(random: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _place(random, data)
    data[at:at] = random.randbytes(random.choice((1, 4, 16)))


def _splice(random: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    other = bytearray(random.choice(samples))
    data[_place(random, data) :] = other[_place(random, other) :]


def _word(random: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    """Put a word in place of another, or between two."""
    at = _place(random, data)
    start = max(data.rfind(mark, 0, at) for mark in (b" ", b",", b":", b"(", b"[", b"\n", b"=")) + 1
    ends = [data.find(mark, at) for mark in (b" ", b",", b")", b"]", b"}", b"\n", b";")]
    end = min((e for e in ends if e >= 0), default=len(data))
    word = random.choice(words)
    data[start : end if random.random() < 0.8 else start] = word


def _member(random: random.Random, data: bytearray) -> None:
    """Replace, remove or repeat one value of a JSON document, which may follow another line."""
    start = data.find(b"{") if data[:1].isdigit() else 0
    try:
        document = json.loads(data[start:])
    except ValueError:
        return
    holder: Any = [document]
    at: Any = 0
    while isinstance(holder[at], dict | list) and holder[at] and random.random() < 0.8:
        holder = holder[at]
        at = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    change = random.random()
    if change < 0.6:
        holder[at] = json.loads(random.choice(_JSON_VALUES))
    elif change < 0.8 and holder is not document:
        holder[at] = [holder[at], holder[at]]
    else:
        del holder[at]
        if holder == []:
            return
    data[start:] = json.dumps(document).encode()


# --- sources of loads -----------------------------------------------------------------------


def _arrow(rows: pa.Table, *, as_file: bool, **options: Any) -> bytes:
    sink = io.BytesIO()
    make = ipc.new_file if as_file else ipc.new_stream
    with make(sink, rows.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows, max_chunksize=2)
    return sink.getvalue()


# What a client says of its file: its name, and the column that tells which cells are given.
_MARKED = {FILE_METADATA: b"a.csv", TEXT_METADATA: b"", GIVEN_METADATA: b'{"id": "ok"}'}


def _arrow_samples(*, as_file: bool) -> list[bytes]:
    return [
        _arrow(_ROWS, as_file=as_file),
        _arrow(_ROWS.select(["id"]), as_file=as_file),
        _arrow(_ROWS.slice(0, 0), as_file=as_file),
        _arrow(_ROWS, as_file=as_file, compression="zstd"),
        _arrow(_ROWS, as_file=as_file, compression="lz4"),
        _arrow(_ROWS.replace_schema_metadata(_MARKED), as_file=as_file),
    ]


def _parquet_samples() -> list[bytes]:
    found = []
    for options in ({}, {"compression": "zstd"}, {"version": "1.0", "use_dictionary": False}):
        sink = io.BytesIO()
        parquet.write_table(_ROWS, sink, row_group_size=2, **options)
        found.append(sink.getvalue())
    return found


_CSV = (
    b'id,n,x,ok,day,at\na,1,1.5,true,2026-01-01,2026-01-01T00:00:00Z\n"b ""q""\nx",-2,,,,\n',
    b"\xef\xbb\xbfid,n\r\nx,1\r\n\r\ny,\r\n",
    b"id\n" + b"a\n" * 50,
)
_JSONL = (
    (
        b'{"id": "a", "n": 1, "x": 1.5, "tags": ["x", null], "place": {"city": "Bern", "zip": 1}}\n'
        b'{"id": "b", "cost": "1.25", "ok": null}\n\n{"id": "c", "raw": "AP8="}\n'
    ),
    b'{"id": 1}\n{"id": "x"}\n{"id": [1, {"a": [2]}]}\n',
)


@contextmanager
def _read_rows_of_sources(_: Path) -> Iterator[Reader]:
    coded = _ROWS.schema.get_field_index("coded")
    schema = _ROWS.schema.set(coded, pa.field("coded", pa.string()))

    def read(data: bytes) -> None:
        for source in read_sources(data):
            rows = cast_rows(source, schema, "raw.rows")
            # What a later step would do with them.
            rows.validate(full=True)
            source.line_of(max(0, rows.num_rows - 1))
            rows.to_pylist()

    yield read


# --- scripts and schema files ---------------------------------------------------------------

_SCRIPTS = (
    b"insert into graph.person (id, name, age) values ('a', 'A', 1), ('b', null, default)",
    b"""update graph.person as p set name = upper(p.name), age = age + 1 where id in ('x', 'y');
    delete from graph.knows where src = 'x' and dst <> 'y'""",
    b"""insert or replace into graph.person (id, age)
    select id, count(*) from graph.knows group by all having count(*) > 0 -- comment""",
    b"""merge into graph.person p using (select 'x' as id, 5 as age) s on p.id = s.id
    when matched and s.age > 1 then update set age = s.age
    when not matched then insert (id, age) values (s.id, s.age)""",
    b"""with r as (select n::varchar as id from range(3) t(n)) insert into graph.person (id)
    select r.id || 'z' from r left join graph.person q on q.id = r.id /* c */ where q.id is null""",
    b"""upsert into graph.person (id, name) values ('x', $$it's$$) on conflict (id)
    do update set name = excluded.name where person.age < 9""",
)
_SQL_WORDS = (
    b"select",
    b"from",
    b"(",
    b")",
    b"'",
    b'"',
    b"`",
    b"/*",
    b"--",
    b";",
    b"$$",
    b"null",
    b"*",
    b"graph.person",
    b"graph.knows",
    b"excluded",
    b"9223372036854775808",
    b"1e400",
    b"::int[]",
    b"[1, 2]",
    b"{'a': 1}",
    b"unnest",
    b"values",
    b"returning *",
    b"interval '1' year",
    b"cast",
    b"over ()",
    b"lambda x: x",
    b"pivot",
    b"\xff",
    b"\x00",
)


@contextmanager
def _graph(directory: Path) -> Iterator[Store]:
    url = f"sqlite:///{directory}/catalog.db"
    make_catalog(url)
    with graph_store(url, directory, "x", "y") as store:
        yield store


@contextmanager
def _run_scripts(directory: Path) -> Iterator[Reader]:
    with _graph(directory) as store:
        parts = store.rows._parts()
        request = Request(branch="master", caller=store.caller)

        def read(data: bytes) -> None:
            # JSON, in which scripts arrive, has only Unicode.
            write = script_write(parse_script(data.decode(errors="replace")))
            write_tables(parts, request, replace(write, dry_run=True))

        with _unchanged(store):
            yield read


@contextmanager
def _plan_schemas(directory: Path) -> Iterator[Reader]:
    with _graph(directory) as store, _unchanged(store):
        yield lambda data: _ignore(
            store.rows.plan_schema_text(
                data.decode(errors="replace"), file="schema.toml", branch="master"
            )
        )


@contextmanager
def _unchanged(store: Store) -> Iterator[None]:
    """Raise if the block changes what the store shows."""
    before = _newest(store)
    yield
    assert _newest(store) == before, "something was published"


def _newest(store: Store) -> int:
    return store.database.read(lambda c: list_publications(c, limit=1))[0].number


def _ignore(_: object) -> None: ...


# --- tables ---------------------------------------------------------------------------------


# Constraints, which only Headgate writes; other writers of a file may change them.
_RULES = {
    "headgate.constraints": '{"unique": [[1]], "enums": {"1": ["a"]}, "defaults": {"1": "a"}}',
    "headgate.referred-to-by": '["raw.t"]',
    "headgate.enforce": "reject",
}


def _metadata_samples() -> list[bytes]:
    second = table(add(1))
    first = {
        "format-version": 1,
        "table-uuid": second["table-uuid"],
        "location": second["location"],
        "last-updated-ms": 1,
        "schema": two_columns(),
        "partition-spec": [{"name": "day", "transform": "identity", "source-id": 2}],
        "snapshots": [],
        "properties": {"a": "b", **_RULES},
    }
    return [orjson.dumps(one) for one in (table(), second, first)]


@contextmanager
def _register(directory: Path) -> Iterator[Reader]:
    with _graph(directory) as store:
        count = 0
        file = directory / "v1.metadata.json"

        def read(data: bytes) -> None:
            nonlocal count
            count += 1
            file.write_bytes(data)
            name = f"raw.t{count}"
            try:
                store.dataset(name).register(str(file), branch="master")
            except HeadgateError:
                assert not store.dataset(name).exists() or not _shows(store, name)
                raise
            # What was accepted can be shown.
            store.dataset(name).show("master")

        yield read


def _shows(store: Store, name: str) -> bool:
    return bool(store.dataset(name).branch("master").load().view)


def _manifest_samples() -> list[bytes]:
    entries = [(ADDED, f"file:///wh/{n}.parquet") for n in range(5)]
    return [
        manifest("file:///wh/m.avro", entries)[1],
        manifest("file:///wh/n.avro", [(EXISTING, "s3://b/x.parquet")])[1],
    ]


def _manifest_list_samples() -> list[bytes]:
    files = [manifest(f"file:///wh/{n}.avro", [(ADDED, "file:///wh/x.parquet")])[0] for n in "abc"]
    return [manifest_list(files), manifest_list(files[:1]), manifest_list([])]


@contextmanager
def _read_manifests(_: Path) -> Iterator[Reader]:
    def read(data: bytes) -> None:
        ref = ManifestRef(path="file:///wh/m.avro", length=len(data), files=None)
        for file in parse_manifest(data, ref):
            assert isinstance(file.path, str) and isinstance(file.size, int)

    yield read


@contextmanager
def _read_manifest_lists(_: Path) -> Iterator[Reader]:
    def read(data: bytes) -> None:
        for one in parse_manifest_list(data, "file:///wh/s.avro"):
            assert isinstance(one.path, str) and isinstance(one.length, int)

    yield read


def _data_file_samples() -> list[bytes]:
    sink = io.BytesIO()
    rows = pa.table(
        {"id": ["a", "b"], "name": ["A", None], "age": pa.array([1, 2], pa.int32())},
        schema=pa.schema(
            [
                pa.field(name, kind, metadata={"PARQUET:field_id": str(id)})
                for id, (name, kind) in enumerate(
                    {"id": pa.string(), "name": pa.string(), "age": pa.int32()}.items(), start=1
                )
            ]
        ),
    )
    parquet.write_table(rows, sink)
    return [sink.getvalue()]


@contextmanager
def _read_data_files(directory: Path) -> Iterator[Reader]:
    """Read a table after one of its data files was replaced."""
    with _graph(directory) as store:
        shown = store.dataset(PERSON).branch("master").view()
        assert shown is not None and shown.version is not None
        version = store.tables.read(shown.version.location)
        file = next((directory / "warehouse").rglob("*.parquet"))

        def read(data: bytes) -> None:
            file.write_bytes(data)
            read_rows(version, limit=100, options={})

        yield read


# --- archives and contents ------------------------------------------------------------------


def _bundle_samples() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "shop").mkdir()
        for name in ("shop/__init__.py", "shop/daily.py", "shop/hourly.py"):
            (root / name).write_text(f"NAME = {name!r}\n" * 20)
        return [make_bundle(root).data]


@contextmanager
def _unpack_bundles(directory: Path) -> Iterator[Reader]:
    target = directory / "bundles"

    def read(data: bytes) -> None:
        check_bundle(data)
        unpack_bundle(data, hashlib.sha256(data).hexdigest(), target)

    yield read
    outside = [path for path in directory.iterdir() if path != target]
    assert not outside, f"unpacked elsewhere: {outside}"
    half_done = list(target.glob(".*"))
    assert not half_done, f"left behind: {half_done}"


def _pack_samples() -> list[bytes]:
    contents = (b"", b"hello", b"x" * 3000, b"\n" * 70)
    frames = [encode_frame(digest_of(content), content) for content in contents]
    return [b"".join(frames), frames[1]]


@contextmanager
def _read_packs(_: Path) -> Iterator[Reader]:
    def read(data: bytes) -> None:
        chunks = (data[at : at + 50] for at in range(0, len(data), 50))
        for digest, content in read_frames(chunks, most_bytes=1_000_000):
            assert digest_of(content) == digest

    yield read


# --- documents over HTTP --------------------------------------------------------------------

_STATUSES = {400, 401, 403, 404, 405, 409, 413, 422}
# These start or end work outside of a request.
_NOT_TRIED = {"start_build", "clean_up", "recover", "create_token", "register_dataset"}


@contextmanager
def _served(directory: Path) -> Iterator[tuple[Store, TestClient]]:
    with _graph(directory) as store:
        token = store.create_token(actor="ana", role="admin")["token"]
        app = create_server(store)
        client = TestClient(app, raise_server_exceptions=False)
        client.headers["authorization"] = f"Bearer {token}"
        try:
            yield store, client
        finally:
            app.state.builds.close()


def _commit_samples() -> list[bytes]:
    schema = {"action": "add-schema", "schema": two_columns()}
    at_none = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    bodies: list[Any] = [
        {
            "requirements": [at_none],
            "updates": [schema, {"action": "set-current-schema", "schema-id": -1}],
        },
        {
            "requirements": [],
            "updates": [
                add(1),
                {
                    "action": "set-snapshot-ref",
                    "ref-name": "main",
                    "type": "branch",
                    "snapshot-id": 1,
                },
            ],
        },
        {"requirements": [], "updates": [{"action": "set-properties", "updates": _RULES}]},
        # An append that was prepared on an older version.
        {"requirements": [at_none], "updates": [add(2, parent=1), point(2)]},
        {
            "requirements": [{"type": "assert-table-uuid", "uuid": "x"}],
            "updates": [
                {
                    "action": "add-spec",
                    "spec": {"fields": [{"source-id": 1, "transform": "bucket[4]", "name": "b"}]},
                },
                {"action": "set-default-spec", "spec-id": -1},
                {
                    "action": "add-sort-order",
                    "sort-order": {
                        "order-id": 1,
                        "fields": [
                            {
                                "source-id": 1,
                                "transform": "identity",
                                "direction": "asc",
                                "null-order": "nulls-first",
                            }
                        ],
                    },
                },
                {
                    "action": "set-properties",
                    "updates": {"a": "b", "write.format.default": "parquet"},
                },
                {
                    "action": "set-statistics",
                    "statistics": {"snapshot-id": 1, "statistics-path": "x"},
                },
            ],
        },
        {
            "requirements": [],
            "updates": [
                {"action": "upgrade-format-version", "format-version": 3},
                {"action": "remove-properties", "removals": ["a"]},
            ],
        },
    ]
    return [orjson.dumps(body) for body in bodies]


@contextmanager
def _commit(directory: Path) -> Iterator[Reader]:
    with _served(directory) as (store, client):
        config = client.get("/iceberg/v1/config", params={"warehouse": "master"}).json()
        url = f"/iceberg/v1/{config['overrides']['prefix']}/namespaces/graph/tables/person"

        def read(data: bytes) -> None:
            before = _newest(store)
            reply = client.post(url, content=data, headers={"content-type": "application/json"})
            _check_reply(reply.status_code, reply.content)
            if reply.status_code >= 400:
                assert _newest(store) == before, "a refused commit was published"
            assert client.get(url).status_code == 200, "the table cannot be loaded any more"
            if reply.status_code < 400:
                metadata = reply.json()["metadata"]
                store.dataset(PERSON).show("master")
                constraints_of(metadata), referring_datasets(metadata)

        yield read


def _check_reply(status: int, body: bytes) -> None:
    """Raise an error of the hierarchy for a refusal, and `AssertionError` for a defect."""
    if status < 300:
        return
    assert status in _STATUSES, (status, body[:500])
    assert b"error" in body, body[:500]
    raise HeadgateError(body.decode(errors="replace"))


def _view_samples() -> list[bytes]:
    view = {
        "name": "v",
        "schema": view_schema(),
        "view-version": view_version({"spark": SPARK}),
        "properties": {"a": "b"},
    }
    replaced = [*to_replace({"spark": SPARK, "duckdb": "SELECT 1"})]
    return [orjson.dumps(view), orjson.dumps({"requirements": [], "updates": replaced})]


@contextmanager
def _commit_views(directory: Path) -> Iterator[Reader]:
    """Send a document as a new view, or, if it has updates, as a commit to one."""
    with _served(directory) as (store, client):
        config = client.get("/iceberg/v1/config", params={"warehouse": "master"}).json()
        url = f"/iceberg/v1/{config['overrides']['prefix']}/namespaces/graph/views"
        client.post(url, content=_view_samples()[0].replace(b'"v"', b'"old"', 1))

        def read(data: bytes) -> None:
            before = _newest(store)
            place = f"{url}/old" if b'"updates"' in data else url
            reply = client.post(place, content=data, headers={"content-type": "application/json"})
            if reply.status_code < 400 and place == url:
                name = quote(json.loads(data)["name"], safe="")
                assert client.get(f"{url}/{name}").status_code == 200
                assert client.delete(f"{url}/{name}").status_code == 204
            assert client.get(f"{url}/old").status_code == 200, "the view cannot be loaded any more"
            _check_reply(reply.status_code, reply.content)
            assert reply.status_code < 400 or _newest(store) == before

        yield read


@dataclass(frozen=True)
class _Operation:
    method: str
    path: str
    example: Any


@cache
def _operations() -> list[_Operation]:
    """Return the routes that take a document, each with the example of the OpenAPI document."""
    with tempfile.TemporaryDirectory() as directory, _served(Path(directory)) as (_, client):
        described = client.get("/api/openapi.json").json()
    schemas, found = described["components"]["schemas"], []
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            content = route.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None or route["operationId"] in _NOT_TRIED:
                continue
            filled = path
            for parameter in route.get("parameters", []):
                name = parameter["name"]
                filled = filled.replace(f"{{{name}}}", str(parameter.get("example", name)))
            example = find_example(content["schema"], schemas)
            found.append(_Operation(method.upper(), filled, example))
    return found


def _document_samples() -> list[bytes]:
    return [b"%d\n%s" % (at, orjson.dumps(one.example)) for at, one in enumerate(_operations())]


@contextmanager
def _send_documents(directory: Path) -> Iterator[Reader]:
    """Send documents to the routes of the API: an input is the number of a route and a document."""
    operations = _operations()
    with _served(directory) as (store, client):

        def read(data: bytes) -> None:
            number, _, body = data.partition(b"\n")
            at = int(number) if number.isdigit() and len(number) < 9 else len(data)
            operation = operations[at % len(operations)]
            reply = client.request(
                operation.method,
                operation.path,
                content=body,
                headers={"content-type": "application/json"},
            )
            _check_reply(reply.status_code, reply.content)

        yield read
        assert client.get("/api/v1/datasets").status_code == 200
        assert store.dataset(PERSON).exists()


# --- all formats ----------------------------------------------------------------------------

_SCHEMAS = (
    GRAPH.encode(),
    b"""
[dataset."raw.notes"]
key = ["id"]
buckets = 4
[dataset."raw.notes".columns]
id = "long"
at = "timestamptz"
cost = "decimal(9, 2)"
tags = "list<string>"
place = "struct<city: string, marks: map<string, long>>"
""",
)
_SCHEMA_WORDS = (
    b'"string"',
    b'"decimal(99, 2)"',
    b'"list<"',
    b'"struct<a: int>"',
    b"[",
    b"]",
    b"{",
    b"=",
    b"1979-05-27",
    b"'" * 3,
    b"\\",
    b"9" * 400,
    b"nan",
    b"true",
    b'"\\ud800"',
)
FORMATS: Mapping[str, Format] = {
    "arrow_stream": Format(
        samples=partial(_arrow_samples, as_file=False),
        reader=_read_rows_of_sources,
        has_limit=True,
    ),
    "arrow_file": Format(
        samples=partial(_arrow_samples, as_file=True), reader=_read_rows_of_sources, has_limit=True
    ),
    "parquet": Format(samples=_parquet_samples, reader=_read_rows_of_sources, has_limit=True),
    "csv": Format(
        samples=lambda: _CSV, reader=_read_rows_of_sources, has_limit=True, words=(b'"', b",")
    ),
    "json_lines": Format(
        samples=lambda: _JSONL, reader=_read_rows_of_sources, has_limit=True, words=_JSON_VALUES
    ),
    "script": Format(
        samples=lambda: _SCRIPTS, reader=_run_scripts, has_limit=True, words=_SQL_WORDS
    ),
    "schema_file": Format(samples=lambda: _SCHEMAS, reader=_plan_schemas, words=_SCHEMA_WORDS),
    "table_metadata": Format(samples=_metadata_samples, reader=_register, is_json=True),
    "iceberg_commit": Format(
        samples=_commit_samples, reader=_commit, is_json=True, takes_samples=False
    ),
    "manifest": Format(samples=_manifest_samples, reader=_read_manifests),
    "manifest_list": Format(samples=_manifest_list_samples, reader=_read_manifest_lists),
    "data_file": Format(samples=_data_file_samples, reader=_read_data_files),
    "bundle": Format(samples=_bundle_samples, reader=_unpack_bundles),
    "contents": Format(samples=_pack_samples, reader=_read_packs),
    "document": Format(
        samples=_document_samples, reader=_send_documents, is_json=True, takes_samples=False
    ),
    "view": Format(samples=_view_samples, reader=_commit_views, is_json=True, takes_samples=False),
    "settings": Format(
        samples=lambda: files.SETTINGS, reader=files.read_settings, words=files.SETTINGS_WORDS
    ),
    "marker": Format(samples=files.marker_samples, reader=files.read_markers, is_json=True),
    "tree": Format(samples=files.tree_samples, reader=files.read_trees, is_json=True),
    "backup": Format(samples=files.backup_samples, reader=files.read_backups, is_json=True),
    "warm_spark": Format(samples=files.warm_samples, reader=files.read_warm_records, is_json=True),
    "task_input": Format(
        samples=lambda: files.TASK_INPUTS, reader=files.read_task_inputs, is_json=True
    ),
    "token_form": Format(
        samples=lambda: files.FORMS, reader=files.read_forms, words=files.FORM_WORDS
    ),
}


def input_of(name: str, seed: int, number: int) -> bytes:
    """Return a mutated input."""
    format = FORMATS[name]
    return mutate(random.Random(f"{name} {seed} {number}"), format.samples(), format)


def read_all(name: str, seed: int, count: int, directory: Path, report: Path) -> None:
    """Read the first inputs of a seed; the report gets a JSON line before each, and for faults."""
    format = FORMATS[name]
    samples = format.samples()
    _limit_memory()
    accepted = faults = 0
    with report.open("w", buffering=1) as lines, format.reader(directory) as read:
        for sample in samples:
            with nullcontext() if format.takes_samples else suppress(HeadgateError):
                read(sample)
        for number in range(count):
            print(json.dumps({"number": number}), file=lines)
            data = mutate(random.Random(f"{name} {seed} {number}"), samples, format)
            try:
                read(data)
                accepted += 1
            except HeadgateError:
                continue
            except Exception as error:
                if isinstance(error, MemoryError) and format.has_limit:
                    continue
                faults += 1
                fault = {"number": number, "fault": traceback.format_exc()}
                print(json.dumps(fault), file=lines)
                if faults == _FAULTS_SHOWN:
                    break
        print(json.dumps({"accepted": accepted}), file=lines)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = Path("/proc/self/statm")
    if pages.exists():
        used = int(pages.read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + _MEMORY_BYTES,) * 2)


if __name__ == "__main__":
    read_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(Path, sys.argv[4:]))
