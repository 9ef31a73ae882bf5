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
from headgate.catalog.log import publication_at, view_at
from headgate.catalog.units import find_unit
from headgate.endpoint.ports import ServedTable
from headgate.errors import JobReadDenied, NotFound, VersionExpired
from headgate.model.contexts import (
    BranchContext,
    Context,
    JobContext,
    MomentContext,
    UnitContext,
)
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, Dataset, DatasetKind, Transaction


def resolve(connection: Connection, context: Context, name: DatasetName) -> ServedTable | None:
    """The version that a name means in a context, or None."""
    dataset = find_dataset(connection, name)
    if dataset is None or dataset.kind is not DatasetKind.TABLE:
        if isinstance(context, JobContext):
            _check_declared(load_scope(connection, context), name, context)
        return None
    match context:
        case BranchContext():
            return _serve(dataset, *_on_chain(connection, dataset, context.chain))
        case MomentContext():
            return _at_moment(connection, dataset, context)
        case UnitContext():
            return _in_unit(connection, dataset, context)
        case JobContext():
            return _in_job(connection, dataset, context)


def list_tables(
    connection: Connection, context: Context, namespace: tuple[str, ...]
) -> Sequence[str]:
    """Names of the tables that the context shows in a namespace."""
    found = [d for d in list_datasets(connection, namespace) if d.kind is DatasetKind.TABLE]
    if isinstance(context, BranchContext):
        return _listed_on_chain(connection, found, context.chain)
    if isinstance(context, JobContext):
        scope = load_scope(connection, context)
        declared = {*scope["inputs"], *scope["outputs"]}
        found = [d for d in found if str(d.name) in declared]
    return [d.name.name for d in found if resolve(connection, context, d.name) is not None]


def first_on_chain(connection: Connection, dataset: Dataset, chain: Sequence[str]) -> Branch | None:
    """The first branch of a chain with a COMMITTED transaction."""
    known = {b.name: b for b in branches_named(connection, chain, [dataset.id])}
    return next((known[n] for n in chain if n in known and known[n].view is not None), None)


def load_scope(connection: Connection, context: JobContext) -> Mapping[str, Any]:
    """What a job may read and write: `{"branch", "inputs", "outputs"}`."""
    key, _, epoch = context.id.rpartition(":")
    scope = find_scope(connection, key, int(epoch)) if epoch.isdigit() else None
    if scope is None:
        raise NotFound(f"there is no job {context.id!r}.", job=context.id)
    return scope


def _on_chain(
    connection: Connection, dataset: Dataset, chain: Sequence[str]
) -> tuple[str, Transaction | None]:
    branch = first_on_chain(connection, dataset, chain)
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
) -> ServedTable | None:
    at = context.at
    if at is None and context.at_time is not None:
        at = publication_at(connection, context.at_time)
    for branch in context.chain:
        view = view_at(connection, dataset.id, branch, at or 0)
        if view is not None:
            return _serve(dataset, branch, find_transaction(connection, view))
    return None


def _in_unit(connection: Connection, dataset: Dataset, context: UnitContext) -> ServedTable | None:
    unit = find_unit(connection, context.id)
    if unit is not None:
        mine = next((t for t in unit.transactions if t.dataset_id == dataset.id), None)
        if mine is not None:
            return _serve(dataset, unit.branch, mine)
        return _serve(dataset, *_on_chain(connection, dataset, [unit.branch]))
    single = find_transaction(connection, context.id)
    if single is None:
        raise NotFound(f"there is no transaction or unit {context.id!r}.", transaction=context.id)
    if single.dataset_id == dataset.id:
        return _serve(dataset, single.branch, single)
    return _serve(dataset, *_on_chain(connection, dataset, [single.branch]))


def _in_job(connection: Connection, dataset: Dataset, context: JobContext) -> ServedTable | None:
    scope = load_scope(connection, context)
    _check_declared(scope, dataset.name, context)
    name = str(dataset.name)
    if name in scope["outputs"]:
        working = find_transaction(connection, scope["outputs"][name])
        return _serve(dataset, scope["branch"], working)
    pin = scope["inputs"][name]
    return _serve(dataset, pin["branch"], find_transaction(connection, pin["transaction"]))


def _check_declared(scope: Mapping[str, Any], name: DatasetName, context: JobContext) -> None:
    if str(name) not in scope["inputs"] and str(name) not in scope["outputs"]:
        raise JobReadDenied(job=context.id, dataset=str(name))


def _serve(dataset: Dataset, branch: str, transaction: Transaction | None) -> ServedTable | None:
    if transaction is None or transaction.version is None:
        return None
    if transaction.condemned:
        raise VersionExpired(what=f"transaction {transaction.id}")
    return ServedTable(
        name=dataset.name,
        dataset_id=dataset.id,
        branch=branch,
        transaction=TransactionId(transaction.id),
        location=transaction.version.location,
        content_id=transaction.version.content_id,
    )
