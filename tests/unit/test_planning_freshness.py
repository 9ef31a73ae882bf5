"""Fresh, adopted or stale, and the reason."""

from __future__ import annotations

import pytest

from headgate.errors import InputNotFound
from headgate.model.freshness import (
    Decided,
    Facts,
    Hold,
    Pin,
    Reason,
    View,
    decide,
    fingerprint_from_json,
)
from headgate.model.ids import Instant, PublicationNumber, digest
from headgate.model.jobspecs import IncrementalSpec, ParameterSpec, compile_graph
from tests.support.jobspecs import name, published, spec
from tests.support.planning import CHAIN, NOW, candidate, decided, facts, made_from, only, view

B = spec("s.b", "s.a")


def test_same_logic_and_inputs_is_fresh_also_on_a_fallback() -> None:
    found = only(B, facts(view("s.a", "a1"), view("s.b", "b1", made_from(B, s_a="a1"))))
    assert (found.state, found.reason) == (Decided.FRESH, Reason.FRESH)
    assert found.inputs[0].branch == "master"
    assert found.inputs[0].transaction == "t-s.a"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (facts(view("s.a", "a1")), Reason.NEVER_BUILT),
        (facts(view("s.a", "a2"), view("s.b", "b1", made_from(B, s_a="a1"))), Reason.STALE_INPUT),
        (facts(view("s.a", "a1"), view("s.b", "b1")), Reason.STALE_OUTPUT),
        (
            facts(
                view("s.a", "a1"), view("s.b", "b1", made_from(spec("s.b", logic="x"), s_a="a1"))
            ),
            Reason.STALE_LOGIC,
        ),
        (
            facts(view("s.a", "a1"), view("s.b", "b1", made_from(B, s_a="a1")), force=True),
            Reason.FORCED,
        ),
        (facts(view("s.a", "a1"), view("s.b", None)), Reason.STALE_OUTPUT),
    ],
)
def test_what_differs_is_the_reason(given: Facts, reason: Reason) -> None:
    found = only(B, given)
    assert (found.state, found.reason) == (Decided.STALE, reason)


def test_other_parameter_value_is_stale_parameters() -> None:
    made = spec("s.b", "s.a", parameters=(ParameterSpec(name="day", kind="integer", default=1),))
    given = facts(view("s.a", "a1"), view("s.b", "b1", made_from(made, s_a="a1")))
    assert only(made, given).reason is Reason.FRESH
    other = facts(*given.views.values(), parameters={"day": 2})
    assert only(made, other).reason is Reason.STALE_PARAMETERS


def test_parameter_that_a_job_does_not_declare_leaves_it_fresh() -> None:
    given = facts(
        view("s.a", "a1"), view("s.b", "b1", made_from(B, s_a="a1")), parameters={"day": 2}
    )
    assert only(B, given).reason is Reason.FRESH


def test_never_fresh_always_runs_and_is_never_adopted() -> None:
    made = spec("s.b", "s.a", fresh="never")
    key = made_from(made, s_a="a1")
    given = facts(
        view("s.a", "a1"),
        view("s.b", "b1", key),
        candidates={key.build_key: candidate("b1", "s.b")},
    )
    assert only(made, given).reason is Reason.NEVER_FRESH


@pytest.mark.parametrize(("age", "reason"), [(59, Reason.FRESH), (61, Reason.STALE_OUTPUT)])
def test_greatest_age_makes_an_unchanged_output_stale(age: int, reason: Reason) -> None:
    made = spec("s.b", "s.a", fresh=60.0)
    key = made_from(made, s_a="a1")
    given = facts(
        view("s.a", "a1"),
        view("s.b", "b1", key, seconds_ago=age),
        candidates={key.build_key: candidate("b1", "s.b", seconds_ago=age)},
    )
    assert only(made, given).reason is reason


def test_equal_build_key_elsewhere_is_adopted() -> None:
    key = made_from(B, s_a="a1")
    given = facts(view("s.a", "a1"), candidates={key.build_key: candidate("b9", "s.b")})
    found = only(B, given)
    assert (found.state, found.reason) == (Decided.ADOPTED, Reason.ADOPTED)
    assert found.candidate is not None
    assert found.candidate.transactions == {name("s.b"): "adopt-s.b"}


@pytest.mark.parametrize(
    ("fresh", "force", "state"),
    [
        ("inputs", False, Decided.HELD),
        (60, False, Decided.HELD),
        (9, False, Decided.STALE),
        ("never", False, Decided.STALE),
        ("inputs", True, Decided.STALE),
    ],
)
def test_hold_on_one_output_comes_before_adoption(
    fresh: str | float,
    force: bool,
    state: Decided,
) -> None:
    made = spec("s.p,s.q", "s.a", fresh=fresh)
    key = made_from(made, s_a="a2")
    before = made_from(made, s_a="a1")
    held = Hold(
        dataset=name("s.q"),
        branch="master",
        publication=PublicationNumber(7),
        actor="ana",
        at=Instant(NOW - 10_000_000),
    )
    holds = {(name("s.q"), key.inputs_key): held}
    given = facts(
        view("s.a", "a2"),
        view("s.p", "p1", before),
        view("s.q", "q1", before),
        candidates={key.build_key: candidate("p2", "s.p", "s.q", seconds_ago=10)},
        find_hold=lambda output, inputs_key: holds.get((output, inputs_key)),
        force=force,
    )
    found = only(made, given)
    assert (found.state, found.held) == (state, held if state is Decided.HELD else None)
    # Both outputs differ alike: the difference is there once.
    assert [one.part for one in found.differences] == ["input"]


