"""Whether a job is fresh, adopted or stale, and why; pure.

A job's fingerprint is all that decides what its outputs hold. Its inputs key says whether the
views that are there were made from the same; its build key finds transactions that can be adopted.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.errors import InputNotFound
from headgate.model.ids import ContentId, Instant, TransactionId
from headgate.model.jobspecs import FRESH_NEVER, InputSpec, JobSpec
from headgate.model.names import DatasetName
from headgate.model.planning import Job

_MICROSECONDS = 1_000_000
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


class Reason(enum.StrEnum):
    """Why a job is in the state it is in; the words are part of the interface."""

    FORCED = "forced"
    NEVER_BUILT = "never-built"
    NEVER_FRESH = "never-fresh"
    STALE_LOGIC = "stale-logic"
    STALE_PARAMETERS = "stale-parameters"
    STALE_ENVIRONMENT = "stale-environment"
    STALE_INPUT = "stale-input"
    STALE_OUTPUT = "stale-output"
    FRESH = "fresh"
    ADOPTED = "adopted"


class Decided(enum.StrEnum):
    STALE = "stale"
    FRESH = "fresh"
    ADOPTED = "adopted"


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """All that decides what a job's outputs hold; a built transaction carries it."""

    logic: str
    parameters: str
    environment: str
    # (input name, content id), by name.
    inputs: tuple[tuple[str, str], ...]
    # Of an incremental job: what each output held before, by dataset; else None.
    base: tuple[tuple[str, str | None], ...] | None = None

    @property
    def inputs_key(self) -> str:
        return digest(
            ["inputs-1", self.logic, self.parameters, self.environment, list(self.inputs)]
        )

    @property
    def build_key(self) -> str:
        return digest(["build-1", self.inputs_key, None if self.base is None else list(self.base)])

    def to_json(self) -> dict[str, Any]:
        return {
            "logic": self.logic,
            "parameters": self.parameters,
            "environment": self.environment,
            "inputs": [list(pair) for pair in self.inputs],
            "base": None if self.base is None else [list(pair) for pair in self.base],
        }


def fingerprint_from_json(data: Mapping[str, Any]) -> Fingerprint:
    base = data["base"]
    return Fingerprint(
        logic=data["logic"],
        parameters=data["parameters"],
        environment=data["environment"],
        inputs=tuple((name, content) for name, content in data["inputs"]),
        base=None if base is None else tuple((name, content) for name, content in base),
    )


def fingerprint(
    spec: JobSpec,
    *,
    parameters: Mapping[str, Any],
    environment: str,
    inputs: Mapping[str, ContentId],
    base: Mapping[DatasetName, ContentId | None],
) -> Fingerprint:
    """The fingerprint of one run of a JobSpec; `base` counts only where it is incremental."""
    return Fingerprint(
        logic=spec.logic_hash,
        parameters=digest(effective_parameters(spec, parameters)),
        environment=environment,
        inputs=tuple(sorted(inputs.items())),
        base=None
        if spec.declaration.incremental is None
        else tuple(sorted((str(name), content) for name, content in base.items())),
    )


