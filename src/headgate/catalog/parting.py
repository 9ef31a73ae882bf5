"""Where two histories of a dataset parted, merges between them included."""

from __future__ import annotations

from sqlalchemy import Connection, select

from headgate.catalog.find import Steps, is_below, load_transaction, load_transactions
from headgate.catalog.schema import transactions
from headgate.model.history import common_ancestor
from headgate.model.ids import TransactionId
from headgate.model.nouns import Transaction, TransactionState

# A transaction that merged another branch says here which transaction of it.
MERGED = "merged"
_LOOKED_AT = 100


def find_merge_base(
    connection: Connection, source: Transaction, target: Transaction
) -> Transaction | None:
    """The newest state that both sides contain: where they forked, or what was merged since."""
    steps = Steps(connection)
    fork = common_ancestor(steps(source.id), steps(target.id), steps)
    for merge in _merges(connection, source):
        into_target = is_below(connection, merge, target.id)
        into_source = is_below(connection, merge, source.id)
        if not into_target and not into_source:
            continue
        if fork is not None and merge.depth <= fork.depth and into_target and into_source:
            continue
        merged = load_transaction(connection, merge.provenance[MERGED]["transaction"])
        side = source if into_target else target
        if is_below(connection, merged, side.id):
            return merged
    return load_transaction(connection, fork.id) if fork is not None else None


def _merges(connection: Connection, of: Transaction) -> list[Transaction]:
    """Merges on any branch of the dataset, newest first."""
    query = (
        select(transactions.c.id)
        .where(
            transactions.c.dataset_id == of.dataset_id,
            transactions.c.state == TransactionState.COMMITTED,
            transactions.c.provenance.like(f'%"{MERGED}"%'),
        )
        .order_by(transactions.c.publication.desc())
        .limit(_LOOKED_AT)
    )
    ids = [TransactionId(id) for id in connection.execute(query).scalars()]
    found = load_transactions(connection, ids)
    return [found[id] for id in ids if MERGED in found[id].provenance]
