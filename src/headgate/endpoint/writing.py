"""Writes that arrive over Iceberg REST: on a branch a publication, in a unit or job a staging."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.catalog.database import Connection, Database
from headgate.catalog.find import branches_named, find_transaction, load_transactions
from headgate.catalog.operations import do_once, find_by_key
from headgate.catalog.publish import publish_prepared
from headgate.endpoint.datasets import find_or_create
from headgate.endpoint.ports import Idempotency, Principal, ServedTable, TableChange
from headgate.endpoint.resolving import first_with_view, serve
from headgate.endpoint.staging import stage_changes, write_once
from headgate.errors import (
    BranchExists,
    ContextReadOnly,
    Mismatch,
    OutcomeUnknown,
    ViewConflict,
)
from headgate.model.adding import add_on_branch
from headgate.model.changes import (
    Change,
    OperationKey,
    PublishRequest,
    Receipt,
)
from headgate.model.contexts import BranchContext, Context, JobContext, MomentContext, UnitContext
from headgate.model.ids import TransactionId, mint_version
from headgate.model.nouns import (
    Branch,
    Dataset,
    PublicationKind,
    Transaction,
    TransactionType,
    Version,
)

# What the operations on namespaces are filed under: no branch has such a name.
_EVERYWHERE = "*"


def commit(
    database: Database,
    principal: Principal,
    context: Context,
    changes: Sequence[TableChange],
    idempotency: Idempotency | None,
) -> Sequence[ServedTable]:
    """Makes all changes visible in the context together, or none; what each table is by it."""
    key = operation_key(principal, context, idempotency)
    match context:
        case BranchContext():
            receipt = publish_once(
                database, principal, key, lambda c: _steps(c, principal, context, changes)
            )
            if len(changes) == 1 and len(receipt.transactions) == 1 and not receipt.replayed:
                # One table on one branch: the receipt says all, and nothing need be read again.
                (id,) = receipt.transactions.values()
                return [_published(context, changes[0], TransactionId(id) if id else None)]
        case UnitContext() | JobContext():
            receipt = write_once(
                database, key, lambda c: stage_changes(c, principal, context, changes)
            )
        case MomentContext():
            raise ContextReadOnly(context=str(context))
    return database.read(lambda c: _made(c, receipt, changes))


def find_made(
    connection: Connection, principal: Principal, context: Context, idempotency: Idempotency
) -> Sequence[ServedTable] | None:
    """The tables that a write with this key made; None where none is on record."""
    for place in (context, None):
        key = operation_key(principal, place, idempotency)
        receipt = find_by_key(connection, key) if key else None
        if receipt is not None:
            found = _transactions(connection, receipt)
            return [serve(one, branch=one.branch) for one in found if one.version is not None]
    return None


def operation_key(
    principal: Principal, context: Context | None, idempotency: Idempotency | None
) -> OperationKey | None:
    """Under which key a request is on record; without a context: one on namespaces."""
    if idempotency is None:
        return None
    place = context.branch if isinstance(context, BranchContext) else str(context or _EVERYWHERE)
    return OperationKey(
        principal=principal.actor,
        kind="iceberg",
        branch=place,
        key=idempotency.key,
        request_hash=idempotency.request_hash,
    )


def publish_once(
    database: Database,
    principal: Principal,
    key: OperationKey | None,
    steps: Callable[[Connection], Sequence[Change]],
) -> Receipt:
    """One publication for each key, of steps that are read and decided in the same unit of work."""

    def act() -> Receipt:
        return publish_prepared(
            database,
            lambda connection: PublishRequest(
                actor=principal.actor,
                kind=PublicationKind.COMMIT,
                changes=tuple(steps(connection)),
                operation=key,
                may_write_protected=principal.may_write_protected,
            ),
        )

    def act_again() -> Receipt:
        try:
            return act()
        except BranchExists:
            # Somebody made the branch between reading and locking: now it is there to be read.
            return act()

    return do_once(database, key, act_again)


def add_to_table(
    connection: Connection,
    context: BranchContext,
    dataset: Dataset,
    *,
    type: TransactionType,
    version: Version | None,
    base: ServedTable | None,
) -> list[Change]:
    """A transaction on the context's branch, which is made off the first existing fallback."""
    # Read once: what is compared with the base must be what the door is told to expect.
    known = {b.name: b for b in branches_named(connection, context.chain, [dataset.id])}
    source = first_with_view(context.chain, known)
    _check_base(connection, context, dataset, source, base)
    return add_on_branch(
        context.branch,
        dataset.id,
        branch=known.get(context.branch),
        source=source,
        type=type,
        version=version,
    )


def _steps(
    connection: Connection,
    principal: Principal,
    context: BranchContext,
    changes: Sequence[TableChange],
) -> list[Change]:
    steps: list[Change] = []
    for change in changes:
        steps += add_to_table(
            connection,
            context,
            find_or_create(connection, principal, change),
            type=change.type,
            version=Version(
                id=mint_version(), location=change.location, content_id=change.content_id
            ),
            base=change.base,
        )
    return steps


def _check_base(
    connection: Connection,
    context: BranchContext,
    dataset: Dataset,
    source: Branch | None,
    base: ServedTable | None,
) -> None:
    """The context must still show what the change started from."""
    if base is not None and source is not None and source.view == base.transaction:
        # A committed transaction shows one version for ever: it is the same one.
        return
    view = find_transaction(connection, source.view) if source and source.view else None
    shown = view.version.location if view and view.version else None
    if shown == (base.location if base else None):
        return
    mismatch = Mismatch(
        dataset=str(dataset.name),
        branch=source.name if source else context.branch,
        field="view",
        expected=base.transaction if base else None,
        actual=source.view if source else None,
    )
    raise ViewConflict([mismatch])


def _published(
    context: BranchContext, change: TableChange, made: TransactionId | None
) -> ServedTable:
    return ServedTable(
        name=change.name,
        dataset_id=change.dataset_id,
        branch=context.branch,
        transaction=made,
        location=change.location,
        content_id=change.content_id,
    )


def _made(
    connection: Connection, receipt: Receipt, changes: Sequence[TableChange]
) -> list[ServedTable]:
    """The tables as these changes left them, whatever others did to them since."""
    by_name = {
        transaction.dataset: transaction for transaction in _transactions(connection, receipt)
    }
    made = [by_name[change.name] for change in changes]
    if any(transaction.version is None for transaction in made):
        # Staged, and meanwhile a newer attempt began the transaction again.
        raise OutcomeUnknown(operation=receipt.operation)
    return [serve(transaction, branch=transaction.branch) for transaction in made]


def _transactions(connection: Connection, receipt: Receipt) -> list[Transaction]:
    ids = [TransactionId(id) for id in receipt.transactions.values() if id is not None]
    return list(load_transactions(connection, ids).values())
