"""Tables and views as Iceberg clients see them: names in a context, writes through the one door.

On a branch a write is a publication. In a unit or a job it is staged into a working version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headgate import errors
from headgate.catalog import datasets as catalog
from headgate.catalog import records, resolve, transactions
from headgate.catalog.attempts import find_scope
from headgate.catalog.database import Connection, Database, now
from headgate.catalog.operations import claim_operation, do_once, find_by_key, record_outcome
from headgate.catalog.publish import publish_prepared
from headgate.catalog.units import open_in_unit, renew_unit, renew_unit_in
from headgate.model import nouns
from headgate.model.access import ReadPolicy
from headgate.model.changes import (
    Caller,
    Change,
    OperationKey,
    Provenance,
    PublishRequest,
    ReadView,
    Receipt,
)
from headgate.model.contexts import BranchContext, Context, JobContext, MomentContext, UnitContext
from headgate.model.ids import (
    ContentId,
    DatasetId,
    TransactionId,
    mint_content,
    mint_dataset,
    mint_operation,
    mint_version,
)
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind
from headgate.model.rules import Verdict, carried_facts
from headgate.tables.creation import read_external_metadata, register_metadata
from headgate.tables.metadata import Metadata
from headgate.tables.versions import TableVersions

Namespace = tuple[str, ...]

# The operations on namespaces are recorded under this branch name, which no branch can have.
_EVERYWHERE = "*"


@dataclass(frozen=True, kw_only=True)
class ServedTable:
    """A name, resolved in a context: the version that the context shows for it."""

    name: DatasetName
    dataset_id: DatasetId
    transaction: TransactionId
    location: str
    content_id: ContentId


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One table's or view's step to a new version, which is stored but not yet visible."""

    name: DatasetName
    dataset_id: DatasetId
    # The version that the context showed when the change was prepared; None for a new table.
    base: ServedTable | None
    location: str
    content_id: ContentId
    type: nouns.TransactionType
    # False for a registered table: cleanup never deletes its earlier files.
    owned: bool = True
    # Constraints, of this table or of others, depend on its rows.
    is_ruled: bool = False
    kind: DatasetKind = DatasetKind.TABLE


@dataclass(frozen=True, kw_only=True)
class Idempotency:
    """A client's key for one request, with a digest of the request."""

    key: str
    request_hash: str


class WriteRequest(Protocol):
    """A write, as a client of the endpoint requests it."""

    @property
    def caller(self) -> Caller: ...

    @property
    def context(self) -> Context: ...

    @property
    def idempotency(self) -> Idempotency | None: ...


@dataclass(frozen=True, kw_only=True)
class Write:
    """A write that this process requests itself."""

    caller: Caller
    context: Context
    idempotency: Idempotency | None = None


