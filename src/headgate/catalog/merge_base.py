"""Merge bases, spans of a dataset's history, and changes of the type of OPEN transactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from sqlalchemy import Connection, bindparam, select, update

from headgate.catalog import records
from headgate.catalog.database import as_unit_of_work
from headgate.catalog.schema import datasets, transactions, versions
from headgate.errors import TransactionNotOpen
from headgate.model.ancestry import common_ancestor, is_in_history
from headgate.model.ids import ContentId, DatasetId, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, Transaction, TransactionState, TransactionType

# The provenance of a merge names, under this key, the transaction of the other branch.
MERGED = "merged"
_MOST_MERGES = 100


def find_merge_base(
    connection: Connection, source: Transaction, target: Transaction
) -> Transaction | None:
    """Return the newest state that both sides contain: the fork, or what was merged since.

    The history of a dataset that was renamed continues under its earlier name.
    """
    ours, theirs = ([side, *find_earlier(connection, side)] for side in (source, target))
    fork = _find_fork(connection, ours, theirs)
    before = [fork, *find_earlier(connection, fork)] if fork is not None else []
    for merge in _merges(connection, {side.dataset_id for side in (*ours, *theirs)}):
        into_target = _contains(connection, theirs, merge)
        into_source = _contains(connection, ours, merge)
        if not into_target and not into_source:
            continue
        if into_target and into_source and _contains(connection, before, merge):
            continue
        merged = records.load_transaction(connection, merge.provenance[MERGED]["transaction"])
        if _contains(connection, ours if into_target else theirs, merged):
            return merged
    return fork


def is_unchanged(source: Transaction, target: Transaction | None, base: Transaction | None) -> bool:
    """Return whether the source has what the target has, or has not changed since the base."""
    return any(same_content(source, other) for other in (target, base) if other is not None)


def same_content(one: Transaction, other: Transaction) -> bool:
    """Compare content ids: equal ones promise equal rows, whatever compaction did."""
    if one.version is None or other.version is None:
        return one.version is other.version
    return one.version.content_id == other.version.content_id


def find_earlier(connection: Connection, newest: Transaction) -> list[Transaction]:
    """Return the transactions at which the history of `newest` left its earlier names."""
    query = (
        select(transactions.c.id)
        .where(
            transactions.c.dataset_id == newest.dataset_id,
            transactions.c.renamed_from.is_not(None),
            transactions.c.depth <= newest.depth,
        )
        .order_by(transactions.c.depth.desc())
    )
    for id in connection.execute(query).scalars().all():
        first = records.load_transactions(connection, [id])[id]
        if first.renamed_from is not None and records.is_below(connection, first, newest.id):
            # Absent where a reader may not see the dataset of the earlier name.
            found = records.load_transactions(connection, [first.renamed_from]).values()
            return [one for last in found for one in (last, *find_earlier(connection, last))]
    return []


def find_later(connection: Connection, dataset: DatasetId) -> list[DatasetName]:
    """Return the names that a dataset was given by a rename, on any branch."""
    old = transactions.alias("old")
    query = (
        select(*records.DATASET_NAME)
        .join(transactions, transactions.c.dataset_id == datasets.c.id)
        .join(old, old.c.id == transactions.c.renamed_from)
        .where(old.c.dataset_id == dataset)
        .distinct()
    )
    return [records.dataset_name(row) for row in connection.execute(query).mappings()]


def _find_fork(
    connection: Connection, ours: Sequence[Transaction], theirs: Sequence[Transaction]
) -> Transaction | None:
    steps = records.Steps(connection)
    forks = [
        records.load_transaction(connection, fork.id)
        for one, other in product(ours, theirs)
        if one.dataset_id == other.dataset_id
        and (fork := common_ancestor(steps(one.id), steps(other.id), steps)) is not None
    ]
    # A tombstone is the fork only if no earlier name has one with content.
    return next((fork for fork in forks if fork.version is not None), next(iter(forks), None))


def _contains(
    connection: Connection, history: Iterable[Transaction], candidate: Transaction
) -> bool:
    """Return whether a history, given by its newest transaction under each name, has another."""
    return any(
        last.dataset_id == candidate.dataset_id and records.is_below(connection, candidate, last.id)
        for last in history
    )


def _merges(connection: Connection, of: Iterable[DatasetId]) -> list[Transaction]:
    """Return merges on any branch of the datasets, newest first."""
    query = (
        select(transactions.c.id)
        .where(
            transactions.c.dataset_id.in_(sorted(of)),
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


@as_unit_of_work
def retype_transactions(
    connection: Connection,
    ids: Sequence[TransactionId],
    type: TransactionType,
    *,
    attempt: AttemptRef,
) -> None:
    """Change the type of an attempt's OPEN transactions; each restarts from its base."""
    records.lock_attempt(connection, attempt)
    found = records.load_transactions(connection, ids)
    parents = records.load_transactions(connection, [t.parent for t in found.values() if t.parent])
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
