"""Opening a build: one catalog transaction that makes its branches and opens what it writes.

The same transaction adopts earlier results and records the build, so that a build is open as a
whole or not at all. See ADR 0015.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.attempts import LEASE_SECONDS
from headgate.builds.attempt import job_key
from headgate.builds.plan import Place, Plan, make_plan, provenance_of
from headgate.builds.report import planned_inputs, planned_reports
from headgate.catalog.attempts import dispatch_in
from headgate.catalog.builds import record_build_in
from headgate.catalog.database import Connection, Database
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.publish import publish_in
from headgate.catalog.records import load_transactions, lock_attempt
from headgate.catalog.transactions import Opener, Opening, open_in, stage_in
from headgate.errors import PlanChanged
from headgate.model import changes, ids, nouns
from headgate.model.failpoints import Failpoint, reach
from headgate.model.freshness import Decided, Decision
from headgate.model.incrementality import Extent
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, PublicationKind, Transaction, TransactionType, Version


@dataclass(frozen=True, kw_only=True)
class OpeningRequest:
    """A plan to open as a build."""

    id: ids.BuildId
    plan: Plan
    # Its attempt is that of the build.
    caller: changes.Caller
    atomic: bool
    # Of a client-run build: the actor whose claim it is that the published code ran.
    reported_by: str | None = None

    @property
    def attempt(self) -> AttemptRef:
        assert self.caller.attempt is not None, f"build {self.id} belongs to an attempt"
        return self.caller.attempt


@dataclass(frozen=True, kw_only=True)
class OpenedBuild(OpeningRequest):
    """An open build: its attempts, transactions and branches."""

    # First attempt and output transactions of each stale job, by position.
    attempts: Mapping[int, AttemptRef]
    transactions: Mapping[int, Mapping[DatasetName, ids.TransactionId]]
    # Adopted transactions: committed already or, in an atomic build, committed with the rest.
    adopted: Mapping[DatasetName, ids.TransactionId]
    adoptions: tuple[changes.CommitTransaction, ...]
    publications: tuple[ids.PublicationNumber, ...]
    # Branches that it writes; those made for the build are dropped if nothing commits there.
    branches: tuple[ids.BranchId, ...]


def open_build(database: Database, request: OpeningRequest) -> OpenedBuild:
    """Make missing branches, adopt and open transactions, record the build: all or nothing."""
    opened = database.write(lambda c: _Opening(c, request).open())
    reach(Failpoint.OPEN_COMMITTED)
    return opened


class _Opening:
    """The steps of one opening, inside one catalog transaction."""

    def __init__(self, connection: Connection, request: OpeningRequest) -> None:
        self._connection = connection
        self._request = request
        self._plan = request.plan
        self._caller = request.caller
        self._attempt = request.attempt
        self._publications: list[ids.PublicationNumber] = []

    def open(self) -> OpenedBuild:
        lock_attempt(self._connection, self._attempt)
        # A plan that writes nothing cannot conflict: everything was fresh when it was read.
        if self._plan.places:
            self._check_unchanged()
        places = self._make_branches()
        adopted, adoptions = self._adopt(places)
        attempts, transactions = self._open_stale(places)
        self._record(adopted)
        return OpenedBuild(
            **vars(self._request),
            attempts=attempts,
            transactions=transactions,
            adopted=adopted,
            adoptions=adoptions,
            publications=tuple(self._publications),
            branches=tuple(place.branch for place in places.values() if place.branch),
        )

    def _check_unchanged(self) -> None:
        again = make_plan(
            self._connection,
            self._plan.request,
            answers=self._plan.answers,
            jobspecs=self._plan.jobspecs,
        )
        if not again.same_as(self._plan):
            raise PlanChanged(reason="branches, pins or JobSpecs changed since it was made")

    def _make_branches(self) -> dict[DatasetName, Place]:
        places = dict(self._plan.places)
        kinds = {
            output.dataset: output.kind
            for decision in self._plan.decisions
            for output in decision.job.spec.outputs
        }
        steps: list[changes.CreateBranch] = []
        for name, place in places.items():
            dataset = place.dataset
            if dataset is None:
                dataset = create_dataset_in(
                    self._connection, name, kind=kinds[name], branch=None, caller=self._caller
                ).id
            if place.branch is None:
                step = changes.CreateBranch(
                    **nouns.branch_off(place.parent),
                    dataset=dataset,
                    name=self._plan.request.branch,
                    remembered_chain=place.remembered_chain,
                    made_for=self._request.id,
                )
                steps.append(step)
                places[name] = replace(place, dataset=dataset, branch=step.id, view=step.view)
        self._publish(PublicationKind.CREATE, steps)
        return places

    def _adopt(
        self, places: Mapping[DatasetName, Place]
    ) -> tuple[dict[DatasetName, ids.TransactionId], tuple[changes.CommitTransaction, ...]]:
        """Publish adopted results; in an atomic build, only open and stage them."""
        wanted = {
            name: (decision, id)
            for decision in self._plan.decisions
            if decision.candidate is not None
            for name, id in decision.candidate.transactions.items()
        }
        originals = load_transactions(self._connection, [id for _, id in wanted.values()])
        new = {name: ids.mint_transaction() for name in wanted}
        bases: dict[DatasetName, Version | None] = {}
        if self._request.atomic:
            # The original's type from the start: jobs of this build decide by it.
            opened = self._open(
                [_opening(places[name], originals[id].type) for name, (_, id) in wanted.items()],
                self._attempt,
            )
            new = {transaction.dataset: transaction.id for transaction in opened}
            bases = {transaction.dataset: transaction.version for transaction in opened}
        commits: list[changes.CommitTransaction] = []
        additions: list[changes.AddTransaction] = []
        for name, (decision, id) in wanted.items():
            original, place = originals[id], places[name]
            provenance = provenance_of(
                self._request.id, decision, planned_inputs(decision, new), adopted_from=original
            )
            if self._request.atomic:
                commits.append(self._stage(new[name], original, bases[name], provenance))
                continue
            assert place.branch is not None
            additions.append(
                changes.AddTransaction(
                    id=new[name],
                    branch=place.branch,
                    expected_head=place.view,
                    expected_view=place.view,
                    parent=place.view,
                    type=original.type,
                    version=original.version,
                    provenance=provenance,
                )
            )
        self._publish(PublicationKind.ADOPT, additions)
        return new, tuple(commits)

    def _stage(
        self,
        id: ids.TransactionId,
        original: Transaction,
        base: Version | None,
        provenance: changes.Provenance,
    ) -> changes.CommitTransaction:
        version = original.version
        assert version is not None, f"{original.id} has nothing to adopt"
        stage_in(
            self._connection,
            id,
            version,
            expected=base.id if base is not None else None,
            attempt=self._attempt,
        )
        return changes.CommitTransaction(
            transaction=id, version=version, type=original.type, provenance=provenance
        )

    def _open_stale(
        self, places: Mapping[DatasetName, Place]
    ) -> tuple[dict[int, AttemptRef], dict[int, dict[DatasetName, ids.TransactionId]]]:
        attempts: dict[int, AttemptRef] = {}
        transactions: dict[int, dict[DatasetName, ids.TransactionId]] = {}
        for position, decision in enumerate(self._plan.decisions):
            if decision.state is not Decided.STALE:
                continue
            attempt = dispatch_in(
                self._connection,
                job_key(self._request.id, position),
                actor=self._caller.actor,
                lease_seconds=LEASE_SECONDS,
                parent=self._attempt,
            ).ref
            type = opening_type(decision)
            opened = self._open(
                [_opening(places[name], type) for name in decision.job.outputs], attempt
            )
            attempts[position] = attempt
            transactions[position] = {t.dataset: t.id for t in opened}
        return attempts, transactions

    def _open(self, openings: Sequence[Opening], attempt: AttemptRef) -> list[Transaction]:
        return open_in(
            self._connection,
            openings,
            Opener(caller=replace(self._caller, attempt=attempt), lease_seconds=LEASE_SECONDS),
        )

    def _record(self, adopted: Mapping[DatasetName, ids.TransactionId]) -> None:
        request = self._plan.request
        reports = planned_reports(self._plan, adopted)
        record_build_in(
            self._connection,
            id=self._request.id,
            branch=request.branch,
            actor=self._caller.actor,
            attempt=self._attempt,
            # Enough to request the same build again.
            body={
                "targets": list(request.targets),
                "fallback": list(request.fallback),
                "upstream": request.upstream,
                "atomic": self._request.atomic,
                "parameters": dict(request.parameters),
            },
            planned=[report.to_record(position) for position, report in enumerate(reports)],
        )

    def _publish(
        self,
        kind: PublicationKind,
        steps: Sequence[changes.CreateBranch] | Sequence[changes.AddTransaction],
    ) -> None:
        if not steps:
            return
        receipt = publish_in(
            self._connection,
            changes.PublishRequest(caller=self._caller, kind=kind, changes=tuple(steps)),
            ids.mint_operation(),
        )
        if receipt.publication is not None:
            self._publications.append(receipt.publication)


def opening_type(decision: Decision) -> TransactionType:
    """Return the type of a job's transactions: an incremental job adds, any other replaces."""
    extent, spec = decision.incremental, decision.job.spec.declaration.incremental
    if extent is None or spec is None or extent.extent is not Extent.INCREMENTAL:
        return TransactionType.SNAPSHOT
    return TransactionType.APPEND if spec.strict_append else TransactionType.UPDATE


def _opening(place: Place, type: TransactionType) -> Opening:
    assert place.branch is not None
    return Opening(branch=place.branch, type=type, planned_view=place.view, planned=True)
