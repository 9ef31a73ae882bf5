"""`load --create`: a table with the columns of its sources, created with their rows."""

from __future__ import annotations

import datetime
import decimal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headgate.catalog.records import find_dataset
from headgate.errors import (
    ConstraintsViolated,
    DatasetNotFound,
    HeadgateError,
    ImpossibleSchemaChange,
    Invalid,
    InvalidRows,
    InvalidSource,
    TableNotFound,
)
from headgate.model.names import parse_dataset_name
from headgate.store.embedded import Store
from tests.support.rows import GRAPH, apply_text, ids_of, made_settings, publications, rows_of

RAW = "raw.people"


def _text(root: Path, name: str, *lines: str) -> Path:
    path = root / name
    path.write_text("\n".join(lines) + "\n")
    return path


def _exists(store: Store, name: str) -> bool:
    return store.database.read(lambda c: find_dataset(c, parse_dataset_name(name))) is not None


def test_load_create_infers_the_columns_of_csv_and_publishes_table_and_rows_at_once(
    made_catalog_url: str, tmp_path: Path
) -> None:
    path = _text(
        tmp_path,
        "people.csv",
        "id,name,zip,score,member,born,seen,at,nothing",
        "1,Ana,01067, 2.5 ,true,1990-02-03,2026-01-02 03:04,2026-01-02T03:04:05Z,",
        "2,,80331,7,FALSE,,2026-01-02,2026-01-02T03:04:05+02:00,",
    )
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        outcome = store.load("master", {RAW: path}, create=True)
        assert outcome.created == {
            RAW: {
                "id": "long",
                "name": "string",
                "zip": "string",
                "score": "double",
                "member": "boolean",
                "born": "date",
                "seen": "timestamp",
                "at": "timestamptz",
                "nothing": "string",
            }
        }
        assert outcome.counts[RAW].inserted == 2
        [first, second] = rows_of(store, RAW)
        assert (first["zip"], first["score"], first["member"]) == ("01067", 2.5, True)
        assert second["name"] is None and second["nothing"] is None
        [publication] = publications(store)
        assert publication.number == outcome.publication
        assert store.load("master", {RAW: path}, create=True).created == {}
        assert len(rows_of(store, RAW)) == 4


_COLUMNS: Mapping[str, tuple[pa.Array, str]] = {
    "small": (pa.array([1, None], pa.int8()), "int"),
    "whole": (pa.array([1, 2], pa.int64()), "long"),
    "unsigned": (pa.array([2**64 - 1, 2], pa.uint64()), "decimal(20, 0)"),
    "half": (pa.array([1.5, None], pa.float32()), "float"),
    "money": (pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)), "decimal(9, 2)"),
    "word": (pa.array(["a", "b"]).dictionary_encode(), "string"),
    "digest": (pa.array([b"abcd", b"efgh"], pa.binary(4)), "fixed[4]"),
    "bytes": (pa.array([b"a", b""]), "binary"),
    "at": (pa.array([datetime.datetime(2026, 1, 2)] * 2, pa.timestamp("ns", "UTC")), "timestamptz"),
    "seen": (pa.array([datetime.datetime(2026, 1, 2)] * 2, pa.timestamp("ms")), "timestamp"),
    "day": (pa.array([datetime.date(2026, 1, 2)] * 2), "date"),
    "clock": (pa.array([datetime.time(1, 2)] * 2), "time"),
    "tags": (pa.array([["x"], []]), "list<string>"),
    "empty": (pa.array([[], []], pa.list_(pa.null())), "list<string>"),
    "place": (
        pa.array([{"lat": 1.0, "names": ["n"]}] * 2),
        "struct<lat: double, names: list<string>>",
    ),
    "counts": (
        pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
        "map<string, int>",
    ),
}


def test_load_create_keeps_the_types_of_parquet(made_sqlite_url: str, tmp_path: Path) -> None:
    given = pa.table({name: values for name, (values, _) in _COLUMNS.items()})
    parquet.write_table(given.drop_columns(["empty"]), tmp_path / "all.parquet")
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        outcome = store.load("master", {"raw.a": given}, create=True)
        wanted = {name: kind for name, (_, kind) in _COLUMNS.items()}
        assert outcome.created == {"raw.a": wanted}
        assert len(rows_of(store, "raw.a")) == 2
        outcome = store.load("master", {"raw.b": tmp_path / "all.parquet"}, create=True)
        assert outcome.created["raw.b"] == {n: k for n, k in wanted.items() if n != "empty"}


