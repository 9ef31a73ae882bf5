"""Catalog benchmarks: branches, transactions, publications and views, as the store grows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from bench.cases import Bench, Prepare, Timed
from bench.filling import ACTOR, NAMESPACE, ROOT
from bench.places import Place, on_postgres, on_sqlite
from headgate.catalog.branches import create_branch
from headgate.catalog.database import Connection
from headgate.catalog.publish import publish
from headgate.catalog.records import (
    branches_named,
    find_datasets,
    is_below,
    load_branch,
    load_dataset,
    load_transaction,
)
from headgate.catalog.resolve import find_shown
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.model.changes import AddTransaction, Caller, CommitTransaction, PublishRequest
from headgate.model.contexts import BranchContext
from headgate.model.ids import ContentId, mint, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import Branch, Dataset, PublicationKind, TransactionType, Version

_FLOOR = "floor: one UPDATE, one COMMIT"

ON_SQLITE: Bench[Place] = Bench("catalog on SQLite", on_sqlite, floor=_FLOOR)
ON_POSTGRES: Bench[Place] = Bench("catalog on PostgreSQL", on_postgres, floor=_FLOOR)


def _on_both(
    name: str, *, sqlite_ms: float | None = None, flat: bool = True
) -> Callable[[Prepare[Place]], Prepare[Place]]:
    """Register a case on both databases; the target is for SQLite."""

    def register(prepare: Prepare[Place]) -> Prepare[Place]:
        ON_SQLITE.case(name, target_ms=sqlite_ms, flat=flat)(prepare)
        return ON_POSTGRES.case(name, flat=flat)(prepare)

    return register


@_on_both(_FLOOR, flat=False)
def _floor(place: Place) -> Timed:
    return place.floor


@_on_both("create a branch", sqlite_ms=5)
def _create(place: Place) -> Timed:
    dataset = _deep(place)
    name = mint("branch")
    return lambda: create_branch(
        place.database, dataset, name, parent=ROOT, caller=Caller(actor=ACTOR)
    )


@_on_both("open and commit a transaction")
def _open_and_commit(place: Place) -> Timed:
    [branch] = _branches(place, 1)
    opening = Opening(branch=branch.id, type=TransactionType.UPDATE)
    opener = Opener(caller=Caller(actor=ACTOR), lease_seconds=900)

    def work() -> None:
        [opened] = open_transactions(place.database, [opening], opener)
        change = CommitTransaction(transaction=opened.id, version=opened.version)
        request = PublishRequest(
            caller=Caller(actor=ACTOR), kind=PublicationKind.COMMIT, changes=(change,)
        )
        publish(place.database, request)

    return work


@_on_both("publish 1 dataset", sqlite_ms=5)
def publish_1(place: Place) -> Timed:
    return _publication(place, 1)


@_on_both("publish 10 datasets at once")
def _publish_10(place: Place) -> Timed:
    return _publication(place, 10)


@_on_both("publish 100 datasets at once", sqlite_ms=50)
def _publish_100(place: Place) -> Timed:
    return _publication(place, 100)


@_on_both("read a view")
def _read(place: Place) -> Timed:
    """Resolve a dataset name and a branch name to the version that a reader opens."""
    name = _name(place.filled.datasets[0])
    context = BranchContext(chain=(ROOT,))

    def read(connection: Connection) -> object:
        return find_shown(connection, context, load_dataset(connection, name))

    return lambda: place.database.read(read)


# The number of hops grows with the logarithm of the history's length: not flat.
@_on_both("is an old transaction in the history?", flat=False)
def _is_in_history(place: Place) -> Timed:
    dataset = _deep(place)
    branch = place.database.read(lambda c: load_branch(c, dataset, ROOT))
    old = place.database.read(lambda c: load_transaction(c, place.filled.old))
    return lambda: place.database.read(lambda c: is_below(c, old, branch.view))


def _publication(place: Place, count: int) -> Timed:
    """Publish a new version of each of `count` datasets, the deep one first."""
    changes = tuple(_addition(place, branch) for branch in _branches(place, count))
    request = PublishRequest(
        caller=Caller(actor=ACTOR), kind=PublicationKind.COMMIT, changes=changes
    )
    return lambda: publish(place.database, request)


def _addition(place: Place, branch: Branch) -> AddTransaction:
    tree = place.trees[0]
    return AddTransaction(
        branch=branch.id,
        expected_head=branch.head,
        expected_view=branch.view,
        parent=branch.view,
        type=TransactionType.UPDATE,
        version=Version(id=mint_version(), location=tree, content_id=ContentId(tree)),
    )


def _branches(place: Place, count: int) -> list[Branch]:
    names = [_name(name) for name in islice(place.filled.datasets, count)]

    def read(connection: Connection) -> list[Branch]:
        found = find_datasets(connection, names)
        return branches_named(connection, [ROOT], [found[name].id for name in names])

    return place.database.read(read)


def _deep(place: Place) -> Dataset:
    return place.database.read(lambda c: load_dataset(c, _name(place.filled.datasets[0])))


def _name(name: str) -> DatasetName:
    return DatasetName(namespace=(NAMESPACE,), name=name)
