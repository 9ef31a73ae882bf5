"""Retention: the versions that cleanup keeps, and the time since which snapshots are remembered.

Every version lists its table's earlier snapshots. A snapshot that no version has shown since that
time is no longer listed by any version, so that cleanup may delete its files. The time is the same
for the whole store and only moves forward, with the retention time. See ADR 0021.
"""

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, union_all, update

from headgate.catalog import schema
from headgate.catalog.database import as_unit_of_work
from headgate.catalog.records import BUILD_ATTEMPT, is_live, lock_counter, rows_of
from headgate.model.ids import Instant, TransactionId, VersionId
from headgate.model.nouns import TransactionState

# Versions that a branch, a tag or a running writer may still need

PAGE_ROWS = 10_000
# Every string of a JSON document, even of a truncated one.
_STRING = re.compile(r'"([^"\\]+)"')


class Reason(enum.StrEnum):
    """The reason why a version is kept."""

    VIEW = "shown by a branch"
    HISTORY = "within the retention period"
    TAG = "pinned by a tag"
    OPEN = "used by an open transaction"
    JOB = "read by a running job"


@dataclass(frozen=True, kw_only=True)
class Retained:
    """The versions to keep when the log was at `number`."""

    number: int
    # Transactions closed since then are within the retention time.
    horizon: Instant
    # Transactions whose histories were followed; others are kept without their histories.
    histories: frozenset[TransactionId]
    versions: Mapping[VersionId, Reason]


Parents = Mapping[TransactionId, TransactionId | None]


def kept_histories(views: Iterable[TransactionId], recent: Parents) -> set[TransactionId]:
    """Return each view and the part of its history that was shown within the retention time.

    `recent` has the parents of the transactions closed within that time. The parent of a recent
    transaction was shown until then, however old it is itself; the ancestors of an old one were
    not.
    """
    kept: set[TransactionId] = set()
    for view in views:
        here: TransactionId | None = view
        while here is not None and here not in kept:
            kept.add(here)
            here = recent.get(here)
    return kept


def strings_in(texts: Iterable[str]) -> set[str]:
    """Return all strings in JSON texts; this finds the ids that they name, whatever the shape."""
    return {word for text in texts for word in _STRING.findall(text)}


def compute_retained(connection: Connection, *, retain_seconds: int, moment: Instant) -> Retained:
    """Return the versions that must be kept at this time, by all the rules."""
    horizon = Instant(max(0, moment - retain_seconds * 1_000_000))
    number = connection.execute(select(schema.log_counter.c.number)).scalar_one()
    recent, held = _recent_commits(connection, horizon)
    views = set(_ids(connection, _known(schema.branches.c.view_id)))
    histories = kept_histories(views, recent)
    kept: dict[TransactionId, Reason] = dict.fromkeys(views, Reason.VIEW)
    for reason, found in (
        (Reason.HISTORY, histories),
        (Reason.HISTORY, _recent_move_sources(connection, horizon)),
        (Reason.TAG, _ids(connection, _known(schema.tags.c.transaction_id))),
        (Reason.OPEN, _open_and_bases(connection)),
        (Reason.JOB, strings_in(_live_job_texts(connection, moment))),
    ):
        for id in found:
            kept.setdefault(TransactionId(id), reason)
    held |= _versions_of(connection, kept.keys() - held.keys())
    versions: dict[VersionId, Reason] = {}
    for id, reason in kept.items():
        if id in held:
            versions.setdefault(held[id], reason)
    return Retained(
        number=number, horizon=horizon, histories=frozenset(histories), versions=versions
    )


def needed_since(
    connection: Connection, retained: Retained, candidates: Collection[VersionId]
) -> set[VersionId]:
    """Return those of the candidates that came to be needed after `retained` was found.

    The caller holds the lock on the log counter, so that no publication is in progress.
    """
    moved = select(schema.moves.c.from_id, schema.moves.c.to_id).where(
        schema.moves.c.publication > retained.number
    )
    ends = {TransactionId(id) for pair in connection.execute(moved) for id in pair if id}
    needed = _histories_since(connection, ends, retained)
    pinned = select(schema.transactions.c.version_id).join(
        schema.tags, schema.tags.c.transaction_id == schema.transactions.c.id
    )
    here = schema.transactions.c.version_id.in_(sorted(candidates))
    needed |= {VersionId(id) for id in connection.execute(pinned.where(here)).scalars()}
    needed |= set(_versions_of(connection, _open_and_bases(connection)).values())
    return needed & set(candidates)


