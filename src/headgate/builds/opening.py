"""Opening a build: one SQL transaction for all that it will write, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.builds.plan import Place, Plan, make_plan
from headgate.catalog.attempts import dispatch_in
from headgate.catalog.database import Connection, Database
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.find import load_transactions
from headgate.catalog.locks import lock_attempt
from headgate.catalog.publish import publish_in
from headgate.catalog.transactions import Opener, Opening, open_in
from headgate.errors import PlanChanged
from headgate.model.changes import (
    AddTransaction,
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
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    AttemptRef,
    PublicationKind,
    Transaction,
    TransactionType,
)

LEASE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class OpenedBuild:
    """What a build holds once it is open."""

    id: BuildId
    plan: Plan
    attempt: AttemptRef
    # By position of the job: its first attempt, and its outputs' transactions.
    attempts: Mapping[int, AttemptRef]
    transactions: Mapping[int, Mapping[DatasetName, TransactionId]]
    publications: tuple[PublicationNumber, ...]
    # Branches that this build made: deleted again if nothing is committed on them.
    created: tuple[BranchId, ...]


def open_build(
    database: Database,
    plan: Plan,
    *,
    id: BuildId,
    attempt: AttemptRef,
    actor: str,
    may_write_protected: bool,
) -> OpenedBuild:
    """Makes missing branches, publishes what is adopted, opens what is stale; all or none."""
    opened = database.write(
        lambda connection: _Opening(
            connection, plan, id, attempt, actor, may_write_protected
        ).all_or_none()
    )
    reach(Failpoint.OPEN_COMMITTED)
    return opened


class _Opening:
    """The steps of one opening, inside one unit of work."""

    def __init__(
        self,
        connection: Connection,
        plan: Plan,
        id: BuildId,
        attempt: AttemptRef,
        actor: str,
        may_write_protected: bool,
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._id = id
        self._attempt = attempt
        self._actor = actor
        self._may_write_protected = may_write_protected
        self._publications: list[PublicationNumber] = []

    def all_or_none(self) -> OpenedBuild:
        lock_attempt(self._connection, self._attempt)
        if not make_plan(self._connection, self._plan.request).same_as(self._plan):
            raise PlanChanged(reason="branches, pins or JobSpecs moved since it was made")
        places, created = self._make_branches()
        self._adopt(places)
        attempts, transactions = self._open(places)
        return OpenedBuild(
            id=self._id,
            plan=self._plan,
            attempt=self._attempt,
            attempts=attempts,
            transactions=transactions,
            publications=tuple(self._publications),
            created=created,
        )

    def _make_branches(self) -> tuple[dict[DatasetName, Place], tuple[BranchId, ...]]:
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
                    self._connection, name, kind=kinds[name], branch=None, actor=self._actor
                ).id
            if place.branch is None:
                step = self._creation(dataset, place)
                steps.append(step)
                places[name] = replace(place, dataset=dataset, branch=step.id, view=step.view)
        self._publish(PublicationKind.CREATE, steps)
        return places, tuple(step.id for step in steps)

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
            build=self._id,
        )

    def _adopt(self, places: Mapping[DatasetName, Place]) -> None:
        adopted = [d for d in self._plan.decisions if d.candidate is not None]
        originals = load_transactions(
            self._connection,
            [id for d in adopted if d.candidate for id in d.candidate.transactions.values()],
        )
        new = {name: mint_transaction() for d in adopted for name in d.job.outputs}
        steps = [
            self._adoption(places[name], decision, originals[id], name, new)
            for decision in adopted
            if decision.candidate
            for name, id in decision.candidate.transactions.items()
        ]
        self._publish(PublicationKind.ADOPT, steps)

    def _adoption(
        self,
        place: Place,
        decision: Decision,
        original: Transaction,
        name: DatasetName,
        new: Mapping[DatasetName, TransactionId],
    ) -> AddTransaction:
        assert place.branch is not None
        return AddTransaction(
            id=new[name],
            branch=place.branch,
            expected_head=place.view,
            expected_view=place.view,
            parent=place.view,
            type=original.type,
            version=original.version,
            provenance=provenance_of(
                self._id, decision, _pins(decision, new), adopted_from=original
            ),
        )

    def _open(
        self, places: Mapping[DatasetName, Place]
    ) -> tuple[dict[int, AttemptRef], dict[int, dict[DatasetName, TransactionId]]]:
        attempts: dict[int, AttemptRef] = {}
        transactions: dict[int, dict[DatasetName, TransactionId]] = {}
        for position, decision in enumerate(self._plan.decisions):
            if decision.state is not Decided.STALE:
                continue
            attempt = dispatch_in(
                self._connection,
                job_key(self._id, position),
                actor=self._actor,
                lease_seconds=LEASE_SECONDS,
                parent=self._attempt,
            ).ref
            opened = open_in(
                self._connection,
                [_opening(places[name]) for name in decision.job.outputs],
                Opener(
                    actor=self._actor,
                    lease_seconds=LEASE_SECONDS,
                    attempt=attempt,
                    may_write_protected=self._may_write_protected,
                ),
            )
            attempts[position] = attempt
            transactions[position] = {t.dataset: t.id for t in opened}
        return attempts, transactions

    def _publish(
        self, kind: PublicationKind, steps: Sequence[CreateBranch] | Sequence[AddTransaction]
    ) -> None:
        if not steps:
            return
        receipt = publish_in(
            self._connection,
            PublishRequest(
                actor=self._actor,
                kind=kind,
                changes=tuple(steps),
                attempt=self._attempt,
                may_write_protected=self._may_write_protected,
            ),
            mint_operation(),
        )
        if receipt.publication is not None:
            self._publications.append(receipt.publication)


def job_key(build: BuildId, position: int) -> str:
    """The task key of a build's job."""
    return f"{build}/{position}"


def provenance_of(
    build: BuildId,
    decision: Decision,
    inputs: Sequence[Mapping[str, Any]],
    *,
    adopted_from: Transaction | None = None,
    checks: Sequence[Mapping[str, Any]] = (),
) -> Provenance:
    """What a built transaction says of itself; freshness and adoption compare its keys."""
    made_from = decision.made_from
    assert made_from is not None, "a job is committed only once all its inputs are known"
    source = decision.job.spec.source
    facts: dict[str, Any] = {
        "build": build,
        "job": decision.job.spec.title,
        "jobspec_branch": decision.job.jobspec_branch,
        "commit": source.commit,
        "clean": source.clean,
        "fingerprint": made_from.to_json(),
        "inputs": list(inputs),
    }
    if adopted_from is not None:
        facts["adopted_from"] = {
            "transaction": adopted_from.id,
            "branch": adopted_from.branch,
        }
    if checks:
        facts["checks"] = list(checks)
    return Provenance(
        inputs_key=made_from.inputs_key,
        build_key=made_from.build_key,
        adoptable=source.clean,
        facts=facts,
    )


def _pins(
    decision: Decision, new: Mapping[DatasetName, TransactionId]
) -> list[dict[str, str | None]]:
    """What an adopted job reads: views as planned, or what this very build adopts."""
    return [
        {
            "dataset": str(given.dataset),
            "branch": given.branch,
            "transaction": given.transaction or new.get(given.dataset),
        }
        for given in decision.inputs
    ]


def _opening(place: Place) -> Opening:
    assert place.branch is not None
    return Opening(
        branch=place.branch,
        type=TransactionType.SNAPSHOT,
        planned_view=place.view,
        planned=True,
    )
