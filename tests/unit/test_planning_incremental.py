"""Planning of incremental jobs: fresh, adopted on the same base only, or stale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate.model.freshness import Candidate, Decided, Decision, Facts, Fingerprint, Reason, View
from headgate.model.ids import TransactionId
from headgate.model.incrementality import Extent
from headgate.model.jobspecs import IncrementalSpec
from tests.support.jobspecs import name, spec
from tests.support.pasts import Kept, MemoryPast, built, history
from tests.support.planning import candidate, decided, facts, made_from, only, view

INCREMENTAL = spec("s.b", "s.a", incremental=IncrementalSpec())
AFTER = spec("s.c", "s.b", incremental=IncrementalSpec())


def past(types: str = "SA", *, base: str = "b1", **more: Any) -> MemoryPast:
    """`s.b` was last built from the first transaction of `s.a`."""
    return MemoryPast(
        inputs={"s.a": history("s.a", types)},
        bases={name("s.b"): built(base, s_a="s.a#1", **more)},
    )


def at(content: str, number: int) -> View:
    return replace(view("s.a", content), transaction=TransactionId(f"s.a#{number}"))


def given(before: Fingerprint, known: MemoryPast, **candidates: Candidate) -> Facts:
    return facts(
        at("a2", 2),
        view("s.b", "b1", before),
        past=known,
        answers=Kept(),
        candidates=candidates,
    )


BEFORE = made_from(INCREMENTAL, s_a="a1")
KEY = made_from(INCREMENTAL, {"s.b": "b1"}, s_a="a2").build_key


def extent_of(found: Decision) -> Extent | None:
    return found.incremental.extent if found.incremental else None


def test_incremental_job_is_fresh_by_its_inputs_and_its_past_is_not_asked() -> None:
    found = only(INCREMENTAL, facts(view("s.a", "a1"), view("s.b", "b1", BEFORE)))
    assert (found.reason, found.incremental) == (Reason.FRESH, None)


def test_stale_incremental_job_says_how_much_it_reads() -> None:
    found = only(INCREMENTAL, given(BEFORE, past()))
    assert (found.reason, extent_of(found)) == (Reason.STALE_INPUT, Extent.INCREMENTAL)
    assert found.made_from is not None
    assert found.made_from.build_key == KEY
    full = only(INCREMENTAL, given(BEFORE, past("SS")))
    assert (full.reason, extent_of(full)) == (Reason.STALE_INPUT, Extent.FULL)
    assert full.made_from is not None
    assert full.made_from.base is None


def test_incremental_result_is_adopted_only_on_the_same_base() -> None:
    offered = {KEY: candidate("b2", "s.b")}
    assert only(INCREMENTAL, given(BEFORE, past(), **offered)).state is Decided.ADOPTED
    other = given(BEFORE, past(base="other"), **offered)
    assert only(INCREMENTAL, other).state is Decided.STALE
    assert only(INCREMENTAL, given(BEFORE, past("SS"), **offered)).state is Decided.STALE


def test_full_result_is_adopted_whatever_the_output_held() -> None:
    key = made_from(INCREMENTAL, s_a="a2").build_key
    found = only(INCREMENTAL, given(BEFORE, past("SS", base="any"), **{key: candidate("b", "s.b")}))
    assert (found.state, extent_of(found)) == (Decided.ADOPTED, Extent.FULL)


def test_job_that_would_be_refused_adopts_nothing() -> None:
    strict = spec("s.b", "s.a", incremental=IncrementalSpec(require_incremental=True))
    key = made_from(strict, s_a="a2").build_key
    known = given(BEFORE, past("SS"), **{key: candidate("b", "s.b")})
    assert only(strict, known).state is Decided.STALE


def test_chain_of_incremental_jobs_is_adopted_as_a_whole() -> None:
    known = past()
    known.bases[name("s.c")] = built("c1", s_b="t-last")
    known.inputs["s.b"] = [replace(history("s.b", "S")[0], transaction=TransactionId("t-last"))]
    after = made_from(AFTER, {"s.c": "c1"}, s_b="b2")
    offered = facts(
        at("a2", 2),
        view("s.b", "b1", BEFORE),
        view("s.c", "c1", made_from(AFTER, s_b="b1")),
        past=known,
        answers=Kept(),
        candidates={KEY: candidate("b2", "s.b"), after.build_key: candidate("c2", "s.c")},
    )
    found = decided([INCREMENTAL, AFTER], offered)
    assert {d.state for d in found.values()} == {Decided.ADOPTED}


def test_job_after_a_stale_one_is_undecided() -> None:
    known = past()
    known.bases[name("s.c")] = built("c1", s_b="t-last")
    offered = facts(
        at("a2", 2),
        view("s.b", "b1", BEFORE),
        view("s.c", "c1", made_from(AFTER, s_b="b1")),
        past=known,
        answers=Kept(),
    )
    found = decided([INCREMENTAL, AFTER], offered)["s.c"]
    assert (found.state, extent_of(found)) == (Decided.STALE, Extent.UNDECIDED)
