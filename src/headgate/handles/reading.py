"""Which version somebody means by a branch, a context or a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.catalog.database import Connection
from headgate.catalog.find import (
    branches_named,
    find_transaction,
    list_datasets,
    load_dataset,
    load_transactions,
)
from headgate.catalog.showing import find_shown, load_shown
from headgate.errors import NotFound, NotInHistory, TransactionNotCommitted, VersionExpired
from headgate.handles.parts import StoreParts
from headgate.model.contexts import BranchContext, Context, parse_context
from headgate.model.ids import DatasetId
from headgate.model.names import DatasetName
from headgate.model.nouns import Dataset, Transaction, TransactionState, Version


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What two texts mean of one dataset; None shows nothing."""

    dataset: Dataset
    before: Transaction | None
    after: Transaction | None

    @property
    def versions(self) -> tuple[Version | None, Version | None]:
        return _version(self.before), _version(self.after)

    @property
    def same_content(self) -> bool:
        one, other = self.versions
        return (one and one.content_id) == (other and other.content_id)


def load_sides(store: StoreParts, dataset: DatasetName, before: str, after: str) -> Sides:
    """What two branches, contexts or transactions show of a dataset."""

    def read(connection: Connection) -> Sides:
        found = load_dataset(connection, dataset)
        return Sides(
            dataset=found,
            before=_load_side(connection, found, before),
            after=_load_side(connection, found, after),
        )

    return store.database.read(read)


def find_dataset_of(store: StoreParts, texts: Sequence[str]) -> DatasetName | None:
    """The dataset of the first text that is a transaction's id; a branch's name says none."""

    def read(connection: Connection) -> DatasetName | None:
        found = (find_transaction(connection, text) for text in texts)
        return next((transaction.dataset for transaction in found if transaction), None)

    return store.database.read(read)


def list_differing(store: StoreParts, before: str, after: str) -> list[Sides]:
    """Every dataset whose content differs between two contexts.

    A branch alone stands for itself and its fallbacks, as in a build: a dataset on which it was
    never made has no changes of its own there.
    """
    chains = [_with_fallback(store, parse_context(text)) for text in (before, after)]

    def read(connection: Connection) -> list[Sides]:
        found = list_datasets(connection)
        ids = [dataset.id for dataset in found]
        for context in chains:
            _check_known(connection, context, ids)
        olds, news = (_shown_of_all(connection, context, found) for context in chains)
        return [Sides(dataset=d, before=olds.get(d.id), after=news.get(d.id)) for d in found]

    return [sides for sides in store.database.read(read) if not sides.same_content]


def _load_side(connection: Connection, dataset: Dataset, text: str) -> Transaction | None:
    transaction = find_transaction(connection, text)
    if transaction is not None:
        return _checked(transaction, dataset)
    return load_shown(connection, parse_context(text), dataset)


def _checked(transaction: Transaction, dataset: Dataset) -> Transaction:
    if transaction.dataset_id != dataset.id:
        raise NotInHistory(
            dataset=str(dataset.name), branch=transaction.branch, transaction=transaction.id
        )
    if transaction.state is TransactionState.ABORTED:
        raise TransactionNotCommitted(transaction=transaction.id, state=transaction.state)
    if transaction.condemned:
        raise VersionExpired(what=f"transaction {transaction.id}")
    return transaction


def _with_fallback(store: StoreParts, context: Context) -> Context:
    if not isinstance(context, BranchContext) or context.fallbacks:
        return context
    others = store.settings.builds.fallback_of(context.branch)
    return BranchContext(chain=(context.branch, *others))


def _check_known(connection: Connection, context: Context, datasets: Sequence[DatasetId]) -> None:
    if not isinstance(context, BranchContext):
        return
    name = context.branch
    if not branches_named(connection, [name], datasets):
        raise NotFound(
            f"no dataset has a branch {name!r}. `headgate branch list` shows those there are.",
            branch=name,
        )


def _shown_of_all(
    connection: Connection, context: Context, datasets: Sequence[Dataset]
) -> dict[DatasetId, Transaction]:
    """What a context shows of many datasets; a chain of branches in a handful of queries."""
    if not isinstance(context, BranchContext):
        shown = {d.id: find_shown(connection, context, d) for d in datasets}
        return {id: transaction for id, transaction in shown.items() if transaction}
    order = {name: place for place, name in enumerate(context.chain)}
    found = branches_named(connection, context.chain, [d.id for d in datasets])
    views = {
        branch.dataset_id: branch.view
        for branch in sorted(found, key=lambda branch: -order[branch.name])
        if branch.view is not None
    }
    transactions = load_transactions(connection, views.values())
    return {dataset: transactions[view] for dataset, view in views.items()}


def _version(transaction: Transaction | None) -> Version | None:
    return transaction.version if transaction else None
