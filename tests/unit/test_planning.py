"""Planning: targets and JobSpecs become jobs in dependency order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import CyclicJobs, JobSpecNotFound, OutputContested
from headgate.model.jobspecs import (
    Job,
    Published,
    Removed,
    compile_graph,
    jobspec_from_json,
    resolve_jobspec,
)
from headgate.model.names import DatasetName
from tests.support.jobspecs import name, published, spec


def outputs(jobs: tuple[Job, ...]) -> list[str]:
    return [",".join(str(output) for output in job.outputs) for job in jobs]


def graph(
    specs: Published, *targets: str, chain: str = "master", upstream: bool = True
) -> list[str]:
    found = compile_graph([name(t) for t in targets], chain.split(), specs, upstream=upstream)
    return outputs(found)


def test_upstream_targets_include_all_they_are_made_of_in_order() -> None:
    specs = published(master=[spec("s.c", "s.b"), spec("s.b", "s.a"), spec("s.x", "s.a")])
    assert graph(specs, "s.c") == ["s.b", "s.c"]


def test_exact_targets_leave_out_what_they_are_made_of() -> None:
    specs = published(master=[spec("s.c", "s.b"), spec("s.b", "s.a")])
    assert graph(specs, "s.c", upstream=False) == ["s.c"]


def test_exact_targets_that_read_each_other_are_ordered() -> None:
    specs = published(master=[spec("s.a", "s.z"), spec("s.z", "s.raw")])
    jobs = compile_graph([name("s.a"), name("s.z")], ["master"], specs, upstream=False)
    assert outputs(jobs) == ["s.z", "s.a"]
    assert jobs[1].needs == (0,)
    assert jobs[1].made_by == {"s_z": 0}


def test_jobspec_is_taken_from_the_first_branch_of_the_chain_that_has_one() -> None:
    specs = published(feature=[spec("s.b")], master=[spec("s.b"), spec("s.c")])
    chain = ["feature", "master"]
    found = [resolve_jobspec(name(n), chain, specs) for n in ("s.b", "s.c")]
    assert [getattr(f, "branch", None) for f in found] == ["feature", "master"]


def test_removed_mark_stops_the_fallback_and_the_error_says_where() -> None:
    specs = published(feature=[("s.b", Removed.MARK)], master=[spec("s.b")])
    with pytest.raises(JobSpecNotFound) as caught:
        graph(specs, "s.b", chain="feature master")
    assert caught.value.facts["removed_on"] == "feature"
    assert graph(specs, "s.b", chain="master") == ["s.b"]


def test_removed_upstream_is_read_as_it_is() -> None:
    specs = published(feature=[("s.b", Removed.MARK), spec("s.c", "s.b")], master=[spec("s.b")])
    assert graph(specs, "s.c", chain="feature master") == ["s.c"]


def test_target_without_jobspec_names_dataset_and_chain() -> None:
    with pytest.raises(JobSpecNotFound, match=r"'s\.raw' on the chain feature > master"):
        graph(published(master=[spec("s.b")]), "s.raw", chain="feature master")


def test_cycle_names_every_member() -> None:
    specs = published(master=[spec("s.a", "s.c"), spec("s.b", "s.a"), spec("s.c", "s.b")])
    with pytest.raises(CyclicJobs) as caught:
        graph(specs, "s.a")
    assert set(caught.value.facts["cycle"]) == {"s.a", "s.b", "s.c"}
    assert caught.value.facts["cycle"][0] == caught.value.facts["cycle"][-1]


def test_input_pinned_to_a_transaction_or_another_branch_makes_no_cycle() -> None:
    specs = published(
        master=[spec("s.a", "s.b@t-1"), spec("s.b", "s.c#other"), spec("s.c", "s.a", "s.b")]
    )
    assert graph(specs, "s.c") == ["s.a", "s.b", "s.c"]


def test_input_pinned_to_the_build_branch_waits_for_its_job() -> None:
    specs = published(master=[spec("s.a", "s.b#master"), spec("s.b", "s.raw")])
    assert graph(specs, "s.a") == ["s.b", "s.a"]


def test_all_outputs_of_a_job_come_with_any_of_them_once() -> None:
    specs = published(master=[spec("s.p,s.q", "s.a"), spec("s.r", "s.p", "s.q")])
    assert graph(specs, "s.q", "s.p") == ["s.p,s.q"]
    assert graph(specs, "s.r") == ["s.p,s.q", "s.r"]


def test_equal_jobspecs_read_separately_for_each_output_are_one_job() -> None:
    one = spec("s.p,s.q", "s.a")
    again = jobspec_from_json(one.to_json())
    specs = {name("s.p"): {"master": one}, name("s.q"): {"master": again}}
    assert graph(specs, "s.p", "s.q") == ["s.p,s.q"]


def test_output_that_two_jobspecs_of_the_chain_claim_is_refused() -> None:
    both, alone = spec("s.p,s.q", "s.a"), spec("s.p", "s.a")
    specs: Published = {
        name("s.p"): {"feature": alone, "master": both},
        name("s.q"): {"master": both},
    }
    with pytest.raises(OutputContested, match=r"'s\.p' is an output of two"):
        graph(specs, "s.q", chain="feature master")


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_any_graph_is_ordered_by_dependency_or_is_a_cycle(edges: list[tuple[int, int]]) -> None:
    reads: dict[int, set[int]] = {node: set() for node in range(12)}
    for reader, read in edges:
        reads[reader].add(read)
    specs = published(
        master=[spec(f"s.n{n}", *(f"s.n{r}" for r in sorted(rs))) for n, rs in reads.items()]
    )
    targets = [DatasetName(namespace=("s",), name=f"n{n}") for n in range(12)]
    try:
        jobs = compile_graph(targets, ["master"], specs, upstream=True)
    except CyclicJobs as error:
        cycle = [int(member.removeprefix("s.n")) for member in error.facts["cycle"]]
        assert all(a in reads[b] for a, b in pairwise(cycle))
        return
    assert len(jobs) == 12
    assert all(need < position for position, job in enumerate(jobs) for need in job.needs)


def test_graph_of_5000_datasets_is_compiled_in_order() -> None:
    specs = published(
        master=[spec(f"s.n{n}", *(f"s.n{m}" for m in range(max(0, n - 3), n))) for n in range(5000)]
    )
    jobs = compile_graph([name("s.n4999")], ["feature", "master"], specs, upstream=True)
    assert [job.outputs[0].name for job in jobs] == [f"n{n}" for n in range(5000)]
