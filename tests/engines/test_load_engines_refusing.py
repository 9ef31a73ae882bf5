"""Loads by Spark reject the same rows as loads by Arrow, with the same messages and lines."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headgate.errors import ConstraintsViolated, InvalidRows
from tests.support.engines import SPARK, Engines
from tests.support.rows import KNOWS, PERSON, apply_text

pytestmark = pytest.mark.xdist_group("spark")
ITEM = "shop.item"
_ITEMS = """
[dataset."shop.item"]
key = ["id"]
unique = [["code", "place"]]
cardinality = [{per = "place", max = 2}]

[dataset."shop.item".columns]
id = "long"
code = "string"
place = "string"
name = { type = "string", required = true }
status = { type = "string", default = "new", enum = ["new", "old"] }
owner = { type = "string", default = "a" }
"""


def _places(said: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    """Return kind, file and line of all violations."""
    return [
        (v["kind"], v.get("file", "").rsplit("/")[-1], v.get("line")) for v in said["violations"]
    ]


@pytest.fixture
def items(engines: Engines) -> Engines:
    """A table with every kind of constraint, and two rows."""
    apply_text(engines.store, _ITEMS)
    insert = "insert into shop.item (id, code, place, name) values (1, 'a', 'p', 'A')"
    engines.store.mutate("master", f"{insert}, (2, 'b', 'p', 'B')")
    engines.on_both(ITEM)
    return engines


def test_load_engines_name_the_same_violations_by_file_and_line(items: Engines) -> None:
    csv = items.root / "1.csv"
    csv.write_bytes(
        b'id,code,place,name,status\n3,a,q,"C\n\nc",gone\n\n4,a,q,D,new\n1,z,q,E,old\n5,,,,new\n'
    )
    said = items.same({ITEM: csv}, "append")
    assert _places(said) == [
        ("required", "1.csv", 8),
        ("enum", "1.csv", 2),
        ("duplicate_key", "1.csv", 7),
        ("duplicate_unique", "1.csv", 6),
        ("cardinality", "1.csv", 7),
    ]
    lines = items.root / "2.jsonl"
    lines.write_text('{"id": 1, "status": "odd"}\n\n{"id": 2, "place": "q", "code": "a"}\n')
    assert _places(items.same({ITEM: [csv, lines]}, "merge"))[-1] == ("cardinality", "2.jsonl", 3)
    assert not items.store.dataset(ITEM).branch(SPARK).load().is_open


def _break_rules(items: Engines, branch: str, statement: str) -> None:
    """Let Spark write rows that violate the constraints of the table."""
    session = items.session(branch)
    session.sql("alter table headgate.shop.item set tblproperties ('headgate.enforce' = 'flag')")
    session.sql(statement)


def test_load_engines_judge_a_merge_by_what_it_comes_to(items: Engines) -> None:
    """Ignores a row that a later one replaces, and existing violations that stay."""
    rows = [{"id": 1, "status": "gone"}, {"id": 1, "status": "old"}]
    said = items.same({ITEM: items.file("rows.jsonl", rows)}, "merge")
    assert said[ITEM]["updated"] == 1
    for branch in ("master", SPARK):
        _break_rules(items, branch, "update headgate.shop.item set status = 'odd' where id = 2")
    same = items.file("same.jsonl", [{"id": 2, "status": "odd"}, {"id": 1, "status": "new"}])
    assert items.same({ITEM: same}, "merge")[ITEM]["updated"] == 1
    named = items.file("named.jsonl", [{"id": 2, "name": "Bo"}])
    assert _places(items.same({ITEM: named}, "merge")) == [("enum", "named.jsonl", 1)]


def test_load_engines_notice_keys_that_were_doubled_before(items: Engines) -> None:
    for branch in ("master", SPARK):
        _break_rules(
            items, branch, "insert into headgate.shop.item select * from headgate.shop.item"
        )
    other = items.file("other.jsonl", [{"id": 7, "name": "X", "code": "x"}])
    assert items.same({ITEM: other}, "merge")[ITEM]["inserted"] == 1
    # For few rows the load reads only their own keys, for many all keys.
    for name in ("Y", "Y" * 50_000):
        rows = items.file("rows.jsonl", [{"id": 7, "name": name}, {"id": 1, "name": name}])
        said = items.same({ITEM: rows}, "merge")
        assert ("duplicate_key", "rows.jsonl", 2) in _places(said)


def test_load_engines_find_orphans_of_many_tables_from_both_ends(engines: Engines) -> None:
    people = engines.root / "people.parquet"
    parquet.write_table(pa.table({"id": ["x", "y"]}), people)
    edges = engines.root / "edges.parquet"
    ends = {"id": [1, 2, 3], "src": ["x", "b", "y"], "dst": ["y", "x", "nobody"]}
    parquet.write_table(pa.table(ends), edges)
    said = engines.same({KNOWS: edges, PERSON: people}, "append")
    assert _places(said) == [("orphan", "edges.parquet", 3)]
    parquet.write_table(pa.table(ends).slice(0, 2), edges)
    engines.same({KNOWS: edges, PERSON: people}, "append")
    said = engines.same({PERSON: people}, "overwrite")
    assert _places(said) == [("orphan", "", None)]
    assert said["violations"][0]["values"] == ["b"]


def test_load_engines_check_what_a_default_refers_to(engines: Engines) -> None:
    text = _ITEMS.replace(
        "cardinality", 'references = [{column = "owner", dataset = "graph.person"}]\ncardinality'
    )
    apply_text(engines.store, text)
    engines.on_both(ITEM)
    row = engines.file("row.jsonl", [{"id": 1, "name": "A"}])
    for branch in ("master", SPARK):
        engines.store.mutate(branch, "delete from graph.person where id = 'a'")
    assert _places(engines.same({ITEM: row}, "merge")) == [("orphan", "row.jsonl", 1)]


def test_load_engines_name_lines_of_a_file_that_spark_reads_in_parts(engines: Engines) -> None:
    path = engines.root / "long.jsonl"
    filling = "y" * 4000
    rows = [f'{{"id": "p{n}", "name": "{filling}"}}\n' for n in range(1500)]
    path.write_text("".join(rows[:1400]) + "\n" + '{"id": "p3"}\n' + "".join(rows[1400:]))
    session = engines.session(SPARK)
    assert session.read.json(str(path)).rdd.getNumPartitions() > 1
    said = engines.same({PERSON: path}, "append")
    assert _places(said) == [("duplicate_key", "long.jsonl", 1402)]


def test_load_engines_name_the_same_files_and_lines_of_bad_rows(engines: Engines) -> None:
    wrong = {
        "values.csv": b'id,age\nx,1\n"y\nz",2\nw,young\n\nv,9999999999\n',
        "signs.csv": b"id,age\nx,+1\ny,1.0\nz,0x1\nw, 7 \n",
        "odd.csv": b"id,agee\nx,1\n",
        "short.csv": b"id,age\nx,1\ny\nz,1,2\n",
        "latin.csv": b"id,name\nx,Jos\xe9\n",
        "utf16.csv": "id,name\nx,José\n".encode("utf-16"),
        "twice.csv": b"id,id\nx,y\n",
        "empty.csv": b"",
        "open.csv": b'id,name\nx,5" pipe\ny,"and\nz,w\n',
        "packed.csv": b"\x1f\x8b\x08\x00",
        "endless.csv": b"id,name\nx," + b"y" * 2**26,
        "endless.jsonl": b'{"id": "a"}\n{"id": "' + b"y" * 2**26,
        "values.jsonl": b'{"id": "x", "age": 1}\n\n{"id": "y", "age": "old"}\n',
        "broken.jsonl": b'{"id": "x"}\n{"id": \n{"id": "y"}\n[1]\n',
        "array.jsonl": b'{"id": "x"}\n [{"id": "y"}]\n',
        "loose.jsonl": b"{'id': 'x'}\n",
        "nan.jsonl": b'{"id": "x", "age": NaN}\n',
        "half.jsonl": b'{"id": "x", "age": 1}\n{"id": "y", "age": 1.5}\n',
        "fake.parquet": b"PAR1 and nothing else",
    }
    for name, content in wrong.items():
        path = engines.root / name
        path.write_bytes(content)
        said = engines.same({PERSON: path}, "merge")
        assert "refused" in said, name
    assert not engines.store.dataset(PERSON).branch(SPARK).load().is_open


def test_load_engines_take_nothing_that_would_not_stay_what_it_is(engines: Engines) -> None:
    columns = '{id = "long", price = "decimal(6,2)", day = "date", at = "timestamp", x = "double"}'
    apply_text(engines.store, f'[dataset."{ITEM}"]\ncolumns = {columns}\nkey = ["id"]')
    engines.on_both(ITEM)
    good = "id,price,day,at,x\n1, 1.50,2024-02-29,2024-01-01T10:00:00.5,1e3\n"
    (engines.root / "1.csv").write_text(good + "2,-7,0001-01-01,2024-01-01 00:00:00,nan\n")
    assert engines.same({ITEM: engines.root / "1.csv"}, "append")[ITEM]["inserted"] == 2
    bad = [
        "7,1.005,,,",
        "7,,2024-1-5,,",
        "7,,0000-01-01,,",
        "7,,2024,,",
        "7,,,tomorrow,",
        "7,,,,1d",
    ]
    (engines.root / "2.csv").write_text(good + "\n".join(bad) + "\n")
    said = engines.same({ITEM: engines.root / "2.csv"}, "merge")
    assert [row["line"] for row in said["rows"]] == [3, 4, 5, 6, 7, 8]
    rows = {"id": [8], "day": pa.array([10**7], pa.int32()).cast(pa.date32()), "x": [2**53 + 1]}
    parquet.write_table(pa.table(rows), engines.root / "3.parquet")
    said = engines.same({ITEM: engines.root / "3.parquet"}, "merge")
    assert [row["line"] for row in said["rows"]] == [1, 1]
    (engines.root / "4.jsonl").write_text('{"id": 9, "price": 1.5}\n{"id": 10, "price": 1.005}\n')
    assert engines.same({ITEM: engines.root / "4.jsonl"}, "merge")["rows"][0]["line"] == 2


def test_load_engines_take_no_value_for_one_that_means_something_else(engines: Engines) -> None:
    columns = (
        'id = "long", flag = "boolean", n = "int", x = "double", y = "float", day = "date", '
        'at = "timestamp", moment = "timestamptz", list = "list<int>"'
    )
    apply_text(engines.store, f'[dataset."shop.kinds"]\ncolumns = {{{columns}}}\nkey = ["id"]')
    engines.on_both("shop.kinds")
    noon = datetime.datetime(2026, 11, 16, 12)
    wrong: list[tuple[str, pa.Array]] = [
        ("n", pa.array([True, None])),
        ("x", pa.array([False, None])),
        ("flag", pa.array([0, 7])),
        ("flag", pa.array([0.5, 1.0])),
        ("at", pa.array([1700000000, None])),
        ("moment", pa.array([1700000000.5, None])),
        ("day", pa.array([7, None], pa.int32())),
        ("n", pa.array([noon, None])),
        ("day", pa.array([True, None])),
        ("list", pa.array([[True], None])),
    ]
    for number, (name, values) in enumerate(wrong):
        file = engines.root / f"{number}.parquet"
        parquet.write_table(pa.table({"id": [1, 2], name: values}), file)
        said = engines.same({"shop.kinds": file}, "append")
        assert (said["refused"], len(said["rows"])) == ("invalid_rows", 1), (name, said)
    lines = engines.root / "rows.jsonl"
    fields = (
        '"n": true',
        '"at": 1700000000',
        '"flag": 7',
        '"n": "0x1F"',
        '"x": "1e400"',
        '"y": 1e300',
        '"list": ["0x1F"]',
    )
    for field in fields:
        lines.write_text(f'{{"id": 1, {field}}}\n{{"id": 2}}\n')
        said = engines.same({"shop.kinds": lines}, "append")
        assert (said["refused"], said["rows"][0]["line"]) == ("invalid_rows", 1), field
    good = engines.root / "good.parquet"
    nothing = {name: pa.nulls(2, pa.bool_()) for name in ("n", "day", "moment")}
    parquet.write_table(pa.table({"id": [1, 2], "flag": [0, 1], **nothing}), good)
    assert engines.same({"shop.kinds": good}, "append")["shop.kinds"]["inserted"] == 2
    assert [row["flag"] for row in engines.rows("shop.kinds")] == [False, True]


def test_load_engines_refuse_files_before_rows_and_leave_nothing(engines: Engines) -> None:
    edges = engines.file("edges.csv", [{"id": 1, "src": "a", "dst": "nobody"}])
    assert engines.same({KNOWS: edges}, "append")["refused"] == ConstraintsViolated.code
    wrong = engines.file("wrong.csv", [{"id": "x", "age": "old"}])
    said = engines.same({KNOWS: edges, PERSON: wrong}, "append")
    assert said["refused"] == InvalidRows.code
    keyless = engines.file("keyless.csv", [{"id": None, "age": 1}, {"id": None, "age": 2}])
    for mode in ("append", "merge"):
        assert _places(engines.same({PERSON: keyless}, mode)) == [("required", "keyless.csv", 2)]
    assert not engines.store.dataset(KNOWS).branch(SPARK).load().is_open
