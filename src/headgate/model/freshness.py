"""The decision whether a job is fresh, held, adopted or stale, with its reason; pure.

A job's fingerprint is everything that determines the content of its outputs: logic, parameters and
inputs. Freshness and holds compare the fingerprints' inputs keys, adoption their build keys.
See ADR 0007.
"""

import difflib
import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headgate.errors import InputNotFound, InvalidParameter
from headgate.model import ids, incrementality
from headgate.model.ids import ContentId, Instant, TransactionId, digest
from headgate.model.jobspecs import FRESH_NEVER, InputSpec, Job, JobSpec, ParameterSpec
from headgate.model.nouns import DatasetName, Json, TransactionType, as_json

Value = str | int | float | bool
_BOOLEANS = {"true": True, "false": False}
_MICROSECONDS = 1_000_000


# Parameters of a build.


def effective_parameters(spec: JobSpec, given: Mapping[str, Any]) -> dict[str, Value]:
    """Return the declared defaults, replaced by the values that the build is given."""
    return {
        parameter.name: parameter_value(parameter, given[parameter.name])
        if parameter.name in given
        else parameter.default
        for parameter in spec.declaration.parameters
    }


def check_parameters(specs: Iterable[JobSpec], given: Mapping[str, Any]) -> None:
    """Raise for a value of the wrong type, and for one that no job of the build declares."""
    if not given:
        return
    declared = {p.name: p for spec in specs for p in spec.declaration.parameters}
    for name, value in given.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            hint = f"did you mean {near[0]!r}?" if near else _known(declared)
            raise InvalidParameter(name=name, reason=f"is declared by no job of this build; {hint}")
        parameter_value(declared[name], value)