def oldest_owner(connection: Connection, moment: Instant) -> Instant | None:
    """Return the start time of the oldest live attempt, OPEN transaction or OPEN unit."""
    opened = [
        select(func.min(table.c.opened_at)).where(table.c.state == TransactionState.OPEN)
        # A unit can have uploaded files before its first transaction opens.
        for table in (schema.transactions, schema.units)
    ]
    started = select(func.min(schema.attempts.c.started_at)).where(is_live(moment))
    found = [connection.execute(query).scalar_one() for query in (*opened, started)]
    return min((Instant(at) for at in found if at is not None), default=None)


def _recent_commits(
    connection: Connection, horizon: Instant
) -> tuple[Parents, dict[TransactionId, VersionId]]:
    """Return parents and versions of transactions committed within the retention time."""
    query = (
        select(
            schema.transactions.c.id,
            schema.transactions.c.parent_id,
            schema.transactions.c.version_id,
        )
        .where(
            schema.transactions.c.state == TransactionState.COMMITTED,
            schema.transactions.c.closed_at >= horizon,
        )
        .execution_options(yield_per=PAGE_ROWS)
    )
    parents: dict[TransactionId, TransactionId | None] = {}
    held: dict[TransactionId, VersionId] = {}
    for id, parent, version in connection.execute(query):
        parents[id] = parent
        if version is not None:
            held[id] = version
    return parents, held


def _recent_move_sources(connection: Connection, horizon: Instant) -> Iterator[TransactionId]:
    """Return what branches showed and moved away from since `horizon`, deleted branches included.

    Reset can go back there, and a deleted branch can be restored.
    """
    first = select(func.min(schema.publications.c.number)).where(
        schema.publications.c.at >= horizon
    )
    query = (
        select(schema.moves.c.from_id)
        .where(
            schema.moves.c.publication >= first.scalar_subquery(),
            schema.moves.c.from_id.is_not(None),
        )
        .distinct()
    )
    return _ids(connection, query)


def _open_and_bases(connection: Connection) -> set[TransactionId]:
    query = select(schema.transactions.c.id, schema.transactions.c.parent_id).where(
        schema.transactions.c.state == TransactionState.OPEN
    )
    return {TransactionId(id) for pair in connection.execute(query) for id in pair if id}


def _live_job_texts(connection: Connection, moment: Instant) -> list[str]:
    """Return the documents that name what live attempts and jobs of live builds read."""
    scopes = select(schema.attempts.c.scope).where(is_live(moment))
    plans = (
        select(schema.jobs.c.body)
        .join(schema.builds, schema.builds.c.id == schema.jobs.c.build_id)
        .join(schema.attempts, BUILD_ATTEMPT)
        .where(is_live(moment))
    )
    return [text for query in (scopes, plans) for text in connection.execute(query).scalars()]


def _known(column: Any) -> Select[Any]:
    return select(column).where(column.is_not(None))


def _ids(connection: Connection, query: Select[Any]) -> Iterator[TransactionId]:
    yield from connection.execute(query.execution_options(yield_per=PAGE_ROWS)).scalars()


def _versions_of(connection: Connection, ids: Iterable[str]) -> dict[TransactionId, VersionId]:
    query = select(schema.transactions.c.id, schema.transactions.c.version_id).where(
        schema.transactions.c.version_id.is_not(None)
    )
    rows = rows_of(connection, query, ids, column=schema.transactions.c.id)
    return {TransactionId(id): VersionId(version) for id, version in rows}


