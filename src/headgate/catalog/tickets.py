"""Tickets of the write queue of a branch: leased rows, served in order.

Tickets turn contention into waiting. The door does not require one: a writer without a ticket may
still publish. Tickets only order the writers that take them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from headgate.catalog.database import Database, now
from headgate.catalog.schema import metadata
from headgate.model.ids import BranchId, Instant, mint

tickets = sa.Table(
    "tickets",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("branch_id", sa.Text, primary_key=True),
    sa.Column("taken_at", sa.BigInteger, nullable=False),
    sa.Column("lease_until", sa.BigInteger, nullable=False),
    sa.Index("tickets_by_branch", "branch_id", "taken_at"),
)

LEASE_SECONDS = 10
# Per ticket ahead: a writer far back in the queue need not poll often.
_POLL_SECONDS = 0.02
_POLL_AT_MOST_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A place in the write queues of one or more branches."""

    id: str
    branches: tuple[BranchId, ...]
    taken_at: Instant


def take_ticket(database: Database, branches: Iterable[BranchId]) -> Ticket:
    """Take a place behind all writers that wait for any of these branches."""
    wanted = tuple(sorted(set(branches)))

    def work(connection: sa.Connection) -> Ticket:
        at = now(connection)
        connection.execute(sa.delete(tickets).where(tickets.c.lease_until < at))
        ticket = Ticket(id=mint("k"), branches=wanted, taken_at=at)
        connection.execute(
            sa.insert(tickets),
            [
                {
                    "id": ticket.id,
                    "branch_id": branch,
                    "taken_at": at,
                    "lease_until": at + LEASE_SECONDS * 1_000_000,
                }
                for branch in wanted
            ],
        )
        return ticket

    return database.write(work)


def wait_for_ticket(database: Database, ticket: Ticket, *, seconds: float) -> bool:
    """Wait until no ticket is ahead, renewing the lease; return False on timeout."""
    deadline = time.monotonic() + seconds
    renewed = time.monotonic()
    while ahead := database.read(lambda c: _count_ahead(c, ticket)):
        if time.monotonic() >= deadline:
            return False
        if time.monotonic() - renewed > LEASE_SECONDS / 2:
            database.write(lambda c: renew_ticket(c, ticket))
            renewed = time.monotonic()
        time.sleep(min(_POLL_SECONDS * ahead, _POLL_AT_MOST_SECONDS))
    database.write(lambda c: renew_ticket(c, ticket))
    return True


def renew_ticket(connection: sa.Connection, ticket: Ticket) -> None:
    until = now(connection) + LEASE_SECONDS * 1_000_000
    connection.execute(
        sa.update(tickets).where(tickets.c.id == ticket.id).values(lease_until=until)
    )


def release_ticket(database: Database, ticket: Ticket) -> None:
    """Delete the ticket, so that the next writer continues at once."""
    database.write(lambda c: c.execute(sa.delete(tickets).where(tickets.c.id == ticket.id)))


def is_waited_for(connection: sa.Connection, branches: Iterable[BranchId]) -> bool:
    """Return True if a ticket with a live lease exists for one of these branches."""
    wanted = sorted(set(branches))
    if not wanted:
        return False
    query = (
        sa.select(tickets.c.id)
        .where(tickets.c.branch_id.in_(wanted), tickets.c.lease_until >= now(connection))
        .limit(1)
    )
    return connection.execute(query).one_or_none() is not None


def _count_ahead(connection: sa.Connection, ticket: Ticket) -> int:
    earlier = sa.or_(
        tickets.c.taken_at < ticket.taken_at,
        (tickets.c.taken_at == ticket.taken_at) & (tickets.c.id < ticket.id),
    )
    query = sa.select(sa.func.count(tickets.c.id.distinct())).where(
        tickets.c.branch_id.in_(ticket.branches),
        tickets.c.lease_until >= now(connection),
        earlier,
    )
    return int(connection.execute(query).scalar_one())
