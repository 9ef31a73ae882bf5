"""Connections, units of work, and the translation of errors of both databases.

A unit of work is a function of a connection, so that it can run again after a deadlock; it must
have no effect other than its SQL.
"""

import copy
import errno
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import lru_cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast
from urllib.parse import quote
from weakref import WeakValueDictionary

from sqlalchemy import Connection as Connection
from sqlalchemy import Engine, Table, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError as UrlError
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from headgate import errors
from headgate.model.access import ReadPolicy
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant
from headgate.model.names import invalid_text
from headgate.storage.local import create_private

# Writers of one process to one SQLite catalog, in order of arrival. SQLite's writers poll: the one
# that has waited longest polls least often, and under contention it may wait for seconds while
# others are served repeatedly.
#
# Writers that wait at the same time share one SQL transaction and one fsync: the first runs the
# work of the others too, each in a savepoint, and each gets its receipt after COMMIT. PostgreSQL's
# writers form no groups: each holds locks of rows, and two groups could wait for each other.


class QueuedWork(threading.Event):
    """A unit of work in the queue. The event is set at its turn, and when its group has ended."""

    def __init__(self, work: Callable[[Connection], Any], *, joins: bool) -> None:
        super().__init__()
        self.work = work
        # False: it is neither in the group of another, nor takes others into its own.
        self.joins = joins
        self.group_ended = threading.Event()
        self.is_committed = False
        # Another thread may run the work.
        self._context = copy_context()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, connection: Connection) -> None:
        """Run the work in a savepoint, and keep its result or its error."""
        savepoint = connection.begin_nested()
        try:
            self._result = self._context.run(self.work, connection)
            savepoint.commit()
        except KeyboardInterrupt:
            # It is for this thread, whoever's work it runs.
            raise
        except BaseException as error:
            savepoint.rollback()
            self._error = error

    def end_group(self, *, is_committed: bool) -> None:
        """Tell the writer whether the transaction of its group was committed."""
        self.is_committed = is_committed
        self.group_ended.set()
        self.set()

    def outcome(self) -> Any:
        """Return the result of the work, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result


class WriteQueue:
    """A queue that makes waiting fair and short; only the database's lock excludes writers."""

    def __init__(self) -> None:
        self._waiting: deque[threading.Event] = deque()
        # Those of the waiting whose turn has begun.
        self._begun: set[threading.Event] = set()
        self._guard = threading.Lock()

    @contextmanager
    def slot(self, *, timeout_seconds: float) -> Iterator[None]:
        """Wait for earlier writers, at most `timeout_seconds`; then continue anyway."""
        mine = threading.Event()
        try:
            self.join(mine)
            mine.wait(timeout_seconds)
            yield
        finally:
            self.leave(mine)

    def join(self, mine: threading.Event) -> None:
        """Stand behind all others; the event is set as soon as it is the first."""
        with self._guard:
            self._waiting.append(mine)
            self._wake_first()

    def begin(self, mine: threading.Event) -> bool:
        """Begin a turn; return False if another writer has taken this one out of the queue."""
        with self._guard:
            is_here = mine in self._waiting
            if is_here:
                self._begun.add(mine)
            return is_here

    def take(self, most: int) -> list[QueuedWork]:
        """Take work that joins a group, and has not begun, out of the queue, in its order."""
        with self._guard:
            waiting = [one for one in self._waiting if isinstance(one, QueuedWork) and one.joins]
            taken = [one for one in waiting if one not in self._begun][:most]
            for one in taken:
                self._waiting.remove(one)
            return taken

    def leave(self, mine: threading.Event) -> None:
        with self._guard:
            self._begun.discard(mine)
            if mine in self._waiting:
                self._waiting.remove(mine)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].set()


# Longest wait of a writer for those before it; it then goes on without its turn.
TURN_SECONDS = 60.0


