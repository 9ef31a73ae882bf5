"""Recovery: settles what crashed owners left, once, and leaves an audit trail.

It decides here; effects outside are handed in. It touches only expired intents, and takes each
over first, so that two recoveries, or a recovery and an owner that was only slow, cannot both act.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection, insert, select

from headgate.catalog.builds import settle_builds, settle_units
from headgate.catalog.database import Database, now
from headgate.catalog.intents import (
    Intent,
    IntentBody,
    OutsideTarget,
    body_from_json,
    clear_intent,
    list_intents,
    release_intent,
    renew_intent,
    take_over_intent,
)
from headgate.catalog.operations import find_receipt
from headgate.catalog.publish import publish
from headgate.catalog.records import (
    abandonment,
    branches_with_head,
    dump,
    lock_branches,
    lock_transactions,
)
from headgate.catalog.schema import recoveries, transactions
from headgate.catalog.transactions import abort_in, record_event
from headgate.catalog.workspaces import WORKSPACE, record_landing
from headgate.errors import HeadgateError, IntentTakenOver, Invalid, Unavailable
from headgate.model.changes import PublishRequest
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant, PublicationNumber, TransactionId, mint
from headgate.model.nouns import TransactionState
from headgate.model.ports import Outside
from headgate.model.recovery import (
    RECOVERY_ACTOR,
    Classification,
    Decision,
    Landing,
    OutsideState,
    classify,
    decide,
)

# Why an intent is left alone that needs nobody: its owner is still at work on it.
OWNER_ALIVE = "its owner is alive"


@dataclass(kw_only=True)
class Recovered:
    """What one recovery did, by operation and transaction."""

    rolled_forward: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    aborted_transactions: list[str] = field(default_factory=list)
    # Operation and reason: those that a person, or a later recovery, must look at.
    kept: list[dict[str, str]] = field(default_factory=list)


def recover(
    database: Database,
    systems: Mapping[str, Outside],
    *,
    forward_only: bool = False,
    dry_run: bool = False,
) -> Recovered:
    """Settles every expired intent and aborts abandoned transactions; a second one does nothing."""
    done = Recovered()
    pending, moment = database.read(lambda c: (list_intents(c), now(c)))
    for intent in pending:
        if intent.lease_until >= moment:
            _keep(done, intent, OWNER_ALIVE)
            continue
        try:
            _settle(database, intent, systems, done, forward_only=forward_only, dry_run=dry_run)
        except IntentTakenOver:
            # A recovery that overtook this one settles it.
            continue
        except Unavailable as error:
            # An outside that does not answer must not keep the whole store from being opened.
            _keep(done, intent, error.message)
    for id in database.read(_abandoned):
        if dry_run or database.write(partial(_abort_abandoned, id=id)):
            done.aborted_transactions.append(id)
    if not dry_run:
        settle_builds(database, actor=RECOVERY_ACTOR)
        settle_units(database, actor=RECOVERY_ACTOR)
    return done


@dataclass(frozen=True, kw_only=True)
class _Finding:
    """What an intent and its outside say at one moment."""

    body: IntentBody
    classes: tuple[Classification, ...]
    decision: Decision

    def why_keep(self, *, forward_only: bool) -> str | None:
        if self.decision is Decision.STOP:
            return ", ".join(self.classes)
        if forward_only and self.decision is Decision.ROLL_BACK:
            return "a server only rolls forward"
        return None


def _settle(
    database: Database,
    intent: Intent,
    systems: Mapping[str, Outside],
    done: Recovered,
    *,
    forward_only: bool,
    dry_run: bool,
) -> None:
    outside = systems.get(intent.kind)
    if outside is None:
        return _keep(done, intent, f"nothing here knows {intent.kind!r}")
    if intent.kind == WORKSPACE:
        return _settle_workspace(database, intent, outside, done, dry_run=dry_run)
    try:
        finding = _look(database, intent, outside)
    except Invalid:
        return _keep(done, intent, "it cannot be read")
    why = finding.why_keep(forward_only=forward_only)
    if why is not None:
        return _keep(done, intent, why)
    if dry_run:
        return _list_for(finding.decision, done).append(intent.operation)
    mine = database.write(lambda c: take_over_intent(c, intent))
    if mine is None:
        return None
    reach(Failpoint.RECOVERY_TAKEN_OVER)
    # Its owner may have gone on until this moment: only what is seen from here on counts.
    finding = _look(database, mine, outside)
    reach(Failpoint.RECOVERY_CLASSIFIED)
    why = finding.why_keep(forward_only=forward_only)
    if why is None:
        why = _carry_out(database, mine, outside, finding, done, forward_only=forward_only)
    if why is not None:
        database.write(lambda c: release_intent(c, mine.ref))
        _keep(done, mine, why)
    return None


def _settle_workspace(
    database: Database, intent: Intent, outside: Outside, done: Recovered, *, dry_run: bool
) -> None:
    if dry_run:
        return _keep(done, intent, "where its workspace landed would be recorded")
    landing = record_landing(database, intent, outside)
    if landing is Landing.LANDED:
        done.rolled_forward.append(intent.operation)
    elif landing is Landing.NOT_LANDED:
        done.rolled_back.append(intent.operation)
    return None


def _look(database: Database, intent: Intent, outside: Outside) -> _Finding:
    if intent.body is None:
        raise Invalid(f"the intent of operation {intent.operation} is not JSON.")
    body = body_from_json(intent.body)
    classes = tuple(_classify(target, outside) for target in body.outside)
    published = database.read(lambda c: find_receipt(c, intent.operation)) is not None
    decision = Decision.ROLL_FORWARD if published else decide(classes)
    return _Finding(body=body, classes=classes, decision=decision)


def _carry_out(
    database: Database,
    intent: Intent,
    outside: Outside,
    finding: _Finding,
    done: Recovered,
    *,
    forward_only: bool,
) -> str | None:
    """Does what was decided; or says why the intent must be kept."""
    decision = finding.decision
    publication: PublicationNumber | None = None
    if decision is Decision.ROLL_FORWARD:
        try:
            publication = _publish(database, intent, finding.body)
        except (IntentTakenOver, Unavailable):
            raise
        except HeadgateError as refusal:
            if forward_only:
                return refusal.message
            decision = Decision.ROLL_BACK
    if decision is Decision.ROLL_BACK:
        # Asked once more right before the outside is touched: is it still ours to undo?
        database.write(lambda c: renew_intent(c, intent.ref))
        if not undo_all(finding.body.outside, outside):
            return "its effect is buried"
    reach(Failpoint.RECOVERY_UNDONE)
    database.write(lambda c: _close(c, intent, finding, decision, publication))
    reach(Failpoint.RECOVERY_SETTLED)
    _list_for(decision, done).append(intent.operation)
    return None


def _publish(database: Database, intent: Intent, body: IntentBody) -> PublicationNumber | None:
    """Phase C in the owner's place: its operation id and actor, published by recovery."""
    known = database.read(lambda c: find_receipt(c, intent.operation))
    if known is not None:
        return known.publication
    request = PublishRequest(
        actor=RECOVERY_ACTOR,
        on_behalf_of=intent.actor,
        kind=body.kind,
        changes=body.changes,
        attempt=body.attempt,
        intent=intent.ref,
        may_write_protected=True,
    )
    return publish(database, request, operation=intent.operation).publication


