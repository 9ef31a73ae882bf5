"""The warehouse belongs to one catalog: a marker in it says to which.

Two catalogs on one warehouse would each delete what only the other needs, and so would an old copy
of a catalog. The marker holds the id of the store, an incarnation and the last publication. Each
cleanup that deletes first replaces the incarnation, in the marker and in the catalog. A copy of the
catalog knows only the incarnation of the time when it was copied, so of two copies only one can
clean up after that.

Publications, staged versions and JobSpecs leave their time and id in the warehouse, under a name
that a copy from before them does not know. A catalog deletes nothing while there is such a trace of
another one (ADR 0060).

Markers are numbered objects. The newest counts, and creating the next number is a compare-and-swap
on any store.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice

import orjson
from sqlalchemy import Connection, delete, func, insert, or_, select

from headgate import errors
from headgate.catalog.database import Database, as_unit_of_work
from headgate.catalog.records import lock_counter
from headgate.catalog.schema import jobspecs, log_counter, publications, store, versions
from headgate.model.ids import Instant
from headgate.model.object_store import ObjectStore

# Keys below this directory are not data, and cleanup does not touch them.
MARKERS = "headgate"
_MARKER, _TRACE = f"{MARKERS}/marker-", f"{MARKERS}/history-"
# What Headgate writes into a warehouse.
_CONTENT = ("objects", "tables", "bundles")
_TRIES = 20
_TRACE_SECONDS = 5.0
_LOOKS, _PAUSE_SECONDS = 4, 0.2
_STORE, _INCARNATION, _NEXT, _HELD = "store_id", "incarnation", "next_incarnation", "cleanup_held"
# Of a catalog from before there were markers, restored over a warehouse that has one.
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Marker:
    """The newest marker of a warehouse."""

    number: int
    store: str
    incarnation: str
    # The newest publication of the catalog at the time.
    publication: int

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of a catalog, which is compared with the marker of its warehouse."""

    store: str
    # None: the catalog is new, and has no warehouse yet.
    incarnation: str | None = None
    # Of a cleanup that has begun to replace the incarnation; both are valid until it has ended.
    next: str | None = None
    # Set by a person who let a new catalog take over: nothing is deleted until it is confirmed.
    is_held: bool = False

    @property
    def incarnations(self) -> set[str | None]:
        return {self.incarnation, self.next}


# --- marker ---------------------------------------------------------------------------------


def find_marker(objects: ObjectStore) -> Marker | None:
    """Return the newest marker; None in a warehouse without one."""
    for _ in range(_TRIES):
        newest = max(_keys(objects, _MARKER), default=None)
        if newest is None:
            return None
        try:
            return _parse(objects.get(newest), f"{objects.url}/{newest}")
        except errors.ObjectNotFound:
            # Replaced by a newer one since the listing.
            continue
    raise errors.StorageUnavailable(where=objects.url, reason="its marker changes all the time")


def _keys(objects: ObjectStore, kind: str) -> list[str]:
    return [info.key for info in objects.list(MARKERS) if info.key.startswith(kind)]


def _parse(content: bytes, where: str) -> Marker:
    try:
        marker = Marker(**orjson.loads(content))
        if [type(value) for value in vars(marker).values()] != [int, str, str, int]:
            raise ValueError(marker)
        return marker
    except (TypeError, ValueError) as error:
        reason = f"the marker of the warehouse is damaged: {error}"
        raise errors.FileDamaged(where=where, reason=reason) from error


def _put_marker(objects: ObjectStore, marker: Marker) -> bool:
    """Write a marker as the newest; return False if another process wrote that number first."""
    if not objects.put(_key(marker.number), marker.to_json()):
        return False
    objects.delete([_key(marker.number - 1)])
    return True


def _key(number: int) -> str:
    return f"{_MARKER}{number:012d}.json"


def has_content(objects: ObjectStore) -> bool:
    """Return whether the warehouse has data of any store."""
    return bool(list(islice(chain.from_iterable(map(objects.list, _CONTENT)), 1)))


# --- traces of writes -----------------------------------------------------------------------

# Time, id, and the column by which the newest is found, of rows that name stored objects. No row is
# ever deleted: a catalog knows its own traces.
_TRACED = (
    (publications.c.at, publications.c.operation_id, publications.c.number),
    (versions.c.created_at, versions.c.id, versions.c.id),
    (jobspecs.c.published_at, jobspecs.c.id, jobspecs.c.id),
)


class Traces:
    """Leaves a trace of the newest write of this process, and removes the one before.

    Cleanup sweeps only what it condemned a day before, so a trace may come seconds late: no writer
    waits for it, and one of many writes is enough.
    """

    def __init__(self, objects: Callable[[], ObjectStore | None]) -> None:
        # Returns None while this process has not used the warehouse.
        self._objects = objects
        self._newest = self._left = ""
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def note(self, at: Instant, id: str) -> None:
        """Leave a trace of this write soon."""
        with self._lock:
            self._newest = max(self._newest, _trace(at, id))
            if self._timer is None:
                self._timer = threading.Timer(_TRACE_SECONDS, self.leave)
                self._timer.daemon = True
                self._timer.start()

    def leave(self) -> None:
        """Leave the trace now; if that fails, the next opening of the store leaves one."""
        with self._lock:
            timer, self._timer = self._timer, None
            newest, older = self._newest, self._left
        if timer is not None:
            timer.cancel()
        objects = self._objects()
        if newest == older or objects is None:
            return
        with suppress(errors.HeadgateError):
            objects.put(newest, b"")
            self._left = newest
            objects.delete([older] if older else [])