class Turns:
    """Write queues of the writers in this process, by branch, in order of arrival.

    They only save losers their work: conflicts are decided by `publish`.
    """

    def __init__(self) -> None:
        # Weak, so that a queue goes with its last writer.
        self._queues: WeakValueDictionary[Hashable, WriteQueue] = WeakValueDictionary()
        self._guard = threading.Lock()

    def of(self, branch: Hashable) -> WriteQueue:
        with self._guard:
            return self._queues.setdefault(branch, WriteQueue())

    @contextmanager
    def slot(self, branch: Hashable) -> Iterator[None]:
        """Wait for earlier writers of the branch, at most for a while."""
        with self.of(branch).slot(timeout_seconds=TURN_SECONDS):
            yield


# Waits without a thread. In an embedded store a writer waits in its thread. A server has few
# threads, and the writer that the others wait for needs one. There a call that would wait raises
# `Suspended`, which returns the thread, and the server repeats the call after the wait.


@dataclass(frozen=True, kw_only=True, eq=False)
class Wait:
    """A condition inside this process, and the end of the wait for it."""

    # Of the monotonic clock; then the call is repeated in any case.
    deadline: float
    is_over: Callable[[], bool] = lambda: False


class Suspended(Exception):
    """Raised in a server by a call that would wait; nothing was changed yet."""

    def __init__(self, wait: Wait) -> None:
        super().__init__()
        self.wait = wait


class Kept(Protocol):
    """State of a call that survives its suspension."""

    def leave(self) -> None:
        """Release everything; the call has ended, or is not repeated."""


@dataclass(eq=False)
class Place:
    """The place of one call in a server; the call may suspend itself."""

    kept: Kept | None = None


# None: calls of this context wait in their threads.
PLACE: ContextVar[Place | None] = ContextVar("PLACE", default=None)
K = TypeVar("K", bound=Kept)


@contextmanager
def kept_in_place(make: Callable[[], K]) -> Iterator[K]:
    """Yield the state that this call had before its suspension, or make it; leave it at the end.

    A suspended call is repeated from its start, so it contains one such block, and publishes
    nothing before it.
    """
    place = PLACE.get()
    kept: Any = place.kept if place is not None else None
    if kept is None:
        kept = make()
    is_suspended = False
    try:
        yield kept
    except Suspended:
        is_suspended = True
        raise
    finally:
        if place is not None:
            place.kept = kept if is_suspended else None
        if not is_suspended:
            kept.leave()


# Location of a SQLite catalog: not on a network file system, where its locks do not hold.

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p"}
_NETWORK_FUSE = {"fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone"}
MOUNTS = Path("/proc/self/mountinfo")


def check_catalog_path(database: str | None, mounts: Path = MOUNTS) -> None:
    """Raise if the catalog is in memory or on a network file system."""
    if not database or database == ":memory:":
        raise errors.CatalogBroken(
            where="sqlite",
            reason="a catalog in memory would be lost with the process",
            remedy="Give it a file: `sqlite:///path/catalog.db`.",
        )
    kind = _kind_of(Path(database).absolute(), mounts)
    if kind in _NETWORK | _NETWORK_FUSE:
        raise errors.CatalogBroken(
            where=database,
            reason=f"it lies on a network file system ({kind}), where SQLite's locks do not hold",
            remedy="Put it on a local disk, or use a PostgreSQL catalog for a team.",
        )


def _kind_of(path: Path, mounts: Path) -> str | None:
    """Return the file system type of the deepest mount point above the path; None if unknown."""
    if not mounts.exists():
        return None
    resolved = path.resolve()
    best: tuple[int, str] | None = None
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if resolved.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split()[0])
    return best[1] if best else None


# Reading of a SQLite catalog that cannot be written: on a read-only disk, or of another user.

# Inode, size and time of the database file and of its write-ahead log.
Stamp = tuple[tuple[int, int, int] | None, ...]