def _close(
    connection: Connection,
    intent: Intent,
    finding: _Finding,
    decision: Decision,
    publication: PublicationNumber | None,
) -> None:
    """Audit row, ledger event and Phase D in one unit: all three, or recovery comes again."""
    moment = now(connection)
    clear_intent(connection, intent.ref)
    outcomes = [
        {
            "target": dict(target.target),
            "class": found,
            "outcome": decision,
            "restored_to": target.expected if decision is Decision.ROLL_BACK else None,
        }
        for target, found in zip(finding.body.outside, finding.classes, strict=True)
    ]
    _audit(
        connection,
        at=moment,
        kind=decision,
        original_actor=intent.actor,
        operation=intent.operation,
        publication=publication,
        outcomes=outcomes,
    )
    record_event(
        connection,
        at=moment,
        actor=RECOVERY_ACTOR,
        kind=decision,
        operation=intent.operation,
        original_actor=intent.actor,
        publication=publication,
    )


def _audit(
    connection: Connection,
    *,
    at: Instant,
    kind: str,
    original_actor: str,
    operation: str,
    publication: PublicationNumber | None,
    outcomes: Sequence[Mapping[str, object]],
) -> None:
    connection.execute(
        insert(recoveries).values(
            id=mint("r"),
            kind=kind,
            original_actor=original_actor,
            operation_id=operation,
            publication=publication,
            outcomes=dump(list(outcomes)),
            at=at,
        )
    )


def undo_all(targets: Sequence[OutsideTarget], outside: Outside) -> bool:
    """Undoes the effects that were made, if each still is its outside's head; else none of them."""
    made: list[tuple[OutsideTarget, str]] = []
    for target in targets:
        head = outside.find_head(target.target)
        if head == target.expected:
            continue
        if target.effect is None or head != target.effect:
            return False
        made.append((target, target.effect))
    return all(
        outside.undo(target.target, effect=effect, back_to=target.expected)
        for target, effect in made
    )


def _classify(target: OutsideTarget, outside: Outside) -> Classification:
    return classify(
        OutsideState(
            expected=target.expected,
            effect=target.effect,
            head=outside.find_head(target.target),
            steps_past_expected=outside.steps_past(target.target, target.expected),
        )
    )


def _keep(done: Recovered, intent: Intent, why: str) -> None:
    done.kept.append({"operation": intent.operation, "why": why})


def _list_for(decision: Decision, done: Recovered) -> list[str]:
    return done.rolled_forward if decision is Decision.ROLL_FORWARD else done.rolled_back


def _abandoned(connection: Connection) -> list[TransactionId]:
    moment = now(connection)
    query = select(transactions.c.id).where(
        transactions.c.state == TransactionState.OPEN,
        transactions.c.lease_until < moment - abandonment(transactions.c.lease_seconds),
    )
    return [TransactionId(id) for id in connection.execute(query).scalars()]


def _abort_abandoned(connection: Connection, id: TransactionId) -> bool:
    """Aborts it unless its owner, or somebody else, came back to it meanwhile."""
    lock_branches(connection, branches_with_head(connection, [id]))
    found = lock_transactions(connection, [id])
    if id not in _abandoned(connection):
        return False
    abort_in(connection, [id], actor=RECOVERY_ACTOR, kind="abandoned")
    gone = found[id]
    _audit(
        connection,
        at=now(connection),
        kind="abort",
        original_actor=gone.actor,
        # Nobody published anything: the transaction is all there is to name.
        operation=id,
        publication=None,
        outcomes=[
            {
                "target": {"dataset": str(gone.dataset), "branch": gone.branch},
                "outcome": "aborted",
                "restored_to": gone.parent,
            }
        ],
    )
    return True
