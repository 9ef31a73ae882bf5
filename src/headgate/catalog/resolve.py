"""What a dataset shows in a context: the transaction that a reader there would read."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from headgate.catalog.log import newest_publication, publication_at, view_at
from headgate.catalog.records import branches_named, find_transaction, load_transaction
from headgate.catalog.units import Unit, find_unit
from headgate.errors import (
    BranchNotFound,
    InvalidContext,
    NotFound,
    TransactionNotOpen,
    VersionExpired,
)
from headgate.model.contexts import BranchContext, Context, JobContext, MomentContext, UnitContext
from headgate.model.ids import Instant, PublicationNumber, TransactionId
from headgate.model.nouns import Dataset, Transaction, TransactionState


def find_shown(connection: Connection, context: Context, dataset: Dataset) -> Transaction | None:
    """The transaction that the context shows of a dataset; None where it shows nothing."""
    match context:
        case BranchContext():
            id = _view_on_chain(connection, dataset, context.chain)
        case MomentContext():
            id = _view_at_moment(connection, dataset, context)
        case UnitContext():
            id = _view_in_unit(connection, dataset, context)
        case JobContext():
            raise InvalidContext(context=str(context), reason="it is only for that job itself")
    shown = find_transaction(connection, id) if id is not None else None
    if shown is not None and shown.condemned:
        raise VersionExpired(what=f"transaction {shown.id}")
    return shown


def load_shown(connection: Connection, context: Context, dataset: Dataset) -> Transaction | None:
    """The same where somebody named the context: a branch that is not there is a mistake."""
    shown = find_shown(connection, context, dataset)
    if shown is not None or not isinstance(context, BranchContext | MomentContext):
        return shown
    if not branches_named(connection, context.chain, [dataset.id]):
        raise BranchNotFound(dataset=str(dataset.name), branch=">".join(context.chain))
    return None


def publication_of(connection: Connection, context: MomentContext) -> PublicationNumber:
    """The publication that a moment names; one to come would show something else by then."""
    if context.at is None:
        return publication_at(connection, context.at_time or Instant(0))
    newest = newest_publication(connection)
    if context.at > newest:
        raise NotFound(
            f"there is no publication {context.at} yet: the newest is {newest}.",
            publication=context.at,
            newest=newest,
        )
    return context.at


def _view_on_chain(
    connection: Connection, dataset: Dataset, chain: Sequence[str]
) -> TransactionId | None:
    views = {b.name: b.view for b in branches_named(connection, chain, [dataset.id])}
    return next((view for name in chain if (view := views.get(name)) is not None), None)


def _view_at_moment(
    connection: Connection, dataset: Dataset, context: MomentContext
) -> TransactionId | None:
    at = publication_of(connection, context)
    views = (view_at(connection, dataset.id, branch, at) for branch in context.chain)
    return next((view for view in views if view is not None), None)


def _view_in_unit(
    connection: Connection, dataset: Dataset, context: UnitContext
) -> TransactionId | None:
    """The unit's own transaction on the dataset, else what its branch shows."""
    unit = find_unit(connection, context.id)
    opened = unit or load_transaction(connection, context.id)
    if opened.state is TransactionState.ABORTED:
        raise TransactionNotOpen(transaction=context.id, state=opened.state)
    mine = opened.transactions if isinstance(opened, Unit) else (opened,)
    own = next((t.id for t in mine if t.dataset_id == dataset.id), None)
    return own or _view_on_chain(connection, dataset, [opened.branch])