def _stamp(path: str) -> Stamp:
    found: list[tuple[int, int, int] | None] = []
    for file in (Path(path), Path(f"{path}-wal")):
        try:
            status = file.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _open_read_only(path: str, where: str, options: dict[str, Any]) -> tuple[Any, Stamp | None]:
    """Connect without writing a byte; return the connection, and a stamp if it cannot see changes.

    Without a write-ahead log, SQLite opens the file as immutable and does not see later writes of
    other processes. A log holds committed rows; to read them, SQLite needs the shared-memory file.
    """
    found = _stamp(path)
    log, has_memory = found[1], Path(f"{path}-shm").exists()
    if log is not None and not has_memory and log[1] > 0:
        raise errors.CatalogBroken(
            where=where,
            reason=f"it can only be read, and committed rows are in {path}-wal, which SQLite "
            f"cannot read there without {path}-shm",
            remedy="Copy the directory to a disk that can be written, and use the copy.",
        )
    sees_changes = log is not None and has_memory
    mode = "mode=ro" if sees_changes else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(path)}?{mode}", uri=True, **options)
    return connection, None if sees_changes else found


T = TypeVar("T")
P = ParamSpec("P")

_BUSY_TIMEOUT_MS = 30_000
_MOST_IN_GROUP = 32
_TRIES = 8
_KEPT_CONNECTIONS = 4
_MOST_CONNECTIONS = 32
_RESERVED_CONNECTIONS = 8
# True for operations that other writers wait for: they use connections of their own.
RESERVED: ContextVar[bool] = ContextVar("RESERVED", default=False)
# Key of what a unit of work has published or staged, in the information of its connection.
_WRITTEN = "written"
NOW = {
    # SQLite uses the machine's clock, in milliseconds; 'now' has one value per statement.
    "sqlite": text(
        "SELECT CAST(strftime('%s','now') AS INTEGER) * 1000000"
        " + CAST(substr(strftime('%f','now'), 4, 3) AS INTEGER) * 1000"
    ),
    "postgresql": text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"),
}