class TableCatalog:
    """The catalog as the endpoint uses it; every method may block.

    A write is atomic and has happened once it returns. One that may or may not have happened
    raises `OutcomeUnknown`. A write whose idempotency key is on record changes nothing and returns
    what it returned then.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def limited_to(self, policy: ReadPolicy) -> TableCatalog:
        """Return the catalog as a token with this policy sees it."""
        return TableCatalog(self._database.limited_to(policy))

    def resolve(
        self, context: Context, name: DatasetName, kind: DatasetKind = DatasetKind.TABLE
    ) -> ServedTable | None:
        """Return the version that the name of a table or view means in a context, or None."""
        found = self._database.read(lambda c: _resolve(c, context, name, kind))
        if isinstance(context, UnitContext):
            _renew_if_due(self._database, context)
        return found

    def check_context(self, context: Context) -> None:
        """Raise `BranchNowhere` if a context names a branch that does not exist."""
        self._database.read(lambda c: resolve.check_context(c, context))

    def find_dataset_id(
        self, name: DatasetName, kind: DatasetKind = DatasetKind.TABLE
    ) -> DatasetId | None:
        """Return the dataset of that name on any branch, or None if there never was one.

        One of another kind raises `NameTaken`.
        """
        dataset = self._database.read(lambda c: _find_dataset(c, name, kind))
        return dataset.id if dataset else None

    def find_name(self, dataset: DatasetId) -> DatasetName | None:
        """Return the present name of a dataset, or None if there is no such dataset."""
        found = self._database.read(lambda c: records.find_dataset_by_id(c, dataset))
        return found.name if found else None

    def may_write(self, caller: Caller, context: Context, name: DatasetName) -> bool:
        """Return whether a caller may write a table in a context; its commit decides again."""
        return self._database.read(lambda c: _may_write(c, caller, context, name))

    def list_names(
        self, context: Context, namespace: Namespace, kind: DatasetKind
    ) -> Sequence[str]:
        """Return the names of the tables or views that a context shows, also expired ones."""
        return self._database.read(lambda c: _list_names(c, context, namespace, kind))

    def commit(
        self, request: WriteRequest, changes: Sequence[TableChange], verdict: Verdict | None = None
    ) -> Sequence[ServedTable]:
        """Make all changes visible in the context together, or none; return the new versions.

        The verdict is that on their rows, where constraints depend on them. A base that the
        context no longer shows raises `ViewConflict`.
        """
        caller, context = request.caller, request.context
        match context:
            case BranchContext():
                judged = verdict or Verdict()
                receipt = _publish_once(
                    self._database,
                    request,
                    lambda c: _steps(c, caller, context, changes, judged.facts),
                    reads=judged.reads,
                )
                made = [id for id in receipt.transactions.values() if id is not None]
                if len(changes) == 1 and len(made) == 1 and not receipt.replayed:
                    # One table on one branch: the receipt has everything, which saves a query.
                    return [_published(changes[0], TransactionId(made[0]))]
            case UnitContext() | JobContext():
                key = operation_key(request)
                receipt = _write_once(
                    self._database, key, lambda c: _stage(c, caller, context, changes)
                )
            case MomentContext():
                raise errors.ContextReadOnly(context=str(context))
        return self._database.read(lambda c: _made(c, receipt, changes))

    def drop(self, request: WriteRequest, table: ServedTable) -> None:
        """Put a tombstone on the context's branch."""
        branch = _branch_only(request.context, "DROP")
        _publish_once(self._database, request, lambda c: _tombstone(c, branch, table))

    def rename(self, request: WriteRequest, table: ServedTable, to: DatasetName) -> None:
        """Publish a tombstone and a new dataset with the same version, together.

        The new dataset continues the history of the old one.
        """
        branch = _branch_only(request.context, "RENAME")

        def steps(connection: Connection) -> list[Change]:
            kind = records.load_dataset(connection, table.name).kind
            target = _find_or_create(connection, request.caller, to, kind=kind)
            return _tombstone(connection, branch, table) + _add(
                connection,
                branch,
                target,
                type=nouns.TransactionType.SNAPSHOT,
                version=_version(table),
                base=None,
                renamed_from=table.transaction,
                facts=carried_facts(
                    records.load_transaction(connection, table.transaction).provenance
                ),
            )

        _publish_once(self._database, request, steps)

    def recall(self, request: WriteRequest) -> Sequence[ServedTable] | None:
        """Return the tables that a write with this key made, or None where none is on record.

        Another request under the key raises `IdempotencyKeyReused`.
        """

        def read(connection: Connection) -> Sequence[ServedTable] | None:
            for everywhere in (False, True):
                key = operation_key(request, everywhere=everywhere)
                receipt = find_by_key(connection, key) if key else None
                if receipt is not None:
                    found = _transactions_in(connection, receipt)
                    return [_served(one) for one in found if one.version is not None]
            return None

        return self._database.read(read)

    def list_namespaces(self, context: Context) -> Sequence[Namespace]:
        """Return all namespaces, which are the same on every branch.

        A dropped one is among them at a moment that shows a table in it.
        """
        return self._database.read(
            lambda c: [*catalog.list_namespaces(c), *_shown_outside(c, context)]
        )

    def find_namespace(self, context: Context, namespace: Namespace) -> Mapping[str, str] | None:
        """Return a namespace's properties, or None."""

        def read(connection: Connection) -> Mapping[str, str] | None:
            known = catalog.find_namespace(connection, namespace)
            if known is None and any(
                shown[: len(namespace)] == namespace
                for shown in _shown_outside(connection, context)
            ):
                return {}
            return known

        return self._database.read(read)

    def create_namespace(
        self, request: WriteRequest, namespace: Namespace, properties: Mapping[str, str]
    ) -> None:
        """Create a namespace, or raise `NamespaceExists`."""
        if request.caller.policy is not None:
            request.caller.policy.require_dataset(f"{nouns.join_parts(namespace)}.")
        self._change_namespaces(
            request, lambda c: catalog.create_namespace_in(c, namespace, properties)
        )

    def update_namespace(
        self,
        request: WriteRequest,
        namespace: Namespace,
        removals: Sequence[str],
        updates: Mapping[str, str],
    ) -> frozenset[str]:
        """Remove and set properties, and return the removed; or raise `NamespaceNotFound`."""

        def work(connection: Connection) -> Iterable[str]:
            _check_shared(connection, request.caller, namespace)
            if catalog.list_shown(connection, namespace):
                catalog.ensure_namespace(connection, namespace)
            return catalog.update_namespace_in(
                connection, namespace, removals=removals, updates=updates
            )

        return self._change_namespaces(request, work)

    def drop_namespace(self, request: WriteRequest, namespace: Namespace) -> None:
        """Remove a namespace in which no branch shows anything, or raise `NamespaceNotEmpty`."""

        def work(connection: Connection) -> None:
            _check_shared(connection, request.caller, namespace)
            catalog.drop_namespace_in(connection, namespace)

        self._change_namespaces(request, work)

    def _change_namespaces(
        self, request: WriteRequest, change: Callable[[Connection], Iterable[str] | None]
    ) -> frozenset[str]:
        """Return the removed properties; the key's record keeps them for a repeated request."""
        key = operation_key(request, everywhere=True)
        receipt = _write_once(self._database, key, lambda c: dict.fromkeys(change(c) or ()))
        return frozenset(receipt.transactions)


