"""Intents: an effect outside the catalog is announced here before it is made.

Phase A records the intent, B makes the effect, C publishes, D clears. An intent has an epoch and
a lease; whoever raises the epoch owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from headgate.catalog.database import Database, now
from headgate.catalog.records import BranchState, dump, lock_branches
from headgate.catalog.schema import intent_branches, intents
from headgate.errors import BranchNotFound, IntentPending, IntentTakenOver, Invalid
from headgate.model.changes import AddTransaction, IntentRef, MoveBranch, Provenance
from headgate.model.ids import (
    BranchId,
    ContentId,
    Epoch,
    Instant,
    IntentId,
    OperationId,
    TransactionId,
    VersionId,
    mint_intent,
)
from headgate.model.nouns import AttemptRef, PublicationKind, TransactionType, Version

# What an intent says: the publication it is for, and the effects outside, as JSON.


@dataclass(frozen=True, kw_only=True)
class OutsideTarget:
    """Where an effect goes, the head it was prepared on, and the effect once it is known."""

    target: Mapping[str, str]
    expected: str
    effect: str | None = None


@dataclass(frozen=True, kw_only=True)
class IntentBody:
    kind: PublicationKind
    changes: tuple[AddTransaction | MoveBranch, ...]
    outside: tuple[OutsideTarget, ...]
    attempt: AttemptRef | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "changes": [_change_to_json(change) for change in self.changes],
            "outside": [asdict(target) for target in self.outside],
            "attempt": asdict(self.attempt) if self.attempt else None,
        }


def body_from_json(data: Mapping[str, Any]) -> IntentBody:
    """Reads what `to_json` wrote; anything else is refused as a whole."""
    try:
        attempt = data["attempt"]
        return IntentBody(
            kind=PublicationKind(data["kind"]),
            changes=tuple(_change_from_json(change) for change in data["changes"]),
            outside=tuple(OutsideTarget(**target) for target in data["outside"]),
            attempt=AttemptRef(key=attempt["key"], epoch=Epoch(attempt["epoch"]))
            if attempt
            else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"an intent cannot be read: {error!r}.") from error


def _change_to_json(change: AddTransaction | MoveBranch) -> dict[str, Any]:
    data = asdict(change)
    if isinstance(change, AddTransaction):
        data["objects"] = sorted(change.objects)
    return {"change": type(change).__name__, **data}


def _change_from_json(data: Mapping[str, Any]) -> AddTransaction | MoveBranch:
    common: dict[str, Any] = {
        "branch": BranchId(data["branch"]),
        "expected_head": _transaction(data["expected_head"]),
        "expected_view": _transaction(data["expected_view"]),
    }
    if data["change"] == "MoveBranch":
        return MoveBranch(**common, to=_transaction(data["to"]))
    version = data["version"]
    return AddTransaction(
        **common,
        parent=_transaction(data["parent"]),
        type=TransactionType(data["type"]),
        version=Version(
            id=VersionId(version["id"]),
            location=version["location"],
            content_id=ContentId(version["content_id"]),
        )
        if version
        else None,
        objects=frozenset(data["objects"]),
        provenance=Provenance(**data["provenance"]),
    )


def _transaction(id: str | None) -> TransactionId | None:
    return TransactionId(id) if id is not None else None


T = TypeVar("T")

_ANY = select(intents.c.id).limit(1)


@dataclass(frozen=True, kw_only=True)
class Intent:
    ref: IntentRef
    operation: OperationId
    kind: str
    actor: str
    phase: str
    lease_until: Instant
    branches: tuple[BranchId, ...]
    # None when the stored text cannot be read: such an intent blocks its branches only.
    body: Mapping[str, Any] | None


def after_recovery(database: Database, work: Callable[[], T]) -> T:
    """Does the work; where an unfinished operation is in its way, recovers and tries again."""
    try:
        return work()
    except IntentPending:
        recover = database.recover
        if recover is None:
            raise
        # Recovery publishes too: it must not come back here.
        database.recover = None
        try:
            recover()
        finally:
            database.recover = recover
        return work()


def record_intent(
    connection: Connection,
    *,
    operation: OperationId,
    kind: str,
    actor: str,
    branches: Sequence[BranchId],
    body: Mapping[str, Any],
    lease_seconds: int,
) -> IntentRef:
    """Phase A: from here on nobody else moves these branches until the intent is settled."""
    # The door locks what it moves: whoever is in it now is over before the intent counts.
    locked = lock_branches(connection, branches)
    for id in branches:
        if id not in locked:
            raise BranchNotFound(dataset="?", branch=id)
    check_no_foreign_intent(connection, list(locked.values()), None)
    ref = IntentRef(id=mint_intent(), epoch=Epoch(1))
    moment = now(connection)
    connection.execute(
        insert(intents).values(
            id=ref.id,
            operation_id=operation,
            kind=kind,
            actor=actor,
            phase="A",
            epoch=1,
            lease_seconds=lease_seconds,
            lease_until=moment + lease_seconds * 1_000_000,
            body=dump(dict(body)),
            created_at=moment,
        )
    )
    if branches:
        connection.execute(
            insert(intent_branches), [{"intent_id": ref.id, "branch_id": b} for b in branches]
        )
    return ref


def confirm_effect(connection: Connection, ref: IntentRef, body: Mapping[str, Any]) -> None:
    """Phase B is over: the effect is there, and this is how to recognise it."""
    changed = connection.execute(
        update(intents)
        .where(intents.c.id == ref.id, intents.c.epoch == ref.epoch)
        .values(phase="B", body=dump(dict(body)))
    )
    if changed.rowcount != 1:
        raise IntentTakenOver(intent=ref.id, epoch=ref.epoch)


def renew_intent(connection: Connection, ref: IntentRef) -> None:
    moment = now(connection)
    changed = connection.execute(
        update(intents)
        .where(intents.c.id == ref.id, intents.c.epoch == ref.epoch)
        .values(lease_until=moment + intents.c.lease_seconds * 1_000_000)
    )
    if changed.rowcount != 1:
        raise IntentTakenOver(intent=ref.id, epoch=ref.epoch)


def take_over_intent(connection: Connection, intent: Intent) -> Intent | None:
    """Own an expired intent, as it is at this moment; None when somebody else was first."""
    moment = now(connection)
    changed = connection.execute(
        update(intents)
        .where(
            intents.c.id == intent.ref.id,
            intents.c.epoch == intent.ref.epoch,
            intents.c.lease_until < moment,
        )
        .values(
            epoch=intent.ref.epoch + 1,
            lease_until=moment + intents.c.lease_seconds * 1_000_000,
        )
    )
    return find_intent(connection, intent.ref.id) if changed.rowcount == 1 else None


def release_intent(connection: Connection, ref: IntentRef) -> None:
    """Keeps the intent for the next recovery, which need not wait for this one's lease."""
    connection.execute(
        update(intents)
        .where(intents.c.id == ref.id, intents.c.epoch == ref.epoch)
        .values(lease_until=now(connection) - 1)
    )