class Database:
    """One catalog database; it runs units of work, each in a single SQL transaction."""

    def __init__(self, url: str, *, primary: str = "master") -> None:
        self._primary = primary
        try:
            self.url = make_url(url)
        except UrlError as error:
            raise errors.Invalid(
                f"catalog {url!r} is not a database URL. Give `sqlite:///path/catalog.db` or "
                "`postgresql://user@host/name`.",
                catalog=url,
            ) from error
        self.dialect = self.url.get_backend_name()
        if self.dialect not in NOW:
            raise errors.Invalid(
                f"catalog {url!r}: only SQLite and PostgreSQL are supported.", catalog=url
            )
        if self.dialect == "postgresql":
            self.url = self.url.set(drivername="postgresql+psycopg")
        self.where = self.url.render_as_string(hide_password=True)
        # Called after every unit of work with `writing`, its duration in seconds, and its error.
        self.observe: Callable[[bool, float, errors.HeadgateError | None], None] | None = None
        # Called after every unit of work that published or staged, with the last time and id of it.
        self.on_written: Callable[[Instant, str], None] | None = None
        # The schema that this release writes; every write transaction checks it. None: unchecked.
        self.schema_version: int | None = None
        # Limits what units of work read; see `limited_to`.
        self.policy: ReadPolicy | None = None
        # By whether it serves reserved operations.
        self._engines: dict[bool, Engine] = {}
        self._write_queue = WriteQueue()
        self._pid = 0

    @property
    def path(self) -> str | None:
        """The file of a SQLite catalog; None for PostgreSQL."""
        return self.url.database if self.dialect == "sqlite" else None

    @property
    def is_read_only(self) -> bool:
        """True for a SQLite catalog that this process cannot write."""
        if self.path is None:
            return False
        file = Path(self.path).absolute()
        # SQLite creates files beside the database to write to it.
        return file.exists() and not all(os.access(p, os.W_OK) for p in (file, file.parent))

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work on one consistent state of the catalog."""
        return self._run(work, writing=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run work in one SQL transaction: all of it is committed, or nothing."""
        written: list[tuple[Instant, str, bool]] = []

        def noted(connection: Connection) -> T:
            written.clear()
            connection.info[_WRITTEN] = written
            return work(connection)

        result = self._run(noted, writing=True)
        if written and self.on_written is not None:
            self.on_written(*written[-1][:2])
        for _, id, publishes in written:
            if publishes:
                _PUBLISHED.set(id)
        return result

    def limited_to(self, policy: ReadPolicy) -> Self:
        """Return this catalog as the policy shows it; the two share their connections.

        A unit of work that reads gets only rows that the policy shows. One that writes sees all
        rows, as the rules of the catalog need; only what it looks up by name or id is limited.
        """
        # The copy shares the connections only if there are some.
        self._connected()
        limited = copy.copy(self)
        limited.policy = policy
        return limited

    def close(self) -> None:
        for engine in self._engines.values() if self._pid == os.getpid() else ():
            engine.dispose()
        self._engines = {}

    @contextmanager
    def raw(self) -> Iterator[Connection]:
        """Open a connection without a transaction, for migrations and checks."""
        with self._translated(), self._connected().connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            if self.dialect == "postgresql":
                # A kept connection that broke is replaced by a new one.
                with suppress(DBAPIError):
                    connection.exec_driver_sql("SELECT 1")
                connection.rollback()
            yield connection

    def _run(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        if self.observe is None:
            return self._try(work, writing=writing)
        began, refusal = time.perf_counter(), None
        try:
            return self._try(work, writing=writing)
        except errors.HeadgateError as error:
            refusal = error
            raise
        finally:
            self.observe(writing, time.perf_counter() - began, refusal)

    def _try(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        for attempt in range(_TRIES):
            try:
                with self._translated():
                    if writing and self.dialect == "sqlite":
                        return self._write_in_turn(work)
                    with self._connected().connect() as connection:
                        return self._unit(connection, work, writing=writing)
            except _RetryNeeded as retry:
                if attempt == _TRIES - 1:
                    raise errors.CatalogUnavailable(
                        where=self.where, reason=f"too much contention ({retry.__cause__})"
                    ) from retry
                time.sleep(backoff_seconds(attempt))
        raise AssertionError("unreachable")

    def _unit(self, connection: Connection, work: Callable[[Connection], T], *, writing: bool) -> T:
        if self.policy is not None:
            from headgate.catalog.row_security import enforce_policies  # noqa: PLC0415 - servers alone

            enforce_policies(connection.engine)
            connection = connection.execution_options(
                read_policy=self.policy, limits_rows=not writing
            )
        if self.dialect == "sqlite":
            if writing and connection.info.get("read_only", False):
                raise errors.CatalogReadOnly(where=self.where, reason="it can only be read")
            connection.info["immediate"] = writing
        transaction = connection.begin()
        try:
            self._begin(connection, writing=writing)
            result = work(connection)
        except BaseException:
            with suppress(DBAPIError):
                transaction.rollback()
            raise
        try:
            transaction.commit()
            self._check_unchanged(connection)
        except DBAPIError as error:
            with suppress(DBAPIError):
                transaction.rollback()
            # SQLite has no connection to lose: a COMMIT that fails there did not happen.
            if writing and self.dialect == "postgresql" and _is_disconnect(error):
                raise errors.CommitInterrupted(where=self.where, reason=_reason(error)) from error
            raise
        return result

    def _begin(self, connection: Connection, *, writing: bool) -> None:
        """Begin a transaction; raise if another release has migrated the schema that it writes."""
        known = self.schema_version if writing else None
        if self.dialect == "sqlite":
            found = read_version(connection) if known is not None else None
        else:
            sent = _SNAPSHOT if not writing else _BEGIN if known is None else _BEGIN_CHECKED
            try:
                result = connection.exec_driver_sql(sent, execution_options={"no_parameters": True})
            except DBAPIError as error:
                # A kept connection broke while it was idle; nothing was done on it.
                if error.connection_invalidated:
                    raise _RetryNeeded from error
                raise
            cursor: Any = result.context.cursor
            found = int(cursor.fetchone()[0]) if known is not None and cursor.nextset() else None
        if found is not None and known is not None and found != known:
            wrong = errors.StoreTooNew if found > known else errors.StoreTooOld
            raise wrong(found=found, known=known)

    def _check_unchanged(self, connection: Connection) -> None:
        """Run the work again if another process wrote a file that was opened as immutable."""
        stamp: Stamp | None = connection.info.get("stamp")
        if stamp is not None and self.path is not None and stamp != _stamp(self.path):
            connection.invalidate()
            raise _RetryNeeded

    def _write_in_turn(self, work: Callable[[Connection], T]) -> T:
        """Run work at its turn, or let the writer whose turn it is run it."""
        self._connected()
        queue = self._write_queue
        # A limited catalog sets options of its connection.
        mine = QueuedWork(work, joins=self.policy is None)
        try:
            queue.join(mine)
            mine.wait(_BUSY_TIMEOUT_MS / 1000)
            if queue.begin(mine):
                return cast("T", self._write_group(mine, queue))
            mine.group_ended.wait()
            return cast("T", mine.outcome()) if mine.is_committed else self._write_alone(work)
        finally:
            queue.leave(mine)

    def _write_group(self, mine: QueuedWork, queue: WriteQueue) -> Any:
        """Run work, with that of all writers which wait when the database's lock is held."""
        taken: list[QueuedWork] = []

        def run(connection: Connection) -> Any:
            if mine.joins:
                taken.extend(queue.take(_MOST_IN_GROUP - 1))
            if not taken:
                return mine.work(connection)
            for one in (mine, *taken):
                one.run(connection)
            return None

        is_committed = False
        try:
            result = self._write_alone(run)
            is_committed = True
        except DBAPIError:
            if not taken:
                raise
        finally:
            for one in taken:
                one.end_group(is_committed=is_committed)
        if not taken:
            return result
        # If the disk is full, or the savepoints are gone with the transaction, each of the group
        # meets its own error.
        return mine.outcome() if is_committed else self._write_alone(mine.work)

    def _write_alone(self, work: Callable[[Connection], T]) -> T:
        with self._connected().connect() as connection:
            return self._unit(connection, work, writing=True)

    def _connected(self) -> Engine:
        # Neither a connection nor a place in the queue may cross a fork: the child has its own.
        if self._engines and self._pid != os.getpid():
            for inherited in self._engines.values():
                inherited.dispose(close=False)
            self._engines = {}
        if not self._engines:
            self._pid = os.getpid()
            self._write_queue = WriteQueue()
        is_reserved = RESERVED.get()
        engine = self._engines.get(is_reserved)
        if engine is None:
            most = _RESERVED_CONNECTIONS if is_reserved else _MOST_CONNECTIONS
            # Of two threads that come first at once, both use the same.
            engine = self._engines.setdefault(is_reserved, self._make_engine(most))
            engine.update_execution_options(primary=self._primary)
        return engine

    def _make_engine(self, most: int) -> Engine:
        if self.dialect == "sqlite":
            check_catalog_path(self.url.database)
            assert self.path is not None
            # SQLite gives its log and its shared memory the mode of the database file. If the
            # directory is missing, the first connection fails with the reason.
            with suppress(OSError):
                os.close(create_private(Path(self.path)))
            engine = create_engine(
                self.url,
                poolclass=QueuePool,
                pool_size=_KEPT_CONNECTIONS,
                max_overflow=most - _KEPT_CONNECTIONS,
                connect_args={"check_same_thread": False, "isolation_level": None},
            )
            event.listen(engine, "do_connect", self._connect_read_only)
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        try:
            from headgate.catalog.postgres import postgres_engine  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise errors.MissingExtra(feature="a PostgreSQL catalog", extra="postgres") from error
        return postgres_engine(
            self.url, lock_timeout_ms=_BUSY_TIMEOUT_MS, kept=_KEPT_CONNECTIONS, most=most
        )

    def _connect_read_only(
        self, _dialect: object, record: Any, _arguments: Any, options: dict[str, Any]
    ) -> Any:
        """Connect to a catalog that cannot be written; None leaves it to SQLAlchemy."""
        if not self.is_read_only:
            return None
        assert self.path is not None
        connection, record.info["stamp"] = _open_read_only(self.path, self.where, options)
        record.info["read_only"] = True
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except errors.HeadgateError:
            raise
        except IntegrityError as error:
            # Two units of work inserted the same key at once: the later one runs again.
            raise _RetryNeeded from error
        except OverflowError as error:
            raise _too_large() from error
        except UnicodeEncodeError as error:
            raise invalid_text(error.object) from error
        except OSError as error:
            if (known := errors.find_known_error(error)) is None:
                raise
            raise known from error
        except PoolTimeout as error:
            most = _RESERVED_CONNECTIONS if RESERVED.get() else _MOST_CONNECTIONS
            reason = f"all {most} connections of this process are in use"
            raise errors.CatalogUnavailable(where=self.where, reason=reason) from error
        except DBAPIError as error:
            # Serialization failures and deadlocks.
            if _sqlstate(error) in {"40001", "40P01"}:
                raise _RetryNeeded from error
            raise self._explain(error) from error

    def _explain(self, error: DBAPIError) -> errors.HeadgateError:
        if _sqlstate(error) == "22003":
            return _too_large()
        reason = _reason(error)
        if "NUL (0x00)" in reason:
            return invalid_text("\0")
        lowered = reason.lower()
        for sign, kind in _STATES.items():
            if sign in lowered:
                return kind(where=self.where, reason=reason)
        if self.path is not None and (failure := self._failure_of_file(self.path)) is not None:
            return failure
        for sign, remedy in _REMEDIES.items():
            if sign in lowered:
                return errors.CatalogBroken(where=self.where, reason=reason, remedy=remedy)
        if isinstance(error, OperationalError) or _is_idle_timeout(error):
            return errors.CatalogUnavailable(where=self.where, reason=reason)
        return errors.CatalogBroken(
            where=self.where, reason=reason, remedy="`headgate doctor` looks at the whole store."
        )

    def _failure_of_file(self, path: str) -> errors.HeadgateError | None:
        """Return the failure of the machine that SQLite reports without its cause."""
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            disk = os.statvfs(path)
        except OSError as error:
            is_limit = error.errno in {errno.EMFILE, errno.ENFILE}
            return errors.storage_error(error, path) if is_limit else None
        if disk.f_bavail == 0:
            return errors.CatalogFull(where=self.where, reason="its disk has no space left")
        return None


_VERSION = text("SELECT value FROM store WHERE \"key\" = 'schema_version'")
# An advisory lock of PostgreSQL that writes share and migrations do not; any fixed number.
MIGRATION_LOCK = 4_817_220_264
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ"
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
# In one round trip. The last statement sees what was committed until the lock was granted; no
# migration begins before the end of this write.
_BEGIN_CHECKED = f"{_BEGIN}; SELECT pg_advisory_xact_lock_shared({MIGRATION_LOCK}); {_VERSION}"


@lru_cache
def insert_into(table: Table, dialect: str) -> Any:
    """Return an INSERT of the dialect, which takes ON CONFLICT; both modules load slowly."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def read_version(connection: Connection) -> int:
    """Return the schema version of a catalog that has one."""
    return int(connection.execute(_VERSION).scalar_one())


def as_unit_of_work(
    work: Callable[Concatenate[Connection, P], T], *, then: Failpoint | None = None
) -> Callable[Concatenate[Database, P], T]:
    """Return a function of a database that runs `work`, a function of a connection, as a write.

    :param then: reached once it is committed.
    """

    @wraps(work)
    def run(database: Database, /, *arguments: P.args, **named: P.kwargs) -> T:
        done = database.write(lambda connection: work(connection, *arguments, **named))
        if then is not None:
            reach(then)
        return done

    return run


def _too_large() -> errors.Invalid:
    return errors.Invalid(
        "a number in the request is too large: the catalog counts to 2 ** 63 - 1."
    )


class _RetryNeeded(Exception):
    """Raised if the unit of work lost a race that running it again resolves."""


# Messages of both databases.
_STATES: dict[str, type[errors.CatalogFull | errors.CatalogReadOnly]] = {
    "readonly": errors.CatalogReadOnly,
    "read-only transaction": errors.CatalogReadOnly,
    "disk is full": errors.CatalogFull,
    "no space left on device": errors.CatalogFull,
}
_REMEDIES = {
    "not a database": "The file is damaged or is something else. Restore it from a backup.",
    "malformed": "The file is damaged. Restore it from a backup.",
    "unable to open": "Its directory is missing or not accessible. Check the path and its rights.",
    "disk i/o error": "The disk failed or the file was cut off. Check the disk, restore a backup.",
    "no such table": "It is not a Headgate catalog yet. Run `headgate init` or `headgate migrate`.",
    "does not exist": "It is not a Headgate catalog yet. Run `headgate init` or "
    "`headgate migrate`, or check the database's name.",
}


def note_written(connection: Connection, at: Instant, id: str, *, publishes: bool = False) -> None:
    """Note what a unit of work has published or staged, for a trace in the warehouse."""
    connection.info.get(_WRITTEN, []).append((at, id, publishes))


# The last operation that this context has published since the call began.
_PUBLISHED: ContextVar[str | None] = ContextVar("PUBLISHED", default=None)


def begin_call() -> None:
    """Begin a call for `doubted`: what the context published before it does not count."""
    _PUBLISHED.set(None)


def doubted(error: errors.HeadgateError) -> errors.HeadgateError:
    """Return the error of a call; a failure after its publication as an unknown outcome.

    The caller would read "does not respond" as "nothing happened", and repeat the request.
    """
    operation = _PUBLISHED.get()
    failed = isinstance(error, errors.CatalogUnavailable | errors.StorageUnavailable)
    return error if operation is None or not failed else errors.OutcomeUnknown(operation=operation)


def now(connection: Connection) -> Instant:
    """Return the time of the database's clock, the only one for leases and publications."""
    return Instant(int(connection.execute(NOW[connection.dialect.name]).scalar_one()))


def _prepare_sqlite(dbapi_connection: Any, record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    if not record.info.get("read_only", False):
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: a read transaction that upgrades later could only fail.
    immediate = connection.info.get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _sqlstate(error: DBAPIError) -> str:
    """Return PostgreSQL's error code; empty for an error of SQLite or of the connection."""
    return getattr(error.orig, "sqlstate", None) or ""


def _is_disconnect(error: DBAPIError) -> bool:
    if error.connection_invalidated or _is_idle_timeout(error):
        return True
    state = _sqlstate(error)
    return isinstance(error, OperationalError) and (state == "" or state.startswith(("08", "57P")))


def _is_idle_timeout(error: DBAPIError) -> bool:
    """Return whether the server ended a session that was idle while it held locks."""
    return _sqlstate(error) == "25P03"


def _reason(error: DBAPIError) -> str:
    """Return the first line of the database's error message."""
    return str(error.orig).strip().splitlines()[0] if error.orig else str(error)


_FIRST_SECONDS = 0.005
_LONGEST_SECONDS = 0.5


def backoff_seconds(failures: int) -> float:
    """Return a random wait, longer after each loss, so that writers do not collide again."""
    longest: float = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2**failures)
    return random.uniform(0.2, 1) * longest


def repeat_overtaken(work: Callable[[], T], tries: int = 20) -> T:
    """Return the result of `work`; repeat it after a pause where another writer was first."""
    for losses in range(tries - 1):
        try:
            return work()
        except errors.ViewConflict:
            time.sleep(backoff_seconds(losses))
    return work()
