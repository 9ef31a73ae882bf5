"""Connections to a PostgreSQL catalog: how patient they are, and when they are over."""

from __future__ import annotations

from typing import Any

from psycopg import Connection, OperationalError
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Engine, create_engine, event

# A paused process, or one whose machine is gone, must not hold its locks for ever: the server
# ends its session, which undoes an unfinished unit of work, and the others go on.
_SETTINGS = {
    "connect_timeout": 10,
    "prepare_threshold": 2,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_IDLE_TIMEOUT_MS = 60_000


class SureConnection(Connection[Any]):
    """One that is closed as soon as nobody will answer on it.

    When the socket breaks at a bad moment, psycopg raises and still calls the connection open, in
    the midst of a command. Whoever tidies up after the error, or asks whether it still lives,
    would then fail over that, and the first error would be lost.
    """

    def wait(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().wait(*arguments, **named)
        except OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.close()
            raise


def postgres_engine(url: URL, *, lock_timeout_ms: int, kept: int, most: int) -> Engine:
    """Keeps some connections, and opens more while they are needed."""
    options = (
        f"-c lock_timeout={lock_timeout_ms} "
        f"-c idle_in_transaction_session_timeout={_IDLE_TIMEOUT_MS}"
    )
    settings = {**_SETTINGS, "options": options}
    engine = create_engine(
        url,
        pool_size=kept,
        max_overflow=most - kept,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
        # What the URL says itself is what its author wants.
        connect_args={name: value for name, value in settings.items() if name not in url.query},
    )
    event.listen(engine, "do_connect", _connect)
    return engine


def _connect(
    _dialect: object, _record: object, arguments: list[Any], named: dict[str, Any]
) -> SureConnection:
    return SureConnection.connect(*arguments, **named)