def _trace(at: int, id: str) -> str:
    return f"{_TRACE}{at:016d}-{id}"


def _id_of(trace: str) -> str:
    return trace.removeprefix(_TRACE).partition("-")[2]


def _known_traces(connection: Connection, traces: list[str]) -> dict[str, str]:
    """Return the traces, by id, of the traced writes of this catalog and of its newest."""
    known: dict[str, str] = {}
    for at, id, order in _TRACED:
        newest = select(func.max(order)).scalar_subquery()
        wanted = or_(id.in_([_id_of(key) for key in traces]), order == newest)
        rows = connection.execute(select(at, id).where(wanted))
        known |= {row[1]: _trace(*row) for row in rows}
    return known


def _tidy_traces(database: Database, objects: ObjectStore) -> None:
    """Leave the trace of the newest write, and remove the earlier ones of this catalog."""
    traces = _keys(objects, _TRACE)
    known = database.read(lambda c: _known_traces(c, traces))
    newest = max(known.values(), default="")
    if newest and newest not in traces:
        objects.put(newest, b"")
    objects.delete(key for key in traces if key != newest and _id_of(key) in known)


# --- identity of the catalog ----------------------------------------------------------------


def find_identity(connection: Connection) -> Identity | None:
    """Return the identity of a catalog; None if a release before there were markers made it."""
    keys = (_STORE, _INCARNATION, _NEXT, _HELD)
    rows = connection.execute(select(store.c.key, store.c.value).where(store.c.key.in_(keys)))
    found: Mapping[str, str] = {row.key: row.value for row in rows}
    if _STORE not in found:
        return None
    return Identity(
        store=found[_STORE],
        incarnation=found.get(_INCARNATION),
        next=found.get(_NEXT),
        is_held=_HELD in found,
    )


def _save(connection: Connection, identity: Identity) -> Identity:
    values = {
        _STORE: identity.store,
        _INCARNATION: identity.incarnation,
        _NEXT: identity.next,
        _HELD: "1" if identity.is_held else None,
    }
    connection.execute(delete(store).where(store.c.key.in_(values)))
    rows = [{"key": key, "value": value} for key, value in values.items() if value is not None]
    connection.execute(insert(store), rows)
    return identity


def _has_versions(connection: Connection) -> bool:
    return connection.execute(select(versions.c.id).limit(1)).first() is not None


def last_publication(connection: Connection) -> int:
    return int(connection.execute(select(log_counter.c.number)).scalar_one())


def _mint() -> str:
    return secrets.token_hex(8)


def name_catalog(connection: Connection) -> None:
    """Give a new catalog its identity; its first use of a warehouse completes it."""
    connection.execute(insert(store).values(key=_STORE, value=_mint()))


# --- checks ---------------------------------------------------------------------------------


def check_new_catalog(objects: ObjectStore, id: str | None = None) -> None:
    """Raise if a catalog that has no warehouse yet would be put over one that is in use."""
    if (marker := find_marker(objects)) is not None:
        if marker.store == id:
            # Another process of this store has just claimed it.
            return
        raise errors.WarehouseOccupied(warehouse=objects.url, store=marker.store)
    if has_content(objects):
        raise errors.WarehouseNotEmpty(warehouse=objects.url)


def check(database: Database, objects: ObjectStore) -> None:
    """Raise if the warehouse belongs to another catalog; mark it if it belongs to none."""
    identity, is_used = database.read(lambda c: (find_identity(c), _has_versions(c)))
    has_warehouse = is_used or (identity is not None and identity.incarnation is not None)
    if not has_warehouse:
        check_new_catalog(objects, identity.store if identity is not None else None)
    marker = find_marker(objects)
    if identity is not None and marker is not None:
        if marker.store != identity.store:
            raise errors.WarehouseOccupied(warehouse=objects.url, store=marker.store)
        if not database.is_read_only and marker.incarnation in identity.incarnations:
            # Of a process that was killed before it left its trace.
            with suppress(errors.StorageUnavailable):
                _tidy_traces(database, objects)
        return
    try:
        _claim(database, objects, marker)
    except (errors.CatalogBroken, errors.CatalogUnavailable, errors.StorageUnavailable):
        # A store of an earlier release that cannot be written to can still be read.
        if not has_warehouse:
            raise


def adopt(database: Database, objects: ObjectStore) -> None:
    """Let a new catalog take over a warehouse; cleanup is held until a person confirms it."""
    marker = find_marker(objects)
    identity = Identity(store=_mint(), incarnation=_mint(), is_held=True)
    _save_with_marker(database, objects, identity, marker)


