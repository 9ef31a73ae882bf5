"""Loads by Spark and by Arrow are equivalent: rows, counts, one publication."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
import pytest

from headgate.errors import ConstraintsViolated, NeedsSparkToWrite
from headgate.model.failpoints import Failpoint
from headgate.testing.failpoints import calling_at
from tests.support.engines import SPARK, Engines
from tests.support.rows import KNOWS, PERSON, publications

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize("name", ["people.csv", "people.jsonl"])
def test_load_engines_of_random_files_come_to_the_same(engines: Engines, name: str) -> None:
    chance = random.Random(7)
    for mode in ("merge", "append", "merge", "overwrite"):
        ids = [chance.choice("abcdef") for _ in range(5)]
        ids = ids if mode == "merge" else list(dict.fromkeys(ids))
        rows = [{"id": id, "age": chance.choice([None, 1, 2, 3])} for id in ids]
        by_arrow, by_spark = engines.both({PERSON: engines.file(name, rows)}, mode)
        assert by_arrow == by_spark, (mode, rows)


def test_load_engines_of_random_ragged_lines_come_to_the_same(engines: Engines) -> None:
    chance = random.Random(11)
    for mode in ("merge", "append", "merge", "overwrite", "merge"):
        ids = [chance.choice("abcdef") for _ in range(8)]
        ids = ids if mode == "merge" else list(dict.fromkeys(ids))
        values: dict[str, list[Any]] = {"age": [None, 1, 2], "name": [None, "A", "B"]}
        rows = [
            {"id": id, **{c: chance.choice(v) for c, v in values.items() if chance.random() < 0.5}}
            for id in ids
        ]
        if mode == "append":
            rows = [{**row, "id": f"{row['id']}-new"} for row in rows]
        by_arrow, by_spark = engines.both({PERSON: engines.file("rows.jsonl", rows)}, mode)
        assert by_arrow == by_spark, (mode, rows)


def test_load_engines_of_ragged_lines_keep_constraints_over_the_values_that_stay(
    engines: Engines,
) -> None:
    """A line with one column of a unique pair clashes by the value that it leaves alone."""
    first = [{"id": 1, "src": "a", "dst": "b"}, {"id": 2, "src": "b", "dst": "b"}]
    engines.same({KNOWS: engines.file("first.jsonl", first)}, "append")
    clash = [{"id": 3, "src": "a", "dst": "a"}, {"id": 2, "src": "a"}]
    said = engines.same({KNOWS: engines.file("clash.jsonl", clash)}, "merge")
    assert said["violations"][0]["kind"] == "duplicate_unique"
    fine = [{"id": 3, "src": "a", "dst": "a"}, {"id": 2, "dst": "a"}]
    said = engines.same({KNOWS: engines.file("fine.jsonl", fine)}, "merge")
    assert said == {KNOWS: {"inserted": 1, "updated": 1, "deleted": 0}}
    lines = engines.root / "odd.jsonl"
    lines.write_bytes(b'\xef\xbb\xbf{"id": "x", "age": 1}\r\n\r\n  {"name": "N", "id": "a"}\n')
    assert engines.same({PERSON: lines}, "merge")[PERSON]["inserted"] == 1
    for empty in ("", "\n\n"):
        lines.write_text(empty)
        assert engines.same({PERSON: lines}, "merge") == {}
        assert engines.same({PERSON: lines}, "append") == {}
    lines.write_text("{}\n")
    assert "no column" in engines.same({PERSON: lines}, "merge")["reason"]
    lines.write_text('{"id": "y", "age": 1}\nnull\n{"id": "a"}\n')
    assert engines.same({PERSON: lines}, "merge")["rows"][0]["line"] == 2


def test_load_by_spark_of_many_tables_is_one_publication(engines: Engines) -> None:
    people = engines.file("people.jsonl", [{"id": "x", "name": "X"}])
    edges = engines.file("edges.csv", [{"id": 1, "src": "x", "dst": "a"}])
    outcome = engines.load(SPARK, {PERSON: people, KNOWS: edges}, "merge")
    newest = publications(engines.store)[0]
    assert newest.number == outcome.publication
    assert {str(m.dataset) for m in newest.moves} == {PERSON, KNOWS}
    assert engines.load(SPARK, {PERSON: people}, "merge").publication is None
    engines.store.mutate(SPARK, "update graph.person set age = 3 where id = 'x'")


def test_load_engines_of_files_with_different_columns_count_a_row_once(engines: Engines) -> None:
    """A row that is inserted by one file and updated by the next counts as inserted.

    A row that both files update counts as one update.
    """
    first = engines.file("1.jsonl", [{"id": "a", "age": 1}, {"id": "x", "age": 1}])
    second = engines.file("2.csv", [{"id": "x", "name": "X"}, {"id": "a", "name": "Ana"}])
    said = engines.same({PERSON: [first, second]}, "merge")
    assert said == {PERSON: {"inserted": 1, "updated": 1, "deleted": 0}}
    back = engines.file("3.jsonl", [{"id": "a", "age": 5}])
    forth = engines.file("4.csv", [{"id": "a", "age": 1, "name": "Ana"}])
    assert engines.same({PERSON: [back, forth]}, "merge") == {}


def test_load_engines_read_every_kind_of_source_alike(engines: Engines) -> None:
    """Covers names that Spark treats as patterns or hides, Arrow's own format, rows in memory."""
    rows = pa.table({"id": ["x"], "age": pa.array([1], pa.int64())})
    odd = engines.root / "a [1]*{b}%20é.parquet"
    parquet.write_table(rows, odd)
    hidden = engines.root / "_rows"
    parquet.write_table(rows.set_column(0, "id", pa.array(["y"])), hidden)
    arrow = engines.root / "rows.arrow"
    with ipc.new_file(arrow, rows.schema) as writer:
        writer.write_table(rows.set_column(0, "id", pa.array(["z"])))
    given = [odd, hidden, arrow, rows.set_column(0, "id", pa.array(["w"])), b"id,age\nv,1\n"]
    said = engines.same({PERSON: given}, "append")
    assert said == {PERSON: {"inserted": 5, "updated": 0, "deleted": 0}}
    again = engines.same({PERSON: [odd, hidden, given[3], odd]}, "append")
    assert [one["file"] for one in again["violations"]] == ["(rows)", str(odd), str(hidden)]


