"""Plans: what a build would do, read from the catalog and decided by pure rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from headgate.builds.past import CatalogPast, find_maker
from headgate.builds.provenance import ON_WORD_OF
from headgate.catalog.branches import list_protected
from headgate.catalog.builds import find_adoptable_by_key
from headgate.catalog.database import Connection, now
from headgate.catalog.find import (
    branches_named,
    branches_of,
    find_datasets,
    find_transaction,
    load_transactions,
)
from headgate.catalog.jobspecs import Pointer, find_pointers
from headgate.model.ancestry import OutputPlace, make_chain, output_place, require_compatible
from headgate.model.fingerprints import fingerprint_from_json
from headgate.model.freshness import (
    Candidate,
    Decided,
    Decision,
    Facts,
    Pin,
    View,
    decide,
)
from headgate.model.ids import BranchId, DatasetId, JobSpecId, TransactionId
from headgate.model.jobspecs import InputSpec, JobSpec, jobspec_from_json
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Branch, Dataset, Transaction, TransactionState
from headgate.model.parameters import check_parameters
from headgate.model.past import Answer, Answers, Question
from headgate.model.planning import Removed, compile_graph


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What somebody wants built, and where."""

    targets: tuple[str, ...]
    branch: str
    fallback: tuple[str, ...] = ()
    upstream: bool = False
    force: bool = False
    # Incremental jobs run, and read everything.
    full: bool = False
    # any, chain or off: from where results may be adopted.
    adopt: str = "any"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""

    @property
    def chain(self) -> tuple[str, ...]:
        return make_chain(self.branch, self.fallback)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an output is written: on a branch that exists, or on one to be made."""

    dataset: DatasetId | None
    branch: BranchId | None
    view: TransactionId | None
    # The branch that a new one is made off, as it was seen.
    parent: Branch | None
    remembered_chain: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Decisions in the order of dependency; making a plan has no side effect."""

    request: PlanRequest
    decisions: tuple[Decision, ...]
    places: Mapping[DatasetName, Place]
    # What looks at content found, which is not looked at again when the build is opened.
    answers: Answers = field(default_factory=dict[Question, Answer])
    # What was read for it, to be used again when the plan is checked.
    jobspecs: Mapping[JobSpecId, JobSpec] = field(default_factory=dict, repr=False, compare=False)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What only content can tell about incremental jobs, and nobody has looked at yet."""
        extents = (d.incremental for d in self.decisions if d.incremental is not None)
        return tuple(question for extent in extents for question in extent.questions)

    def same_as(self, other: Plan) -> bool:
        """Whether both would read, write and decide the same."""
        return self.decisions == other.decisions and self.places == other.places


def make_plan(
    connection: Connection,
    request: PlanRequest,
    *,
    answers: Answers = MappingProxyType({}),
    jobspecs: Mapping[JobSpecId, JobSpec] = MappingProxyType({}),
) -> Plan:
    """Resolves targets, JobSpecs, inputs and outputs; every error names what and how to mend it."""
    chain = request.chain
    targets = [parse_dataset_name(target) for target in request.targets]
    published = _Published(connection, chain, jobspecs)
    jobs = compile_graph(targets, chain, published, upstream=request.upstream)
    check_parameters((job.spec for job in jobs), request.parameters)
    outputs = {name for job in jobs for name in job.outputs}
    given = [spec for job in jobs for spec in job.spec.inputs]
    unpinned = {spec.dataset for spec in given if not spec.pinned}
    datasets = find_datasets(connection, outputs | {spec.dataset for spec in given})
    branches = _branches_by_dataset(connection, datasets)
    seen = sorted(outputs | unpinned, key=str)
    for name in seen:
        require_compatible(name, chain, branches.get(name, {}))
    facts = Facts(
        chain=chain,
        views=_views(connection, chain, seen, branches, outputs),
        pinned=_pinned(connection, given, branches),
        candidates=_Candidates(connection, request),
        past=CatalogPast(connection, lambda name: _base_of(chain, branches.get(name, {}))),
        answers=answers,
        parameters=request.parameters,
        environment=request.environment,
        now=now(connection),
        force=request.force,
        full=request.full,
    )
    decisions = decide(jobs, facts)
    return Plan(
        request=request,
        decisions=decisions,
        places=_places(chain, decisions, datasets, branches),
        answers=dict(answers),
        jobspecs=published.read,
    )


class _Published(Mapping[DatasetName, Mapping[str, JobSpec | Removed]]):
    """What a chain has published; a JobSpec is read only when a graph comes to it."""

    def __init__(
        self, connection: Connection, chain: Sequence[str], known: Mapping[JobSpecId, JobSpec]
    ) -> None:
        # A JobSpec never changes, so those of an earlier plan are as good as new.
        self.read = dict(known)
        self._pointers: dict[DatasetName, dict[str, Pointer]] = {}
        # A graph asks for each dataset several times.
        self._found: dict[DatasetName, dict[str, JobSpec | Removed]] = {}
        for pointer in find_pointers(connection, chain):
            name = parse_dataset_name(pointer.dataset)
            self._pointers.setdefault(name, {})[pointer.branch] = pointer

    def __getitem__(self, name: DatasetName) -> dict[str, JobSpec | Removed]:
        if name not in self._found:
            pointers = self._pointers[name].items()
            self._found[name] = {branch: self._resolved(pointer) for branch, pointer in pointers}
        return self._found[name]

    def __iter__(self) -> Iterator[DatasetName]:
        return iter(self._pointers)

    def __len__(self) -> int:
        return len(self._pointers)

    def _resolved(self, pointer: Pointer) -> JobSpec | Removed:
        if pointer.removed:
            return Removed.MARK
        if pointer.jobspec not in self.read:
            self.read[pointer.jobspec] = jobspec_from_json(pointer.body()["jobspec"])
        return self.read[pointer.jobspec]


def _branches_by_dataset(
    connection: Connection, datasets: Mapping[DatasetName, Dataset]
) -> dict[DatasetName, dict[str, Branch]]:
    found: dict[DatasetName, dict[str, Branch]] = {name: {} for name in datasets}
    for branch in branches_of(connection, [d.id for d in datasets.values()]):
        found[branch.dataset][branch.name] = branch
    return found


def _views(
    connection: Connection,
    chain: Sequence[str],
    names: Iterable[DatasetName],
    branches: Mapping[DatasetName, Mapping[str, Branch]],
    outputs: Collection[DatasetName] = (),
) -> dict[DatasetName, View]:
    """Of each dataset, the first branch of the chain with a COMMITTED transaction.

    What an output was made from is asked of whoever made it: compaction makes nothing stale.
    """
    first: dict[DatasetName, tuple[str, TransactionId]] = {}
    for name in names:
        known = branches.get(name, {})
        for branch in chain:
            view = known[branch].view if branch in known else None
            if view is not None:
                first[name] = (branch, view)
                break
    loaded = load_transactions(connection, [id for _, id in first.values()])
    return {
        name: _view(
            name,
            branch,
            loaded[id],
            find_maker(connection, loaded[id]) if name in outputs else loaded[id],
        )
        for name, (branch, id) in first.items()
    }


def first_view(connection: Connection, name: DatasetName, chain: Sequence[str]) -> View | None:
    """What a chain shows of a dataset now."""
    found = find_datasets(connection, [name])
    named = branches_named(connection, chain, [dataset.id for dataset in found.values()])
    return _views(connection, chain, [name], {name: {b.name: b for b in named}}).get(name)


def _view(name: DatasetName, branch: str, transaction: Transaction, maker: Transaction) -> View:
    made_from = maker.provenance.get("fingerprint")
    return View(
        dataset=name,
        branch=branch,
        transaction=transaction.id,
        content=transaction.version.content_id if transaction.version else None,
        committed_at=maker.closed_at or maker.opened_at,
        made_from=fingerprint_from_json(made_from) if made_from else None,
    )


def _pinned(
    connection: Connection,
    given: Iterable[InputSpec],
    branches: Mapping[DatasetName, Mapping[str, Branch]],
) -> dict[Pin, View]:
    found: dict[Pin, View] = {}
    for spec in given:
        if not spec.pinned:
            continue
        on = branches.get(spec.dataset, {}).get(spec.branch or "")
        id = spec.transaction or (on.view if on else None)
        transaction = find_transaction(connection, id) if id else None
        if transaction is None or transaction.state is not TransactionState.COMMITTED:
            continue
        if transaction.dataset != spec.dataset:
            continue
        pin = Pin(dataset=spec.dataset, branch=spec.branch, transaction=spec.transaction)
        on_branch = spec.branch or transaction.branch
        found[pin] = _view(spec.dataset, on_branch, transaction, transaction)
    return found


class _Candidates:
    """Looks for what can be adopted, only for the jobs that ask."""

    def __init__(self, connection: Connection, request: PlanRequest) -> None:
        self._connection = connection
        self._request = request

    @cached_property
    def _is_protected(self) -> bool:
        return self._request.branch in list_protected(self._connection)

    def get(self, build_key: str, /) -> Candidate | None:
        if self._request.adopt == "off":
            return None
        groups: dict[int, list[Transaction]] = {}
        for transaction in find_adoptable_by_key(self._connection, build_key):
            if ON_WORD_OF in transaction.provenance and self._is_protected:
                # What a client says that it computed may not become what others rely on.
                continue
            on_chain = transaction.branch in self._request.chain
            if on_chain or self._request.adopt == "any":
                groups.setdefault(transaction.publication or 0, []).append(transaction)
        if not groups:
            return None
        newest = groups[max(groups)]
        return Candidate(
            branch=newest[0].branch,
            transactions={t.dataset: t.id for t in newest},
            contents={t.dataset: t.version.content_id if t.version else None for t in newest},
            types={t.dataset: t.type for t in newest},
            committed_at=newest[0].closed_at or newest[0].opened_at,
        )


def _base_of(chain: Sequence[str], known: Mapping[str, Branch]) -> TransactionId | None:
    """The view that an output's next transaction is going to stand on."""
    place = output_place(chain, known)
    on = known.get(chain[0]) or (known[place.parent] if place.parent is not None else None)
    return on.view if on is not None else None


def _places(
    chain: Sequence[str],
    decisions: Sequence[Decision],
    datasets: Mapping[DatasetName, Dataset],
    branches: Mapping[DatasetName, Mapping[str, Branch]],
) -> dict[DatasetName, Place]:
    """Where each output that will be written goes; what is fresh is left alone."""
    found: dict[DatasetName, Place] = {}
    for decision in decisions:
        if decision.state is Decided.FRESH:
            continue
        for name in decision.job.outputs:
            known = branches.get(name, {})
            place: OutputPlace = output_place(chain, known)
            here = known.get(chain[0])
            found[name] = Place(
                dataset=datasets[name].id if name in datasets else None,
                branch=here.id if here else None,
                view=here.view if here else None,
                parent=known[place.parent] if place.parent and not here else None,
                remembered_chain=place.remembered_chain,
            )
    return found
