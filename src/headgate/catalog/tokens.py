"""Bearer tokens: shown once, stored as a digest, revocable, with an optional expiry."""

import asyncio
import secrets
import sqlite3
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, RowMapping, insert, select, text, update

from headgate.catalog.attempts import token_digest
from headgate.catalog.database import NOW, Database, as_unit_of_work, now
from headgate.catalog.records import dump, load, noun_of
from headgate.catalog.schema import tokens
from headgate.errors import HeadgateError, NotFound, TokenRefused
from headgate.model.access import Grant, Role
from headgate.model.ids import Instant, mint

# A prefix that secret scanners can search for.
_PREFIX = "hg_"


@dataclass(frozen=True, kw_only=True)
class TokenRecord:
    """The stored record of a token, without the token itself."""

    id: str
    grant: Grant
    created_by: str
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None


@as_unit_of_work
def create_token(
    connection: Connection, grant: Grant, *, lifetime_seconds: int | None, created_by: str
) -> tuple[str, TokenRecord]:
    """Create a token; return it with its record. The token cannot be read again later."""
    secret, id, moment = _PREFIX + secrets.token_urlsafe(32), mint("tok"), now(connection)
    connection.execute(
        insert(tokens).values(
            id=id,
            digest=token_digest(secret),
            actor=grant.actor,
            role=grant.role,
            branches=dump(list(grant.branches)),
            reads=dump(list(grant.reads)),
            datasets=dump(list(grant.datasets)),
            created_by=created_by,
            created_at=moment,
            expires_at=None if lifetime_seconds is None else moment + lifetime_seconds * 1_000_000,
        )
    )
    return secret, _load(connection, id)


def find_token(connection: Connection, secret: str) -> TokenRecord | None:
    """Return the record of a token, valid or not; None if the token is unknown."""
    query = select(tokens).where(tokens.c.digest == token_digest(secret))
    row = connection.execute(query).mappings().one_or_none()
    return _to_record(row) if row is not None else None


def load_grant(connection: Connection, id: str) -> Grant:
    """Return the grant of the token with this id; raise if it is unknown or no longer valid."""
    row = connection.execute(select(tokens).where(tokens.c.id == id)).mappings().one_or_none()
    if row is None:
        raise TokenRefused(reason="it is not known")
    return check_good(_to_record(row), now(connection))


def check_good(record: TokenRecord, moment: Instant) -> Grant:
    """Return the grant of a token; raise if it is not valid at this time of the database clock."""
    if record.revoked_at is not None:
        raise TokenRefused(reason="it was revoked")
    if record.expires_at is not None and record.expires_at <= moment:
        raise TokenRefused(reason="it has expired")
    return record.grant


def list_tokens(connection: Connection) -> list[TokenRecord]:
    query = select(tokens).order_by(tokens.c.created_at, tokens.c.id)
    return [_to_record(row) for row in connection.execute(query).mappings()]


@as_unit_of_work
def revoke_token(connection: Connection, id: str) -> TokenRecord:
    """Revoke a token; revoking it again is not an error."""
    _load(connection, id)
    connection.execute(
        update(tokens)
        .where(tokens.c.id == id, tokens.c.revoked_at.is_(None))
        .values(revoked_at=now(connection))
    )
    return _load(connection, id)


def _load(connection: Connection, id: str) -> TokenRecord:
    row = connection.execute(select(tokens).where(tokens.c.id == id)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"token {id!r} does not exist. `headgate token list` shows all.", token=id)
    return _to_record(row)


def _to_record(row: RowMapping) -> TokenRecord:
    branches, reads, datasets = (
        tuple(load(row[name])) for name in ("branches", "reads", "datasets")
    )
    grant = Grant(
        actor=row["actor"],
        role=Role(row["role"]),
        branches=branches,
        reads=reads,
        datasets=datasets,
        token=row["id"],
    )
    return noun_of(TokenRecord, row, grant=grant)


# Validation of cached replies

_VALID = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ({now}))"
_ONE = (
    "SELECT number, EXISTS (SELECT 1 FROM tokens WHERE digest = ? AND " + _VALID + ")"
    " FROM log_counter WHERE id = 1"
)
_MANY = (
    "SELECT (SELECT number FROM log_counter WHERE id = 1), digest FROM tokens"
    " WHERE digest = ANY(:digests) AND " + _VALID
)


class Stamps:
    """Reads, in one query, the number of the newest publication and whether a token is valid.

    What a branch shows to a valid token changes only with a publication: a reply is as good as new
    while both are unchanged. Every call reads the catalog as it is then, with the changes of other
    processes.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sqlite3.Connection | None = None
        # Calls since the last query began; the next query answers all of them.
        self._waiting: list[tuple[str, asyncio.Future[int | None]]] = []
        self._reader: asyncio.Task[None] | None = None

    async def read(self, digest: str) -> int | None:
        """Return the number of the newest publication; None if the token is not valid."""
        if self._database.path is not None:
            return self._read_file(digest)
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((digest, answer))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_waiting())
        return await answer

    def _read_file(self, digest: str) -> int | None:
        """Read SQLite on the event loop: with a write-ahead log, a reader waits for no writer."""
        try:
            self._connection = self._connection or self._connect()
            query = _ONE.format(now=NOW["sqlite"].text)
            number, is_valid = self._connection.execute(query, (digest,)).fetchone()
        except (sqlite3.Error, TypeError):
            # The caller then takes the usual way, which reports what is wrong.
            self._connection = None
            return None
        return int(number) if is_valid else None

    def _connect(self) -> sqlite3.Connection:
        uri = f"{Path(str(self._database.path)).absolute().as_uri()}?mode=ro"
        # The garbage collector, which closes it, may run in any thread.
        connection = sqlite3.connect(
            uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        weakref.finalize(self, connection.close)
        return connection

    async def _read_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                found = await asyncio.to_thread(self._find, {digest for digest, _ in batch})
            except HeadgateError:
                found = {}
            for digest, answer in batch:
                if not answer.done():
                    answer.set_result(found.get(digest))

    def _find(self, digests: Iterable[str]) -> dict[str, int]:
        query = text(_MANY.format(now=NOW["postgresql"].text))
        with self._database.raw() as connection:
            rows = connection.execute(query, {"digests": list(digests)})
            return {digest: number for number, digest in rows}
