"""Resolution of chains and contexts: the branch, and the transaction, that a reader gets.

Every form for one dataset is built on a form for many, which needs a fixed number of queries for
a chain however many datasets it is resolved for. See ADR 0005.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from headgate import errors
from headgate.catalog import log, records, schema
from headgate.model.ancestry import first_with_view
from headgate.model.contexts import (
    BranchContext,
    Context,
    JobContext,
    MomentContext,
    UnitContext,
    parse_context,
)
from headgate.model.ids import DatasetId, Instant, PublicationNumber, TransactionId
from headgate.model.names import nearest
from headgate.model.nouns import Branch, Dataset, Transaction, TransactionState

# What a job may read and write: `{"branch", "inputs", "outputs"}`.
JobScope = Mapping[str, Any]


# Names of branches


_CREATE = (
    "Create it with `headgate branch create`, or name what it starts from: '{name}>{primary}'."
)


def check_exists(
    connection: Connection, chain: Sequence[str], *, past: bool = False, remedy: str = ""
) -> None:
    """Raise unless the first name of a chain is a branch, or may become one off a fallback.

    A name is a branch if it is the primary one, if a dataset has a branch of that name, or if
    JobSpecs are published under it; `past` accepts deleted branches too.
    """
    names = (schema.branches.c.name, schema.jobspec_outputs.c.branch)
    columns = (*names, schema.moves.c.branch_name) if past else names
    policy, primary = records.policy_of(connection), records.primary_of(connection)
    wanted = [name for name in chain if policy is None or policy.shows_branch(name)]
    if primary in wanted or any(
        connection.execute(select(c).where(c.in_(wanted)).limit(1)).first() for c in columns
    ):
        return
    # Only a written fallback makes a new name valid, so in a chain without one it is at fault.
    name = chain[min(1, len(chain) - 1)]
    known = [connection.execute(select(column).distinct()).scalars() for column in names]
    raise errors.BranchNowhere(
        branch=name,
        near=records.nearest_branch(connection, name, itertools.chain([primary], *known)),
        remedy=remedy or _CREATE.format(name=name, primary=primary),
    )


def check_may_create(connection: Connection, name: str, *, create: bool) -> None:
    """Raise unless a name is a branch, or the caller said that it may `create` the branch."""
    if not create:
        remedy = "Create it with --create (in Python, create=True)."
        check_exists(connection, [name], remedy=remedy)


def check_context(connection: Connection, context: Context) -> None:
    """Raise if a context names a branch that does not exist; see `check_exists`."""
    if isinstance(context, BranchContext | MomentContext):
        check_exists(connection, context.chain, past=isinstance(context, MomentContext))
    if isinstance(context, MomentContext) and context.tag is not None:
        known = set(connection.execute(select(schema.tags.c.name)).scalars())
        if context.tag not in known:
            raise errors.TagNotFound(tag=context.tag, near=nearest(context.tag, known))


def read_context(connection: Connection, text: str) -> Context:
    """Parse a context that must exist; a tag that is not also a branch may be written alone."""
    context = parse_context(text)
    try:
        check_context(connection, context)
    except errors.BranchNowhere:
        named = select(schema.tags.c.name).where(schema.tags.c.name == text).limit(1)
        if connection.execute(named).first() is None:
            raise
        return MomentContext(chain=(records.primary_of(connection),), tag=text)
    return context


def find_tagged(
    connection: Connection, tag: str, datasets: Sequence[DatasetId]
) -> dict[DatasetId, TransactionId]:
    """Return the transaction that a tag of this name pins, by dataset."""
    columns = (schema.tags.c.dataset_id, schema.tags.c.transaction_id)
    query = select(*columns).where(schema.tags.c.name == tag)
    rows = records.rows_of(connection, query, datasets, column=columns[0])
    return {DatasetId(id): TransactionId(at) for id, at in rows}


# Chains


@dataclass(frozen=True, kw_only=True)
class OnChain:
    """A chain on one dataset."""

    # The branch of the chain's first name, where writes land.
    own: Branch | None
    # The first branch with a view, where reads and new branches start.
    source: Branch | None


def find_on_chain(connection: Connection, chain: Sequence[str], dataset: DatasetId) -> OnChain:
    """Return the branches of a dataset that a chain leads to."""
    return find_all_on_chain(connection, chain, [dataset])[dataset]


def find_all_on_chain(
    connection: Connection, chain: Sequence[str], datasets: Sequence[DatasetId]
) -> dict[DatasetId, OnChain]:
    """Return the same for each of many datasets, also for those without such a branch."""
    found: dict[DatasetId, dict[str, Branch]] = {dataset: {} for dataset in datasets}
    for branch in records.branches_named(connection, chain, datasets):
        found[branch.dataset_id][branch.name] = branch
    return {
        dataset: OnChain(own=known.get(chain[0]), source=first_with_view(chain, known))
        for dataset, known in found.items()
    }


# Contexts


def find_shown(
    connection: Connection, context: Context, dataset: Dataset, *, scope: JobScope | None = None
) -> Transaction | None:
    """Return the transaction that a context shows of a dataset; None where it shows nothing.

    A job's context needs the scope of that job.
    """
    shown = find_all_shown(connection, context, [dataset], scope=scope).get(dataset.id)
    if shown is None and isinstance(context, MomentContext):
        shown = _under_earlier_name(connection, context, dataset)
    if shown is not None:
        records.check_kept(shown)
    return shown


def load_shown(connection: Connection, context: Context, dataset: Dataset) -> Transaction | None:
    """Return the same for a context that the caller named: one of its branches must exist."""
    shown = find_shown(connection, context, dataset)
    if shown is not None or not isinstance(context, BranchContext | MomentContext):
        return shown
    if isinstance(context, MomentContext) and context.tag is not None:
        raise errors.TagNotFound(tag=context.tag, dataset=str(dataset.name))
    if not records.branches_named(connection, context.chain, [dataset.id]):
        branches = records.branches_of(connection, [dataset.id])
        raise errors.BranchNotFound(
            dataset=str(dataset.name),
            branch=">".join(context.chain),
            near=records.nearest_branch(connection, context.chain[0], branches),
        )
    return None


def find_all_shown(
    connection: Connection,
    context: Context,
    datasets: Sequence[Dataset],
    *,
    scope: JobScope | None = None,
) -> dict[DatasetId, Transaction]:
    """Return the transactions that a context shows, condemned ones among them, by dataset."""
    match context:
        case BranchContext():
            return _on_chain(connection, context.chain, datasets)
        case MomentContext():
            return _at_moment(connection, context, datasets)
        case UnitContext():
            return _in_unit(connection, context, datasets)
        case JobContext():
            if scope is None:
                raise errors.InvalidContext(
                    context=str(context), reason="it is only for that job itself"
                )
            return _in_job(connection, scope, datasets)


def load_opened(connection: Connection, context: UnitContext) -> records.Unit | Transaction:
    """Return the unit, or the single transaction, that a context names; in any state."""
    return records.find_unit(connection, context.id) or records.load_transaction(
        connection, context.id
    )


def _on_chain(
    connection: Connection, chain: Sequence[str], datasets: Sequence[Dataset]
) -> dict[DatasetId, Transaction]:
    found = find_all_on_chain(connection, chain, [dataset.id for dataset in datasets])
    views = {id: on.source.view for id, on in found.items() if on.source and on.source.view}
    return _load(connection, views)


def _at_moment(
    connection: Connection, context: MomentContext, datasets: Sequence[Dataset]
) -> dict[DatasetId, Transaction]:
    if context.tag is not None:
        return _load(connection, find_tagged(connection, context.tag, [d.id for d in datasets]))
    at = _publication_of(connection, context)
    views: dict[DatasetId, TransactionId] = {}
    for dataset in datasets:
        shown = (log.view_at(connection, dataset.id, branch, at) for branch in context.chain)
        if (view := next(filter(None, shown), None)) is not None:
            views[dataset.id] = view
    return _load(connection, views)


def _under_earlier_name(
    connection: Connection, context: MomentContext, dataset: Dataset
) -> Transaction | None:
    """Return what a moment shows of a dataset that got its name by a rename since."""
    for id in log.earlier_datasets(connection, dataset.id):
        earlier = records.find_dataset_by_id(connection, id)
        shown = _at_moment(connection, context, [earlier]) if earlier is not None else {}
        if id in shown and shown[id].version is not None:
            return shown[id]
    return None


def _publication_of(connection: Connection, context: MomentContext) -> PublicationNumber:
    if context.at is None:
        return log.publication_at(connection, context.at_time or Instant(0))
    newest = log.newest_publication(connection)
    if context.at > newest:
        # Once it exists it may show something else.
        raise errors.NotFound(
            f"publication {context.at} does not exist: the newest is {newest}. Name that one or an "
            "earlier one.",
            publication=context.at,
            newest=newest,
        )
    return context.at


def _in_unit(
    connection: Connection, context: UnitContext, datasets: Sequence[Dataset]
) -> dict[DatasetId, Transaction]:
    """Return the unit's own transactions, and for other datasets what its branch shows.

    A COMMITTED unit keeps showing what it committed: a client that lost the reply to its commit
    can still read what it wrote.
    """
    opened = load_opened(connection, context)
    if opened.state is TransactionState.ABORTED:
        raise errors.TransactionNotOpen(transaction=context.id, state=opened.state)
    own = {t.dataset_id: t for t in _transactions_of(connection, opened)}
    others = [dataset for dataset in datasets if dataset.id not in own]
    shown = {dataset.id: own[dataset.id] for dataset in datasets if dataset.id in own}
    return shown | _on_chain(connection, [opened.branch], others)


def _transactions_of(
    connection: Connection, opened: records.Unit | Transaction
) -> Sequence[Transaction]:
    if isinstance(opened, Transaction):
        return [opened]
    if opened.state is TransactionState.OPEN:
        return opened.transactions
    ended = records.list_unit_transactions(connection, opened.id)
    return [t for t in ended if t.state is TransactionState.COMMITTED]


def _in_job(
    connection: Connection, scope: JobScope, datasets: Sequence[Dataset]
) -> dict[DatasetId, Transaction]:
    """Return the working transactions of a job's outputs and the pinned ones of its inputs."""
    ids: dict[DatasetId, TransactionId] = {}
    for dataset in datasets:
        name = str(dataset.name)
        pin = scope["inputs"].get(name)
        if (id := scope["outputs"].get(name) or (pin["transaction"] if pin else None)) is not None:
            ids[dataset.id] = id
    shown = _load(connection, ids)
    for transaction in shown.values():
        if transaction.state is TransactionState.ABORTED:
            raise errors.TransactionNotOpen(transaction=transaction.id, state=transaction.state)
    return shown


def _load(
    connection: Connection, ids: Mapping[DatasetId, TransactionId]
) -> dict[DatasetId, Transaction]:
    found = records.load_transactions(connection, ids.values())
    return {dataset: found[id] for dataset, id in ids.items()}
