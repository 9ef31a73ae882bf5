"""Authorization of requests to a served store.

People use tokens, jobs the tokens of their attempts. Denied requests are recorded as events.
See ADR 0041.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.datastructures import Address

from headgate.catalog.attempts import find_attempt_by_token
from headgate.catalog.database import Connection, Database, now
from headgate.catalog.records import find_transaction, find_unit
from headgate.catalog.tokens import TokenRecord, check_good, find_token, load_grant
from headgate.catalog.transactions import count_events, record_event
from headgate.errors import Denied, HeadgateError, TokenRefused
from headgate.iceberg.service import Action, job_caller, refuse_job
from headgate.model.access import Grant, Role, authorize, write_check
from headgate.model.changes import Caller
from headgate.model.contexts import BranchContext, Context, MomentContext, UnitContext
from headgate.model.ids import Instant, mint, to_datetime
from headgate.server.connections import network_of

_log = logging.getLogger("headgate.server")

# Clients without a token get one here, for a credential in the body.
TOKEN_PATH = "/iceberg/v1/oauth/tokens"

_OPERATIONS = {Action.READ: "iceberg_read", Action.WRITE: "iceberg_write"}
# The denials of a token by one rule are one event in this time: they must not fill the catalog.
_WINDOW_SECONDS = 3600.0
# The event has their number at most this much later.
_FLUSH_SECONDS = 60.0
_REMEMBERED = 4096


@dataclass(eq=False)
class _Counted:
    """Denials by one rule within an hour, since its first one."""

    event: str
    began: float
    count: int = 1
    # The count that the catalog has.
    recorded: int = 1


class Guesses:
    """Wrong tokens of the last minute, by the network of the client.

    Over the limit, only the answer to another wrong token is delayed: a right one is accepted at
    once, so that a guesser does not lock out others of the same address or behind the same proxy.
    """

    _A_MINUTE = 10
    _DELAY_SECONDS = 2.0

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    async def slow_down(self, client: Address | None) -> bool:
        """Record a wrong token; wait, and return True, if there were too many before it."""
        network, moment = network_of(client.host if client else ""), time.monotonic()
        times = self._times.setdefault(network, deque(maxlen=self._A_MINUTE))
        is_over = len(times) == self._A_MINUTE and moment - times[0] < 60
        times.append(moment)
        self._times.move_to_end(network)
        while len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)
        if is_over:
            await asyncio.sleep(self._DELAY_SECONDS)
        return is_over


class Authority:
    """Checks of tokens, by the catalog on each request: a revocation takes effect at once."""

    def __init__(self, database: Database, *, code_from: Role = Role.ADMIN) -> None:
        self._database = database
        self._writers_deliver_code = code_from is not Role.ADMIN
        self.guesses = Guesses()
        self._noted: OrderedDict[tuple[str, ...], _Counted] = OrderedDict()
        self._flush: threading.Timer | None = None
        self._lock = threading.Lock()

    def find_record(self, token: str) -> tuple[TokenRecord | None, Instant]:
        """Return the record of a token, valid or not, and the time by the database clock."""
        return self._database.read(lambda c: (find_token(c, token), now(c)))

    def is_valid(self, token: str) -> bool:
        """Return whether a token is valid, or was issued to an attempt of a job or task."""
        record, moment = self.find_record(token)
        if record is None:
            return self._database.read(lambda c: find_attempt_by_token(c, token)) is not None
        try:
            check_good(record, moment)
        except TokenRefused:
            return False
        return True

    def grant(self, token: str | None, operation: str) -> Grant:
        """Return the rights of a token; record the denial of one that is expired or revoked."""
        if token is None:
            raise TokenRefused(reason="the request has none")
        record, moment = self.find_record(token)
        if record is None:
            # Not recorded: guessed tokens must not fill the catalog.
            _log.warning("a request for %s came with an unknown token", operation)
            raise TokenRefused(reason="it is unknown here")
        return self.check(record, moment, operation)

    def check(self, record: TokenRecord, moment: Instant, operation: str) -> Grant:
        try:
            grant = check_good(record, moment)
        except TokenRefused as refusal:
            self.note(record.grant, operation, refusal)
            raise
        return replace(grant, delivers_code=self._writers_deliver_code)

    def find_token_id(self, token: str) -> str | None:
        """Return the id of a token; None if it is unknown. Raise if it is expired or revoked."""
        record, moment = self.find_record(token)
        if record is None:
            return None
        check_good(record, moment)
        return record.id

    def find_grant(self, token_id: str) -> Grant | None:
        """Return the present rights of a token by its id; None if it is no longer valid."""
        try:
            return self._database.read(lambda c: load_grant(c, token_id))
        except TokenRefused:
            return None

    def note(
        self, by: Grant | Caller, operation: str, refusal: Denied, *, branch: str | None = None
    ) -> None:
        """Record a denial as an event of kind `refused`, or count it in the event of this hour.

        The branch is that of the first denial: names that a client makes up add no events.
        """
        rule = (by.actor, by.token or "", operation, refusal.code)
        counted = self._count(rule)
        if counted is None:
            return
        try:
            self._database.write(
                lambda c: record_event(
                    c,
                    id=counted.event,
                    at=now(c),
                    actor=by.actor,
                    kind="refused",
                    branch=branch or refusal.facts.get("branch"),
                    token=by.token,
                    wanted=operation,
                    code=refusal.code,
                    count=1,
                )
            )
        except HeadgateError as error:
            # Such as a disk that is full: the request is denied all the same, and the next one is
            # tried again.
            with self._lock:
                self._noted.pop(rule, None)
            _log.warning("a denial of %s to %s is not recorded: %s", operation, by.actor, error)

    def _count(self, rule: tuple[str, ...]) -> _Counted | None:
        """Count a denial; return its counter if it is the first of an hour."""
        moment = time.monotonic()
        with self._lock:
            counted = self._noted.get(rule)
            if counted is not None and moment - counted.began < _WINDOW_SECONDS:
                counted.count += 1
                self._flush_later()
                return None
            unrecorded = [] if counted is None else [counted]
            counted = self._noted[rule] = _Counted(event=mint("e"), began=moment)
            self._noted.move_to_end(rule)
            while len(self._noted) > _REMEMBERED:
                unrecorded.append(self._noted.popitem(last=False)[1])
        self._record_counts(unrecorded)
        return counted

    def _flush_later(self) -> None:
        if self._flush is None:
            self._flush = threading.Timer(_FLUSH_SECONDS, self.flush)
            self._flush.daemon = True
            self._flush.start()

    def flush(self) -> None:
        """Write the numbers of denials to their events; the server's last act."""
        with self._lock:
            if self._flush is not None:
                self._flush.cancel()
            self._flush = None
            counters = list(self._noted.values())
        self._record_counts(counters)

    def _record_counts(self, counters: Sequence[_Counted]) -> None:
        counts = {each: each.count for each in counters if each.count != each.recorded}
        if not counts:
            return
        by_event = {each.event: count for each, count in counts.items()}
        try:
            self._database.write(lambda c: count_events(c, by_event))
        except HeadgateError as error:
            _log.warning("the numbers of %d denials are not recorded: %s", len(counts), error)
            return
        for each, count in counts.items():
            each.recorded = count


