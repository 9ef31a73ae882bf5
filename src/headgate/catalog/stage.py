"""Staging: the working version of an OPEN transaction, fenced like publishing.

One UPDATE where the version is the expected one and the owner is the newest epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, insert, select, update

from headgate.catalog.database import Database, now
from headgate.catalog.find import load_transaction
from headgate.catalog.locks import lock_attempt
from headgate.catalog.schema import condemned_objects, transactions, working_objects
from headgate.catalog.writes import insert_versions
from headgate.errors import (
    AttemptSuperseded,
    Mismatch,
    TransactionNotOpen,
    VersionExpired,
    ViewConflict,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import TransactionId, VersionId
from headgate.model.nouns import AttemptRef, Transaction, TransactionState, Version

_CHUNK = 500


def stage_version(
    database: Database,
    transaction: TransactionId,
    version: Version,
    *,
    expected: VersionId | None,
    attempt: AttemptRef | None = None,
    objects: Iterable[str] = (),
) -> Transaction:
    """Replaces the working version if it is still the expected one; renews the lease."""
    staged = database.write(
        lambda connection: stage_in(
            connection, transaction, version, expected=expected, attempt=attempt, objects=objects
        )
    )
    reach(Failpoint.STAGE_COMMITTED)
    return staged


def stage_in(
    connection: Connection,
    transaction: TransactionId,
    version: Version,
    *,
    expected: VersionId | None,
    attempt: AttemptRef | None = None,
    objects: Iterable[str] = (),
) -> Transaction:
    if attempt is not None:
        lock_attempt(connection, attempt)
    moment = now(connection)
    dataset = load_transaction(connection, transaction).dataset_id
    insert_versions(connection, [(dataset, version)], moment)
    changed = connection.execute(
        update(transactions)
        .where(
            transactions.c.id == transaction,
            transactions.c.state == TransactionState.OPEN,
            transactions.c.version_id.is_not_distinct_from(expected),
            transactions.c.attempt_key.is_not_distinct_from(attempt.key if attempt else None),
            transactions.c.attempt_epoch.is_not_distinct_from(attempt.epoch if attempt else None),
        )
        .values(
            version_id=version.id,
            lease_until=moment + transactions.c.lease_seconds * 1_000_000,
        )
    )
    found = load_transaction(connection, transaction)
    if changed.rowcount != 1:
        raise _refusal(found, expected, attempt)
    _use_objects(connection, transaction, sorted(set(objects)))
    reach(Failpoint.STAGE_APPLIED)
    return found


def _use_objects(connection: Connection, transaction: TransactionId, objects: list[str]) -> None:
    """Notes which stored objects the transaction re-uses, so that the door can check them."""
    for start in range(0, len(objects), _CHUNK):
        part = objects[start : start + _CHUNK]
        condemned = connection.execute(
            select(condemned_objects.c.location)
            .where(condemned_objects.c.location.in_(part))
            .limit(1)
        ).scalar_one_or_none()
        if condemned is not None:
            raise VersionExpired(what=f"object {condemned}")
        known = set(
            connection.execute(
                select(working_objects.c.location).where(
                    working_objects.c.transaction_id == transaction,
                    working_objects.c.location.in_(part),
                )
            ).scalars()
        )
        rows = [
            {"transaction_id": transaction, "location": location}
            for location in part
            if location not in known
        ]
        if rows:
            connection.execute(insert(working_objects), rows)


def _refusal(
    found: Transaction, expected: VersionId | None, attempt: AttemptRef | None
) -> Exception:
    if found.state is not TransactionState.OPEN:
        return TransactionNotOpen(transaction=found.id, state=found.state)
    if found.attempt != attempt:
        return AttemptSuperseded(
            key=found.attempt.key if found.attempt else found.id,
            epoch=attempt.epoch if attempt else 0,
            newest=found.attempt.epoch if found.attempt else 0,
            state="not the owner",
        )
    actual = found.version.id if found.version else None
    return ViewConflict(
        [
            Mismatch(
                dataset=str(found.dataset),
                branch=found.branch,
                field="working version",
                expected=expected,
                actual=actual,
            )
        ]
    )
