"""What a name means in a context, read from the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.catalog.attempts import find_scope
from headgate.catalog.database import Connection
from headgate.catalog.find import (
    branches_named,
    find_dataset,
    find_transaction,
    list_datasets,
    load_transactions,
)
from headgate.catalog.log import view_at
from headgate.catalog.showing import publication_of
from headgate.catalog.units import Unit, find_unit
from headgate.endpoint.ports import ServedTable
from headgate.errors import JobReadDenied, NotFound, TransactionNotOpen, VersionExpired
from headgate.model.contexts import (
    BranchContext,
    Context,
    JobContext,
    MomentContext,
    UnitContext,
)
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, Dataset, DatasetKind, Transaction, TransactionState


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
