"""What was built before, read from the catalog: bases of outputs, histories of inputs."""

from __future__ import annotations

from collections.abc import Callable

from headgate.catalog.database import Connection
from headgate.catalog.find import load_transaction
from headgate.catalog.spans import find_span
from headgate.model.ids import ContentId, TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Transaction
from headgate.model.past import FIRST_SEMANTIC_VERSION, Base, Change, LastBuild, ReadAt

# The transaction on which a new one of this output would stand.
FindBase = Callable[[DatasetName], TransactionId | None]


class CatalogPast:
    """Asks the catalog, once for each output; see `model.freshness.Past`."""

    def __init__(self, connection: Connection, find_base: FindBase) -> None:
        self._connection = connection
        self._find_base = find_base
        self._bases: dict[DatasetName, Base] = {}

    def base(self, output: DatasetName, /) -> Base:
        if output not in self._bases:
            self._bases[output] = load_base(self._connection, self._find_base(output))
        return self._bases[output]

    def since(self, last: TransactionId, head: TransactionId, /) -> tuple[Change, ...] | None:
        found = find_span(self._connection, last, head)
        if found is None:
            return None
        return tuple(
            Change(
                transaction=step.transaction,
                number=step.depth + 1,
                type=step.type,
                changes_content=step.before != step.after,
            )
            for step in found
        )


def load_base(connection: Connection, id: TransactionId | None) -> Base:
    """What a transaction holds, and the newest build that it holds the result of."""
    if id is None:
        return Base()
    top = load_transaction(connection, id)
    maker = find_maker(connection, top)
    last = _last_build(maker)
    return Base(
        transaction=top.id,
        number=top.depth + 1,
        content=_content(top),
        last=last,
        foreign=maker.id if last is None and _content(maker) is not None else None,
    )


def find_maker(connection: Connection, top: Transaction) -> Transaction:
    """The transaction that made what this one shows: a build's, or the first with that content.

    Compaction and properties leave a build's result as it is, however many of them there were.
    """
    here = top
    while not is_built(here) and here.parent is not None:
        below = load_transaction(connection, here.parent)
        if _content(below) != _content(here):
            break
        here = below
    return here


def is_built(transaction: Transaction) -> bool:
    """Whether a build made it, and it shows something."""
    return "fingerprint" in transaction.provenance and transaction.version is not None


def _last_build(transaction: Transaction) -> LastBuild | None:
    if not is_built(transaction):
        return None
    facts = transaction.provenance
    incremental = facts.get("incremental") or {}
    snapshots = incremental.get("snapshots") or {}
    return LastBuild(
        transaction=transaction.id,
        semantic_version=incremental.get("semantic_version", FIRST_SEMANTIC_VERSION),
        read={
            parse_dataset_name(given["dataset"]): ReadAt(
                transaction=TransactionId(given["transaction"]),
                snapshot=snapshots.get(given["dataset"]),
            )
            for given in facts["inputs"]
        },
    )


def _content(transaction: Transaction) -> ContentId | None:
    return transaction.version.content_id if transaction.version else None
