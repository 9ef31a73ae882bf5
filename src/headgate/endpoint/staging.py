"""Writes inside a unit or a job: into working versions, which nobody else sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.catalog.database import Connection, Database, now
from headgate.catalog.find import load_transaction
from headgate.catalog.locks import lock_attempt
from headgate.catalog.operations import claim_operation, record_outcome
from headgate.catalog.stage import stage_in
from headgate.catalog.transactions import renew_transactions
from headgate.catalog.units import Unit, open_in_unit, renew_unit, renew_unit_in
from headgate.endpoint.datasets import find_or_create
from headgate.endpoint.ports import Principal, TableChange
from headgate.endpoint.resolving import load_open, load_scope
from headgate.errors import (
    CommitInterrupted,
    JobWriteDenied,
    Mismatch,
    OutcomeUnknown,
    TransactionNotOpen,
    ViewConflict,
)
from headgate.model.changes import OperationKey, Receipt
from headgate.model.contexts import JobContext, UnitContext
from headgate.model.ids import mint_operation, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import Transaction, TransactionState, Version


def write_once(
    database: Database,
    key: OperationKey | None,
    work: Callable[[Connection], Mapping[str, str | None]],
) -> Receipt:
    """Does work that is no publication, once for each key; it says which transactions it moved."""
    id = mint_operation()

    def unit(connection: Connection) -> Receipt:
        if key is not None and (recorded := claim_operation(connection, id, key)) is not None:
            return recorded
        moved = dict(work(connection))
        at = now(connection)
        if key is not None:
            record_outcome(connection, id, None, at, moved)
        return Receipt(operation=id, publication=None, at=at, transactions=moved)

    try:
        return database.write(unit)
    except CommitInterrupted as error:
        raise OutcomeUnknown(operation=id) from error


def stage_changes(
    connection: Connection,
    principal: Principal,
    context: UnitContext | JobContext,
    changes: Sequence[TableChange],
) -> dict[str, str | None]:
    """Moves the working versions, all or none; the transactions that hold them, by branch id."""
    if principal.attempt is not None:
        # First of all: a superseded attempt hears that, whatever else would be wrong.
        lock_attempt(connection, principal.attempt)
    staged: dict[str, str | None] = {}
    for change in changes:
        transaction = (
            _job_output(connection, context, change.name)
            if isinstance(context, JobContext)
            else _unit_transaction(connection, principal, context, change)
        )
        _check_base(transaction, change)
        stage_in(
            connection,
            transaction.id,
            Version(id=mint_version(), location=change.location, content_id=change.content_id),
            expected=transaction.version.id if transaction.version else None,
            attempt=principal.attempt,
        )
        staged[transaction.branch_id] = transaction.id
    return staged


def renew_if_due(database: Database, context: UnitContext) -> None:
    """A read is a use too, and renews the lease; but only one in its second half costs a write."""

    def look(connection: Connection) -> tuple[Unit | Transaction, bool]:
        found = load_open(connection, context)
        left_us = (found.lease_until or 0) - now(connection)
        return found, left_us < (found.lease_seconds or 0) * 500_000

    found, is_due = database.read(look)
    if is_due and isinstance(found, Unit):
        renew_unit(database, found.id)
    elif is_due and isinstance(found, Transaction):
        renew_transactions(database, [found.id])


def _check_base(transaction: Transaction, change: TableChange) -> None:
    if transaction.state is not TransactionState.OPEN:
        raise TransactionNotOpen(transaction=transaction.id, state=transaction.state)
    expected = change.base.location if change.base else None
    actual = transaction.version.location if transaction.version else None
    if actual != expected:
        raise ViewConflict(
            [
                Mismatch(
                    dataset=str(change.name),
                    branch=transaction.branch,
                    field="working version",
                    expected=expected,
                    actual=actual,
                )
            ]
        )


def _job_output(connection: Connection, context: JobContext, name: DatasetName) -> Transaction:
    outputs = load_scope(connection, context)["outputs"]
    if str(name) not in outputs:
        raise JobWriteDenied(job=context.id, dataset=str(name), outputs=sorted(outputs))
    return load_transaction(connection, outputs[str(name)])


def _unit_transaction(
    connection: Connection, principal: Principal, context: UnitContext, change: TableChange
) -> Transaction:
    """The unit's transaction on the dataset, opened at its first write."""
    found = load_open(connection, context)
    if isinstance(found, Transaction):
        if found.dataset != change.name:
            raise JobWriteDenied(
                job=str(context), dataset=str(change.name), outputs=[str(found.dataset)]
            )
        return found
    opened = open_in_unit(connection, found, find_or_create(connection, principal, change))
    renew_unit_in(connection, found.id)
    return opened
