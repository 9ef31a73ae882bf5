"""Operations: receipts by idempotency key.

A repeated request returns the receipt of the first one. Work in progress is recorded for status
queries only.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa

from headgate.catalog.database import NOW, Database, insert_into, now
from headgate.catalog.records import dump, filtered, load
from headgate.catalog.schema import moves, operations, publications
from headgate.errors import HeadgateError, IdempotencyKeyReused
from headgate.model.changes import OperationKey, Receipt, is_same_request
from headgate.model.ids import Instant, OperationId, PublicationNumber

T = TypeVar("T")

_KEPT_US = 30 * 24 * 3600 * 1_000_000
# The process that works on a key renews it four times as often.
_SILENT_US = 60 * 1_000_000
# Built once: constructing a statement costs more than running it.
_BY_KEY = sa.select(operations).where(
    operations.c.principal == sa.bindparam("the_principal"),
    operations.c.kind == sa.bindparam("the_kind"),
    operations.c.branch == sa.bindparam("the_branch"),
    operations.c.key == sa.bindparam("the_key"),
)
_OUTCOME = (
    sa.update(operations)
    .where(operations.c.id == sa.bindparam("the_id"))
    .values(
        publication=sa.bindparam("the_publication"),
        at=sa.bindparam("the_time"),
        receipt=sa.bindparam("the_receipt"),
    )
)


def do_once(database: Database, key: OperationKey | None, act: Callable[[], T]) -> T | Receipt:
    """Run `act`, or return the recorded receipt of the same request.

    The door checks the key too, but only after the request was prepared. A repeated request often
    cannot be prepared again: the branch exists already, or is gone.
    """
    if key is None:
        return act()
    recorded = database.read(lambda connection: find_by_key(connection, key))
    if recorded is not None:
        return recorded
    try:
        return act()
    except HeadgateError:
        # The same request may have been published while this one was being prepared.
        recorded = database.read(lambda connection: find_by_key(connection, key))
        if recorded is None:
            raise
        return recorded


def claim_operation(
    connection: sa.Connection, operation: OperationId, key: OperationKey
) -> Receipt | None:
    """Claim the key for this operation, or return the receipt of the operation that has it.

    A second request with the same key waits here for the first one to end.
    """
    while not _add(connection, operation, key, state="done"):
        if recorded := find_by_key(connection, key):
            return recorded
        forget_operation(connection, key)
    return None


def find_by_key(connection: sa.Connection, key: OperationKey) -> Receipt | None:
    """Return the receipt recorded under a key; raise if it belongs to a different request."""
    wanted = {f"the_{name}": value for name, value in vars(key).items()}
    return _recorded(connection.execute(_BY_KEY, wanted).mappings().one_or_none(), key)


def begin_operation(connection: sa.Connection, operation: OperationId, key: OperationKey) -> None:
    """Record that work on a key is in progress, for status queries; this reserves nothing."""
    if not _add(connection, operation, key, state="in_progress"):
        renew_operation(connection, key)


def renew_operation(connection: sa.Connection, key: OperationKey) -> None:
    """Renew the record of work on a key; without renewal it no longer counts as in progress."""
    connection.execute(sa.update(operations).where(*_unfinished(key)).values(at=now(connection)))


def forget_operation(connection: sa.Connection, key: OperationKey) -> None:
    """Delete the record of work that ended without an outcome, so that no client waits for one."""
    connection.execute(sa.delete(operations).where(*_unfinished(key)))


def record_outcome(
    connection: sa.Connection,
    operation: OperationId,
    publication: PublicationNumber | None,
    at: Instant,
    moved: Mapping[str, str | None],
) -> None:
    connection.execute(
        _OUTCOME,
        {
            "the_id": operation,
            "the_publication": publication,
            "the_time": at,
            "the_receipt": dump(dict(moved)),
        },
    )


def find_operations(
    connection: sa.Connection, key: str, *, branch: str | None = None, kind: str | None = None
) -> list[dict[str, Any]]:
    """Return every operation recorded under a key: `{"operation", "state", "publication", …}`."""
    silent_since = now(connection) - _SILENT_US

    def state(row: sa.RowMapping) -> str:
        if row["state"] == "done":
            return "committed"
        # Its process has ended or is suspended; if it resumes, the door still decides.
        return "in_progress" if row["at"] >= silent_since else "not_committed"

    query = sa.select(operations).where(operations.c.key == key).order_by(operations.c.at)
    query = filtered(query, {operations.c.branch: branch, operations.c.kind: kind})
    return [
        {
            "operation": row["id"],
            "state": state(row),
            "publication": row["publication"],
            "kind": row["kind"],
            "branch": row["branch"],
        }
        for row in connection.execute(query).mappings()
    ]


def find_receipt(connection: sa.Connection, operation: OperationId) -> Receipt | None:
    """Return the receipt of a published operation by its id; None if it was not published."""
    query = sa.select(publications).where(publications.c.operation_id == operation)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    moved = connection.execute(
        sa.select(moves.c.branch_id, moves.c.to_id).where(moves.c.publication == row["number"])
    )
    return Receipt(
        operation=operation,
        publication=PublicationNumber(row["number"]),
        at=Instant(row["at"]),
        transactions={row.branch_id: row.to_id for row in moved},
    )


def forget_old_operations(connection: sa.Connection) -> int:
    """Delete operations older than 30 days; return their number."""
    result = connection.execute(
        sa.delete(operations).where(operations.c.at < now(connection) - _KEPT_US)
    )
    return result.rowcount


def _add(
    connection: sa.Connection, operation: OperationId, key: OperationKey, *, state: str
) -> bool:
    """Record an operation under its key; return whether there was none."""
    by_key = [operations.c.principal, operations.c.kind, operations.c.branch, operations.c.key]
    added = connection.execute(
        insert_into(operations, connection.dialect.name)
        .on_conflict_do_nothing(index_elements=by_key)
        .values(
            id=operation,
            **vars(key),
            state=state,
            at=NOW[connection.dialect.name].columns(at=sa.BigInteger).scalar_subquery(),
        ),
        execution_options={"preserve_rowcount": True},
    )
    return added.rowcount == 1


def _recorded(row: sa.RowMapping | None, key: OperationKey) -> Receipt | None:
    if row is None or row["state"] != "done":
        return None
    if not is_same_request(row["request_hash"], key.request_hash):
        raise IdempotencyKeyReused(key=key.key)
    number = row["publication"]
    return Receipt(
        operation=OperationId(row["id"]),
        publication=PublicationNumber(number) if number is not None else None,
        at=Instant(row["at"]),
        transactions=load(row["receipt"] or "{}"),
        replayed=True,
    )


def _unfinished(key: OperationKey) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        operations.c.principal == key.principal,
        operations.c.kind == key.kind,
        operations.c.branch == key.branch,
        operations.c.key == key.key,
        operations.c.state == "in_progress",
    )
