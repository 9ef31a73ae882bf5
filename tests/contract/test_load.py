"""`load`: modes, formats, and rows that do not fit, reported by file and line."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
import pytest

from headgate.errors import (
    ConstraintsViolated,
    IdempotencyKeyReused,
    Invalid,
    InvalidRows,
    InvalidSource,
)
from headgate.model.nouns import TransactionType
from headgate.rows.sources import GIVEN_METADATA
from headgate.store.embedded import Store
from tests.support.rows import (
    KNOWS,
    PERSON,
    apply_text,
    graph_store,
    ids_of,
    publications,
    rows_of,
)

_ROWS = pa.table({"id": ["x", "y"], "age": pa.array([1, 2], pa.int64())})


def _file(root: Path, name: str, content: str | bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _parquet(root: Path) -> Path:
    parquet.write_table(_ROWS, root / "rows.parquet")
    return root / "rows.parquet"


def _arrow(root: Path) -> Path:
    sink = io.BytesIO()
    with ipc.new_stream(sink, _ROWS.schema) as writer:
        writer.write_table(_ROWS)
    return _file(root, "rows.arrows", sink.getvalue())


def _jsonl(root: Path) -> Path:
    return _file(root, "rows.jsonl", '{"id": "x", "age": 1}\n\n{"id": "y", "age": 2}\n')


def _csv(root: Path) -> Path:
    return _file(root, "rows.csv", '\ufeffid,age\nx,1\n"y", 2\n')


def _directory(root: Path) -> Path:
    _file(root, "all/1.csv", "id,age\nx,1\n")
    _file(root, "all/deep/2.jsonl", '{"id": "y", "age": "2"}')
    _file(root, "all/_SUCCESS", "")
    return root / "all"


def _batch(_: Path) -> pa.RecordBatch:
    return _ROWS.to_batches()[0]


def _frame(_: Path) -> object:
    """Return an object with the Arrow interface of data frames of any library."""

    class Frame:
        def __arrow_c_stream__(self, schema: object = None) -> object:
            return _ROWS.__arrow_c_stream__(schema)

    return Frame()


@pytest.mark.parametrize("make", [_parquet, _arrow, _jsonl, _csv, _directory, _batch, _frame])
def test_load_of_each_format_adds_the_same_rows(
    made_sqlite_url: str, tmp_path: Path, make: object
) -> None:
    assert callable(make)
    with graph_store(made_sqlite_url, tmp_path) as store:
        outcome = store.load("master", {PERSON: make(tmp_path)})
        assert outcome.counts[PERSON].inserted == 2
        assert [(r["id"], r["name"], r["age"]) for r in rows_of(store, PERSON)] == [
            ("x", None, 1),
            ("y", None, 2),
        ]


def test_load_append_of_a_known_key_names_it_with_its_line(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a") as store:
        path = _file(tmp_path, "p.csv", 'id,name\nb,"two\nlines"\na,A\n')
        with pytest.raises(ConstraintsViolated) as refused:
            store.load("master", {PERSON: path})
        [violation] = refused.value.facts["violations"]
        assert (violation["values"], violation["line"]) == (["a"], 4)
        assert violation["file"].endswith("p.csv")
        assert ids_of(store, PERSON) == ["a"]


def test_load_merge_updates_by_key_last_wins_and_keeps_other_columns(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        path = _file(tmp_path, "p.csv", "id,age\na,1\nc,5\na,2\n")
        outcome = store.load("master", {PERSON: path}, mode="merge")
        assert outcome.counts[PERSON].to_json() == {"inserted": 1, "updated": 1, "deleted": 0}
        assert [(r["id"], r["name"], r["age"]) for r in rows_of(store, PERSON)] == [
            ("a", "A", 2),
            ("b", "B", 7),
            ("c", None, 5),
        ]
        again = store.load("master", {PERSON: path}, mode="merge")
        assert again.publication is None


def test_load_overwrite_puts_new_rows_in_place_of_all(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        outcome = store.load("master", {PERSON: _csv(tmp_path)}, mode="overwrite")
        assert outcome.counts[PERSON].to_json() == {"inserted": 2, "updated": 0, "deleted": 2}
        assert ids_of(store, PERSON) == ["x", "y"]
        newest = store.dataset(PERSON).branch("master").history()[0]
        assert newest.type is TransactionType.SNAPSHOT


def test_load_overwrite_that_orphans_rows_elsewhere_is_refused(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a", "b") as store:
        store.mutate("master", "insert into graph.knows values (1, 'a', 'b')")
        with pytest.raises(ConstraintsViolated, match="refers to no row"):
            store.load("master", {PERSON: _csv(tmp_path)}, mode="overwrite")
        edges = _file(tmp_path, "e.csv", "id,src,dst\n1,x,y\n")
        store.load("master", {PERSON: _csv(tmp_path), KNOWS: edges}, mode="overwrite")
        assert [r["src"] for r in rows_of(store, KNOWS)] == ["x"]


def test_load_of_many_tables_is_one_publication(made_catalog_url: str, tmp_path: Path) -> None:
    with graph_store(made_catalog_url, tmp_path) as store:
        count = len(publications(store))
        edges = _file(tmp_path, "e.jsonl", '{"id": 1, "src": "x", "dst": "y"}')
        store.load("master", {KNOWS: edges, PERSON: _ROWS})
        assert len(publications(store)) == count + 1
        assert {str(m.dataset) for m in publications(store)[0].moves} == {PERSON, KNOWS}


def _types(store: Store) -> None:
    apply_text(
        store,
        '[dataset."shop.t".columns]\nid = "int"\nok = "boolean"\nd = "decimal(6, 2)"\n'
        'day = "date"\nat = "timestamptz"\nu = "uuid"\ntags = "list<string>"\n',
    )


def test_load_of_text_is_understood_by_the_types_of_the_table(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        _types(store)
        uuid = "8f14e45f-ceea-467f-a8f4-1d0d3e2b9a11"
        text = f"id,ok,d,day,at,u\n7,yes,1.25,2026-01-02,2026-01-02T03:04:05Z,{uuid}\n,,,,,\n"
        store.load("master", {"shop.t": _file(tmp_path, "t.csv", text)})
        empty, row = sorted(rows_of(store, "shop.t"), key=lambda r: r["id"] or 0)
        assert (row["id"], row["ok"], row["d"], row["day"]) == (7, True, "1.25", "2026-01-02")
        assert str(row["u"]) == uuid and row["at"].startswith("2026-01-02T03:04:05")
        assert set(empty.values()) == {None}


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("t.csv", "id,ok\n1,yes\n2,maybe\n99999999999,no\nx,no\n", [3, 4, 5]),
        ("t.csv", "id,d\n1,12345.67\n2,1.234\n", [2, 3]),
        ("t.csv", "id,ok\n1,yes,3\n2,yes\n3\n", [2, 4]),
        ("t.jsonl", '{"id": 1}\n{"id": \n[1]\n{"id": 2}', [2, 3]),
        ("t.jsonl", '{"id": 1}\n{"id": "x"}\n', [2]),
        ("t.jsonl", '{"id": 3000000000}\n', [1]),
    ],
)
def test_load_of_rows_that_do_not_fit_names_their_lines(
    made_sqlite_url: str, tmp_path: Path, name: str, content: str, lines: list[int]
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        _types(store)
        with pytest.raises(InvalidRows) as refused:
            store.load("master", {"shop.t": _file(tmp_path, name, content)})
        assert [row["line"] for row in refused.value.facts["rows"]] == lines
        assert rows_of(store, "shop.t") == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"id,ok\n1,\xff\xfe\n", "not UTF-8"),
        ("t.csv", "id,ok\n1,yes\n".encode("utf-16"), "UTF-16"),
        ("t.jsonl", '{"id": 1}'.encode("utf-16"), "UTF-16"),
        ("t.csv", "id,ok\n1,yes\n".encode("utf-16-le"), "zero bytes"),
        ("t.csv", b"\x1f\x8b\x08\x00 and more", "compressed"),
        ("t.csv", b"id,\xff\n1,2\n", "header is not UTF-8"),
        ("t.csv", b'id,ok\n1,yes\n2,"no\n3,yes\n', "t.csv:3 cannot be loaded: a quoted value"),
        ("t.csv", b"", "no header"),
        ("t.csv", b"id,id\n1,2\n", "twice"),
        ("t.csv", b"id,okk\n1,yes\n", "did you mean 'ok'"),
        ("t.parquet", b"nothing", "not a readable parquet file"),
        ("t.xlsx", b"PK", "none of the known suffixes"),
    ],
)
def test_load_of_a_file_that_is_not_what_it_claims_is_refused(
    made_sqlite_url: str, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        _types(store)
        with pytest.raises(Invalid, match=words):
            store.load("master", {"shop.t": _file(tmp_path, name, content)})


def test_load_with_a_key_is_done_once_and_needs_its_file_once(
    made_catalog_url: str, tmp_path: Path
) -> None:
    path = _csv(tmp_path)
    with graph_store(made_catalog_url, tmp_path) as store:
        first = store.load("master", {PERSON: path}, idempotency_key="k")
        path.unlink()
        again = store.load("master", {PERSON: path}, idempotency_key="k")
        assert (again.publication, again.counts) == (first.publication, first.counts)
        assert again.replayed and not first.replayed
        with pytest.raises(Invalid):
            store.load("master", {PERSON: path}, mode="merge", idempotency_key="k")


def test_load_with_a_key_of_a_file_that_changed_is_another_request(
    made_catalog_url: str, tmp_path: Path
) -> None:
    path = _csv(tmp_path)
    with graph_store(made_catalog_url, tmp_path) as store:
        first = store.load("master", {PERSON: path}, idempotency_key="k")
        text = path.read_text()
        path.write_text(text + "late,1\n")
        with pytest.raises(IdempotencyKeyReused):
            store.load("master", {PERSON: path}, idempotency_key="k")
        path.write_text(text)
        again = store.load("master", {PERSON: path}, idempotency_key="k")
        assert again.replayed and again.publication == first.publication


def test_load_of_an_endless_line_is_refused(made_sqlite_url: str, tmp_path: Path) -> None:
    """`load` reads at most 64 MiB of a line, which may have 65 MiB or a gigabyte."""
    endless = b"x" * (65 * 1024 * 1024)
    files = {
        "p.jsonl": (
            b'{"id": "a"}\n{"id": "' + endless,
            r"p\.jsonl:2 cannot be loaded: the line is over 64 MiB",
        ),
        "p.csv": (
            b"id,name\na,b\nc," + endless,
            r"p\.csv:3 cannot be loaded: the line is over 64 MiB",
        ),
        "h.csv": (endless, r"h\.csv:1 cannot be loaded: its first line is over 64 MiB"),
    }
    with graph_store(made_sqlite_url, tmp_path) as store:
        for name, (content, words) in files.items():
            with pytest.raises(InvalidSource, match=words):
                store.load("master", {PERSON: _file(tmp_path, name, content)})


def test_load_merge_without_a_key_is_refused(made_sqlite_url: str, tmp_path: Path) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        _types(store)
        with pytest.raises(Invalid, match="has no key to merge by"):
            store.load("master", {"shop.t": _file(tmp_path, "t.csv", "id\n1\n")}, mode="merge")
        path = _file(tmp_path, "n.csv", "name\nx\n")
        with pytest.raises(Invalid, match="no column 'id'"):
            store.load("master", {PERSON: path}, mode="merge")


def test_load_of_what_holds_no_rows_is_refused(made_sqlite_url: str, tmp_path: Path) -> None:
    with (
        graph_store(made_sqlite_url, tmp_path) as store,
        pytest.raises(Invalid, match="a set cannot be loaded"),
    ):
        store.load("master", {PERSON: {"x"}})


@pytest.mark.parametrize(("mode", "engine"), [("replace", "arrow"), ("append", "pandas")])
def test_load_with_an_unknown_word_is_refused(
    made_sqlite_url: str, tmp_path: Path, mode: str, engine: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store, pytest.raises(Invalid, match="choose"):
        store.load("master", {PERSON: _ROWS}, mode=mode, engine=engine)


def test_load_merge_of_ragged_lines_changes_the_columns_of_each_line_in_their_order(
    made_catalog_url: str, tmp_path: Path
) -> None:
    lines = [
        '{"id": "a", "name": "A1", "age": 1}',
        '{"id": "b", "age": 2}',
        '{"id": "a", "name": null}',
        '{"id": "c", "name": "C"}',
        '{"id": "b", "name": "B2"}',
        '{"id": "b", "AGE": 3}',
    ]
    with graph_store(made_catalog_url, tmp_path, "a", "b") as store:
        given = _file(tmp_path, "rows.jsonl", "\n".join(lines))
        with pytest.raises(InvalidSource, match="'age' occurs twice"):
            store.load("master", {PERSON: given}, mode="merge")
        given.write_text("\n".join(lines).replace("AGE", "age"))
        counts = store.load("master", {PERSON: given}, mode="merge").counts[PERSON]
        assert (counts.inserted, counts.updated) == (1, 2)
        assert [(r["id"], r["name"], r["age"]) for r in rows_of(store, PERSON)] == [
            ("a", None, 1),
            ("b", "B2", 3),
            # A new row gets the default of a column that it lacks.
            ("c", "C", 7),
        ]
        store.load(
            "master", {PERSON: [{"id": "a", "name": "A"}, {"id": "b", "age": None}]}, mode="merge"
        )
        assert [(r["name"], r["age"]) for r in rows_of(store, PERSON)] == [
            ("A", 1),
            ("B2", None),
            ("C", 7),
        ]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_load_of_ragged_lines_gives_new_rows_the_defaults_of_columns_that_they_lack(
    made_sqlite_url: str, tmp_path: Path, mode: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path) as store:
        rows = [{"id": "x", "age": 1}, {"id": "y"}, {"id": "z", "age": None}]
        store.load("master", {PERSON: rows}, mode=mode)
        assert [r["age"] for r in rows_of(store, PERSON)] == [1, 7, None]


def test_load_merge_of_a_line_without_the_key_names_it(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        given = _file(tmp_path, "rows.jsonl", '{"id": "a", "age": 1}\n{"age": 2}\n')
        with pytest.raises(ConstraintsViolated) as refused:
            store.load("master", {PERSON: given}, mode="merge")
        assert [one["line"] for one in refused.value.facts["violations"]] == [2]
        assert [r["age"] for r in rows_of(store, PERSON)] == [7]


@pytest.mark.parametrize("mode", ["append", "merge", "overwrite"])
def test_load_of_lines_without_an_object_loads_no_row(
    made_sqlite_url: str, tmp_path: Path, mode: str
) -> None:
    with graph_store(made_sqlite_url, tmp_path, "a") as store:
        for content in ("", "\n\n"):
            outcome = store.load("master", {PERSON: _file(tmp_path, "e.jsonl", content)}, mode=mode)
            assert sum(count.inserted for count in outcome.counts.values()) == 0
        assert ids_of(store, PERSON) == ([] if mode == "overwrite" else ["a"])
        with pytest.raises(InvalidSource, match=r"e\.jsonl:2 .*no column"):
            store.load("master", {PERSON: _file(tmp_path, "e.jsonl", "\n{}\n")}, mode=mode)


@pytest.mark.parametrize(
    "given",
    [
        b"[]",
        b'{"nosuch": "mark"}',
        b'{"id": "nosuch"}',
        b'{"id": "mark", "name": "mark"}',
        b'{"mark": "mark"}',
        b'{"id": 1}',
    ],
)
def test_load_of_a_stream_with_forged_marks_of_columns_is_rejected(
    made_sqlite_url: str, tmp_path: Path, given: bytes
) -> None:
    rows = pa.table({"id": ["x"], "name": ["X"], "mark": [True]})
    sink = io.BytesIO()
    with ipc.new_stream(sink, rows.schema.with_metadata({GIVEN_METADATA: given})) as writer:
        writer.write_table(rows.replace_schema_metadata({GIVEN_METADATA: given}))
    with graph_store(made_sqlite_url, tmp_path) as store:
        with pytest.raises(InvalidSource, match=r"headgate\.given"):
            store.load("master", {PERSON: sink.getvalue()}, mode="merge")
        assert rows_of(store, PERSON) == []
