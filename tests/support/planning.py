"""Builders of the inputs of a plan: views, candidates, facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.model.freshness import (
    Candidate,
    Decision,
    Facts,
    Fingerprint,
    View,
    decide,
    fingerprint,
    with_base,
)
from headgate.model.ids import ContentId, Instant, TransactionId
from headgate.model.incrementality import Base
from headgate.model.jobspecs import JobSpec, compile_graph
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType
from tests.support.jobspecs import name, published

NOW = Instant(10_000_000_000)
CHAIN = ("feature", "master")


def made_from(made: JobSpec, base: Mapping[str, str] | None = None, **inputs: str) -> Fingerprint:
    found = fingerprint(
        made,
        parameters={},
        inputs={key: ContentId(value) for key, value in inputs.items()},
    )
    if base is None:
        return found
    return with_base(found, {name(k): Base(content=ContentId(v)) for k, v in base.items()})


def view(
    dataset: str,
    content: str | None,
    made: Fingerprint | None = None,
    *,
    branch: str = "master",
    seconds_ago: int = 0,
) -> View:
    return View(
        dataset=name(dataset),
        branch=branch,
        transaction=TransactionId(f"t-{dataset}"),
        content=None if content is None else ContentId(content),
        committed_at=Instant(NOW - seconds_ago * 1_000_000),
        made_from=made,
    )


def candidate(content: str, *outputs: str, seconds_ago: int = 0) -> Candidate:
    return Candidate(
        branch="elsewhere",
        transactions={name(o): TransactionId(f"adopt-{o}") for o in outputs},
        contents={name(o): ContentId(content) for o in outputs},
        types={name(o): TransactionType.APPEND for o in outputs},
        committed_at=Instant(NOW - seconds_ago * 1_000_000),
    )


def facts(*views: View, **more: Any) -> Facts:
    settings = {"chain": CHAIN, "now": NOW, **more}
    return Facts(views={found.dataset: found for found in views}, **settings)


def decided(specs: list[JobSpec], given: Facts) -> dict[str, Decision]:
    targets: list[DatasetName] = [output.dataset for s in specs for output in s.outputs]
    jobs = compile_graph(targets, CHAIN, published(master=[*specs]), upstream=True)
    return {str(found.job.outputs[0]): found for found in decide(jobs, given)}


def only(made: JobSpec, given: Facts) -> Decision:
    return decided([made], given)[str(made.outputs[0].dataset)]
