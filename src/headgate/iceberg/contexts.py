"""What a name means in a context, read from the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.catalog.attempts import find_scope
from headgate.catalog.database import Connection
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.log import view_at
from headgate.catalog.records import (
    branches_named,
    find_dataset,
    find_dataset_by_id,
    find_transaction,
    list_datasets,
    load_transactions,
)
from headgate.catalog.resolve import publication_of
from headgate.catalog.units import Unit, find_unit
from headgate.errors import (
    DatasetExists,
    ImpossibleTableChange,
    Invalid,
    JobReadDenied,
    NotFound,
    RequirementFailed,
    TransactionNotOpen,
    VersionExpired,
)
from headgate.iceberg.service import Principal, ServedTable, TableChange
from headgate.model.contexts import BranchContext, Context, JobContext, MomentContext, UnitContext
from headgate.model.ids import DatasetId
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, Dataset, DatasetKind, Transaction, TransactionState

# The dataset behind a table's name: found, or made by its first write.


def find_table_dataset(connection: Connection, name: DatasetName) -> Dataset | None:
    """The dataset of that name, which must then be one of tables."""
    found = find_dataset(connection, name)
    return _of_tables(found) if found is not None else None


def find_or_create(connection: Connection, principal: Principal, change: TableChange) -> Dataset:
    """The dataset that a change is for; it must be the one whose directory the change names."""
    taken = find_dataset_by_id(connection, change.dataset_id)
    if taken is not None and taken.name != change.name:
        raise ImpossibleTableChange(
            change=f"table {change.name}",
            reason=f"its location is that of {taken.name}; leave LOCATION out",
        )
    if taken is not None:
        return _of_tables(taken)
    found = find_or_make(
        connection, principal, change.name, id=change.dataset_id, owned=change.owned
    )
    if found.id != change.dataset_id:
        # Another branch gave the name a dataset after this change was prepared.
        raise RequirementFailed(requirement="dataset", expected=change.dataset_id, actual=found.id)
    return found


def find_or_make(
    connection: Connection,
    principal: Principal,
    name: DatasetName,
    *,
    id: DatasetId | None = None,
    owned: bool = True,
) -> Dataset:
    """The dataset of tables with that name, made where there is none."""
    found = find_table_dataset(connection, name)
    if found is not None:
        return found
    try:
        return create_dataset_in(
            connection,
            name,
            kind=DatasetKind.TABLE,
            branch=None,
            actor=principal.actor,
            owned=owned,
            id=id,
        )
    except DatasetExists:
        # Somebody made it between looking and making.
        return find_or_make(connection, principal, name)


def _of_tables(dataset: Dataset) -> Dataset:
    if dataset.kind is not DatasetKind.TABLE:
        raise Invalid(
            f"dataset {dataset.name} is a tree of files, not a table. Give the table another name.",
            dataset=str(dataset.name),
        )
    return dataset


def resolve(connection: Connection, context: Context, name: DatasetName) -> ServedTable | None:
    """The version that a name means in a context, or None."""
    if isinstance(context, JobContext):
        _check_declared(load_scope(connection, context), name, context)
    dataset = find_dataset(connection, name)
    if dataset is None or dataset.kind is not DatasetKind.TABLE:
        return None
    branch, shown = _find_shown(connection, context, dataset)
    if shown is None or shown.version is None:
        return None
    if shown.condemned:
        raise VersionExpired(what=f"transaction {shown.id}")
    return serve(shown, branch=branch)


def list_tables(
    connection: Connection, context: Context, namespace: tuple[str, ...]
) -> Sequence[str]:
    """Names of the tables that the context shows in a namespace, expired ones among them."""
    found = [d for d in list_datasets(connection, namespace) if d.kind is DatasetKind.TABLE]
    if isinstance(context, BranchContext):
        return _listed_on_chain(connection, found, context.chain)
    if isinstance(context, JobContext):
        scope = load_scope(connection, context)
        found = [d for d in found if _is_declared(scope, d.name)]
    shown = {d.name.name: _find_shown(connection, context, d)[1] for d in found}
    return [name for name, one in shown.items() if one is not None and one.version is not None]


def serve(transaction: Transaction, *, branch: str) -> ServedTable:
    """A transaction's version as the endpoint knows it."""
    assert transaction.version is not None, f"{transaction.id} is a tombstone"
    return ServedTable(
        name=transaction.dataset,
        dataset_id=transaction.dataset_id,
        branch=branch,
        transaction=transaction.id,
        location=transaction.version.location,
        content_id=transaction.version.content_id,
    )


def first_with_view(chain: Sequence[str], known: Mapping[str, Branch]) -> Branch | None:
    """The first branch of a chain with a COMMITTED transaction."""
    return next((known[n] for n in chain if n in known and known[n].view is not None), None)


