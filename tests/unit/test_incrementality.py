"""Incremental or full, and the reason that is reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ids import TransactionId
from headgate.model.incrementality import (
    Answer,
    Base,
    Extent,
    Incrementality,
    Place,
    Question,
    decide_incremental,
)
from headgate.model.jobspecs import IncrementalSpec
from tests.support.jobspecs import name
from tests.support.pasts import Kept, MemoryPast, built, history

BUILT = built("b3", s_a="s.a#3")


def decided(
    types: str,
    *,
    base: Base = BUILT,
    head: int | None = None,
    answers: Mapping[Question, Answer] | None = None,
    **declared: Any,
) -> Incrementality:
    """Decide for an input with this history, whose third transaction the last build read."""
    past = MemoryPast(inputs={"s.a": history("s.a", types)})
    place = Place(name="a", dataset=name("s.a"), head=TransactionId(f"s.a#{head or len(types)}"))
    return decide_incremental(
        IncrementalSpec(**declared),
        [place],
        {name("s.b"): base},
        past,
        Kept() if answers is None else answers,
    )


@pytest.mark.parametrize("types", ["SAAAA", "SAAAU", "SAAUA", "SAAaA", "SAAsA", "SAAdA", "SAAuu"])
def test_what_only_adds_or_changes_no_content_is_incremental(types: str) -> None:
    found = decided(types)
    assert found.extent is Extent.INCREMENTAL
    assert found.reads[0].numbers == (4, 5)
    assert str(found) == "incremental: reads s.a 4..5"


@pytest.mark.parametrize(
    ("types", "by", "reason"),
    [
        ("SAASA", "s.a#4", "s.a#4 replaced all of s.a"),
        ("SAAAD", "s.a#5", "s.a#5 deleted from s.a"),
        ("SAADS", "s.a#4", "s.a#4 deleted from s.a"),
    ],
)
def test_what_takes_away_is_full_and_names_the_first_transaction(
    types: str, by: str, reason: str
) -> None:
    found = decided(types)
    assert (found.extent, found.broken_by, found.reason) == (Extent.FULL, by, reason)
    assert not found.refused
    assert decided(types, require_incremental=True).refused


def test_update_is_asked_about_and_breaks_where_it_overwrote() -> None:
    asked = decided("SAAUA", answers={})
    assert asked.extent is Extent.UNDECIDED
    [question] = asked.questions
    assert (question.last.transaction, question.now) == ("s.a#3", "s.a#5")
    assert question.suspects == ("s.a#4",)
    overwrote = Answer(why="s.a#4 overwrote part of s.a", broken_by=TransactionId("s.a#4"))
    found = decided("SAAUA", answers={question: overwrote})
    assert (found.extent, found.broken_by) == (Extent.FULL, "s.a#4")


def test_look_says_after_which_snapshot_rows_are_new() -> None:
    assert decided("SAAA").reads[0].since_snapshot == 33


def test_nothing_new_is_incremental_without_a_look() -> None:
    found = decided("SAAau", answers={})
    assert (found.extent, found.reads[0].has_new) == (Extent.INCREMENTAL, False)
    assert str(decided("SAA", answers={})) == "incremental: reads nothing new of s.a"


def test_deletes_are_let_pass_where_retention_is_allowed() -> None:
    assert decided("SAADA", allow_retention=True).extent is Extent.INCREMENTAL
    assert decided("SAASA", allow_retention=True).extent is Extent.FULL


def test_last_read_that_is_no_longer_in_the_history_is_full() -> None:
    found = decided("SAA", head=2)
    assert found.extent is Extent.FULL
    assert found.reason == "s.a#3, read last, is no longer in the history of s.a"


def test_snapshot_input_is_read_whole_whatever_happened_to_it() -> None:
    found = decided("SAASD", snapshot_inputs=("a",))
    assert found.extent is Extent.INCREMENTAL
    assert (found.reads[0].since, str(found.reads[0])) == (None, "all of s.a")


def test_input_that_the_last_build_did_not_have_is_all_new() -> None:
    found = decided("SAAS", base=built("b0", s_z="s.z#1"))
    assert (found.extent, found.reads[0].since) == (Extent.INCREMENTAL, None)


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (Base(), "s.b was never built here"),
        (built("b0", version=2, s_a="s.a#3"), "semantic_version is 1, and the last build had 2"),
    ],
)
def test_first_build_and_new_meaning_are_full_and_nobody_is_refused(
    base: Base, reason: str
) -> None:
    found = decided("SAAA", base=base, require_incremental=True)
    assert (found.extent, found.reason, found.refused) == (Extent.FULL, reason, False)


def test_output_that_somebody_else_changed_is_full_and_refused_where_required() -> None:
    foreign = Base(foreign=TransactionId("t-9"))
    found = decided("SAAA", base=foreign, require_incremental=True)
    assert (found.extent, found.broken_by, found.refused) == (Extent.FULL, "t-9", True)


def test_outputs_that_were_built_from_different_inputs_are_full() -> None:
    bases = {name("s.b"): BUILT, name("s.c"): built("c2", s_a="s.a#2")}
    found = decide_incremental(IncrementalSpec(), [], bases, MemoryPast(), {})
    assert found.reason == "its outputs were last built from different inputs"


def test_input_that_this_build_makes_is_decided_later_unless_another_breaks_it() -> None:
    base = built("b3", s_a="s.a#3", s_z="s.z#1")
    past = MemoryPast(inputs={"s.a": history("s.a", "SAAS")})
    later = Place(name="z", dataset=name("s.z"), head=None)
    waiting = decide_incremental(IncrementalSpec(), [later], {name("s.b"): base}, past, {})
    assert str(waiting) == "undecided: it is decided when s.z is built"
    broken = Place(name="a", dataset=name("s.a"), head=TransactionId("s.a#4"))
    found = decide_incremental(IncrementalSpec(), [later, broken], {name("s.b"): base}, past, {})
    assert (found.extent, found.broken_by) == (Extent.FULL, "s.a#4")


@pytest.mark.parametrize(("type", "extent"), [("A", Extent.INCREMENTAL), ("S", Extent.FULL)])
def test_adopted_input_counts_as_the_next_step_of_its_history(type: str, extent: Extent) -> None:
    past = MemoryPast(inputs={"s.a": history("s.a", "SAA")})
    [*_, adopted] = history("feature", f"___{type}".replace("_", "S"))
    place = Place(name="a", dataset=name("s.a"), head=TransactionId("s.a#3"), adopted=adopted)
    found = decide_incremental(IncrementalSpec(), [place], {name("s.b"): BUILT}, past, Kept())
    assert found.extent is extent
    if extent is Extent.INCREMENTAL:
        assert (found.reads[0].numbers, found.reads[0].transactions) == ((4, 4), ("feature#4",))


@given(types=st.text("SAUDsaud", min_size=3, max_size=9))
def test_any_history_is_incremental_unless_something_was_taken_away(types: str) -> None:
    found = decided(types)
    took_away = [n for n, letter in enumerate(types, start=1) if n > 3 and letter in "SD"]
    assert found.extent is (Extent.FULL if took_away else Extent.INCREMENTAL)
    assert found.broken_by == (f"s.a#{took_away[0]}" if took_away else None)
    assert bool(found.reads) is not bool(took_away)


def test_json_names_what_is_read_and_what_broke() -> None:
    assert decided("SAAAA").to_json() == {
        "extent": "incremental",
        "semantic_version": 1,
        "reason": None,
        "broken_by": None,
        "refused": False,
        "reads": [
            {
                "name": "a",
                "dataset": "s.a",
                "since": "s.a#3",
                "numbers": [4, 5],
                "first": "s.a#4",
                "last": "s.a#5",
            }
        ],
    }
    assert decided("SAAS").to_json()["broken_by"] == "s.a#4"
    refused = decided("SAAS", require_incremental=True)
    assert str(refused).startswith("not incremental, although required: s.a#4")
    assert refused.to_json()["refused"]
