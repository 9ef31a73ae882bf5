"""Reading datasets, branches and transactions: `find_` returns None, `load_` raises."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select

from headgate.catalog.rows import (
    BRANCHES,
    DATASETS,
    TRANSACTIONS,
    namespace_key,
    to_branch,
    to_dataset,
    to_step,
    to_transaction,
)
from headgate.catalog.schema import branches, datasets, transactions
from headgate.errors import BranchNotFound, DatasetNotFound, NotInHistory, TransactionNotFound
from headgate.model.history import Step, is_in_history
from headgate.model.ids import BranchId, DatasetId, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, Dataset, Transaction

# Both databases take long lists of parameters; SQLite's default limit is the lower one.
_CHUNK = 500


def find_dataset(connection: Connection, name: DatasetName) -> Dataset | None:
    query = DATASETS.where(
        datasets.c.namespace == namespace_key(name.namespace), datasets.c.name == name.name
    )
    row = connection.execute(query).mappings().one_or_none()
    return to_dataset(row) if row else None


def load_dataset(connection: Connection, name: DatasetName) -> Dataset:
    dataset = find_dataset(connection, name)
    if dataset is None:
        raise DatasetNotFound(dataset=str(name))
    return dataset


def list_datasets(
    connection: Connection, namespace: tuple[str, ...] | None = None
) -> list[Dataset]:
    query = DATASETS.order_by(datasets.c.namespace, datasets.c.name)
    if namespace is not None:
        query = query.where(datasets.c.namespace == namespace_key(namespace))
    return [to_dataset(row) for row in connection.execute(query).mappings()]


def find_datasets(
    connection: Connection, names: Iterable[DatasetName]
) -> dict[DatasetName, Dataset]:
    """Those of the names that exist, in few queries."""
    wanted = set(names)
    spaces = sorted({namespace_key(name.namespace) for name in wanted})
    found: dict[DatasetName, Dataset] = {}
    for start in range(0, len(spaces), _CHUNK):
        query = DATASETS.where(datasets.c.namespace.in_(spaces[start : start + _CHUNK]))
        for row in connection.execute(query).mappings():
            dataset = to_dataset(row)
            if dataset.name in wanted:
                found[dataset.name] = dataset
    return found


def branches_of(connection: Connection, dataset_ids: Sequence[DatasetId]) -> list[Branch]:
    """Every branch of many datasets."""
    found: list[Branch] = []
    for start in range(0, len(dataset_ids), _CHUNK):
        query = BRANCHES.where(branches.c.dataset_id.in_(dataset_ids[start : start + _CHUNK]))
        found += [to_branch(row) for row in connection.execute(query).mappings()]
    return found


def find_branch(connection: Connection, dataset: DatasetId, name: str) -> Branch | None:
    query = BRANCHES.where(branches.c.dataset_id == dataset, branches.c.name == name)
    row = connection.execute(query).mappings().one_or_none()
    return to_branch(row) if row else None


def load_branch(connection: Connection, dataset: Dataset, name: str) -> Branch:
    branch = find_branch(connection, dataset.id, name)
    if branch is None:
        raise BranchNotFound(dataset=str(dataset.name), branch=name)
    return branch


def list_branches(connection: Connection, dataset: DatasetId | None = None) -> list[Branch]:
    query = BRANCHES.order_by(datasets.c.namespace, datasets.c.name, branches.c.name)
    if dataset is not None:
        query = query.where(branches.c.dataset_id == dataset)
    return [to_branch(row) for row in connection.execute(query).mappings()]


def branches_named(
    connection: Connection, names: Iterable[str], dataset_ids: Sequence[DatasetId]
) -> list[Branch]:
    """The branches with these names, over many datasets at once."""
    wanted = list(names)
    found: list[Branch] = []
    for start in range(0, len(dataset_ids), _CHUNK):
        query = BRANCHES.where(
            branches.c.dataset_id.in_(dataset_ids[start : start + _CHUNK]),
            branches.c.name.in_(wanted),
        )
        found += [to_branch(row) for row in connection.execute(query).mappings()]
    return found


def find_transaction(connection: Connection, id: str) -> Transaction | None:
    query = TRANSACTIONS.where(transactions.c.id == id)
    row = connection.execute(query).mappings().one_or_none()
    return to_transaction(row) if row else None


def load_transaction(connection: Connection, id: str) -> Transaction:
    transaction = find_transaction(connection, id)
    if transaction is None:
        raise TransactionNotFound(transaction=id)
    return transaction


def load_transactions(
    connection: Connection, ids: Iterable[TransactionId]
) -> dict[TransactionId, Transaction]:
    wanted = sorted(set(ids))
    found: dict[TransactionId, Transaction] = {}
    for start in range(0, len(wanted), _CHUNK):
        query = TRANSACTIONS.where(transactions.c.id.in_(wanted[start : start + _CHUNK]))
        for row in connection.execute(query).mappings():
            found[TransactionId(row["id"])] = to_transaction(row)
    return found


def check_in_history(
    connection: Connection, branch: Branch, candidate: Transaction, newest: TransactionId | None
) -> None:
    """Raises unless the candidate is `newest` or one of its ancestors."""
    steps = Steps(connection)
    start = steps(newest) if newest else None
    if candidate.dataset_id != branch.dataset_id or not is_in_history(
        steps(candidate.id), start, steps
    ):
        raise NotInHistory(
            dataset=str(branch.dataset), branch=branch.name, transaction=candidate.id
        )


class Steps:
    """A lookup of history steps that remembers, and can fetch many at once."""

    _columns = (
        transactions.c.id,
        transactions.c.parent_id,
        transactions.c.depth,
        transactions.c.jump_id,
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[TransactionId, Step] = {}

    def __call__(self, id: TransactionId) -> Step:
        if id not in self._known:
            self.fetch([id])
        if id not in self._known:
            raise TransactionNotFound(transaction=id)
        return self._known[id]

    def prepare_parents(self, parents: Iterable[TransactionId | None]) -> None:
        """Fetches what placing children under these parents looks at, in three queries."""
        layer = {id for id in parents if id is not None}
        for _ in range(3):
            self.fetch(layer)
            layer = {jump for id in layer if (jump := self(id).jump) is not None}

    def fetch(self, ids: Iterable[TransactionId]) -> None:
        missing = sorted(set(ids) - self._known.keys())
        for start in range(0, len(missing), _CHUNK):
            query = select(*self._columns).where(
                transactions.c.id.in_(missing[start : start + _CHUNK])
            )
            for row in self._connection.execute(query).mappings():
                self._known[TransactionId(row["id"])] = to_step(row)


def branch_of(connection: Connection, id: BranchId) -> Branch | None:
    row = connection.execute(BRANCHES.where(branches.c.id == id)).mappings().one_or_none()
    return to_branch(row) if row else None


def views_on(
    connection: Connection, names: Iterable[DatasetName], branch: str
) -> dict[DatasetName, Transaction]:
    """What a branch shows of many datasets at once; those without a view are left out."""
    found = find_datasets(connection, names)
    on = branches_named(connection, [branch], [d.id for d in found.values()])
    views = load_transactions(connection, [b.view for b in on if b.view])
    return {b.dataset: views[b.view] for b in on if b.view}
