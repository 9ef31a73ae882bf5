"""Operations: what makes a repeated request give the first answer again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from headgate.catalog.database import Database, now
from headgate.catalog.rows import dump, load
from headgate.catalog.schema import moves, operations, publications
from headgate.errors import HeadgateError, IdempotencyKeyReused
from headgate.model.changes import OperationKey, Receipt
from headgate.model.ids import Instant, OperationId, PublicationNumber

T = TypeVar("T")

_KEPT_US = 30 * 24 * 3600 * 1_000_000


def do_once(database: Database, key: OperationKey | None, act: Callable[[], T]) -> T | Receipt:
    """Acts, or gives the receipt of the same request, whatever the branches look like by now.

    The door looks at the key too, but only after the request was prepared; a repeated one often
    cannot be prepared any more: the branch exists already, or is gone.
    """
    if key is None:
        return act()
    recorded = database.read(lambda connection: find_by_key(connection, key))
    if recorded is not None:
        return recorded
    try:
        return act()
    except HeadgateError:
        # The same request may have come first while this one was being prepared.
        recorded = database.read(lambda connection: find_by_key(connection, key))
        if recorded is None:
            raise
        return recorded


def claim_operation(
    connection: Connection, operation: OperationId, key: OperationKey
) -> Receipt | None:
    """Takes the key for this operation, or gives the receipt of the one that had it first.

    A second request with the same key waits here for the first one to end.
    """
    recorded = find_by_key(connection, key)
    if recorded is not None:
        return recorded
    unfinished = connection.execute(_by_key(key)).mappings().one_or_none()
    if unfinished is not None:
        connection.execute(delete(operations).where(operations.c.id == unfinished["id"]))
    connection.execute(
        insert(operations).values(
            id=operation,
            principal=key.principal,
            kind=key.kind,
            branch=key.branch,
            key=key.key,
            request_hash=key.request_hash,
            state="done",
            at=now(connection),
        )
    )
    return None


def find_by_key(connection: Connection, key: OperationKey) -> Receipt | None:
    """The receipt recorded under a key; a different request under it is refused."""
    row = connection.execute(_by_key(key)).mappings().one_or_none()
    if row is None or row["state"] != "done":
        return None
    if row["request_hash"] != key.request_hash:
        raise IdempotencyKeyReused(key=key.key)
    return _receipt(row)


def begin_operation(connection: Connection, operation: OperationId, key: OperationKey) -> None:
    """Notes that work on a key is under way, for those who ask; it reserves nothing."""
    if connection.execute(_by_key(key)).one_or_none() is None:
        connection.execute(
            insert(operations).values(
                id=operation,
                principal=key.principal,
                kind=key.kind,
                branch=key.branch,
                key=key.key,
                request_hash=key.request_hash,
                state="in_progress",
                at=now(connection),
            )
        )


def record_outcome(
    connection: Connection,
    operation: OperationId,
    publication: PublicationNumber | None,
    at: Instant,
    moved: Mapping[str, str | None],
) -> None:
    connection.execute(
        update(operations)
        .where(operations.c.id == operation)
        .values(publication=publication, at=at, receipt=dump(dict(moved)))
    )


def find_operations(
    connection: Connection, key: str, *, branch: str | None = None, kind: str | None = None
) -> list[dict[str, Any]]:
    """Every operation known under a key: `{"operation", "state", "publication", …}`."""
    query = select(operations).where(operations.c.key == key).order_by(operations.c.at)
    if branch is not None:
        query = query.where(operations.c.branch == branch)
    if kind is not None:
        query = query.where(operations.c.kind == kind)
    return [
        {
            "operation": row["id"],
            "state": "committed" if row["state"] == "done" else "in_progress",
            "publication": row["publication"],
            "kind": row["kind"],
            "branch": row["branch"],
        }
        for row in connection.execute(query).mappings()
    ]


def find_receipt(connection: Connection, operation: OperationId) -> Receipt | None:
    """The receipt of an operation that was published, by its id."""
    row = (
        connection.execute(select(publications).where(publications.c.operation_id == operation))
        .mappings()
        .one_or_none()
    )
    if row is None:
        return None
    moved = connection.execute(
        select(moves.c.branch_id, moves.c.to_id).where(moves.c.publication == row["number"])
    )
    return Receipt(
        operation=operation,
        publication=PublicationNumber(row["number"]),
        at=Instant(row["at"]),
        transactions={row.branch_id: row.to_id for row in moved},
    )


def forget_old_operations(connection: Connection) -> int:
    """Operations are kept for 30 days."""
    result = connection.execute(
        delete(operations).where(operations.c.at < now(connection) - _KEPT_US)
    )
    return result.rowcount


def _by_key(key: OperationKey) -> Any:
    return select(operations).where(
        operations.c.principal == key.principal,
        operations.c.kind == key.kind,
        operations.c.branch == key.branch,
        operations.c.key == key.key,
    )


def _receipt(row: RowMapping) -> Receipt:
    return Receipt(
        operation=OperationId(row["id"]),
        publication=(
            PublicationNumber(row["publication"]) if row["publication"] is not None else None
        ),
        at=Instant(row["at"]),
        transactions=load(row["receipt"] or "{}"),
        replayed=True,
    )
