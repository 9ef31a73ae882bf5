"""Tickets of the write queue of a branch: leased rows, served in order.

Tickets turn contention into waiting. The door does not require one: a writer without a ticket may
still publish. Tickets only order the writers that take them.
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import sqlalchemy as sa

from headgate.catalog.database import PLACE, Database, Suspended, Wait, now
from headgate.catalog.operations import begin_operation, forget_operation
from headgate.catalog.records import in_chunks, is_too_long, rows_of
from headgate.catalog.schema import tickets, transactions
from headgate.errors import HeadgateError
from headgate.model.changes import OperationKey, PublishRequest, Receipt
from headgate.model.ids import BranchId, Instant, TransactionId, mint, mint_operation
from headgate.model.nouns import TransactionState

LEASE_SECONDS = 10
RENEW_SECONDS = LEASE_SECONDS / 3
# Per ticket ahead: a writer far back in the queue need not poll often.
_POLL_SECONDS = 0.01
# Of the time that it has waited: a queue that does not move is polled less and less.
_POLL_SHARE = 0.05
_POLL_AT_MOST_SECONDS = 0.3


# `publish.publish_prepared`.
PublishPrepared: TypeAlias = Callable[
    [Database, Callable[[sa.Connection], PublishRequest]], Receipt
]


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A place in the write queues of one or more branches."""

    id: str
    branches: tuple[BranchId, ...]
    taken_at: Instant


class Line:
    """A writer that may have to wait: for earlier tickets, and for an OPEN transaction."""

    def __init__(
        self, database: Database, *, seconds: float, operation: OperationKey | None = None
    ) -> None:
        """Prepare to wait for `seconds`; meanwhile the operation is recorded as in progress."""
        self._database = database
        self._operation = operation
        self._renewed_at = time.monotonic()
        self.deadline = time.monotonic() + seconds
        self.ticket: Ticket | None = None

    def join(self, branches: Iterable[BranchId]) -> None:
        """Take a ticket, behind all writers that wait for any of these branches."""
        wanted = tuple(sorted(set(branches)))
        self.ticket = self._database.write(lambda c: _take_ticket(c, wanted))
        self._renewed_at = time.monotonic()

    def wait(self, holder: TransactionId | None = None) -> bool:
        """Wait until no ticket is ahead and `holder` is not OPEN; return False on timeout.

        In a server it raises `Suspended` instead of waiting.
        """
        if self.ticket is None and holder is None:
            return True
        began = time.monotonic()
        wait = LineWait(deadline=self.deadline, line=self, holder=holder)
        while (ahead := self._database.read(lambda c: count_ahead(c, [wait]))[0]) != 0:
            moment = time.monotonic()
            if ahead is None:
                self._database.write(self._return_in)
                continue
            if moment >= self.deadline:
                return False
            if PLACE.get() is not None:
                raise Suspended(wait)
            self.renew_if_due()
            pause = max(_POLL_SECONDS * ahead, _POLL_SHARE * (moment - began))
            time.sleep(min(pause, _POLL_AT_MOST_SECONDS, self.deadline - moment))
        self.renew_if_due()
        return True

    def renew_if_due(self) -> None:
        if self.ticket is not None and time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            self.renew()

    def renew(self) -> None:
        self._database.write(lambda c: renew_lines(c, [self]))

    def publish(self, request: PublishRequest, publish_prepared: PublishPrepared) -> Receipt:
        """Publish, and delete the ticket in the same unit of work."""

        def prepare(connection: sa.Connection) -> PublishRequest:
            self._release_in(connection)
            return request

        receipt = publish_prepared(self._database, prepare)
        self.ticket = None
        return receipt

    def leave(self) -> None:
        """Delete the ticket, so that the next writer continues at once."""
        if self.ticket is not None:
            # Without a database the end of its lease does it.
            with suppress(HeadgateError):
                self._database.write(self._leave_in)
        self.ticket = None

    def _leave_in(self, connection: sa.Connection) -> None:
        self._release_in(connection)
        if self._operation is not None:
            forget_operation(connection, self._operation)

    def _release_in(self, connection: sa.Connection) -> None:
        if self.ticket is not None:
            connection.execute(sa.delete(tickets).where(tickets.c.id == self.ticket.id))

    def _return_in(self, connection: sa.Connection) -> None:
        """Return to the place of a ticket that expired, because this process was paused."""
        if self.ticket is not None:
            self._release_in(connection)
            _insert(connection, self.ticket, now(connection))

    def _renew_in(self, connection: sa.Connection) -> None:
        if self._operation is not None:
            # A request that repeats this one may have ended meanwhile, and its record with it.
            begin_operation(connection, mint_operation(), self._operation)
        self._renewed_at = time.monotonic()