def test_load_create_of_json_has_its_types_and_leaves_text_as_text(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    path = _text(
        tmp_path,
        "rows.jsonl",
        '{"id": 1, "n": 1, "text": "2026-01-02", "deep": {"a": [1]}}',
        '{"id": 2, "n": 1.5, "text": "x", "mixed": true}',
        '{"id": 3, "mixed": 7}',
    )
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        created = store.load("master", {RAW: path}, create=True).created[RAW]
    assert created == {
        "id": "long",
        "n": "double",
        "text": "string",
        "deep": "struct<a: list<long>>",
        "mixed": "string",
    }


def test_load_create_of_several_files_has_the_columns_and_types_of_all(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "all").mkdir()
    _text(tmp_path, "all/1.csv", "id,n,code,late", "1,1,12,")
    _text(tmp_path, "all/2.csv", "ID,n,code,more", "2,1.5,012,x")
    _text(tmp_path, "all/3.csv", "id,late", "3,2026-01-02")
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        created = store.load("master", {RAW: tmp_path / "all"}, create=True).created[RAW]
        assert created == {
            "id": "long",
            "n": "double",
            "code": "string",
            "late": "date",
            "more": "string",
        }
        assert [row["code"] for row in rows_of(store, RAW)] == ["12", "012", None]


def test_load_create_with_a_key_merges_from_then_on(made_catalog_url: str, tmp_path: Path) -> None:
    path = _text(tmp_path, "p.csv", "id,name", "1,Ana", "2,Bea", "1,Anna")
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        with pytest.raises(ConstraintsViolated):
            store.load("master", {RAW: path}, create=True, primary_key={RAW: ["id"]})
        assert not _exists(store, RAW)
        how: Any = {"create": True, "primary_key": {RAW: ["id"]}, "mode": "merge"}
        outcome = store.load("master", {RAW: path}, **how)
        assert (outcome.counts[RAW].inserted, outcome.counts[RAW].updated) == (2, 0)
        outcome = store.load("master", {RAW: [{"id": 2, "name": "Bo"}]}, mode="merge")
        assert (outcome.counts[RAW].inserted, outcome.counts[RAW].updated) == (0, 1)
        assert [row["name"] for row in rows_of(store, RAW)] == ["Anna", "Bo"]


def test_load_create_of_a_file_without_rows_creates_an_empty_table(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        empty = pa.table({"id": pa.array([], pa.int64())})
        outcome = store.load("master", {RAW: empty}, create=True)
        assert outcome.publication is not None and outcome.created == {RAW: {"id": "long"}}
        store.mutate("master", f"insert into {RAW} values (1)")
        assert ids_of(store, RAW) == [1]


def _bad_row(root: Path) -> Mapping[str, Any]:
    good, bad = _text(root, "a.csv", "id", "1"), _text(root, "b.jsonl", '{"id": "x"}', "{")
    return {"sources": {"raw.a": good, RAW: bad}}


def _key_of_doubles(root: Path) -> Mapping[str, Any]:
    return {"sources": {RAW: [{"id": 1.5}]}, "primary_key": {RAW: ["id"]}}


def _key_that_no_source_has(root: Path) -> Mapping[str, Any]:
    return {"sources": {RAW: [{"id": 1}]}, "primary_key": {RAW: ["ID2"]}}


def _key_of_another_table(root: Path) -> Mapping[str, Any]:
    return {"sources": {RAW: [{"id": 1}]}, "primary_key": {"raw.other": ["id"]}}


def _nested_and_plain(root: Path) -> Mapping[str, Any]:
    one, other = pa.table({"a": [[1]]}), pa.table({"a": [1]})
    return {"sources": {RAW: [one, other]}}


def _field_with_a_comma(root: Path) -> Mapping[str, Any]:
    return {"sources": {RAW: pa.table({"a": [{"b,c": 1}]})}}


def _duration(root: Path) -> Mapping[str, Any]:
    return {"sources": {RAW: pa.table({"a": pa.array([1], pa.duration("s"))})}}


def _merge_without_a_key(root: Path) -> Mapping[str, Any]:
    return {"sources": {RAW: [{"id": 1}]}, "mode": "merge"}


def _spark(root: Path) -> Mapping[str, Any]:
    return {"sources": {RAW: [{"id": 1}]}, "engine": "spark"}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (_bad_row, InvalidRows, "b.jsonl:2"),
        (_key_of_doubles, Invalid, "cannot be in a key"),
        (_key_that_no_source_has, Invalid, "no column 'ID2'"),
        (_key_of_another_table, Invalid, "not loaded"),
        (_nested_and_plain, InvalidSource, "list<long> in a source before"),
        (_field_with_a_comma, InvalidSource, "headgate schema apply"),
        (_duration, InvalidSource, "duration"),
        (_merge_without_a_key, Invalid, "--primary-key"),
        (_spark, Invalid, "without --engine spark"),
    ],
)
def test_load_create_that_is_rejected_creates_nothing(
    made_sqlite_url: str, tmp_path: Path, given: Any, error: type[HeadgateError], says: str
) -> None:
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        how = dict(given(tmp_path))
        with pytest.raises(error) as refused:
            store.load("master", how.pop("sources"), create=True, **how)
        assert says in str(refused.value)
        assert publications(store) == [] and not _exists(store, RAW) and not _exists(store, "raw.a")