@as_unit_of_work
def hold(connection: Connection) -> None:
    """Hold cleanup until a person confirms it, for a catalog restored over data."""
    identity = find_identity(connection) or Identity(store=_mint(), incarnation=_UNKNOWN)
    _save(connection, replace(identity, is_held=True))


def confirm(database: Database, objects: ObjectStore) -> None:
    """Make this catalog the one that may clean up, whatever the marker and the traces say."""
    objects.delete(_keys(objects, _TRACE))
    marker = find_marker(objects)
    held = database.read(find_identity)
    identity = Identity(store=held.store if held is not None else _mint(), incarnation=_mint())
    _save_with_marker(database, objects, identity, marker)


def _save_with_marker(
    database: Database, objects: ObjectStore, identity: Identity, marker: Marker | None
) -> None:
    database.write(lambda connection: _save(connection, identity))
    number = marker.number + 1 if marker is not None else 1
    made = database.read(lambda connection: _marker(connection, number, identity))
    if not _put_marker(objects, made):
        raise errors.WarehouseOccupied(warehouse=objects.url, store=identity.store)


def _claim(database: Database, objects: ObjectStore, marker: Marker | None) -> None:
    """Give the catalog an identity, and the warehouse its first marker, where they lack them."""

    def work(connection: Connection) -> Identity:
        # Of two processes that open a store for the first time, one gives it its identity.
        lock_counter(connection)
        held = find_identity(connection)
        if held is not None and held.incarnation is not None:
            return held
        if held is None and marker is not None:
            return _save(connection, Identity(store=marker.store, incarnation=_UNKNOWN))
        id = held.store if held is not None else _mint()
        return _save(connection, Identity(store=id, incarnation=_mint()))

    identity = database.write(work)
    made = database.read(lambda connection: _marker(connection, 1, identity))
    if marker is None and not _put_marker(objects, made):
        check(database, objects)


def _marker(connection: Connection, number: int, identity: Identity) -> Marker:
    assert identity.incarnation is not None
    return Marker(
        number=number,
        store=identity.store,
        incarnation=identity.incarnation,
        publication=last_publication(connection),
    )


# --- cleanup --------------------------------------------------------------------------------


def check_may_clean(database: Database, objects: ObjectStore) -> None:
    """Raise `CleanupHeld` unless this catalog is the newest that used the warehouse."""
    for attempt in range(_LOOKS):
        try:
            database.read(lambda connection: _load_own(connection, objects))
        except errors.CleanupHeld:
            # A cleanup of this catalog replaces the marker and its own incarnation one by one.
            if attempt == _LOOKS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _load_own(connection: Connection, objects: ObjectStore) -> Marker | None:
    """Return the marker of this catalog; None in a store of an earlier release."""
    # First, so that the catalog is not read before a publication that has left its trace.
    traces = _keys(objects, _TRACE)
    identity, publication = find_identity(connection), last_publication(connection)
    marker = find_marker(objects)
    if identity is not None and identity.is_held:
        reason = "this catalog was put over a warehouse that had content"
    elif marker is None or identity is None:
        return None
    elif marker.store != identity.store:
        raise errors.WarehouseOccupied(warehouse=objects.url, store=marker.store)
    elif marker.publication > publication:
        reason = (
            f"a catalog of this store has cleaned up at publication {marker.publication}, "
            f"and this catalog ends at {publication}"
        )
    elif marker.incarnation not in identity.incarnations:
        reason = "another copy of this catalog has cleaned up since this one was copied or restored"
    elif unknown := {_id_of(key) for key in traces} - _known_traces(connection, traces).keys():
        reason = (
            "another copy of this catalog has published or staged since this one was copied or "
            f"restored ({max(unknown)})"
        )
    else:
        return marker
    raise errors.CleanupHeld(warehouse=objects.url, reason=reason)


def advance(database: Database, objects: ObjectStore) -> None:
    """Replace the incarnation before bytes are deleted; raise `CleanupHeld` if it is not ours.

    The catalog notes the next incarnation first: after a crash, the marker has one of the two.
    """
    check(database, objects)
    check_may_clean(database, objects)
    database.write(_begin_next)
    database.write(partial(_replace, objects=objects))


def _begin_next(connection: Connection) -> None:
    lock_counter(connection)
    held = find_identity(connection)
    if held is not None and held.next is None:
        _save(connection, replace(held, next=_mint()))


def _replace(connection: Connection, objects: ObjectStore) -> None:
    # Cleanups of one catalog wait for each other here: the marker that is read is still the newest
    # when the next one is written, unless another catalog writes it.
    lock_counter(connection)
    marker = _load_own(connection, objects)
    held = find_identity(connection)
    if held is None or held.next is None:
        # Another cleanup has replaced it since.
        return
    following = Identity(store=held.store, incarnation=held.next)
    if marker is None or marker.incarnation != held.next:
        number = marker.number + 1 if marker is not None else 1
        if not _put_marker(objects, _marker(connection, number, following)):
            reason = "another catalog has cleaned up at the same time"
            raise errors.CleanupHeld(warehouse=objects.url, reason=reason)
    _save(connection, following)
