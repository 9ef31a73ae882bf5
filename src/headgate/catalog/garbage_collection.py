"""Garbage collection in the catalog: condemning and sparing content, and claiming it for a sweep.

The door, `--at`, `reset` and adoption reject condemned content. The mark of an object outlives its
bytes: the door then rejects a writer that saw the bytes before and publishes later, which would
otherwise publish a file that does not exist.
"""

import fcntl
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from sqlalchemy import Connection, Executable, delete, insert, select, text, update

from headgate.catalog import records, retention, schema
from headgate.catalog.database import Database, as_unit_of_work, now
from headgate.errors import CatalogUnavailable
from headgate.model.ids import Instant, VersionId
from headgate.model.nouns import DatasetKind, TransactionState

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class VersionMark:
    """Result of marking all versions."""

    condemn: tuple[VersionId, ...]
    # Condemned, but needed again.
    spare: tuple[VersionId, ...]
    kept: Mapping[retention.Reason, int]
    too_recent: int


@dataclass(frozen=True, kw_only=True)
class ObjectMark:
    """References of the catalog to stored objects, and its condemned objects, at one time."""

    # The trees of all versions that are not condemned.
    roots: frozenset[str]
    # The metadata files of all versions of tables that are not condemned.
    tables: frozenset[str]
    # Locations that OPEN transactions use.
    working: frozenset[str]
    # Digests of bundles that a JobSpec names.
    bundles: frozenset[str]
    # Location and time of condemnation of each condemned object, including those swept since.
    condemned: Mapping[str, Instant]


# --- versions -------------------------------------------------------------------------------


def mark_versions(
    connection: Connection, retained: retention.Retained, older_than: Instant
) -> VersionMark:
    """Sort all versions; the ones to condemn are old enough, and no rule keeps them."""
    query = select(
        schema.versions.c.id, schema.versions.c.created_at, schema.versions.c.condemned_at
    ).execution_options(yield_per=retention.PAGE_ROWS)
    condemn: list[VersionId] = []
    spare: list[VersionId] = []
    kept: dict[retention.Reason, int] = {}
    too_recent = 0
    for id, created_at, condemned_at in connection.execute(query):
        reason = retained.versions.get(id)
        if reason is not None:
            kept[reason] = kept.get(reason, 0) + 1
            if condemned_at is not None:
                spare.append(id)
        elif condemned_at is None:
            if created_at < older_than:
                condemn.append(id)
            else:
                too_recent += 1
    return VersionMark(condemn=tuple(condemn), spare=tuple(spare), kept=kept, too_recent=too_recent)


def condemn_versions(
    database: Database, ids: Collection[VersionId], retained: retention.Retained, at: Instant
) -> list[VersionId]:
    """Condemn the versions that are still not needed, in batches, so that writers wait briefly."""
    condemned: list[VersionId] = []
    for part in records.in_chunks(ids):
        condemned += database.write(partial(_condemn_versions, part=part, retained=retained, at=at))
    return condemned


def _condemn_versions(
    connection: Connection, part: Sequence[str], retained: retention.Retained, at: Instant
) -> list[VersionId]:
    records.lock_counter(connection)
    candidates = {VersionId(id) for id in part}
    condemned = sorted(candidates - retention.needed_since(connection, retained, candidates))
    connection.execute(
        update(schema.versions)
        .where(schema.versions.c.id.in_(condemned), schema.versions.c.condemned_at.is_(None))
        .values(condemned_at=at)
    )
    return condemned


def forget_holds(database: Database) -> None:
    """Delete what resets hold on branches that no longer exist and cannot be restored."""
    restorable = (
        select(schema.deleted_branches.c.id)
        .outerjoin(
            schema.transactions, schema.transactions.c.id == schema.deleted_branches.c.view_id
        )
        .outerjoin(schema.versions, schema.versions.c.id == schema.transactions.c.version_id)
        .where(schema.versions.c.condemned_at.is_(None))
    )
    known = select(schema.branches.c.id).union_all(restorable)
    _do(database, delete(schema.holds).where(schema.holds.c.branch_id.not_in(known)))


def spare_versions(database: Database, ids: Collection[VersionId]) -> None:
    """Remove the mark from versions whose content still exists."""
    for part in records.in_chunks(ids):
        _do(
            database,
            update(schema.versions).where(schema.versions.c.id.in_(part)).values(condemned_at=None),
        )


def locations_of(
    connection: Connection, ids: Collection[VersionId]
) -> dict[VersionId, tuple[DatasetKind, str]]:
    """Return the kind of each version and the root of its content."""
    query = select(schema.versions.c.id, schema.datasets.c.kind, schema.versions.c.location).join(
        schema.datasets, schema.datasets.c.id == schema.versions.c.dataset_id
    )
    rows = records.rows_of(connection, query, ids, column=schema.versions.c.id)
    return {VersionId(id): (DatasetKind(kind), location) for id, kind, location in rows}


