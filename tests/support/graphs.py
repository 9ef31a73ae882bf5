"""Graphs of plans for tests, made by the real rules from a short notation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from headgate.model.freshness import Facts, Fingerprint, Pin, View, decide, fingerprint
from headgate.model.graph import Graph, GraphFacts, make_graph
from headgate.model.ids import ContentId, Instant, TransactionId
from headgate.model.jobspecs import Job, JobSpec, compile_graph
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind, JobState
from tests.support.jobspecs import name, published, spec

CHAIN = ("feature", "master")


def view(dataset: str, branch: str, made_from: Fingerprint | None = None) -> View:
    return View(
        dataset=name(dataset),
        branch=branch,
        transaction=TransactionId(f"t-{dataset}"),
        content=ContentId(f"c-{dataset}"),
        committed_at=Instant(1),
        made_from=made_from,
    )


def made_from(spec: JobSpec) -> Fingerprint:
    """Return the fingerprint of a job that read these datasets at `view`."""
    contents = {given.name: ContentId(f"c-{given.dataset}") for given in spec.inputs}
    return fingerprint(spec, parameters={}, inputs=contents)


def graph_of(
    *specs: JobSpec,
    targets: str,
    views: Collection[View] = (),
    pinned: Collection[View] = (),
    blue: str = "",
    kinds: Mapping[DatasetName, DatasetKind] | None = None,
) -> Graph:
    """Return the graph of a plan on `feature > master`, with all specs published on `feature`."""
    jobs = compile_graph(
        [name(t) for t in targets.split()], CHAIN, published(feature=list(specs)), upstream=True
    )
    facts = Facts(
        chain=CHAIN,
        views={v.dataset: v for v in views},
        pinned={pin: view for view in pinned for pin in _pins(jobs, view)},
        now=Instant(2),
    )
    decisions = decide(jobs, facts)
    states = {
        "fresh": JobState.SKIPPED,
        "adopted": JobState.ADOPTED,
        "stale": JobState.WAITING,
    }
    return make_graph(
        decisions,
        [states[decision.state] for decision in decisions],
        GraphFacts(
            chain=CHAIN,
            primary="master",
            kinds=kinds or {},
            shown_on={v.dataset: v.branch for v in views},
            blue={name(text) for text in blue.split()},
        ),
    )


def _pins(jobs: Sequence[Job], view: View) -> list[Pin]:
    """Return the pins of inputs that name their own branch or transaction."""
    return [
        Pin(dataset=view.dataset, branch=given.branch, transaction=given.transaction)
        for job in jobs
        for given in job.spec.inputs
        if given.pinned
    ]


def chain_of(count: int) -> list[JobSpec]:
    """Return specs of this many datasets, each read by up to three later ones."""
    made = [spec("g.d0")]
    for number in range(1, count):
        above = {number - 1, number // 2, number // 3}
        made.append(spec(f"g.d{number}", *(f"g.d{n}" for n in sorted(above))))
    return [replace(s, logic_hash=str(at)) for at, s in enumerate(made)]
