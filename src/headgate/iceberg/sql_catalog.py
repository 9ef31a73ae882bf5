"""The SQL catalog as the endpoint sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headgate.catalog import datasets as catalog
from headgate.catalog.database import Connection, Database, now
from headgate.catalog.operations import claim_operation, do_once, find_by_key, record_outcome
from headgate.catalog.publish import publish_prepared
from headgate.catalog.records import (
    branches_named,
    find_transaction,
    load_dataset,
    load_transaction,
    load_transactions,
    lock_attempt,
)
from headgate.catalog.transactions import renew_transactions, stage_in
from headgate.catalog.units import Unit, open_in_unit, renew_unit, renew_unit_in
from headgate.errors import (
    BranchExists,
    CommitInterrupted,
    ContextReadOnly,
    Denied,
    JobWriteDenied,
    Mismatch,
    OutcomeUnknown,
    TransactionNotOpen,
    ViewConflict,
)
from headgate.iceberg import contexts
from headgate.iceberg.contexts import (
    find_or_create,
    find_or_make,
    find_table_dataset,
    first_with_view,
    load_open,
    load_scope,
    serve,
)
from headgate.iceberg.service import Idempotency, Namespace, Principal, ServedTable, TableChange
from headgate.model.changes import Change, OperationKey, PublishRequest, Receipt, add_on_branch
from headgate.model.contexts import BranchContext, Context, JobContext, MomentContext, UnitContext
from headgate.model.ids import DatasetId, TransactionId, mint_operation, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    Branch,
    Dataset,
    PublicationKind,
    Transaction,
    TransactionState,
    TransactionType,
    Version,
)

# Writes inside a unit or a job: into working versions, which nobody else sees.


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
        _check_staged_base(transaction, change)
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


def _check_staged_base(transaction: Transaction, change: TableChange) -> None:
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


# Writes that arrive over Iceberg REST: on a branch a publication, in a unit or job a staging.

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


class SqlTableCatalog:
    """Resolves and writes tables through the one door; see `endpoint.ports.TableCatalog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def resolve(self, context: Context, name: DatasetName) -> ServedTable | None:
        found = self._database.read(lambda c: contexts.resolve(c, context, name))
        if isinstance(context, UnitContext):
            renew_if_due(self._database, context)
        return found

    def find_dataset_id(self, name: DatasetName) -> DatasetId | None:
        dataset = self._database.read(lambda c: find_table_dataset(c, name))
        return dataset.id if dataset else None

    def list_tables(self, context: Context, namespace: Namespace) -> Sequence[str]:
        return self._database.read(lambda c: contexts.list_tables(c, context, namespace))

    def commit(
        self,
        principal: Principal,
        context: Context,
        changes: Sequence[TableChange],
        idempotency: Idempotency | None,
    ) -> Sequence[ServedTable]:
        return commit(self._database, principal, context, changes, idempotency)

    def drop(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        idempotency: Idempotency | None,
    ) -> None:
        branch = _branch_only(context, "DROP TABLE")
        key = operation_key(principal, context, idempotency)
        publish_once(self._database, principal, key, lambda c: _tombstone(c, branch, table))

    def rename(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        to: DatasetName,
        idempotency: Idempotency | None,
    ) -> None:
        branch = _branch_only(context, "RENAME TABLE")

        def steps(connection: Connection) -> list[Change]:
            target = find_or_make(connection, principal, to)
            version = Version(
                id=mint_version(), location=table.location, content_id=table.content_id
            )
            return _tombstone(connection, branch, table) + add_to_table(
                connection,
                branch,
                target,
                type=TransactionType.SNAPSHOT,
                version=version,
                base=None,
            )

        key = operation_key(principal, context, idempotency)
        publish_once(self._database, principal, key, steps)

    def recall(
        self, principal: Principal, context: Context, idempotency: Idempotency
    ) -> Sequence[ServedTable] | None:
        return self._database.read(lambda c: find_made(c, principal, context, idempotency))

    def list_namespaces(self) -> Sequence[Namespace]:
        return self._database.read(catalog.list_namespaces)

    def find_namespace(self, namespace: Namespace) -> Mapping[str, str] | None:
        return self._database.read(lambda c: catalog.find_namespace(c, namespace))

    def create_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        properties: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> None:
        self._change_namespaces(
            principal,
            idempotency,
            lambda c: catalog.create_namespace_in(c, namespace, properties),
        )

    def update_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        removals: Sequence[str],
        updates: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> frozenset[str]:
        return self._change_namespaces(
            principal,
            idempotency,
            lambda c: catalog.update_namespace_in(c, namespace, removals=removals, updates=updates),
        )

    def drop_namespace(
        self, principal: Principal, namespace: Namespace, idempotency: Idempotency | None
    ) -> None:
        self._change_namespaces(
            principal, idempotency, lambda c: catalog.drop_namespace_in(c, namespace)
        )

    def _change_namespaces(
        self,
        principal: Principal,
        idempotency: Idempotency | None,
        change: Callable[[Connection], Iterable[str] | None],
    ) -> frozenset[str]:
        """Which properties the change took away; kept with its key, to be answered again."""
        key = operation_key(principal, None, idempotency)
        receipt = write_once(self._database, key, lambda c: dict.fromkeys(change(c) or ()))
        return frozenset(receipt.transactions)


def _tombstone(connection: Connection, context: BranchContext, table: ServedTable) -> list[Change]:
    return add_to_table(
        connection,
        context,
        load_dataset(connection, table.name),
        type=TransactionType.DELETE,
        version=None,
        base=table,
    )


def _branch_only(context: Context, what: str) -> BranchContext:
    if isinstance(context, BranchContext):
        return context
    if isinstance(context, MomentContext):
        raise ContextReadOnly(context=str(context))
    raise Denied(
        f"{what} is not possible inside {context}: it is a publication of its own. "
        "Do it on a branch context.",
        context=str(context),
    )