def describe_versions(
    connection: Connection, ids: Collection[VersionId]
) -> Iterator[tuple[str, str]]:
    """Yield the origin of each version and the reason why it is not needed."""
    query = (
        select(
            schema.versions.c.id.label("version"),
            *records.DATASET_NAME,
            schema.transactions.c.id,
            schema.transactions.c.state,
            schema.transactions.c.branch_name,
        )
        .join(schema.datasets, schema.datasets.c.id == schema.versions.c.dataset_id)
        .outerjoin(schema.transactions, schema.transactions.c.version_id == schema.versions.c.id)
        .order_by(schema.versions.c.id, schema.transactions.c.id)
    )
    rows = records.mappings_of(connection, query, ids, column=schema.versions.c.id)
    newest = {row["version"]: row for row in rows}
    for id, row in newest.items():
        if row["id"] is None:
            yield f"version {id} of {records.dataset_name(row)}", _REPLACED
        else:
            where = f"transaction {row['id']} of {records.dataset_name(row)}@{row['branch_name']}"
            aborted = row["state"] == TransactionState.ABORTED
            yield where, _ABORTED if aborted else _UNSEEN


_REPLACED = "staged and then replaced"
_ABORTED = "of an aborted transaction"
_UNSEEN = "not shown by a branch within the retention period"


# --- objects --------------------------------------------------------------------------------


def mark_objects(connection: Connection, without: Collection[VersionId] = ()) -> ObjectMark:
    """Return what must not be swept, leaving out the versions that are about to be condemned."""
    alive = (
        select(schema.versions.c.id, schema.versions.c.location, schema.datasets.c.kind)
        .join(schema.datasets, schema.datasets.c.id == schema.versions.c.dataset_id)
        .where(schema.versions.c.condemned_at.is_(None))
        .execution_options(yield_per=retention.PAGE_ROWS)
    )
    left_out = set(without)
    roots: dict[str, set[str]] = {kind: set() for kind in DatasetKind}
    for id, location, kind in connection.execute(alive):
        if id not in left_out:
            roots[kind].add(location)
    condemned = select(schema.condemned_objects.c.location, schema.condemned_objects.c.condemned_at)
    return ObjectMark(
        roots=frozenset(roots[DatasetKind.FILES]),
        tables=frozenset(roots[DatasetKind.TABLE] | roots[DatasetKind.VIEW]),
        working=frozenset(connection.execute(select(schema.working_objects.c.location)).scalars()),
        bundles=bundles_named(connection),
        condemned={place: Instant(at) for place, at in connection.execute(condemned)},
    )


def tables_since(connection: Connection, since: Instant) -> frozenset[str]:
    """Return the metadata files of tables and views that were published or staged since a time."""
    query = (
        select(schema.versions.c.location)
        .join(schema.datasets, schema.datasets.c.id == schema.versions.c.dataset_id)
        .where(
            schema.datasets.c.kind != DatasetKind.FILES,
            schema.versions.c.created_at >= since,
            schema.versions.c.condemned_at.is_(None),
        )
    )
    return frozenset(connection.execute(query).scalars())


def bundles_named(connection: Connection) -> frozenset[str]:
    """Return the digests of all bundles that a JobSpec of any age names."""
    texts = connection.execute(select(schema.jobspecs.c.body)).scalars()
    return frozenset(word for word in retention.strings_in(texts) if _DIGEST.match(word))


def condemn_objects(database: Database, sizes: Mapping[str, int], at: Instant) -> list[str]:
    """Condemn locations, so that the door rejects them; return those condemned.

    Locations that came into use meanwhile are left out.
    """
    condemned: list[str] = []
    for part in records.in_chunks(sizes):
        condemned += database.write(partial(_condemn_objects, part=part, sizes=sizes, at=at))
    return condemned