def parameter_value(parameter: ParameterSpec, given: Any) -> Value:
    """Return a value of the declared type; a string, as from a command line, is parsed."""
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
        article = "an" if parameter.kind == "integer" else "a"
        raise InvalidParameter(
            name=parameter.name, reason=f"must be {article} {parameter.kind}, got {given!r}"
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
    return _BOOLEANS.get(text.lower())


def _known(declared: Mapping[str, ParameterSpec]) -> str:
    if not declared:
        return "none of them declares any"
    return f"declared are {', '.join(sorted(declared))}"


# Fingerprints.


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Everything that determines a job's outputs; a built transaction carries it."""

    logic: str
    parameters: str
    # (input name, content id), by name.
    inputs: tuple[tuple[str, str], ...]
    # Always empty: locked dependencies are part of the logic. The versions of Python and Spark are
    # in no key: they differ between the machines that build one branch, so each of them would
    # recompute the results of the others. Part of the keys that catalogs have stored.
    environment: str = ""
    # The logic without its locked dependencies, in no key; None if an earlier release built it.
    code: str | None = None
    # Of an incremental job: the content of each output before it, by dataset; else None.
    base: tuple[tuple[str, str | None], ...] | None = None

    @property
    def inputs_key(self) -> str:
        return digest(
            ["inputs-1", self.logic, self.parameters, self.environment, list(self.inputs)]
        )

    @property
    def build_key(self) -> str:
        return digest(["build-1", self.inputs_key, None if self.base is None else list(self.base)])

    def to_json(self) -> Json:
        return as_json(self)


def fingerprint_from_json(data: Mapping[str, Any]) -> Fingerprint:
    base = data["base"]
    return Fingerprint(
        logic=data["logic"],
        parameters=data["parameters"],
        environment=data["environment"],
        code=data.get("code"),
        inputs=tuple((name, content) for name, content in data["inputs"]),
        base=None if base is None else tuple((name, content) for name, content in base),
    )


def fingerprint(
    spec: JobSpec, *, parameters: Mapping[str, Any], inputs: Mapping[str, ContentId]
) -> Fingerprint:
    """Return the fingerprint of a job that reads all of its inputs."""
    return Fingerprint(
        logic=spec.logic_hash,
        code=spec.code_hash,
        parameters=digest(effective_parameters(spec, parameters)),
        inputs=tuple(sorted(inputs.items())),
    )


def with_base(
    made_from: Fingerprint, bases: Mapping[DatasetName, incrementality.Base]
) -> Fingerprint:
    """Return the fingerprint of a job that adds to the content of its outputs."""
    contents = sorted((str(name), base.content) for name, base in bases.items())
    return replace(made_from, base=tuple(contents))


# Facts that a plan is made from.


class Reason(enum.StrEnum):
    """The reason for a job's state; the values are part of the public interface."""

    FORCED = "forced"
    NEVER_BUILT = "never-built"
    NEVER_FRESH = "never-fresh"
    STALE_LOGIC = "stale-logic"
    STALE_PARAMETERS = "stale-parameters"
    # Of the logic, only the locked dependencies changed.
    STALE_ENVIRONMENT = "stale-environment"
    STALE_INPUT = "stale-input"
    STALE_OUTPUT = "stale-output"
    FRESH = "fresh"
    HELD = "held"
    ADOPTED = "adopted"


class Decided(enum.StrEnum):
    STALE = "stale"
    FRESH = "fresh"
    HELD = "held"
    ADOPTED = "adopted"


@dataclass(frozen=True, kw_only=True)
class View:
    """The view of one branch of a dataset: the transaction to which a reader is pinned."""

    dataset: DatasetName
    branch: str
    transaction: TransactionId
    # None for a tombstone: nothing can be read.
    content: ContentId | None
    committed_at: Instant
    # The fingerprint of the transaction; None if no build made it.
    made_from: Fingerprint | None = None
    # The transactions that this build read, by dataset.
    read: Mapping[DatasetName, TransactionId] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The reset that removed a result from the branch that shows an output."""

    dataset: DatasetName
    branch: str
    publication: ids.PublicationNumber
    actor: str
    at: Instant

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "dataset": str(self.dataset), "at": ids.instant_text(self.at)}


# Returns the hold on an output for an inputs key.
FindHold = Callable[[DatasetName, str], Hold | None]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The transactions of all outputs of an earlier job, which may be adopted together."""

    branch: str
    # By output dataset.
    transactions: Mapping[DatasetName, TransactionId]
    contents: Mapping[DatasetName, ContentId | None]
    types: Mapping[DatasetName, TransactionType]
    committed_at: Instant


class Candidates(Protocol):
    """Candidates for adoption by build key; a dict is one."""

    def get(self, build_key: str, /) -> Candidate | None: ...


class Past(incrementality.Histories, Protocol):
    """Earlier builds; read only for incremental jobs that are not fresh."""

    def base(self, output: DatasetName, /) -> incrementality.Base:
        """Return the state of an output on the branch that the build writes."""


class NoPast:
    """A past without builds."""

    def base(self, _output: DatasetName, /) -> incrementality.Base:
        return incrementality.Base()

    def since(
        self, _last: TransactionId, _head: TransactionId, /
    ) -> tuple[incrementality.Change, ...] | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Pin:
    """An input that names its own branch or transaction."""

    dataset: DatasetName
    branch: str | None
    transaction: TransactionId | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that is read before planning."""

    chain: tuple[str, ...]
    # Of every unpinned input and every output: the view that the chain resolves to.
    views: Mapping[DatasetName, View]
    pinned: Mapping[Pin, View] = field(default_factory=dict)
    candidates: Candidates = field(default_factory=dict[str, Candidate])
    find_hold: FindHold = field(default=lambda _output, _key: None)
    past: Past = field(default_factory=NoPast)
    # Results of the comparisons of content so far.
    answers: incrementality.Answers = field(
        default_factory=dict[incrementality.Question, incrementality.Answer]
    )
    parameters: Mapping[str, Any] = field(default_factory=dict)
    now: Instant
    force: bool = False
    # Incremental jobs run and read all of their inputs.
    full: bool = False


# The decision.


@dataclass(frozen=True, kw_only=True)
class PlannedInput:
    """An input of a job; without a transaction it is the one that the job `made_by` will open."""

    name: str
    dataset: DatasetName
    branch: str
    transaction: TransactionId | None
    content: ContentId | None
    # Position of the stale or adopted job of this build that makes it.
    made_by: int | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A part of the key of a job that differs from that of the output's view."""

    # logic, parameters, input; output (not made by a build) or age (older than allowed).
    part: str
    dataset: DatasetName | None = None
    # Logic hashes, or transactions; None for one that does not exist or is not known yet.
    before: str | None = None
    after: str | None = None

    def to_json(self) -> dict[str, Any]:
        named = str(self.dataset) if self.dataset is not None else None
        return {"part": self.part, "dataset": named, "from": self.before, "to": self.after}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on one job. A stale job that waits for others has no fingerprint yet."""

    job: Job
    state: Decided
    reason: Reason
    inputs: tuple[PlannedInput, ...]
    made_from: Fingerprint | None
    candidate: Candidate | None = None
    # Set if the job is declared incremental and is not fresh.
    incremental: incrementality.Incrementality | None = None
    held: Hold | None = None
    # Empty if the outputs are fresh or do not exist.
    differences: tuple[Difference, ...] = ()

    @property
    def is_skipped(self) -> bool:
        """Return whether the build writes nothing for the job; its dependants read the views."""
        return self.state in {Decided.FRESH, Decided.HELD}


def decide(jobs: Sequence[Job], facts: Facts) -> tuple[Decision, ...]:
    """Return a decision for each job; the jobs are in dependency order."""
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
    if above is None or above.is_skipped:
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
        reason=_reason(job.spec, views, made_from, facts),
        inputs=inputs,
        made_from=made_from,
    )
    if decision.reason is Reason.FRESH:
        return replace(decision, state=Decided.FRESH)
    decision = replace(decision, differences=_differences(job.spec, inputs, views, facts))
    held = find_hold(decision, facts.find_hold, facts.now)
    if held is not None:
        return hold(decision, held)
    if job.spec.declaration.incremental is not None:
        decision = _with_extent(decision, above, facts)
    candidate = _adoptable(decision, facts)
    if candidate is None:
        return decision
    return replace(decision, state=Decided.ADOPTED, reason=Reason.ADOPTED, candidate=candidate)


def find_hold(decision: Decision, find: FindHold, now: Instant) -> Hold | None:
    """Return the newest reset that removed the result of these inputs from an output, if any.

    The inputs key decides, without the base of an incremental job: a reset over several increments
    changes the base, but the next one would still bring back what it removed. A job that is fresh
    only for a time is held for that time.
    """
    made_from, spec = decision.made_from, decision.job.spec
    if made_from is None or decision.reason in {Reason.FORCED, Reason.NEVER_FRESH}:
        return None
    found = [find(name, made_from.inputs_key) for name in decision.job.outputs]
    held = [one for one in found if one is not None and _is_recent(one.at, spec, now)]
    return max(held, key=lambda one: one.publication, default=None)


def hold(decision: Decision, held: Hold) -> Decision:
    return replace(decision, state=Decided.HELD, reason=Reason.HELD, held=held)


def _with_extent(decision: Decision, above: Sequence[Decision], facts: Facts) -> Decision:
    """Add how much the job reads; if incremental, its outputs' content is part of its key."""
    spec = decision.job.spec.declaration.incremental
    assert spec is not None
    bases = {name: facts.past.base(name) for name in decision.job.outputs}
    places = [_place(given, above, facts) for given in decision.inputs]
    found = incrementality.decide_incremental(
        spec, places, bases, facts.past, facts.answers, full=facts.full
    )
    made_from = decision.made_from
    if made_from is not None and found.extent is incrementality.Extent.INCREMENTAL:
        made_from = with_base(made_from, bases)
    return replace(decision, incremental=found, made_from=made_from)


def _place(given: PlannedInput, above: Sequence[Decision], facts: Facts) -> incrementality.Place:
    candidate = above[given.made_by].candidate if given.made_by is not None else None
    if candidate is None:
        return incrementality.Place(name=given.name, dataset=given.dataset, head=given.transaction)
    base = facts.past.base(given.dataset)
    adopted = incrementality.Change(
        transaction=candidate.transactions[given.dataset],
        number=base.number + 1,
        type=candidate.types[given.dataset],
        changes_content=candidate.contents[given.dataset] != base.content,
    )
    return incrementality.Place(
        name=given.name, dataset=given.dataset, head=base.transaction, adopted=adopted
    )


def _fingerprint(job: Job, inputs: tuple[PlannedInput, ...], facts: Facts) -> Fingerprint | None:
    """Return None if a stale job makes an input: its content does not exist yet."""
    contents = {given.name: given.content for given in inputs if given.content is not None}
    if len(contents) < len(inputs):
        return None
    return fingerprint(job.spec, parameters=facts.parameters, inputs=contents)


def _reason(
    spec: JobSpec, views: Sequence[View | None], made_from: Fingerprint | None, facts: Facts
) -> Reason:
    """Return the first reason that applies: the job's own before those of its inputs."""
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
    # Logic and parameters are equal here: only the inputs can differ.
    if any(found.inputs != made_from.inputs for found in carried if found):
        return Reason.STALE_INPUT
    too_old = any(not _is_recent(view.committed_at, spec, facts.now) for view in views if view)
    return Reason.STALE_OUTPUT if too_old else Reason.FRESH


def _changed_logic(spec: JobSpec, carried: Fingerprint, facts: Facts) -> Reason | None:
    if carried.logic != spec.logic_hash:
        same_code = carried.code is not None and carried.code == spec.code_hash
        return Reason.STALE_ENVIRONMENT if same_code else Reason.STALE_LOGIC
    if carried.parameters != digest(effective_parameters(spec, facts.parameters)):
        return Reason.STALE_PARAMETERS
    return None


def _differences(
    spec: JobSpec, inputs: Sequence[PlannedInput], views: Sequence[View | None], facts: Facts
) -> tuple[Difference, ...]:
    """Return each part of the key that differs from that of a view, once."""
    found: list[Difference] = []
    parameters = digest(effective_parameters(spec, facts.parameters))
    for view in filter(None, views):
        carried, shown = view.made_from, view.transaction
        if carried is None:
            found.append(Difference(part="output", dataset=view.dataset, before=shown))
            continue
        if carried.logic != spec.logic_hash:
            found.append(Difference(part="logic", before=carried.logic, after=spec.logic_hash))
        if carried.parameters != parameters:
            found.append(Difference(part="parameters", before=carried.parameters, after=parameters))
        contents = dict(carried.inputs)
        found += [
            Difference(
                part="input",
                dataset=given.dataset,
                before=view.read.get(given.dataset),
                after=given.transaction,
            )
            for given in inputs
            if given.content is None or contents.get(given.name) != given.content
        ]
        if not _is_recent(view.committed_at, spec, facts.now):
            found.append(Difference(part="age", dataset=view.dataset, before=shown))
    return tuple(dict.fromkeys(found))


def _adoptable(decision: Decision, facts: Facts) -> Candidate | None:
    """Return the candidate with this build key, if it covers every output and is recent."""
    made_from, extent = decision.made_from, decision.incremental
    if made_from is None or decision.reason in {Reason.FORCED, Reason.NEVER_FRESH}:
        return None
    if extent is not None and (extent.refused or extent.extent is incrementality.Extent.UNDECIDED):
        return None
    found = facts.candidates.get(made_from.build_key)
    if found is None or not _is_recent(found.committed_at, decision.job.spec, facts.now):
        return None
    return found if set(found.transactions) == set(decision.job.outputs) else None


def _is_recent(committed_at: Instant, spec: JobSpec, now: Instant) -> bool:
    fresh = spec.declaration.fresh
    if isinstance(fresh, str):
        return True
    return now - committed_at <= fresh * _MICROSECONDS