@dataclass(frozen=True, kw_only=True, eq=False)
class LineWait(Wait):
    """A wait for conditions in the catalog."""

    line: Line
    holder: TransactionId | None


def _take_ticket(connection: sa.Connection, branches: tuple[BranchId, ...]) -> Ticket:
    at = now(connection)
    connection.execute(sa.delete(tickets).where(sa.not_(_is_live(at))))
    ticket = Ticket(id=mint("k"), branches=branches, taken_at=at)
    _insert(connection, ticket, at)
    return ticket


def _insert(connection: sa.Connection, ticket: Ticket, at: Instant) -> None:
    connection.execute(
        sa.insert(tickets),
        [
            {
                "id": ticket.id,
                "branch_id": branch,
                "taken_at": ticket.taken_at,
                "lease_until": at + LEASE_SECONDS * 1_000_000,
            }
            for branch in ticket.branches
        ],
    )


def renew_lines(connection: sa.Connection, lines: Collection[Line]) -> None:
    """Renew the tickets of these writers, and the records of their operations."""
    until = now(connection) + LEASE_SECONDS * 1_000_000
    for part in in_chunks(line.ticket.id for line in lines if line.ticket is not None):
        renewed = sa.update(tickets).where(tickets.c.id.in_(part)).values(lease_until=until)
        connection.execute(renewed)
    for line in lines:
        line._renew_in(connection)


def count_ahead(connection: sa.Connection, waits: Sequence[LineWait]) -> list[int | None]:
    """Return the number of tickets ahead of each, plus one if its holder is OPEN.

    It is None for a writer whose own ticket has expired.
    """
    at = now(connection)
    queues = _read_queues(connection, waits, at)
    held = _read_open(connection, (wait.holder for wait in waits if wait.holder), at)
    counts = (_count_earlier(wait.line.ticket, queues) for wait in waits)
    return [
        count if count is None else count + (wait.holder in held)
        for wait, count in zip(waits, counts, strict=True)
    ]


def _count_earlier(ticket: Ticket | None, queues: dict[str, list[tuple[int, str]]]) -> int | None:
    if ticket is None:
        return 0
    mine = (ticket.taken_at, ticket.id)
    earlier = set[str]()
    for branch in ticket.branches:
        queue = queues[branch]
        place = bisect_left(queue, mine)
        if place == len(queue) or queue[place] != mine:
            return None
        earlier.update(id for _, id in queue[:place])
    return len(earlier)


def _read_queues(
    connection: sa.Connection, waits: Sequence[LineWait], at: Instant
) -> dict[str, list[tuple[int, str]]]:
    """Return time and id of the tickets with a valid lease, in order, by branch."""
    queues = defaultdict[str, list[tuple[int, str]]](list)
    held = [wait.line.ticket for wait in waits if wait.line.ticket is not None]
    query = sa.select(tickets.c.branch_id, tickets.c.taken_at, tickets.c.id).where(_is_live(at))
    named = (branch for ticket in held for branch in ticket.branches)
    rows = rows_of(connection, query, named, column=tickets.c.branch_id)
    for branch, taken_at, id in rows:
        queues[branch].append((taken_at, id))
    # Not by the database, which may order texts by the rules of a language.
    for queue in queues.values():
        queue.sort()
    return queues


def _read_open(
    connection: sa.Connection, holders: Iterable[TransactionId], at: Instant
) -> set[TransactionId]:
    """Return the transactions that are OPEN and that no writer may take over yet."""
    lease = transactions.c.lease_until
    query = sa.select(transactions.c.id).where(
        transactions.c.state == TransactionState.OPEN,
        sa.or_(lease.is_(None), sa.and_(lease >= at, sa.not_(is_too_long(transactions, at)))),
    )
    rows = rows_of(connection, query, holders, column=transactions.c.id)
    return {TransactionId(id) for (id,) in rows}


def _is_live(moment: Instant) -> sa.ColumnElement[bool]:
    """Select tickets with a live lease; one that is longer is of a clock that was ahead."""
    return tickets.c.lease_until.between(moment, moment + 2 * LEASE_SECONDS * 1_000_000)