def test_load_engines_understand_text_alike(engines: Engines) -> None:
    """Covers empty and missing values, line ends within values, keys alone."""
    text = engines.root / "text.csv"
    text.write_bytes(b'id,name\r\nv,""\r\nw,\r\nx,"1\r\n2"\r\ny,a\\b\r\nz," ""q"" "\r\n')
    assert engines.same({PERSON: text}, "merge")[PERSON]["inserted"] == 5
    names = {row["id"]: row["name"] for row in engines.rows(PERSON)}
    assert [names[id] for id in "vwxyz"] == ["", None, "1\r\n2", "a\\b", ' "q" ']
    keys = engines.file("keys.jsonl", [{"id": "a"}, {"id": "k"}])
    said = engines.same({PERSON: keys}, "merge")
    assert said == {PERSON: {"inserted": 1, "updated": 0, "deleted": 0}}
    twice = b'id,name\r\nk2,"1\r\n2"\r\n\r\nk2,x\r\n'
    said = engines.same({PERSON: twice}, "append")
    assert (said["violations"][0]["file"], said["violations"][0]["line"]) == ("(rows)", 5)


def test_load_engines_take_the_last_of_equal_keys_in_the_order_given(engines: Engines) -> None:
    files = []
    for name, age in (("z.parquet", 1), ("a.parquet", 2), ("m.jsonl", 3), ("b.parquet", 4)):
        files.append(engines.root / name)
        parquet.write_table(pa.table({"id": ["a"], "age": [age]}), files[-1])
    engines.file("m.jsonl", [{"id": "a", "age": 9}, {"id": "a", "age": 3}])
    engines.same({PERSON: files[:2]}, "merge")
    assert engines.rows(PERSON)[0]["age"] == 2
    engines.same({PERSON: [files[3], files[2]]}, "merge")
    assert engines.rows(PERSON)[0]["age"] == 3


def test_load_by_spark_validates_again_where_others_changed_what_it_looked_at(
    engines: Engines,
) -> None:
    edges = engines.file("edges.csv", [{"id": 1, "src": "a", "dst": "b"}])
    add = "insert into graph.person (id) values ('z')"
    with calling_at(Failpoint.MUTATION_STAGED, _mutating(engines, add)):
        assert engines.load(SPARK, {KNOWS: edges}, "append").losses == 1
    more = engines.file("more.csv", [{"id": 2, "src": "z", "dst": "b"}])
    gone = "delete from graph.person where id = 'z'"
    with (
        calling_at(Failpoint.MUTATION_STAGED, _mutating(engines, gone)),
        pytest.raises(ConstraintsViolated),
    ):
        engines.load(SPARK, {KNOWS: more}, "append")
    assert [row["id"] for row in engines.rows(KNOWS)] == [1]


def _mutating(engines: Engines, sql: str) -> Callable[[], None]:
    def mutate() -> None:
        engines.store.mutate(SPARK, sql)

    return mutate


def test_load_into_format_version_3_is_done_by_spark_and_read_by_both(engines: Engines) -> None:
    engines.session(SPARK).sql(
        f"alter table headgate.{PERSON} set tblproperties ('format-version' = '3')"
    )
    rows = engines.file("rows.jsonl", [{"id": "a", "age": 5}, {"id": "c", "age": 6}])
    counts = engines.load(SPARK, {PERSON: rows}, "merge").counts[PERSON]
    assert (counts.inserted, counts.updated) == (1, 1)
    assert [r["age"] for r in engines.rows(PERSON)] == [5, 7, 6]
    with pytest.raises(NeedsSparkToWrite, match="--engine spark"):
        engines.store.mutate(SPARK, "update graph.person set age = 1 where id = 'a'")


def test_load_by_spark_of_a_missing_file_names_it(engines: Engines, tmp_path: Path) -> None:
    said = engines.same({PERSON: tmp_path / "nowhere.csv"}, "append")
    assert said["reason"] == "No such file or directory"