def test_load_of_a_missing_table_offers_to_create_it(made_sqlite_url: str, tmp_path: Path) -> None:
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        store.load("master", {"raw.other": [{"id": 1}]}, create=True)
        with pytest.raises((TableNotFound, DatasetNotFound), match="headgate load --create"):
            store.load("master", {RAW: [{"id": 1}]})
        with pytest.raises(Invalid, match="add --create"):
            store.load("master", {RAW: [{"id": 1}]}, primary_key={RAW: ["id"]})


def test_load_create_with_a_key_answers_a_repeated_request_with_the_same_columns(
    made_catalog_url: str, tmp_path: Path
) -> None:
    path = _text(tmp_path, "p.csv", "id", "1")
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        first = store.load("master", {RAW: path}, create=True, idempotency_key="k")
        again = store.load("master", {RAW: path}, create=True, idempotency_key="k")
        assert again.replayed and again.to_json() == first.to_json()
        assert len(publications(store)) == 1


def test_load_create_on_a_branch_leaves_the_others_and_starts_no_second_history(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        apply_text(store, GRAPH)
        store.load("feature>master", {RAW: [{"id": 1}]}, create=True)
        assert ids_of(store, RAW, "feature") == [1]
        # The table of a fallback is forked, not created.
        outcome = store.load("other>feature", {RAW: [{"id": 2}]}, create=True)
        assert outcome.created == {} and ids_of(store, RAW, "other") == [1, 2]
        with pytest.raises(ImpossibleSchemaChange, match="not on 'master' but on feature, other"):
            store.load("master", {RAW: [{"id": 3}]}, create=True)
        assert ids_of(store, RAW, "feature") == [1]
        store.merge("feature", into="master", datasets=[RAW])
        assert ids_of(store, RAW) == [1]


def test_load_create_where_the_branch_has_dropped_it_continues_the_history_of_the_dataset(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        store.load("master", {RAW: [{"id": 1}]}, create=True)
        before = store.dataset(RAW).branch("master").load().view
        renamed = f'[dataset."raw.folk"]\nrenamed_from = "{RAW}"\ncolumns = {{id = "long"}}'
        apply_text(store, renamed)
        assert rows_of(store, RAW) == []
        outcome = store.load("master", {RAW: [{"id": "x"}]}, create=True)
        assert outcome.created == {RAW: {"id": "string"}} and ids_of(store, RAW) == ["x"]
        assert before is not None
        store.dataset(RAW).branch("master").reset(to=before)
        assert ids_of(store, RAW) == [1]


def test_load_create_of_one_table_by_many_writers_keeps_the_rows_of_all(
    made_catalog_url: str, tmp_path: Path
) -> None:
    start = threading.Barrier(6)
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with Store(made_settings(made_catalog_url, tmp_path, actor=f"w{number}")) as store:
                start.wait(30)
                store.load("master", {RAW: [{"id": number}]}, create=True)
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=[number]) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert failed == []
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        assert ids_of(store, RAW) == list(range(6))
