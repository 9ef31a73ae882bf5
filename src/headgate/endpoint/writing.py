"""Writes that arrive over Iceberg REST: on a branch a publication, in a unit or job a staging."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.catalog.database import Connection, Database
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.find import find_branch, find_dataset, find_transaction, load_transaction
from headgate.catalog.operations import claim_operation, record_outcome
from headgate.catalog.publish import publish_prepared
from headgate.catalog.stage import stage_in
from headgate.catalog.units import find_unit, open_in_unit
from headgate.endpoint.ports import Idempotency, Principal, ServedTable, TableChange
from headgate.endpoint.resolving import first_on_chain, load_scope, resolve
from headgate.errors import (
    ContextReadOnly,
    JobWriteDenied,
    Mismatch,
    ViewConflict,
)
from headgate.model.changes import (
    AddTransaction,
    Change,
    CreateBranch,
    OperationKey,
    PublishRequest,
)
from headgate.model.contexts import BranchContext, Context, JobContext, MomentContext, UnitContext
from headgate.model.ids import Instant, mint_branch, mint_operation, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    Branch,
    Dataset,
    DatasetKind,
    PublicationKind,
    Transaction,
    TransactionType,
    Version,
)


def commit(
    database: Database,
    principal: Principal,
    context: Context,
    changes: Sequence[TableChange],
    idempotency: Idempotency | None,
) -> Sequence[ServedTable]:
    """Makes all changes visible in the context together, or none."""
    operation = operation_key(principal, context, idempotency)
    match context:
        case BranchContext():
            publish_prepared(
                database,
                lambda c: PublishRequest(
                    actor=principal.actor,
                    kind=PublicationKind.COMMIT,
                    changes=tuple(
                        step
                        for change in changes
                        for step in _branch_changes(c, principal, context, change)
                    ),
                    operation=operation,
                ),
            )
        case MomentContext():
            raise ContextReadOnly(context=str(context))
        case UnitContext() | JobContext():
            database.write(lambda c: _stage(c, principal, context, changes, operation))
    names = [change.name for change in changes]
    return database.read(lambda c: [_now_served(c, context, name) for name in names])


def operation_key(
    principal: Principal, context: Context, idempotency: Idempotency | None
) -> OperationKey | None:
    if idempotency is None:
        return None
    return OperationKey(
        principal=principal.actor,
        kind="iceberg",
        branch=str(context),
        key=idempotency.key,
        request_hash=idempotency.request_hash,
    )


def add_on_branch(
    connection: Connection,
    context: BranchContext,
    dataset: Dataset,
    *,
    type: TransactionType,
    version: Version | None,
    base: ServedTable | None,
) -> list[Change]:
    """A transaction on the context's branch, which is made off the first existing fallback."""
    branch = find_branch(connection, dataset.id, context.branch)
    steps: list[Change] = []
    if branch is None:
        created = _new_branch(connection, context, dataset)
        parent = first_on_chain(connection, dataset, context.fallbacks)
        _check_base(connection, parent, base, context)
        steps.append(created)
        id, view = created.id, created.view
    else:
        id, view = branch.id, branch.view
        _check_base(connection, branch, base, context)
    steps.append(
        AddTransaction(
            branch=id,
            expected_head=view,
            expected_view=view,
            parent=view,
            type=type,
            version=version,
        )
    )
    return steps


def _branch_changes(
    connection: Connection, principal: Principal, context: BranchContext, change: TableChange
) -> list[Change]:
    dataset = find_dataset(connection, change.name) or _new_dataset(connection, principal, change)
    return add_on_branch(
        connection,
        context,
        dataset,
        type=change.type,
        version=_version(change),
        base=change.base,
    )


def _new_dataset(connection: Connection, principal: Principal, change: TableChange) -> Dataset:
    return create_dataset_in(
        connection,
        change.name,
        kind=DatasetKind.TABLE,
        branch=None,
        actor=principal.actor,
        owned=change.owned,
        id=change.dataset_id,
    )


def _new_branch(connection: Connection, context: BranchContext, dataset: Dataset) -> CreateBranch:
    parent = first_on_chain(connection, dataset, context.fallbacks)
    return CreateBranch(
        id=mint_branch(),
        dataset=dataset.id,
        name=context.branch,
        parent=parent.id if parent else None,
        expected_head=parent.head if parent else None,
        expected_view=parent.view if parent else None,
        head=parent.view if parent else None,
        view=parent.view if parent else None,
    )


def _check_base(
    connection: Connection, branch: Branch | None, base: ServedTable | None, context: BranchContext
) -> None:
    """The branch, or the fallback it is made off, must still show what the change started from."""
    view = find_transaction(connection, branch.view) if branch and branch.view else None
    if view is None and context.fallbacks:
        # An empty branch is passed over: the base came from further down the chain.
        return
    shown = view.version.location if view and view.version else None
    if shown != (base.location if base else None):
        raise _moved(
            branch.dataset if branch else base.name if base else None,
            branch.name if branch else context.branch,
            field="view",
            expected=base.transaction if base else None,
            actual=branch.view if branch else None,
        )


def _moved(
    dataset: DatasetName | None,
    branch: str,
    *,
    field: str,
    expected: str | None,
    actual: str | None,
) -> ViewConflict:
    mismatch = Mismatch(
        dataset=str(dataset), branch=branch, field=field, expected=expected, actual=actual
    )
    return ViewConflict([mismatch])


def _stage(
    connection: Connection,
    principal: Principal,
    context: UnitContext | JobContext,
    changes: Sequence[TableChange],
    operation: OperationKey | None,
) -> None:
    id = mint_operation()
    if operation is not None and claim_operation(connection, id, operation) is not None:
        return
    for change in changes:
        transaction = (
            _job_output(connection, context, change.name)
            if isinstance(context, JobContext)
            else _unit_transaction(connection, principal, context, change)
        )
        shown = transaction.version.location if transaction.version else None
        if shown != (change.base.location if change.base else None):
            raise _moved(
                change.name,
                transaction.branch,
                field="working version",
                expected=change.base.location if change.base else None,
                actual=shown,
            )
        stage_in(
            connection,
            transaction.id,
            _version(change),
            expected=transaction.version.id if transaction.version else None,
            attempt=principal.attempt,
        )
    if operation is not None:
        record_outcome(connection, id, None, Instant(0), {})


def _job_output(connection: Connection, context: JobContext, name: DatasetName) -> Transaction:
    outputs = load_scope(connection, context)["outputs"]
    if str(name) not in outputs:
        raise JobWriteDenied(job=context.id, dataset=str(name), outputs=sorted(outputs))
    return load_transaction(connection, outputs[str(name)])


def _unit_transaction(
    connection: Connection, principal: Principal, context: UnitContext, change: TableChange
) -> Transaction:
    """The unit's transaction on the dataset, opened at its first write."""
    unit = find_unit(connection, context.id)
    if unit is None:
        single = load_transaction(connection, context.id)
        if single.dataset != change.name:
            raise JobWriteDenied(
                job=context.id, dataset=str(change.name), outputs=[str(single.dataset)]
            )
        return single
    dataset = find_dataset(connection, change.name) or _new_dataset(connection, principal, change)
    return open_in_unit(connection, unit, dataset)


def _version(change: TableChange) -> Version:
    return Version(id=mint_version(), location=change.location, content_id=change.content_id)


def _now_served(connection: Connection, context: Context, name: DatasetName) -> ServedTable:
    table = resolve(connection, context, name)
    assert table is not None, f"{name} was just written in {context}"
    return table
