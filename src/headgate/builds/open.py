"""Opening a build: one SQL transaction for all that it will write, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.builds.plan import Place, Plan, make_plan, pins_of, provenance_of
from headgate.builds.report import job_record, planned_reports
from headgate.catalog.attempts import dispatch_in
from headgate.catalog.builds import record_build_in
from headgate.catalog.database import Connection, Database
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.intents import after_recovery
from headgate.catalog.publish import publish_in
from headgate.catalog.records import load_transactions, lock_attempt
from headgate.catalog.transactions import Opener, Opening, open_in, stage_in
from headgate.errors import PlanChanged
from headgate.model.changes import (
    AddTransaction,
    CommitTransaction,
    CreateBranch,
    Provenance,
    PublishRequest,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.freshness import Decided, Decision
from headgate.model.ids import (
    BranchId,
    BuildId,
    PublicationNumber,
    TransactionId,
    mint_branch,
    mint_operation,
    mint_transaction,
)
from headgate.model.incrementality import Extent
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, PublicationKind, Transaction, TransactionType, Version

LEASE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class OpeningRequest:
    """Who opens which plan, and how."""

    id: BuildId
    plan: Plan
    attempt: AttemptRef
    actor: str
    atomic: bool
    may_write_protected: bool
    # Who says that the jobs are done by their code, where that is only said.
    on_word_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class OpenedBuild:
    """What a build holds once it is open."""

    id: BuildId
    plan: Plan
    attempt: AttemptRef
    # By position of the job: its first attempt, and its outputs' transactions.
    attempts: Mapping[int, AttemptRef]
    transactions: Mapping[int, Mapping[DatasetName, TransactionId]]
    # What was adopted: visible already or, in an atomic build, to be committed with the rest.
    adopted: Mapping[DatasetName, TransactionId]
    adoptions: tuple[CommitTransaction, ...]
    publications: tuple[PublicationNumber, ...]
    # Where it writes; those that a build made go again if nothing is committed on them.
    branches: tuple[BranchId, ...]
    may_write_protected: bool
    on_word_of: str | None


def open_build(database: Database, request: OpeningRequest) -> OpenedBuild:
    """Makes missing branches, opens what is stale, adopts the rest, records it; all or none."""
    opened = after_recovery(
        database, lambda: database.write(lambda c: _Opening(c, request).all_or_none())
    )
    reach(Failpoint.OPEN_COMMITTED)
    return opened


class _Opening:
    """The steps of one opening, inside one unit of work."""

    def __init__(self, connection: Connection, request: OpeningRequest) -> None:
        self._connection = connection
        self._request = request
        self._plan = request.plan
        self._publications: list[PublicationNumber] = []

    def all_or_none(self) -> OpenedBuild:
        lock_attempt(self._connection, self._request.attempt)
        # With nothing to write there is nothing to be late for: all was fresh when it was read.
        if self._plan.places:
            self._check_unchanged()
        places = self._make_branches()
        adopted, adoptions = self._adopt(places)
        attempts, transactions = self._open_stale(places)
        self._record(adopted)
        return OpenedBuild(
            id=self._request.id,
            plan=self._plan,
            attempt=self._request.attempt,
            attempts=attempts,
            transactions=transactions,
            adopted=adopted,
            adoptions=adoptions,
            publications=tuple(self._publications),
            branches=tuple(place.branch for place in places.values() if place.branch),
            may_write_protected=self._request.may_write_protected,
            on_word_of=self._request.on_word_of,
        )

    def _check_unchanged(self) -> None:
        again = make_plan(
            self._connection,
            self._plan.request,
            answers=self._plan.answers,
            jobspecs=self._plan.jobspecs,
        )
        if not again.same_as(self._plan):
            raise PlanChanged(reason="branches, pins or JobSpecs moved since it was made")

    def _make_branches(self) -> dict[DatasetName, Place]:
        places = dict(self._plan.places)
        kinds = {
            output.dataset: output.kind
            for decision in self._plan.decisions
            for output in decision.job.spec.outputs
        }
        steps: list[CreateBranch] = []
        for name, place in places.items():
            dataset = place.dataset
            if dataset is None:
                dataset = create_dataset_in(
                    self._connection, name, kind=kinds[name], branch=None, actor=self._request.actor
                ).id
            if place.branch is None:
                step = self._creation(dataset, place)
                steps.append(step)
                places[name] = replace(place, dataset=dataset, branch=step.id, view=step.view)
        self._publish(PublicationKind.CREATE, steps)
        return places

    def _creation(self, dataset: Any, place: Place) -> CreateBranch:
        parent = place.parent
        return CreateBranch(
            id=mint_branch(),
            dataset=dataset,
            name=self._plan.request.branch,
            parent=parent.id if parent else None,
            expected_head=parent.head if parent else None,
            expected_view=parent.view if parent else None,
            # Branches that builds make fork at the view, never at an OPEN head.
            head=parent.view if parent else None,
            view=parent.view if parent else None,
            remembered_chain=place.remembered_chain,
            made_for=self._request.id,
        )

    def _adopt(
        self, places: Mapping[DatasetName, Place]
    ) -> tuple[dict[DatasetName, TransactionId], tuple[CommitTransaction, ...]]:
        """Publishes what is adopted; in an atomic build it is only opened and staged."""
        wanted = {
            name: (decision, id)
            for decision in self._plan.decisions
            if decision.candidate is not None
            for name, id in decision.candidate.transactions.items()
        }
        originals = load_transactions(self._connection, [id for _, id in wanted.values()])
        if self._request.atomic:
            # Of the original's type from the start: jobs of this build may judge by it.
            opened = self._open(
                [_opening(places[name], originals[id].type) for name, (_, id) in wanted.items()],
                self._request.attempt,
            )
            new = {transaction.dataset: transaction.id for transaction in opened}
        else:
            new = {name: mint_transaction() for name in wanted}
        found = [
            _Adoption(
                name=name,
                id=new[name],
                original=originals[id],
                provenance=provenance_of(
                    self._request.id,
                    decision,
                    pins_of(decision, new),
                    adopted_from=originals[id],
                ),
            )
            for name, (decision, id) in wanted.items()
        ]
        if self._request.atomic:
            bases = {transaction.dataset: transaction.version for transaction in opened}
            return new, tuple(self._stage(adoption, bases[adoption.name]) for adoption in found)
        self._publish(PublicationKind.ADOPT, [a.added_on(places[a.name]) for a in found])
        return new, ()

    def _stage(self, adoption: _Adoption, base: Version | None) -> CommitTransaction:
        version = adoption.original.version
        assert version is not None, f"{adoption.original.id} has nothing to adopt"
        stage_in(
            self._connection,
            adoption.id,
            version,
            expected=base.id if base is not None else None,
            attempt=self._request.attempt,
        )
        return CommitTransaction(
            transaction=adoption.id,
            version=version,
            type=adoption.original.type,
            provenance=adoption.provenance,
        )

    def _open_stale(
        self, places: Mapping[DatasetName, Place]
    ) -> tuple[dict[int, AttemptRef], dict[int, dict[DatasetName, TransactionId]]]:
        attempts: dict[int, AttemptRef] = {}
        transactions: dict[int, dict[DatasetName, TransactionId]] = {}
        for position, decision in enumerate(self._plan.decisions):
            if decision.state is not Decided.STALE:
                continue
            attempt = dispatch_in(
                self._connection,
                job_key(self._request.id, position),
                actor=self._request.actor,
                lease_seconds=LEASE_SECONDS,
                parent=self._request.attempt,
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
            Opener(
                actor=self._request.actor,
                lease_seconds=LEASE_SECONDS,
                attempt=attempt,
                may_write_protected=self._request.may_write_protected,
            ),
        )

    def _record(self, adopted: Mapping[DatasetName, TransactionId]) -> None:
        asked = self._plan.request
        reports = planned_reports(self._plan, adopted)
        record_build_in(
            self._connection,
            id=self._request.id,
            branch=asked.branch,
            actor=self._request.actor,
            attempt=self._request.attempt,
            # Enough to ask for the same again.
            body={
                "targets": list(asked.targets),
                "fallback": list(asked.fallback),
                "upstream": asked.upstream,
                "atomic": self._request.atomic,
                "parameters": dict(asked.parameters),
            },
            planned=[job_record(position, report) for position, report in enumerate(reports)],
        )

    def _publish(
        self, kind: PublicationKind, steps: Sequence[CreateBranch] | Sequence[AddTransaction]
    ) -> None:
        if not steps:
            return
        receipt = publish_in(
            self._connection,
            PublishRequest(
                actor=self._request.actor,
                kind=kind,
                changes=tuple(steps),
                attempt=self._request.attempt,
                may_write_protected=self._request.may_write_protected,
            ),
            mint_operation(),
        )
        if receipt.publication is not None:
            self._publications.append(receipt.publication)


@dataclass(frozen=True, kw_only=True)
class _Adoption:
    """One earlier result that becomes this build's."""

    name: DatasetName
    id: TransactionId
    original: Transaction
    provenance: Provenance

    def added_on(self, place: Place) -> AddTransaction:
        assert place.branch is not None
        return AddTransaction(
            id=self.id,
            branch=place.branch,
            expected_head=place.view,
            expected_view=place.view,
            parent=place.view,
            type=self.original.type,
            version=self.original.version,
            provenance=self.provenance,
        )


def job_key(build: BuildId, position: int) -> str:
    """The task key of a build's job."""
    return f"{build}/{position}"


def job_position(key: str) -> int:
    """Which job of its build such a key is of."""
    return int(key.rpartition("/")[2])


def opening_type(decision: Decision) -> TransactionType:
    """A job that adds starts from what its outputs hold; any other from nothing."""
    extent, spec = decision.incremental, decision.job.spec.declaration.incremental
    if extent is None or spec is None or extent.extent is not Extent.INCREMENTAL:
        return TransactionType.SNAPSHOT
    return TransactionType.APPEND if spec.strict_append else TransactionType.UPDATE


def _opening(place: Place, type: TransactionType) -> Opening:
    assert place.branch is not None
    return Opening(
        branch=place.branch,
        type=type,
        planned_view=place.view,
        planned=True,
    )
