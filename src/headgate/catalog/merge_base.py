"""Merge bases, spans of a dataset's history, and changes of the type of OPEN transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import Connection, bindparam, select, update

from headgate.catalog import records
from headgate.catalog.database import Database
from headgate.catalog.schema import transactions, versions
from headgate.errors import TransactionNotOpen
from headgate.model.ancestry import common_ancestor, is_in_history
from headgate.model.ids import ContentId, TransactionId
from headgate.model.nouns import AttemptRef, Transaction, TransactionState, TransactionType

# The provenance of a merge names, under this key, the transaction of the other branch.
MERGED = "merged"
_MOST_MERGES = 100


def find_merge_base(
    connection: Connection, source: Transaction, target: Transaction
) -> Transaction | None:
    """Return the newest state that both sides contain: the fork, or what was merged since."""
    steps = records.Steps(connection)
    fork = common_ancestor(steps(source.id), steps(target.id), steps)
    for merge in _merges(connection, source):
        into_target = records.is_below(connection, merge, target.id)
        into_source = records.is_below(connection, merge, source.id)
        if not into_target and not into_source:
            continue
        if fork is not None and merge.depth <= fork.depth and into_target and into_source:
            continue
        merged = records.load_transaction(connection, merge.provenance[MERGED]["transaction"])
        side = source if into_target else target
        if records.is_below(connection, merged, side.id):
            return merged
    return records.load_transaction(connection, fork.id) if fork is not None else None


def _merges(connection: Connection, of: Transaction) -> list[Transaction]:
    """Return merges on any branch of the dataset, newest first."""
    query = (
        select(transactions.c.id)
        .where(
            transactions.c.dataset_id == of.dataset_id,
            transactions.c.state == TransactionState.COMMITTED,
            transactions.c.provenance.like(f'%"{MERGED}"%'),
        )
        .order_by(transactions.c.publication.desc())
        .limit(_MOST_MERGES)
    )
    ids = [TransactionId(id) for id in connection.execute(query).scalars()]
    found = records.load_transactions(connection, ids)
    return [found[id] for id in ids if MERGED in found[id].provenance]


# Spans of a history

_FIELDS = ("id", "parent_id", "depth", "type", "version_id")
_start = (
    select(*(transactions.c[name] for name in _FIELDS))
    .where(transactions.c.id == bindparam("the_head"))
    .cte("span", recursive=True)
)
_above = transactions.alias("above")
_span = _start.union_all(
    select(*(_above.c[name] for name in _FIELDS))
    .join_from(_start, _above, _above.c.id == _start.c.parent_id)
    .where(_start.c.depth > bindparam("the_depth"))
)
# Starts one before the first step: that transaction has the content from before the step.
_SPAN = (
    select(_span.c.id, _span.c.depth, _span.c.type, versions.c.content_id)
    .outerjoin(versions, versions.c.id == _span.c.version_id)
    .order_by(_span.c.depth)
)


@dataclass(frozen=True, kw_only=True)
class SpanStep:
    """One transaction of a span; `before` is the content of its parent."""

    transaction: TransactionId
    depth: int
    type: TransactionType
    before: ContentId | None
    after: ContentId | None


def find_span(
    connection: Connection, last: TransactionId, head: TransactionId
) -> list[SpanStep] | None:
    """Return the steps after `last` up to `head`, oldest first.

    Return None if `last` is not in the history of `head`.
    """
    steps = records.Steps(connection)
    depth = steps(last).depth
    steps.prepare_walk(head, depth)
    if not is_in_history(steps(last), steps(head), steps):
        return None
    rows = connection.execute(_SPAN, {"the_head": head, "the_depth": depth}).all()
    return [
        SpanStep(
            transaction=TransactionId(row.id),
            depth=row.depth,
            type=TransactionType(row.type),
            before=ContentId(previous.content_id) if previous.content_id else None,
            after=ContentId(row.content_id) if row.content_id else None,
        )
        for previous, row in pairwise(rows)
    ]


def retype_transactions(
    database: Database,
    ids: Sequence[TransactionId],
    type: TransactionType,
    *,
    attempt: AttemptRef,
) -> None:
    """Change the type of an attempt's OPEN transactions; each restarts from its base."""

    def work(connection: Connection) -> None:
        records.lock_attempt(connection, attempt)
        found = records.load_transactions(connection, ids)
        parents = records.load_transactions(
            connection, [t.parent for t in found.values() if t.parent]
        )
        for transaction in found.values():
            parent = parents.get(transaction.parent) if transaction.parent else None
            base = parent.version if parent and type is not TransactionType.SNAPSHOT else None
            changed = connection.execute(
                update(transactions)
                .where(transactions.c.id == transaction.id, records.held_by(attempt))
                .values(type=type, version_id=base.id if base else None)
            )
            if changed.rowcount != 1:
                raise TransactionNotOpen(transaction=transaction.id, state=transaction.state)

    database.write(work)