def clear_intent(connection: Connection, ref: IntentRef) -> None:
    """Phase D: settled, one way or the other."""
    changed = connection.execute(
        delete(intents).where(intents.c.id == ref.id, intents.c.epoch == ref.epoch)
    )
    if changed.rowcount != 1:
        raise IntentTakenOver(intent=ref.id, epoch=ref.epoch)
    connection.execute(delete(intent_branches).where(intent_branches.c.intent_id == ref.id))


def find_intent(connection: Connection, id: IntentId) -> Intent | None:
    """The intent, locked: a publication that is under way with it is over."""
    query = select(intents).where(intents.c.id == id).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return _to_intent(connection, row) if row else None


def list_intents(connection: Connection, on: Iterable[BranchId] | None = None) -> list[Intent]:
    query = select(intents).order_by(intents.c.created_at, intents.c.id)
    if on is not None:
        held = select(intent_branches.c.intent_id).where(
            intent_branches.c.branch_id.in_(sorted(set(on)))
        )
        query = query.where(intents.c.id.in_(held))
    return [_to_intent(connection, row) for row in connection.execute(query).mappings()]


def check_no_foreign_intent(
    connection: Connection, moved: Sequence[BranchState], own: IntentRef | None
) -> None:
    """A branch with an unsettled effect outside is moved only by the operation that made it."""
    if connection.execute(_ANY).one_or_none() is None:
        return
    for intent in list_intents(connection, [b.id for b in moved]):
        if own is None or intent.ref.id != own.id:
            held = next(b for b in moved if b.id in intent.branches)
            raise IntentPending(
                operation=intent.operation,
                branch=held.name,
                remedy="Wait for it, or run `headgate recover` once its lease has expired.",
            )


def check_own_intent(connection: Connection, ref: IntentRef) -> None:
    epoch = connection.execute(
        select(intents.c.epoch).where(intents.c.id == ref.id).with_for_update()
    ).scalar_one_or_none()
    if epoch != ref.epoch:
        raise IntentTakenOver(intent=ref.id, epoch=ref.epoch)


def _to_intent(connection: Connection, row: RowMapping) -> Intent:
    held = connection.execute(
        select(intent_branches.c.branch_id)
        .where(intent_branches.c.intent_id == row["id"])
        .order_by(intent_branches.c.branch_id)
    ).scalars()
    try:
        body = orjson.loads(row["body"])
    except orjson.JSONDecodeError:
        body = None
    return Intent(
        ref=IntentRef(id=IntentId(row["id"]), epoch=Epoch(row["epoch"])),
        operation=OperationId(row["operation_id"]),
        kind=row["kind"],
        actor=row["actor"],
        phase=row["phase"],
        lease_until=Instant(row["lease_until"]),
        branches=tuple(BranchId(id) for id in held),
        body=body if isinstance(body, dict) else None,
    )