def test_candidate_that_lacks_an_output_is_not_adopted() -> None:
    made = spec("s.p,s.q", "s.a")
    key = made_from(made, s_a="a1")
    given = facts(view("s.a", "a1"), candidates={key.build_key: candidate("p1", "s.p")})
    assert only(made, given).reason is Reason.NEVER_BUILT


def test_job_after_a_stale_one_is_stale_input_and_reads_what_that_will_make() -> None:
    c = spec("s.c", "s.b")
    given = facts(
        view("s.a", "a2"),
        view("s.b", "b1", made_from(B, s_a="a1")),
        view("s.c", "c1", made_from(c, s_b="b1")),
    )
    found = decided([B, c], given)["s.c"]
    assert (found.state, found.reason) == (Decided.STALE, Reason.STALE_INPUT)
    assert found.made_from is None
    assert found.inputs[0].branch == "feature"
    assert (found.inputs[0].transaction, found.inputs[0].made_by) == (None, 0)


def test_job_after_an_adopted_one_is_judged_by_the_adopted_content() -> None:
    c = spec("s.c", "s.b")
    adopt = candidate("b9", "s.b")
    given = facts(
        view("s.a", "a1"),
        view("s.c", "c1", made_from(c, s_b="b9")),
        candidates={made_from(B, s_a="a1").build_key: adopt},
    )
    found = decided([B, c], given)
    assert found["s.b"].state is Decided.ADOPTED
    assert found["s.c"].state is Decided.FRESH
    assert found["s.c"].inputs[0].made_by == 0


def test_whole_chain_is_adopted_after_a_merge() -> None:
    c = spec("s.c", "s.b")
    given = facts(
        view("s.a", "a1"),
        view("s.b", "old"),
        view("s.c", "old"),
        candidates={
            made_from(B, s_a="a1").build_key: candidate("b9", "s.b"),
            made_from(c, s_b="b9").build_key: candidate("c9", "s.c"),
        },
    )
    assert {d.state for d in decided([B, c], given).values()} == {Decided.ADOPTED}


def test_forced_jobs_all_run() -> None:
    c = spec("s.c", "s.b")
    given = facts(
        view("s.a", "a1"),
        view("s.b", "b1", made_from(B, s_a="a1")),
        view("s.c", "c1", made_from(c, s_b="b1")),
        force=True,
    )
    assert {d.reason for d in decided([B, c], given).values()} == {Reason.FORCED}


@pytest.mark.parametrize("views", [[], [view("s.a", None)]])
def test_input_with_nothing_to_read_names_itself_chain_and_reader(views: list[View]) -> None:
    with pytest.raises(InputNotFound) as caught:
        only(B, facts(*views))
    assert caught.value.facts == {
        "dataset": "s.a",
        "where": "feature > master",
        "needed_by": "pipeline.s_b",
    }


def test_pinned_input_is_read_where_it_says() -> None:
    made = spec("s.b", "s.a#other")
    pin = Pin(dataset=name("s.a"), branch="other", transaction=None)
    found = only(made, facts(view("s.a", "a1"), pinned={pin: view("s.a", "aX", branch="other")}))
    assert (found.inputs[0].branch, found.inputs[0].content) == ("other", "aX")


def test_fingerprint_survives_json() -> None:
    key = made_from(spec("s.b", "s.a", incremental=IncrementalSpec()), {"s.b": "b0"}, s_a="a1")
    again = fingerprint_from_json(key.to_json())
    assert again == key
    assert again.build_key == key.build_key != key.inputs_key


def test_digest_is_the_same_for_ever() -> None:
    assert digest({"b": [1, "ü"], "a": None}) == (
        "e6079cc869da30fa7778650261b5c569a08642cba6de37e7cffd9ab5d28d87c8"
    )


def test_plan_of_5000_fresh_datasets_finds_all_of_them_fresh() -> None:
    specs = [spec("s.n0")] + [spec(f"s.n{n}", f"s.n{n - 1}") for n in range(1, 5000)]
    jobs = compile_graph([name("s.n4999")], CHAIN, published(master=[*specs]), upstream=True)
    views = [view("s.n0", "c0", made_from(specs[0]))] + [
        view(f"s.n{n}", f"c{n}", made_from(specs[n], None, **{f"s_n{n - 1}": f"c{n - 1}"}))
        for n in range(1, 5000)
    ]
    given = facts(*views)
    assert [d.state for d in decide(jobs, given)] == [Decided.FRESH] * 5000
