"""Merge bases, spans of a dataset's history, and changes of the type of OPEN transactions."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Row, bindparam, case, select, update

from headgate.catalog import records
from headgate.catalog.database import as_unit_of_work
from headgate.catalog.schema import datasets, transactions, versions
from headgate.errors import TransactionNotOpen
from headgate.model.ancestry import is_in_history
from headgate.model.ids import ContentId, DatasetId, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, Transaction, TransactionType

# The provenance of a merge names, under this key, the transaction of the other branch.
MERGED = "merged"
# What a transaction is: in the history of one side, of the other, on the line of one of the two
# branches themselves, or older than a common transaction.
_OURS, _THEIRS, _DIRECT, _OLDER = 1, 2, 4, 8
_SHORT, _LONG = 32, 512


def find_merge_bases(
    connection: Connection, source: Transaction, target: Transaction
) -> tuple[Transaction, ...]:
    """Return the newest states that both sides contain: the fork, or what was merged since.

    Walk both histories together, newest publication first, through parents, earlier names and
    merges, also those of other branches. There are several newest states after merges crosswise:
    one that the branches themselves had goes first, and of equal contents one is returned. A
    dataset that the reader may not see ends the walk there.
    """
    rows: dict[str, Row[Any]] = {}
    marks: dict[str, int] = {}
    queue: list[tuple[int, bool, int, str]] = []
    found: list[str] = []

    def reach(id: str | None, mark: int, size: int = _SHORT) -> None:
        if id is not None and id not in rows:
            line = connection.execute(_LINE, {"the_head": id, "the_size": size})
            rows.update({row.id: row for row in line})
        if id is None or id not in rows:
            return
        if id not in marks:
            # After its children: they are newer, or deeper in the same publication.
            number, is_empty = rows[id].publication or 0, rows[id].version_id is None
            heappush(queue, (-number, is_empty, -rows[id].depth, id))
        marks[id] = marks.get(id, 0) | mark

    def is_apart(side: int) -> bool:
        """Return whether a side has history left that is not older than a common transaction."""
        return any(marks[id] & (side | _OLDER) == side for *_, id in queue)

    reach(source.id, _OURS | _DIRECT)
    reach(target.id, _THEIRS | _DIRECT)
    while is_apart(_OURS) and is_apart(_THEIRS):
        id = heappop(queue)[-1]
        if marks[id] & _OURS and marks[id] & _THEIRS and not marks[id] & _OLDER:
            found.append(id)
            marks[id] |= _OLDER
        reach(rows[id].parent_id, marks[id], _LONG)
        reach(rows[id].renamed_from, marks[id])
        merged = records.load(rows[id].merge).get(MERGED) if rows[id].merge else None
        reach(merged and merged["transaction"], marks[id] & ~_DIRECT)
    found.sort(key=lambda id: not marks[id] & _DIRECT)
    loaded = records.load_transactions(connection, [TransactionId(id) for id in found])
    bases: list[Transaction] = []
    for base in (loaded[TransactionId(id)] for id in found):
        if not any(same_content(base, other) for other in bases):
            bases.append(base)
    return tuple(bases)


def is_unchanged(
    source: Transaction, target: Transaction | None, bases: Sequence[Transaction]
) -> bool:
    """Return whether the source has what the target has, or has not changed since the base."""
    if target is not None and same_content(source, target):
        return True
    # With several bases, a side has at least the changes that one of them lacks.
    return len(bases) == 1 and same_content(source, bases[0])


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


# Spans of a history

_FIELDS = ("id", "parent_id", "depth", "type", "version_id")
_start = (
    select(
        *(transactions.c[name] for name in _FIELDS),
        (transactions.c.depth - bindparam("the_size")).label("floor"),
    )
    .where(transactions.c.id == bindparam("the_head"))
    .cte("span", recursive=True)
)
_above = transactions.alias("above")
_span = _start.union_all(
    select(*(_above.c[name] for name in _FIELDS), _start.c.floor)
    .join_from(_start, _above, _above.c.id == _start.c.parent_id)
    .where(_start.c.depth > _start.c.floor)
)
_is_merge = transactions.c.provenance.like(f'%"{MERGED}"%')
_LINE = select(
    *(transactions.c[name] for name in (*_FIELDS, "renamed_from", "publication")),
    case((_is_merge, transactions.c.provenance)).label("merge"),
).join_from(_span, transactions, transactions.c.id == _span.c.id)
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
    rows = connection.execute(
        _SPAN, {"the_head": head, "the_size": steps(head).depth - depth}
    ).all()
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