def _condemn_objects(
    connection: Connection, part: Sequence[str], sizes: Mapping[str, int], at: Instant
) -> list[str]:
    # A concurrent publication or staging either ends before these locks are granted, or sees the
    # rows inserted here.
    records.lock_counter(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE working_objects IN SHARE MODE"))
    used = select(schema.working_objects.c.location).where(
        schema.working_objects.c.location.in_(part)
    )
    new = set(part) - find_condemned(connection, part) - set(connection.execute(used).scalars())
    if new:
        connection.execute(
            insert(schema.condemned_objects),
            [{"location": p, "condemned_at": at, "bytes": sizes[p]} for p in sorted(new)],
        )
    return sorted(new)


def spare_objects(database: Database, locations: Collection[str]) -> None:
    """Remove the mark from objects whose bytes still exist and are needed again."""
    for part in records.in_chunks(locations):
        _do(
            database,
            delete(schema.condemned_objects).where(schema.condemned_objects.c.location.in_(part)),
        )


def find_condemned(connection: Connection, locations: Iterable[str]) -> set[str]:
    """Return those of the objects that are condemned."""
    place = schema.condemned_objects.c.location
    return {
        found for (found,) in records.rows_of(connection, select(place), locations, column=place)
    }


def _do(database: Database, statement: Executable) -> None:
    database.write(lambda connection: connection.execute(statement))


# --- sweep ----------------------------------------------------------------------------------

# Any fixed number: the key of the PostgreSQL advisory lock for the sweep.
_POSTGRES_LOCK = 4_817_220_265
_POLL_SECONDS = 0.01


def claim_objects_in(connection: Connection, due: Mapping[str, Instant], at: Instant) -> list[str]:
    """Return the due objects whose marks are unchanged, and set their marks to `at`.

    Call this, and delete the bytes, inside `sweep_lock`.
    """
    query = (
        select(schema.condemned_objects.c.location, schema.condemned_objects.c.condemned_at)
        .where(schema.condemned_objects.c.location.in_(sorted(due)))
        .order_by(schema.condemned_objects.c.location)
        .with_for_update()
    )
    unchanged = [place for place, since in connection.execute(query) if since == due[place]]
    needed = _bundles_needed(connection, unchanged)
    claimed = [place for place in unchanged if place not in needed]
    connection.execute(
        update(schema.condemned_objects)
        .where(schema.condemned_objects.c.location.in_(claimed))
        .values(condemned_at=at)
    )
    return claimed


claim_objects = as_unit_of_work(claim_objects_in)


def _bundles_needed(connection: Connection, locations: Iterable[str]) -> set[str]:
    """Return bundles that a JobSpec names.

    Bundles do not pass the door, so this is checked again just before the sweep deletes them.
    """
    bundles = [place for place in locations if place.endswith(".zip")]
    named = bundles_named(connection) if bundles else frozenset()
    return {place for place in bundles if PurePosixPath(place).stem in named}


def forget_objects(database: Database, gone: Mapping[str, Instant]) -> None:
    """Delete the marks of objects that were swept long ago and not condemned since."""

    def work(connection: Connection) -> None:
        for place, since in gone.items():
            connection.execute(
                delete(schema.condemned_objects).where(
                    schema.condemned_objects.c.location == place,
                    schema.condemned_objects.c.condemned_at == since,
                )
            )

    if gone:
        database.write(work)


@contextmanager
def sweep_lock(database: Database, *, wait_seconds: float = 30.0) -> Iterator[None]:
    """Hold the sweep lock: no other process deletes or spares condemned bytes within the block.

    The lock is released when its process ends, however it ends.
    """
    with _lock(database) as try_lock:
        deadline = time.monotonic() + wait_seconds
        while not try_lock():
            if time.monotonic() > deadline:
                raise CatalogUnavailable(
                    where=database.where, reason="another cleanup is deleting and does not end"
                )
            time.sleep(_POLL_SECONDS)
        yield


@contextmanager
def _lock(database: Database) -> Iterator[Callable[[], bool]]:
    """Yield a function that tries to acquire the lock; release the lock after the block."""
    if database.path is not None:
        with _lock_file(database) as file:
            yield partial(_try_file, file)
        return
    lock = {"lock": _POSTGRES_LOCK}
    with database.raw() as connection:
        try:
            take = text("SELECT pg_try_advisory_lock(:lock)")
            yield lambda: bool(connection.execute(take, lock).scalar_one())
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:lock)"), lock)


# A backup copies what a copy of the catalog names, so nothing may be swept while it runs. Its hold
# is a leased row; a killed backup holds sweeps back until the lease ends.
_HOLD = "backup:"
HOLD_SECONDS = 15 * 60


def hold_sweeps(database: Database) -> str:
    """Let no sweep begin until the hold is released or expires; return the id of the hold."""
    id = f"{_HOLD}{secrets.token_hex(8)}"
    # A batch that is being swept ends first.
    with sweep_lock(database):
        renew_hold(database, id)
    return id


@as_unit_of_work
def renew_hold(connection: Connection, id: str) -> None:
    """Begin the lease of a hold, or renew it."""
    connection.execute(delete(schema.store).where(schema.store.c.key == id))
    until = now(connection) + HOLD_SECONDS * 1_000_000
    connection.execute(insert(schema.store).values(key=id, value=str(until)))


def release_hold(database: Database, id: str) -> None:
    _do(database, delete(schema.store).where(schema.store.c.key == id))


def release_holds_in(connection: Connection) -> None:
    """Release all holds, in a copy of a catalog."""
    connection.execute(delete(schema.store).where(schema.store.c.key.startswith(_HOLD)))


def is_held(connection: Connection) -> bool:
    """Return True if a backup is running; call this inside `sweep_lock`."""
    moment = now(connection)
    held = select(schema.store.c.value).where(schema.store.c.key.startswith(_HOLD))
    ends = map(int, connection.execute(held).scalars())
    # A lease that ends later than a new one was granted by a clock that was ahead.
    return any(moment <= end <= moment + 2 * HOLD_SECONDS * 1_000_000 for end in ends)


def _lock_file(database: Database) -> IO[str]:
    """Open a lock file beside the catalog: only SQLite itself may open its database file."""
    try:
        return Path(f"{database.path}.sweeping").open("a")
    except OSError as error:
        reason = error.strerror or str(error)
        raise CatalogUnavailable(where=database.where, reason=reason) from error


def _try_file(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