def _check_shared(connection: Connection, caller: Caller, namespace: Namespace) -> None:
    """Raise unless the caller may change what all branches share."""
    name = nouns.join_parts(namespace)
    if caller.check_write is not None:
        # Only the pattern of all branches matches a star.
        caller.check_write("*", f"{name}.*")
    if not caller.may_write_protected and transactions.find_protections(connection).touches(name):
        raise errors.Denied(
            f"namespace {name} is shared by all branches, and some are protected: only an admin "
            "may change its properties or drop it.",
            namespace=name,
        )


def operation_key(request: WriteRequest, *, everywhere: bool = False) -> OperationKey | None:
    """Return the key that a request is recorded under; one on namespaces is so `everywhere`."""
    if (idempotency := request.idempotency) is None:
        return None
    context = request.context
    place = context.branch if isinstance(context, BranchContext) else str(context)
    return OperationKey(
        principal=request.caller.actor,
        kind="iceberg",
        branch=_EVERYWHERE if everywhere else place,
        key=idempotency.key,
        request_hash=idempotency.request_hash,
    )


def _resolve(
    connection: Connection, context: Context, name: DatasetName, kind: DatasetKind
) -> ServedTable | None:
    scope = None
    if isinstance(context, JobContext):
        scope = _load_scope(connection, context)
        if not _is_declared(scope, name) and not _is_metadata_table(scope, name):
            raise errors.JobReadDenied(job=context.id, dataset=str(name))
    dataset = records.find_dataset(connection, name)
    if dataset is None or dataset.kind is not kind:
        return None
    shown = resolve.find_shown(connection, context, dataset, scope=scope)
    return _served(shown) if shown is not None and shown.version is not None else None


