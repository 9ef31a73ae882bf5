"""Builders of JobSpecs for tests of the planning rules."""

from __future__ import annotations

from typing import Any

from headgate.model.ids import TransactionId
from headgate.model.jobspecs import (
    Declaration,
    InputSpec,
    JobSpec,
    OutputSpec,
    Removed,
    Source,
)
from headgate.model.names import DatasetName, parse_dataset_name

SOURCE = Source(repository="example", commit="c0ffee", branch="master", clean=True)


def name(text: str) -> DatasetName:
    return parse_dataset_name(text)


def spec(outputs: str, *inputs: str, logic: str = "logic", **declared: Any) -> JobSpec:
    """Return a JobSpec: outputs with commas; an input may be pinned, `s.a#branch` or `s.a@txn`."""
    return JobSpec(
        declaration=Declaration(
            module="pipeline",
            function=outputs.replace(".", "_"),
            file="pipeline.py",
            line=1,
            inputs=tuple(_input(text) for text in inputs),
            outputs=tuple(
                OutputSpec(name=text.replace(".", "_"), dataset=name(text))
                for text in outputs.split(",")
            ),
            **declared,
        ),
        logic_hash=logic,
        bundle="bundle",
        source=SOURCE,
    )


def published(
    **branches: list[JobSpec | tuple[str, Removed]],
) -> dict[DatasetName, dict[str, JobSpec | Removed]]:
    """Return the specs published on each branch, by dataset, as the planner takes them."""
    found: dict[DatasetName, dict[str, JobSpec | Removed]] = {}
    for branch, entries in branches.items():
        for entry in entries:
            if isinstance(entry, tuple):
                found.setdefault(name(entry[0]), {})[branch] = entry[1]
                continue
            for output in entry.outputs:
                found.setdefault(output.dataset, {})[branch] = entry
    return found


def _input(text: str) -> InputSpec:
    dataset, _, transaction = text.partition("@")
    dataset, _, branch = dataset.partition("#")
    return InputSpec(
        name=dataset.replace(".", "_"),
        dataset=name(dataset),
        branch=branch or None,
        transaction=TransactionId(transaction) if transaction else None,
    )
