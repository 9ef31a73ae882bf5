"""Bearer tokens: shown once, stored as a digest, revocable, with an optional expiry."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, insert, select, update

from headgate.catalog.attempts import token_digest
from headgate.catalog.database import Database, now
from headgate.catalog.records import dump, load
from headgate.catalog.schema import tokens
from headgate.errors import NotFound, TokenRefused
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


def create_token(
    database: Database,
    grant: Grant,
    *,
    lifetime_seconds: int | None,
    created_by: str,
) -> tuple[str, TokenRecord]:
    """Create a token; return it with its record. The token cannot be read again later."""
    secret = _PREFIX + secrets.token_urlsafe(32)
    id = mint("tok")

    def work(connection: Connection) -> TokenRecord:
        moment = now(connection)
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
                expires_at=(
                    None if lifetime_seconds is None else moment + lifetime_seconds * 1_000_000
                ),
            )
        )
        return _load(connection, id)

    return secret, database.write(work)


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


def revoke_token(database: Database, id: str) -> TokenRecord:
    """Revoke a token; revoking it again is not an error."""

    def work(connection: Connection) -> TokenRecord:
        _load(connection, id)
        connection.execute(
            update(tokens)
            .where(tokens.c.id == id, tokens.c.revoked_at.is_(None))
            .values(revoked_at=now(connection))
        )
        return _load(connection, id)

    return database.write(work)


def _load(connection: Connection, id: str) -> TokenRecord:
    row = connection.execute(select(tokens).where(tokens.c.id == id)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"token {id!r} does not exist. `headgate token list` shows all.", token=id)
    return _to_record(row)


def _to_record(row: RowMapping) -> TokenRecord:
    return TokenRecord(
        id=row["id"],
        grant=Grant(
            actor=row["actor"],
            role=Role(row["role"]),
            branches=tuple(load(row["branches"])),
            reads=tuple(load(row["reads"])),
            datasets=tuple(load(row["datasets"])),
            token=row["id"],
        ),
        created_by=row["created_by"],
        created_at=Instant(row["created_at"]),
        expires_at=Instant(row["expires_at"]) if row["expires_at"] is not None else None,
        revoked_at=Instant(row["revoked_at"]) if row["revoked_at"] is not None else None,
    )