def _list_names(
    connection: Connection, context: Context, namespace: Namespace, kind: DatasetKind
) -> Sequence[str]:
    scope = _load_scope(connection, context) if isinstance(context, JobContext) else None
    found = [
        dataset
        for dataset in records.list_datasets(connection, namespace)
        if dataset.kind is kind and (scope is None or _is_declared(scope, dataset.name))
    ]
    shown = resolve.find_all_shown(connection, context, found, scope=scope)
    return [d.name.name for d in found if d.id in shown and shown[d.id].version is not None]


def _shown_outside(connection: Connection, context: Context) -> set[Namespace]:
    """Return the dropped namespaces in which a branch, or the context's moment, shows a table."""
    outside = catalog.list_outside_namespaces(connection)
    if outside and isinstance(context, MomentContext):
        at = resolve.find_all_shown(connection, context, outside)
        return {d.name.namespace for d in outside if d.id in at and at[d.id].version is not None}
    shown = catalog.list_shown(connection) if outside else []
    return {name.namespace for name, _ in shown}


def _served(transaction: nouns.Transaction) -> ServedTable:
    assert transaction.version is not None, f"{transaction.id} is a tombstone"
    return ServedTable(
        name=transaction.dataset,
        dataset_id=transaction.dataset_id,
        transaction=transaction.id,
        location=transaction.version.location,
        content_id=transaction.version.content_id,
    )


def _load_scope(connection: Connection, context: JobContext) -> resolve.JobScope:
    key, _, epoch = context.id.rpartition(":")
    scope = find_scope(connection, key, int(epoch)) if epoch.isdigit() else None
    if scope is None:
        raise errors.NotFound(f"there is no job {context.id!r}.", job=context.id)
    return scope


def _may_write(connection: Connection, caller: Caller, context: Context, name: DatasetName) -> bool:
    match context:
        case JobContext():
            return str(name) in _load_scope(connection, context)["outputs"]
        case MomentContext():
            return False
        case UnitContext():
            opened = resolve.load_opened(connection, context)
            if opened.state is not nouns.TransactionState.OPEN:
                return False
            branch = opened.branch
        case BranchContext():
            branch = context.branch
    try:
        if caller.check_write is not None:
            caller.check_write(branch, name)
    except errors.Denied:
        return False
    return caller.may_write_protected or not transactions.find_protections(connection).covers(
        branch, name
    )


def _is_declared(scope: resolve.JobScope, name: DatasetName) -> bool:
    return str(name) in scope["inputs"] or str(name) in scope["outputs"]


def _is_metadata_table(scope: resolve.JobScope, name: DatasetName) -> bool:
    """Return whether it is `db.t.files` of a declared `db.t`, which clients request as a table."""
    *above, last = name.namespace
    return bool(above) and _is_declared(scope, DatasetName(namespace=tuple(above), name=last))


def _renew_if_due(database: Database, context: UnitContext) -> None:
    """Renew the lease of an OPEN unit in the second half of it: a read is a use, not a write."""

    def read(connection: Connection) -> tuple[records.Unit | nouns.Transaction, bool]:
        opened = resolve.load_opened(connection, context)
        left_us = (opened.lease_until or 0) - now(connection)
        whole_us = (opened.lease_seconds or 0) * 1_000_000
        # A lease of a clock that was ahead is due too.
        is_due = not whole_us // 2 <= left_us <= whole_us
        return opened, is_due and opened.state is nouns.TransactionState.OPEN

    opened, is_due = database.read(read)
    if is_due and isinstance(opened, records.Unit):
        renew_unit(database, opened.id)
    elif is_due and isinstance(opened, nouns.Transaction):
        transactions.renew_transactions(database, [opened.id])