class ServedTokens:
    """Authorization of every request to the Iceberg endpoint."""

    def __init__(self, database: Database, authority: Authority | None = None) -> None:
        self._database = database
        self._authority = authority or Authority(database)

    def __call__(self, token: str | None, context: Context, action: Action) -> Caller:
        if token is None:
            raise TokenRefused(reason="the request has none")
        operation = _OPERATIONS[action]
        record, moment = self._authority.find_record(token)
        if record is None:
            return self._database.read(lambda c: job_caller(c, token, context))
        refuse_job(context)
        grant = self._authority.check(record, moment, operation)
        written = self._written(context) if action is Action.WRITE else ()
        try:
            if grant.policy is not None and isinstance(context, BranchContext | MomentContext):
                # A unit is hidden, or not, by its own branch.
                grant.policy.require_branches(context.chain)
            authorize(grant, operation, written=written)
        except Denied as refusal:
            self._authority.note(grant, operation, refusal, branch=next(iter(written), None))
            raise
        return Caller(
            actor=grant.actor,
            may_write_protected=grant.may_write_protected,
            check_write=write_check(grant),
            policy=grant.policy,
            token=grant.token,
            until=to_datetime(record.expires_at) if record.expires_at is not None else None,
        )

    def refused(self, caller: Caller, action: Action, refusal: Denied) -> None:
        """Record a denial by branch protection; the rejection of a superseded job is not one."""
        if caller.attempt is None:
            self._authority.note(caller, _OPERATIONS[action], refusal)

    def _written(self, context: Context) -> tuple[str, ...]:
        """Return the branch that a write in this context changes."""
        if isinstance(context, BranchContext):
            return (context.branch,)
        if isinstance(context, UnitContext):
            return self._database.read(lambda c: _branch_of(c, context.id))
        return ()


def _branch_of(connection: Connection, id: str) -> tuple[str, ...]:
    unit = find_unit(connection, id)
    single = find_transaction(connection, id) if unit is None else None
    return tuple(found.branch for found in (unit, single) if found is not None)
