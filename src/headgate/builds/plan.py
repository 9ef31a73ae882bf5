"""Plans: what a build would do, read from the catalog and decided by pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.catalog.builds import find_adoptable_by_key
from headgate.catalog.database import Connection, now
from headgate.catalog.find import (
    branches_named,
    branches_of,
    find_datasets,
    find_transaction,
    load_transactions,
)
from headgate.catalog.jobspecs import load_chain
from headgate.model.ancestry import OutputPlace, make_chain, output_place, require_compatible
from headgate.model.freshness import (
    Candidate,
    Decided,
    Decision,
    Facts,
    Pin,
    View,
    decide,
    fingerprint_from_json,
)
from headgate.model.ids import BranchId, DatasetId, TransactionId
from headgate.model.jobspecs import InputSpec, jobspec_from_json
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Branch, Dataset, Transaction, TransactionState
from headgate.model.planning import Published, Removed, compile_graph


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What somebody wants built, and where."""

    targets: tuple[str, ...]
    branch: str
    fallback: tuple[str, ...] = ()
    upstream: bool = False
    force: bool = False
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

    def same_as(self, other: Plan) -> bool:
        """Whether both would read, write and decide the same."""
        return self.decisions == other.decisions and self.places == other.places


def make_plan(connection: Connection, request: PlanRequest) -> Plan:
    """Resolves targets, JobSpecs, inputs and outputs; every error names what and how to mend it."""
    chain = request.chain
    targets = [parse_dataset_name(target) for target in request.targets]
    jobs = compile_graph(targets, chain, _published(connection, chain), upstream=request.upstream)
    outputs = {name for job in jobs for name in job.outputs}
    given = [spec for job in jobs for spec in job.spec.inputs]
    unpinned = {spec.dataset for spec in given if not spec.pinned}
    datasets = find_datasets(connection, outputs | {spec.dataset for spec in given})
    branches = _branches_by_dataset(connection, datasets)
    for name in sorted(outputs | unpinned):
        require_compatible(name, chain, branches.get(name, {}))
    facts = Facts(
        chain=chain,
        views=_views(connection, chain, sorted(outputs | unpinned), branches),
        pinned=_pinned(connection, given, branches),
        candidates=_Candidates(connection, request),
        parameters=request.parameters,
        environment=request.environment,
        now=now(connection),
        force=request.force,
    )
    decisions = decide(jobs, facts)
    return Plan(
        request=request,
        decisions=decisions,
        places=_places(chain, decisions, datasets, branches),
    )


def _published(connection: Connection, chain: Sequence[str]) -> Published:
    found: dict[DatasetName, dict[str, Any]] = {}
    specs: dict[str, Any] = {}
    for branch, by_dataset in load_chain(connection, chain).items():
        for text, published in by_dataset.items():
            if published.id not in specs:
                specs[published.id] = (
                    Removed.MARK
                    if published.removed
                    else jobspec_from_json(published.body["jobspec"])
                )
            found.setdefault(parse_dataset_name(text), {})[branch] = specs[published.id]
    return found


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
) -> dict[DatasetName, View]:
    """Of each dataset, the first branch of the chain with a COMMITTED transaction."""
    first: dict[DatasetName, tuple[str, TransactionId]] = {}
    for name in names:
        known = branches.get(name, {})
        for branch in chain:
            view = known[branch].view if branch in known else None
            if view is not None:
                first[name] = (branch, view)
                break
    loaded = load_transactions(connection, [id for _, id in first.values()])
    return {name: _view(name, branch, loaded[id]) for name, (branch, id) in first.items()}


def first_view(connection: Connection, name: DatasetName, chain: Sequence[str]) -> View | None:
    """What a chain shows of a dataset now."""
    found = find_datasets(connection, [name])
    named = branches_named(connection, chain, [dataset.id for dataset in found.values()])
    return _views(connection, chain, [name], {name: {b.name: b for b in named}}).get(name)


def _view(name: DatasetName, branch: str, transaction: Transaction) -> View:
    made_from = transaction.provenance.get("fingerprint")
    return View(
        dataset=name,
        branch=branch,
        transaction=transaction.id,
        content=transaction.version.content_id if transaction.version else None,
        committed_at=transaction.closed_at or transaction.opened_at,
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
        found[pin] = _view(spec.dataset, spec.branch or transaction.branch, transaction)
    return found


class _Candidates:
    """Looks for what can be adopted, only for the jobs that ask."""

    def __init__(self, connection: Connection, request: PlanRequest) -> None:
        self._connection = connection
        self._request = request

    def get(self, build_key: str, /) -> Candidate | None:
        if self._request.adopt == "off":
            return None
        groups: dict[int, list[Transaction]] = {}
        for transaction in find_adoptable_by_key(self._connection, build_key):
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
            committed_at=newest[0].closed_at or newest[0].opened_at,
        )


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