def _find_dataset(
    connection: Connection, name: DatasetName, kind: DatasetKind
) -> nouns.Dataset | None:
    found = records.find_dataset(connection, name)
    return _check_kind(found, kind) if found is not None else None


def _find_or_create(
    connection: Connection,
    caller: Caller,
    name: DatasetName,
    *,
    kind: DatasetKind,
    id: DatasetId | None = None,
    owned: bool = True,
) -> nouns.Dataset:
    found = _find_dataset(connection, name, kind)
    if found is not None:
        catalog.ensure_namespace(connection, name.namespace)
        return found
    try:
        return catalog.create_dataset_in(
            connection, name, kind=kind, branch=None, caller=caller, owned=owned, id=id
        )
    except errors.DatasetExists:
        # Another client created it after the first read.
        return _find_or_create(connection, caller, name, kind=kind)


def _dataset_of(connection: Connection, caller: Caller, change: TableChange) -> nouns.Dataset:
    """Return the dataset of a change's name, which must be the one whose directory it names."""
    known = records.find_dataset_by_id(connection, change.dataset_id)
    if known is not None and known.name != change.name:
        raise errors.ImpossibleTableChange(
            change=f"{change.kind} {change.name}",
            # The name of that table may be hidden from the caller.
            reason="its location is that of another table; leave LOCATION out",
        )
    if known is not None:
        if change.base is None:
            # It may be dropped at this moment, since the table was not shown.
            catalog.ensure_namespace(connection, change.name.namespace)
        return _check_kind(known, change.kind)
    found = _find_or_create(
        connection, caller, change.name, kind=change.kind, id=change.dataset_id, owned=change.owned
    )
    if found.id != change.dataset_id:
        # A write on another branch created the dataset after this change was prepared.
        raise errors.RequirementFailed(
            requirement="dataset", expected=change.dataset_id, actual=found.id
        )
    return found


def _check_kind(dataset: nouns.Dataset, wanted: DatasetKind) -> nouns.Dataset:
    if dataset.kind is DatasetKind.FILES:
        raise errors.Invalid(
            f"dataset {dataset.name} is a tree of files, not a {wanted}. "
            f"Give the {wanted} another name.",
            dataset=str(dataset.name),
        )
    if dataset.kind is not wanted:
        raise errors.NameTaken(
            kind=dataset.kind.capitalize(), name=str(dataset.name), wanted=wanted
        )
    return dataset


# Writes on a branch: one publication


def _publish_once(
    database: Database,
    request: WriteRequest,
    steps: Callable[[Connection], Sequence[Change]],
    *,
    reads: tuple[ReadView, ...] = (),
) -> Receipt:
    """Publish once for each key; the steps are decided in the publication's SQL transaction."""
    key = operation_key(request)

    def publish() -> Receipt:
        return publish_prepared(
            database,
            lambda connection: PublishRequest(
                caller=request.caller,
                kind=nouns.PublicationKind.COMMIT,
                changes=tuple(steps(connection)),
                reads=reads,
                operation=key,
            ),
        )

    def publish_again() -> Receipt:
        try:
            return publish()
        except errors.BranchExists:
            # Another client created the branch between the read and the lock.
            return publish()

    return do_once(database, key, publish_again)


def _steps(
    connection: Connection,
    caller: Caller,
    context: BranchContext,
    changes: Sequence[TableChange],
    facts: Mapping[DatasetName, Mapping[str, Any]],
) -> list[Change]:
    steps: list[Change] = []
    for change in changes:
        steps += _add(
            connection,
            context,
            _dataset_of(connection, caller, change),
            type=change.type,
            version=_version(change),
            base=change.base,
            facts=facts.get(change.name),
        )
    return steps


