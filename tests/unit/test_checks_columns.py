"""Resolution of column names, and types that a column can be compared with."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from headgate.model.checks import Verdict
from headgate.spark.check_columns import (
    Column,
    Columns,
    columns_mismatch,
    judge_schema,
    same_type,
    value_mismatch,
)
from headgate.transforms import expectations as E  # noqa: N812  (as users write it)
from headgate.transforms.expectation_tree import Expectation

COLUMNS = Columns(
    [
        Column(path=("id",), type="bigint"),
        Column(path=("Day",), type="date"),
        Column(
            path=("at",),
            type="struct<City:string>",
            fields=(Column(path=("at", "City"), type="string"),),
        ),
        Column(path=("at.city.code",), type="int"),
    ]
)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("id", ("id",)),
        ("DAY", ("Day",)),
        ("at.city", ("at", "City")),
        ("at.city.code", ("at.city.code",)),
        ("at.street", None),
        ("id.x", None),
    ],
)
def test_column_is_found_by_name_or_by_path_into_a_struct(
    name: str, path: tuple[str, ...] | None
) -> None:
    found = COLUMNS.find(name)
    assert (found.path if found else None) == path


def test_column_of_the_exact_spelling_wins_over_one_that_is_alike() -> None:
    columns = Columns([Column(path=("A",), type="int"), Column(path=("a",), type="date")])
    assert columns.load("a").type == "date"


def test_lacking_column_is_named_with_those_there_are() -> None:
    assert COLUMNS.missing(["id", "day"]) is None
    assert COLUMNS.missing(["id", "dya", "x"]) == (
        "there is no column 'dya' nor 'x'; the columns are id, Day, at, at.city.code"
    )
    many = Columns([Column(path=(f"c{n}",), type="int") for n in range(30)])
    assert (many.missing(["x"]) or "").endswith("c18, c19 and 10 more")


MOMENT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("type_name", "value", "fits"),
    [
        ("decimal(10,2)", 1, True),
        ("double", decimal.Decimal("1.5"), True),
        ("int", "1", False),
        ("int", True, False),
        ("boolean", True, True),
        ("string", "x", True),
        ("string", 5, False),
        ("date", MOMENT, True),
        ("timestamp", "2026-01-02", True),
        ("timestamp", "2026-01-02T03:04:05+02:00", True),
        ("timestamp", "yesterday", False),
        ("timestamp_ntz", E.now(), True),
        ("string", E.now(), False),
        ("array<int>", 1, False),
    ],
)
def test_column_compares_with_values_of_its_own_kind(
    type_name: str, value: Any, fits: bool
) -> None:
    reason = value_mismatch(Column(path=("c",), type=type_name), value)
    assert (reason is None) is fits
    if reason is not None:
        assert reason.startswith(f"c is {type_name}, which cannot be compared with ")


def test_columns_compare_if_of_one_kind_or_of_the_same_type() -> None:
    def column(type_name: str) -> Column:
        return Column(path=("c",), type=type_name)

    assert columns_mismatch(column("int"), column("decimal(3,0)")) is None
    assert columns_mismatch(column("array<int>"), column("array<int>")) is None
    assert columns_mismatch(column("binary"), column("array<int>")) is not None
    assert columns_mismatch(column("int"), column("string")) is not None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("LONG", "bigint", True),
        ("decimal(10, 2)", "decimal(10,2)", True),
        ("decimal", "decimal(10,0)", True),
        ("array<long>", "array<bigint>", True),
        ("struct<long: integer>", "struct<long:int>", True),
        ("struct<long:int>", "struct<bigint:int>", False),
        ("timestamp", "timestamp_ntz", False),
    ],
)
def test_types_are_the_same_under_their_other_names(one: str, other: str, same: bool) -> None:
    assert same_type(one, other) is same


ALL = {"id": "long", "day": "date", "at": "struct<city:string>", "at.city.code": "int"}


@pytest.mark.parametrize(
    ("expectation", "verdict", "reason"),
    [
        (E.col("at.city").exists(), Verdict.MET, "there is a column at.city"),
        (E.col("x").exists(), Verdict.UNMET, "there is no column 'x'"),
        (E.col("id").has_type("long"), Verdict.MET, "id is long"),
        (E.col("id").has_type("int"), Verdict.UNMET, "id is bigint, not int"),
        (E.col("x").has_type("int"), Verdict.UNKNOWN, "there is no column 'x'"),
        (E.schema().contains({"id": "long", "DAY": "date"}), Verdict.MET, "4 columns"),
        (E.schema().contains({"id": "string", "x": "int"}), Verdict.UNMET, "not string"),
        (E.schema().equals(ALL), Verdict.MET, "4 columns as expected"),
        (E.schema().equals({"id": "long"}), Verdict.UNMET, "not expected: Day date, at struct"),
        (E.schema().is_subset_of({**ALL, "more": "int"}), Verdict.MET, "4 columns"),
        (E.schema().is_subset_of({**ALL, "day": "int"}), Verdict.UNMET, "Day is date, not int"),
    ],
    ids=str,
)
def test_schema_is_judged_without_rows(
    expectation: Expectation, verdict: Verdict, reason: str
) -> None:
    judged, why = judge_schema(expectation, COLUMNS)
    assert judged is verdict
    assert reason in why
