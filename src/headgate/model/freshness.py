"""Whether a job is fresh, adopted or stale, and why; pure."""

from __future__ import annotations

import difflib
import enum
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headgate.errors import InputNotFound, InvalidParameter
from headgate.model.ids import ContentId, Instant, TransactionId
from headgate.model.incrementality import (
    Answer,
    Answers,
    Base,
    Change,
    Extent,
    Histories,
    Incrementality,
    Place,
    Question,
    decide_incremental,
)
from headgate.model.job_graph import Job
from headgate.model.jobspecs import FRESH_NEVER, InputSpec, JobSpec, ParameterSpec
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType

# Values that a build gives to the parameters of its jobs; pure.

Value = str | int | float | bool
_TRUTHS = {"true": True, "false": False}


def effective_parameters(spec: JobSpec, given: Mapping[str, Any]) -> dict[str, Value]:
    """The declared defaults, with what this build gives in their place."""
    return {
        parameter.name: parameter_value(parameter, given[parameter.name])
        if parameter.name in given
        else parameter.default
        for parameter in spec.declaration.parameters
    }


def check_parameters(specs: Iterable[JobSpec], given: Mapping[str, Any]) -> None:
    """Refuses a value of the wrong type, and one that no job of the build declares."""
    if not given:
        return
    declared = {p.name: p for spec in specs for p in spec.declaration.parameters}
    for name, value in given.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            known = f"did you mean {near[0]!r}?" if near else _known(declared)
            raise InvalidParameter(name=name, reason=f"no job of this build declares it; {known}")
        parameter_value(declared[name], value)


def parameter_value(parameter: ParameterSpec, given: Any) -> Value:
    """What was given as the declared type; a text, as a command line has it, is read as one."""
    value = given
    if isinstance(given, str) and parameter.kind != "string":
        value = _read(parameter.kind, given.strip())
    fits = {
        "string": isinstance(value, str),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
    }
    if not fits[parameter.kind]:
        raise InvalidParameter(
            name=parameter.name, reason=f"{given!r} is no {parameter.kind}, which it is declared as"
        )
    return float(value) if parameter.kind == "float" else value


def _read(kind: str, text: str) -> Any:
    try:
        if kind == "integer":
            return int(text)
        if kind == "float":
            number = float(text)
            return number if math.isfinite(number) else None
    except ValueError:
        return None
    return _TRUTHS.get(text.lower())


def _known(declared: Mapping[str, ParameterSpec]) -> str:
    if not declared:
        return "none of them declares any"
    return f"declared are {', '.join(sorted(declared))}"


# What a job's outputs are made from, as keys that freshness and adoption compare; pure.
#
# A job's fingerprint is all that decides what its outputs hold. Its inputs key says whether the
# views that are there were made from the same; its build key finds transactions to adopt.

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """All that decides what a job's outputs hold; a built transaction carries it."""

    logic: str
    parameters: str
    environment: str
    # (input name, content id), by name.
    inputs: tuple[tuple[str, str], ...]
    # Where only what was added was read: what each output held before, by dataset; else None.
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
) -> Fingerprint:
    """The fingerprint of a JobSpec that reads all of its inputs."""
    return Fingerprint(
        logic=spec.logic_hash,
        parameters=digest(effective_parameters(spec, parameters)),
        environment=environment,
        inputs=tuple(sorted(inputs.items())),
    )


def on_top_of(made_from: Fingerprint, bases: Mapping[DatasetName, Base]) -> Fingerprint:
    """The fingerprint of a job that adds to what its outputs hold."""
    contents = sorted((str(name), base.content) for name, base in bases.items())
    return replace(made_from, base=tuple(contents))