def _histories_since(
    connection: Connection, ends: Iterable[TransactionId], retained: Retained
) -> set[VersionId]:
    """Return the versions of `ends` and their histories, back to old or already followed steps."""
    needed: set[VersionId] = set()
    seen: set[TransactionId] = set()
    layer = set(ends) - retained.histories
    steps = select(
        schema.transactions.c.parent_id,
        schema.transactions.c.version_id,
        schema.transactions.c.closed_at,
    )
    while layer:
        seen |= layer
        above: set[TransactionId] = set()
        rows = rows_of(connection, steps, layer, column=schema.transactions.c.id)
        for parent, version, closed_at in rows:
            needed |= {VersionId(version)} if version else set()
            if parent is not None and (closed_at or retained.horizon) >= retained.horizon:
                above.add(TransactionId(parent))
        layer = above - seen - retained.histories
    return needed


# The time since which snapshots are remembered

_KEY = "snapshots_remembered_since"


def remembered_since(connection: Connection) -> Instant:
    """Return the time since which snapshots are remembered; 0 if none was ever forgotten."""
    found = connection.execute(
        select(schema.store.c.value).where(schema.store.c.key == _KEY)
    ).scalar()
    return Instant(int(found) if found is not None else 0)


def forget_no_later_than(connection: Connection, moment: Instant) -> None:
    """Move that time back to this one, if a clock that was ahead has set it later."""
    if remembered_since(connection) > moment:
        connection.execute(
            update(schema.store).where(schema.store.c.key == _KEY).values(value=str(moment))
        )


@as_unit_of_work
def forget_before(connection: Connection, moment: Instant) -> Instant:
    """Move that time forward, never back; return its new value."""
    # Of two concurrent cleanups, the one with the earlier time must not win.
    lock_counter(connection)
    held = remembered_since(connection)
    if not held:
        connection.execute(insert(schema.store).values(key=_KEY, value=str(moment)))
    elif held < moment:
        connection.execute(
            update(schema.store).where(schema.store.c.key == _KEY).values(value=str(moment))
        )
    return max(held, moment)


# Time that has passed without a record

_CLEANED = "cleaned_at"


def last_publication_at(connection: Connection) -> Instant:
    """Return the time of the newest publication; 0 if there is none."""
    return Instant(connection.execute(select(schema.log_counter.c.last_at)).scalar_one())


def record_cleanup(connection: Connection, at: Instant) -> None:
    """Record that a cleanup found the clock plausible at this time."""
    connection.execute(delete(schema.store).where(schema.store.c.key == _CLEANED))
    connection.execute(insert(schema.store).values(key=_CLEANED, value=str(at)))


def longest_gap(
    connection: Connection, moment: Instant, horizon: Instant
) -> tuple[Instant, Instant] | None:
    """Return the longest time without a publication, event or cleanup; None in a new store.

    It is looked for since the last cleanup or, without one, in the retention period.
    """
    since = _seen_before(connection, moment, horizon)
    if since is None:
        return None
    parts = (
        select(table.c.at).where(table.c.at > since, table.c.at <= moment)
        for table in (schema.publications, schema.events)
    )
    times = union_all(*parts).subquery()
    before = func.lag(times.c.at).over(order_by=times.c.at)
    steps = select(func.coalesce(before, since).label("begin"), times.c.at.label("end")).subquery()
    longest = select(steps).order_by((steps.c.end - steps.c.begin).desc()).limit(1)
    last = connection.execute(select(func.max(times.c.at))).scalar()
    gaps = [(row.begin, row.end) for row in connection.execute(longest)]
    gaps.append((last if last is not None else since, moment))
    begin, end = max(gaps, key=lambda gap: gap[1] - gap[0])
    return Instant(begin), Instant(end)


def _seen_before(connection: Connection, moment: Instant, horizon: Instant) -> Instant | None:
    cleaned = connection.execute(
        select(schema.store.c.value).where(schema.store.c.key == _CLEANED)
    ).scalar()
    if cleaned is not None and int(cleaned) <= moment:
        return Instant(int(cleaned))
    older = select(func.max(schema.publications.c.at)).where(schema.publications.c.at <= horizon)
    first = select(func.min(schema.publications.c.at)).where(schema.publications.c.at <= moment)
    found = [connection.execute(query).scalar() for query in (older, first)]
    return next((Instant(at) for at in found if at is not None), None)
