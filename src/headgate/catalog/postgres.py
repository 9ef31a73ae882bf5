"""Connections to a PostgreSQL catalog: pool, timeouts and detection of broken sockets."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from psycopg import Connection, Cursor, Error, OperationalError, Pipeline
from psycopg.pq import PipelineStatus, TransactionStatus
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy import Connection as Session
from sqlalchemy.exc import DBAPIError

# A paused process, or one whose machine is lost, must not hold its locks forever: the server ends
# its session, which rolls back an unfinished unit of work and lets other processes continue.
_SETTINGS = {
    "connect_timeout": 10,
    "prepare_threshold": 2,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_IDLE_TIMEOUT_MS = 60_000


class _LastingCursor(Cursor[Any]):
    """A cursor that SQLAlchemy does not close before its results: in a pipeline, or after BEGIN."""

    def close(self) -> None:
        is_pipelined = self.connection.pgconn.pipeline_status != PipelineStatus.OFF
        if not is_pipelined and not self.nextset():
            super().close()


class _SyncedPipeline(Pipeline):
    """A pipeline whose last message is its Sync.

    After psycopg's Flush behind it, the server would not end a session that idles with its locks.
    """

    def _fetch_gen(self, *, flush: bool) -> Generator[Any, Any, None]:
        return super()._fetch_gen(flush=False)


class SelfClosingConnection(Connection[Any]):
    """A connection that closes itself as soon as the server can no longer answer on it.

    If the socket breaks during a command, psycopg raises but still reports the connection as open,
    with the command active. A rollback or a liveness check after the error would then fail in turn
    and hide the first error.
    """

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **named: Any) -> Any:
        try:
            return super().wait(gen, *arguments, **named)
        except OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                # The end of a pipeline reads answers when it is closed, which would fail later.
                with suppress(RuntimeError, OperationalError):
                    gen.close()
                self.close()
            raise

    def pipeline(self) -> Any:
        self._pipeline = self._pipeline or _SyncedPipeline(self)
        return super().pipeline()


def postgres_engine(url: URL, *, lock_timeout_ms: int, kept: int, most: int) -> Engine:
    """Create an engine that keeps `kept` connections and opens up to `most` while needed."""
    options = (
        f"-c lock_timeout={lock_timeout_ms} "
        f"-c idle_in_transaction_session_timeout={_IDLE_TIMEOUT_MS}"
    )
    settings = {**_SETTINGS, "options": options}
    engine = create_engine(
        url,
        pool_size=kept,
        max_overflow=most - kept,
        # The first statement of a unit of work begins its transaction: psycopg would send a BEGIN
        # in a round trip of its own.
        isolation_level="AUTOCOMMIT",
        # Settings in the URL are deliberate and take precedence.
        connect_args={name: value for name, value in settings.items() if name not in url.query},
    )
    event.listen(engine, "do_connect", _connect)
    return engine


def _connect(
    _dialect: object, _record: object, arguments: list[Any], named: dict[str, Any]
) -> SelfClosingConnection:
    return SelfClosingConnection.connect(*arguments, cursor_factory=_LastingCursor, **named)


@contextmanager
def pipeline(connection: Session) -> Iterator[None]:
    """Send the statements of the block without waiting for each answer; at its end wait for all.

    SQLAlchemy finds no row counts in such a block; `database.rows_after` returns rows.
    """
    raw: Any = connection.connection.driver_connection
    failure: BaseException | None = None
    try:
        with raw.pipeline():
            try:
                yield
            except BaseException as error:
                # psycopg would log a warning if a closed connection then fails at the end too.
                failure = error
    except Error as error:
        if failure is None:
            raise DBAPIError.instance(
                None, None, error, Error, dialect=connection.dialect
            ) from error
    if failure is not None:
        raise failure