def digest(value: Any) -> str:
    """The sha256 of a JSON value, the same on every machine and Python."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()


_MICROSECONDS = 1_000_000


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
    types: Mapping[DatasetName, TransactionType]
    committed_at: Instant


class Candidates(Protocol):
    """Finds what is eligible by build key; a dict does."""

    def get(self, build_key: str, /) -> Candidate | None: ...


class Past(Histories, Protocol):
    """What was built before; asked only for incremental jobs that are not fresh."""

    def base(self, output: DatasetName, /) -> Base:
        """What an output holds where the build is going to write it."""
        ...


class NoPast:
    """Nothing was ever built."""

    def base(self, _output: DatasetName, /) -> Base:
        return Base()

    def since(self, _last: TransactionId, _head: TransactionId, /) -> tuple[Change, ...] | None:
        return None


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
    past: Past = field(default_factory=NoPast)
    # What looks at content have found so far.
    answers: Answers = field(default_factory=dict[Question, Answer])
    parameters: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    now: Instant
    force: bool = False
    # Incremental jobs run, and read everything.
    full: bool = False


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
    # Of a job that is declared incremental and is not fresh.
    incremental: Incrementality | None = None


def decide(jobs: Sequence[Job], facts: Facts) -> tuple[Decision, ...]:
    """A decision for each job, in the order given, which is the order of dependency."""
    decisions: list[Decision] = []
    for job in jobs:
        inputs = tuple(_planned(given, job, decisions, facts) for given in job.spec.inputs)
        decisions.append(_decided(job, inputs, decisions, facts))
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


def _decided(
    job: Job, inputs: tuple[PlannedInput, ...], above: Sequence[Decision], facts: Facts
) -> Decision:
    views = [facts.views.get(name) for name in job.outputs]
    made_from = _fingerprint(job, inputs, facts)
    decision = Decision(
        job=job,
        state=Decided.STALE,
        reason=_own_reason(job.spec, views, made_from, facts),
        inputs=inputs,
        made_from=made_from,
    )
    if decision.reason is Reason.FRESH:
        return replace(decision, state=Decided.FRESH)
    if job.spec.declaration.incremental is not None:
        decision = _with_extent(decision, above, facts)
    candidate = _adoptable(decision, facts)
    if candidate is None:
        return decision
    return replace(decision, state=Decided.ADOPTED, reason=Reason.ADOPTED, candidate=candidate)


def _with_extent(decision: Decision, above: Sequence[Decision], facts: Facts) -> Decision:
    """How much the job reads; where it adds to its outputs, what they hold is part of its key."""
    spec = decision.job.spec.declaration.incremental
    assert spec is not None
    bases = {name: facts.past.base(name) for name in decision.job.outputs}
    places = [_place(given, above, facts) for given in decision.inputs]
    found = decide_incremental(spec, places, bases, facts.past, facts.answers, full=facts.full)
    made_from = decision.made_from
    if made_from is not None and found.extent is Extent.INCREMENTAL:
        made_from = on_top_of(made_from, bases)
    return replace(decision, incremental=found, made_from=made_from)


def _place(given: PlannedInput, above: Sequence[Decision], facts: Facts) -> Place:
    candidate = above[given.made_by].candidate if given.made_by is not None else None
    if candidate is None:
        return Place(name=given.name, dataset=given.dataset, head=given.transaction)
    base = facts.past.base(given.dataset)
    adopted = Change(
        transaction=candidate.transactions[given.dataset],
        number=base.number + 1,
        type=candidate.types[given.dataset],
        changes_content=candidate.contents[given.dataset] != base.content,
    )
    return Place(name=given.name, dataset=given.dataset, head=base.transaction, adopted=adopted)


def _fingerprint(job: Job, inputs: tuple[PlannedInput, ...], facts: Facts) -> Fingerprint | None:
    """None where an input is made by a stale job: its content does not exist yet."""
    contents = {given.name: given.content for given in inputs if given.content is not None}
    if len(contents) < len(inputs):
        return None
    return fingerprint(
        job.spec, parameters=facts.parameters, environment=facts.environment, inputs=contents
    )


def _own_reason(
    spec: JobSpec, views: Sequence[View | None], made_from: Fingerprint | None, facts: Facts
) -> Reason:
    """The first reason that holds: the job's own before those that it has from its inputs."""
    if facts.force or (facts.full and spec.declaration.incremental is not None):
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


def _adoptable(decision: Decision, facts: Facts) -> Candidate | None:
    """What carries this build key, if it covers every output and is not too old."""
    made_from, extent = decision.made_from, decision.incremental
    if made_from is None or decision.reason in {Reason.FORCED, Reason.NEVER_FRESH}:
        return None
    if extent is not None and (extent.refused or extent.extent is Extent.UNDECIDED):
        return None
    found = facts.candidates.get(made_from.build_key)
    if found is None or not _young(found.committed_at, decision.job.spec, facts):
        return None
    return found if set(found.transactions) == set(decision.job.outputs) else None


def _young(committed_at: Instant, spec: JobSpec, facts: Facts) -> bool:
    fresh = spec.declaration.fresh
    if isinstance(fresh, str):
        return True
    return facts.now - committed_at <= fresh * _MICROSECONDS