def _add(
    connection: Connection,
    context: BranchContext,
    dataset: nouns.Dataset,
    *,
    type: nouns.TransactionType,
    version: nouns.Version | None,
    base: ServedTable | None,
    renamed_from: TransactionId | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[Change]:
    """Return a transaction on the context's branch, which is created off the first with a view."""
    # One read: the door must expect the same state that is compared with the base.
    on = resolve.find_on_chain(connection, context.chain, dataset.id)
    if on.own is None and on.source is None:
        resolve.check_context(connection, context)
    _check_base(connection, context, dataset, on.source, base)
    return transactions.add_on_branch(
        context.branch,
        dataset.id,
        branch=on.own,
        source=on.source,
        type=type,
        version=version,
        provenance=Provenance(facts=facts or {}),
        renamed_from=renamed_from,
    )


def _check_base(
    connection: Connection,
    context: BranchContext,
    dataset: nouns.Dataset,
    source: nouns.Branch | None,
    base: ServedTable | None,
) -> None:
    """Raise unless the context still shows what the change started from."""
    if base is not None and source is not None and source.view == base.transaction:
        # A committed transaction never changes its version.
        return
    view = records.find_transaction(connection, source.view) if source and source.view else None
    shown = view.version.location if view and view.version else None
    if shown == (base.location if base else None):
        return
    mismatch = errors.Mismatch(
        dataset=str(dataset.name),
        branch=source.name if source else context.branch,
        field="view",
        expected=base.transaction if base else None,
        actual=source.view if source else None,
    )
    raise errors.ViewConflict([mismatch])


def _tombstone(connection: Connection, context: BranchContext, table: ServedTable) -> list[Change]:
    return _add(
        connection,
        context,
        records.load_dataset(connection, table.name),
        type=nouns.TransactionType.DELETE,
        version=None,
        base=table,
    )


def _version(shown: TableChange | ServedTable) -> nouns.Version:
    return nouns.Version(id=mint_version(), location=shown.location, content_id=shown.content_id)


def _branch_only(context: Context, what: str) -> BranchContext:
    if isinstance(context, BranchContext):
        return context
    if isinstance(context, MomentContext):
        raise errors.ContextReadOnly(context=str(context))
    raise errors.Denied(
        f"{what} is not possible inside {context}: it is a publication of its own. "
        "Do it on a branch context.",
        context=str(context),
    )


def _published(change: TableChange, transaction: TransactionId) -> ServedTable:
    return ServedTable(
        name=change.name,
        dataset_id=change.dataset_id,
        transaction=transaction,
        location=change.location,
        content_id=change.content_id,
    )


def _made(
    connection: Connection, receipt: Receipt, changes: Sequence[TableChange]
) -> list[ServedTable]:
    """Return the tables as these changes left them, whatever was written to them since."""
    by_name = {one.dataset: one for one in _transactions_in(connection, receipt)}
    made = [by_name[change.name] for change in changes]
    if any(transaction.version is None for transaction in made):
        # A newer attempt began the staged transaction again.
        raise errors.OutcomeUnknown(operation=receipt.operation)
    return [_served(transaction) for transaction in made]


def _transactions_in(connection: Connection, receipt: Receipt) -> list[nouns.Transaction]:
    ids = [TransactionId(id) for id in receipt.transactions.values() if id is not None]
    return list(records.load_transactions(connection, ids).values())


# Writes in a unit or a job: staged into working versions


def _write_once(
    database: Database,
    key: OperationKey | None,
    work: Callable[[Connection], Mapping[str, str | None]],
) -> Receipt:
    """Do work that is not a publication once for each key; it returns the moved transactions."""
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
    except errors.CommitInterrupted as error:
        raise errors.OutcomeUnknown(operation=id) from error


def _stage(
    connection: Connection,
    caller: Caller,
    context: UnitContext | JobContext,
    changes: Sequence[TableChange],
) -> dict[str, str | None]:
    """Move the working versions, all or none; return their transactions by branch id."""
    if caller.attempt is not None:
        # First, so that a superseded attempt gets that error whatever else is wrong.
        records.lock_attempt(connection, caller.attempt)
    staged: dict[str, str | None] = {}
    for change in changes:
        transaction = (
            _job_output(connection, context, change.name)
            if isinstance(context, JobContext)
            else _unit_transaction(connection, caller, context, change)
        )
        _check_staged_base(transaction, change)
        transactions.stage_in(
            connection,
            transaction.id,
            _version(change),
            expected=transaction.version.id if transaction.version else None,
            attempt=caller.attempt,
            caller=caller,
        )
        staged[transaction.branch_id] = transaction.id
    return staged


def _job_output(
    connection: Connection, context: JobContext, name: DatasetName
) -> nouns.Transaction:
    outputs = _load_scope(connection, context)["outputs"]
    if str(name) not in outputs:
        raise errors.JobWriteDenied(job=context.id, dataset=str(name), outputs=sorted(outputs))
    return records.load_transaction(connection, outputs[str(name)])


def _unit_transaction(
    connection: Connection, caller: Caller, context: UnitContext, change: TableChange
) -> nouns.Transaction:
    """Return the unit's transaction on the dataset, opened at its first write."""
    opened = resolve.load_opened(connection, context)
    if opened.state is not nouns.TransactionState.OPEN:
        raise errors.TransactionNotOpen(transaction=context.id, state=opened.state)
    if isinstance(opened, nouns.Transaction):
        if opened.dataset != change.name:
            raise errors.JobWriteDenied(
                job=str(context), dataset=str(change.name), outputs=[str(opened.dataset)]
            )
        return opened
    mine = open_in_unit(connection, opened, _dataset_of(connection, caller, change), caller=caller)
    renew_unit_in(connection, opened.id)
    return mine


def _check_staged_base(transaction: nouns.Transaction, change: TableChange) -> None:
    if transaction.state is not nouns.TransactionState.OPEN:
        raise errors.TransactionNotOpen(transaction=transaction.id, state=transaction.state)
    expected = change.base.location if change.base else None
    actual = transaction.version.location if transaction.version else None
    if actual != expected:
        mismatch = errors.Mismatch(
            dataset=str(change.name),
            branch=transaction.branch,
            field="working version",
            expected=expected,
            actual=actual,
        )
        raise errors.ViewConflict([mismatch])


def register(
    catalog: TableCatalog,
    versions: TableVersions,
    read_outside: Callable[[str], bytes],
    request: WriteRequest,
    *,
    name: DatasetName,
    metadata_location: str,
    now_ms: int,
) -> ServedTable:
    """Show a table of another catalog under a name of this one; its files stay as they are.

    What is added to it, metadata included, is written below the warehouse.
    """
    if catalog.resolve(request.context, name):
        raise errors.TableExists(table=str(name), context=str(request.context))
    found = read_external_metadata(read_outside, metadata_location)
    dataset = catalog.find_dataset_id(name) or mint_dataset()
    location = versions.table_location(dataset)
    return publish_new_table(
        catalog,
        versions,
        request,
        register_metadata(found, outside=metadata_location, location=location, now_ms=now_ms),
        name=name,
        dataset=dataset,
        owned=False,
    )


def publish_new_table(
    catalog: TableCatalog,
    versions: TableVersions,
    request: WriteRequest,
    metadata: Metadata,
    *,
    name: DatasetName,
    dataset: DatasetId,
    owned: bool = True,
) -> ServedTable:
    # The files of a registered table are its owner's: none of them is new.
    version = versions.write(dataset, metadata, base=None if owned else metadata)
    change = TableChange(
        name=name,
        dataset_id=dataset,
        base=None,
        location=version.location,
        content_id=mint_content(),
        type=nouns.TransactionType.SNAPSHOT,
        owned=owned,
    )
    try:
        (table,) = catalog.commit(request, [change])
    except errors.ViewConflict as error:
        if catalog.resolve(request.context, name) is None:
            raise
        # Another client created the table first.
        raise errors.TableExists(table=str(name), context=str(request.context)) from error
    return table