def load_scope(connection: Connection, context: JobContext) -> Mapping[str, Any]:
    """What a job may read and write: `{"branch", "inputs", "outputs"}`."""
    key, _, epoch = context.id.rpartition(":")
    scope = find_scope(connection, key, int(epoch)) if epoch.isdigit() else None
    if scope is None:
        raise NotFound(f"there is no job {context.id!r}.", job=context.id)
    return scope


def load_open(connection: Connection, context: UnitContext) -> Unit | Transaction:
    """The unit or the single transaction that a context names, while it is OPEN."""
    found = find_unit(connection, context.id) or find_transaction(connection, context.id)
    if found is None:
        raise NotFound(f"there is no transaction or unit {context.id!r}.", transaction=context.id)
    if found.state is not TransactionState.OPEN:
        raise TransactionNotOpen(transaction=context.id, state=found.state)
    return found


def _find_shown(
    connection: Connection, context: Context, dataset: Dataset
) -> tuple[str, Transaction | None]:
    """Where a context finds a dataset, and the transaction that it shows there."""
    match context:
        case BranchContext():
            return _on_chain(connection, dataset, context.chain)
        case MomentContext():
            return _at_moment(connection, dataset, context)
        case UnitContext():
            return _in_unit(connection, dataset, context)
        case JobContext():
            return _in_job(connection, dataset, context)


def _on_chain(
    connection: Connection, dataset: Dataset, chain: Sequence[str]
) -> tuple[str, Transaction | None]:
    known = {b.name: b for b in branches_named(connection, chain, [dataset.id])}
    branch = first_with_view(chain, known)
    if branch is None or branch.view is None:
        return chain[0], None
    return branch.name, find_transaction(connection, branch.view)


def _listed_on_chain(
    connection: Connection, found: Sequence[Dataset], chain: Sequence[str]
) -> Sequence[str]:
    """As resolving one by one, in a handful of queries for the whole namespace."""
    order = {name: position for position, name in enumerate(chain)}
    first: dict[str, Branch] = {}
    for branch in branches_named(connection, chain, [d.id for d in found]):
        known = first.get(branch.dataset_id)
        if branch.view is not None and (known is None or order[branch.name] < order[known.name]):
            first[branch.dataset_id] = branch
    views = load_transactions(connection, [b.view for b in first.values() if b.view])
    shown = {b.dataset_id for b in first.values() if b.view and views[b.view].version}
    return [d.name.name for d in found if d.id in shown]


def _at_moment(
    connection: Connection, dataset: Dataset, context: MomentContext
) -> tuple[str, Transaction | None]:
    at = publication_of(connection, context)
    for branch in context.chain:
        view = view_at(connection, dataset.id, branch, at)
        if view is not None:
            return branch, find_transaction(connection, view)
    return context.chain[0], None


def _in_unit(
    connection: Connection, dataset: Dataset, context: UnitContext
) -> tuple[str, Transaction | None]:
    found = load_open(connection, context)
    open_ones = found.transactions if isinstance(found, Unit) else (found,)
    mine = next((t for t in open_ones if t.dataset_id == dataset.id), None)
    if mine is not None:
        return mine.branch, mine
    return _on_chain(connection, dataset, [found.branch])


def _in_job(
    connection: Connection, dataset: Dataset, context: JobContext
) -> tuple[str, Transaction | None]:
    scope = load_scope(connection, context)
    name = str(dataset.name)
    pin = scope["inputs"].get(name)
    id = scope["outputs"].get(name) or (pin["transaction"] if pin else None)
    found = find_transaction(connection, id) if id is not None else None
    if found is not None and found.state is TransactionState.ABORTED:
        # What it holds belongs to nobody any more, least of all to whoever still asks for it.
        raise TransactionNotOpen(transaction=found.id, state=found.state)
    return (pin["branch"] if pin else scope["branch"]), found


def _check_declared(scope: Mapping[str, Any], name: DatasetName, context: JobContext) -> None:
    if _is_declared(scope, name) or _is_metadata_table(scope, name):
        return
    raise JobReadDenied(job=context.id, dataset=str(name))


def _is_declared(scope: Mapping[str, Any], name: DatasetName) -> bool:
    return str(name) in scope["inputs"] or str(name) in scope["outputs"]


def _is_metadata_table(scope: Mapping[str, Any], name: DatasetName) -> bool:
    """`db.t.files` of a declared `db.t`: clients ask for a table of that name first."""
    *above, last = name.namespace
    return bool(above) and _is_declared(scope, DatasetName(namespace=tuple(above), name=last))