def effective_parameters(spec: JobSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The declared defaults, with what this build gives in their place."""
    declared = spec.declaration.parameters
    return {parameter.name: given.get(parameter.name, parameter.default) for parameter in declared}


def digest(value: Any) -> str:
    """The sha256 of a JSON value, the same on every machine and Python."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()


# --- facts that a plan is made from ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class View:
    """What one branch of a dataset shows: the transaction that a reader would be pinned to."""

    dataset: DatasetName
    branch: str
    transaction: TransactionId
    # None: a tombstone, nothing can be read.
    content: ContentId | None
    committed_at: Instant
    # What the transaction was built from; None where no build made it.
    made_from: Fingerprint | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Transactions of all outputs of one earlier job that may be adopted together."""

    branch: str
    # By output dataset.
    transactions: Mapping[DatasetName, TransactionId]
    contents: Mapping[DatasetName, ContentId | None]
    committed_at: Instant


class Candidates(Protocol):
    """Finds what is eligible by build key; a dict does."""

    def get(self, build_key: str, /) -> Candidate | None: ...


@dataclass(frozen=True, kw_only=True)
class Pin:
    """An input that names its own branch or transaction."""

    dataset: DatasetName
    branch: str | None
    transaction: TransactionId | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that was read before planning."""

    chain: tuple[str, ...]
    # Of every unpinned input and every output: what the chain resolves.
    views: Mapping[DatasetName, View]
    pinned: Mapping[Pin, View] = field(default_factory=dict)
    candidates: Candidates = field(default_factory=dict[str, Candidate])
    parameters: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    now: Instant
    force: bool = False


# --- the decision ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlannedInput:
    """Where a job reads an input; without a transaction it is the one that `made_by` will open."""

    name: str
    dataset: DatasetName
    branch: str
    transaction: TransactionId | None
    content: ContentId | None
    # Position of the stale or adopted job of this build that makes it.
    made_by: int | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to one job. A stale job that waits for others has no fingerprint yet."""

    job: Job
    state: Decided
    reason: Reason
    inputs: tuple[PlannedInput, ...]
    made_from: Fingerprint | None
    candidate: Candidate | None = None


def decide(jobs: Sequence[Job], facts: Facts) -> tuple[Decision, ...]:
    """A decision for each job, in the order given, which is the order of dependency."""
    decisions: list[Decision] = []
    for job in jobs:
        inputs = tuple(_planned(given, job, decisions, facts) for given in job.spec.inputs)
        decisions.append(_decided(job, inputs, facts))
    return tuple(decisions)


def _planned(
    given: InputSpec, job: Job, decisions: Sequence[Decision], facts: Facts
) -> PlannedInput:
    position = job.made_by.get(given.name)
    above = None if position is None else decisions[position]
    if above is None or above.state is Decided.FRESH:
        view = _view(given, job, facts)
        return PlannedInput(
            name=given.name,
            dataset=given.dataset,
            branch=view.branch,
            transaction=view.transaction,
            content=view.content,
        )
    return PlannedInput(
        name=given.name,
        dataset=given.dataset,
        branch=facts.chain[0],
        transaction=None,
        content=above.candidate.contents[given.dataset] if above.candidate else None,
        made_by=position,
    )


def _view(given: InputSpec, job: Job, facts: Facts) -> View:
    if given.pinned:
        pin = Pin(dataset=given.dataset, branch=given.branch, transaction=given.transaction)
        view = facts.pinned.get(pin)
    else:
        view = facts.views.get(given.dataset)
    if view is None or view.content is None:
        where = given.transaction or given.branch or " > ".join(facts.chain)
        raise InputNotFound(dataset=str(given.dataset), where=where, needed_by=job.spec.title)
    return view


def _decided(job: Job, inputs: tuple[PlannedInput, ...], facts: Facts) -> Decision:
    views = [facts.views.get(name) for name in job.outputs]
    made_from = _fingerprint(job, inputs, facts)
    reason = _own_reason(job.spec, views, made_from, facts)
    if reason is Reason.FRESH:
        return _decision(job, Decided.FRESH, reason, inputs, made_from)
    candidate = None
    if made_from is not None and reason not in {Reason.FORCED, Reason.NEVER_FRESH}:
        candidate = _adoptable(job, made_from, facts)
    if candidate is None:
        return _decision(job, Decided.STALE, reason, inputs, made_from)
    return Decision(
        job=job,
        state=Decided.ADOPTED,
        reason=Reason.ADOPTED,
        inputs=inputs,
        made_from=made_from,
        candidate=candidate,
    )


def _decision(
    job: Job,
    state: Decided,
    reason: Reason,
    inputs: tuple[PlannedInput, ...],
    made_from: Fingerprint | None,
) -> Decision:
    return Decision(job=job, state=state, reason=reason, inputs=inputs, made_from=made_from)


def _fingerprint(job: Job, inputs: tuple[PlannedInput, ...], facts: Facts) -> Fingerprint | None:
    """None where an input is made by a stale job: its content does not exist yet."""
    contents = {given.name: given.content for given in inputs if given.content is not None}
    if len(contents) < len(inputs):
        return None
    views = {name: facts.views.get(name) for name in job.outputs}
    return fingerprint(
        job.spec,
        parameters=facts.parameters,
        environment=facts.environment,
        inputs=contents,
        base={name: view.content if view else None for name, view in views.items()},
    )


def _own_reason(
    spec: JobSpec, views: Sequence[View | None], made_from: Fingerprint | None, facts: Facts
) -> Reason:
    """The first reason that holds: the job's own before those that it has from its inputs."""
    if facts.force:
        return Reason.FORCED
    if any(view is None for view in views):
        return Reason.NEVER_BUILT
    if spec.declaration.fresh == FRESH_NEVER:
        return Reason.NEVER_FRESH
    carried = [view.made_from for view in views if view is not None]
    for found in carried:
        if found is not None and (changed := _changed_logic(spec, found, facts)):
            return changed
    if made_from is None:
        return Reason.STALE_INPUT
    if any(found is None for found in carried):
        return Reason.STALE_OUTPUT
    # Logic, parameters and environment are equal by now: the inputs decide the inputs key.
    if any(found.inputs != made_from.inputs for found in carried if found):
        return Reason.STALE_INPUT
    too_old = any(not _young(view.committed_at, spec, facts) for view in views if view)
    return Reason.STALE_OUTPUT if too_old else Reason.FRESH


def _changed_logic(spec: JobSpec, carried: Fingerprint, facts: Facts) -> Reason | None:
    if carried.logic != spec.logic_hash:
        return Reason.STALE_LOGIC
    if carried.parameters != digest(effective_parameters(spec, facts.parameters)):
        return Reason.STALE_PARAMETERS
    if carried.environment != facts.environment:
        return Reason.STALE_ENVIRONMENT
    return None


def _adoptable(job: Job, made_from: Fingerprint, facts: Facts) -> Candidate | None:
    """What carries this build key, if it covers every output and is not too old."""
    found = facts.candidates.get(made_from.build_key)
    if found is None or not _young(found.committed_at, job.spec, facts):
        return None
    return found if set(found.transactions) == set(job.outputs) else None


def _young(committed_at: Instant, spec: JobSpec, facts: Facts) -> bool:
    fresh = spec.declaration.fresh
    if isinstance(fresh, str):
        return True
    return facts.now - committed_at <= fresh * _MICROSECONDS
