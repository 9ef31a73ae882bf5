"""Authorization of requests to a served store.

People use tokens, jobs the tokens of their attempts. Denied requests are recorded as events.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import replace

from headgate.catalog.attempts import find_attempt_by_token
from headgate.catalog.database import Connection, Database, now
from headgate.catalog.records import find_transaction, find_unit
from headgate.catalog.tokens import TokenRecord, check_good, find_token, load_grant
from headgate.catalog.transactions import record_event
from headgate.errors import Denied, TokenRefused
from headgate.iceberg.service import Action, job_caller, refuse_job
from headgate.model.access import Grant, Role, authorize, write_check
from headgate.model.changes import Caller
from headgate.model.contexts import BranchContext, Context, MomentContext, UnitContext
from headgate.model.ids import Instant

_log = logging.getLogger("headgate.server")

_OPERATIONS = {Action.READ: "iceberg_read", Action.WRITE: "iceberg_write"}
# The same denial is recorded once in this time: repeated requests must not fill the catalog.
_QUIET_SECONDS = 60.0
_REMEMBERED = 4096


class Authority:
    """Checks of tokens, by the catalog on each request: a revocation takes effect at once."""

    def __init__(self, database: Database, *, code_from: Role = Role.ADMIN) -> None:
        self._database = database
        self._writers_deliver_code = code_from is not Role.ADMIN
        self._noted: OrderedDict[tuple[str | None, ...], float] = OrderedDict()
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
            self.note(record.grant.actor, operation, refusal)
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
        self, actor: str, operation: str, refusal: Denied, *, branch: str | None = None
    ) -> None:
        """Record a denial as an event of kind `refused`."""
        named = branch or refusal.facts.get("branch")
        if not self._is_news((actor, operation, named, refusal.code)):
            return
        self._database.write(
            lambda c: record_event(
                c,
                at=now(c),
                actor=actor,
                kind="refused",
                branch=named,
                wanted=operation,
                code=refusal.code,
            )
        )

    def _is_news(self, refusal: tuple[str | None, ...]) -> bool:
        moment = time.monotonic()
        with self._lock:
            noted = self._noted.get(refusal)
            if noted is not None and moment - noted < _QUIET_SECONDS:
                return False
            self._noted[refusal] = moment
            self._noted.move_to_end(refusal)
            while len(self._noted) > _REMEMBERED:
                self._noted.popitem(last=False)
            return True


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
            self._authority.note(grant.actor, operation, refusal, branch=next(iter(written), None))
            raise
        return Caller(
            actor=grant.actor,
            may_write_protected=grant.may_write_protected,
            check_write=write_check(grant),
            policy=grant.policy,
        )

    def refused(self, caller: Caller, action: Action, refusal: Denied) -> None:
        """Record a denial by branch protection; the rejection of a superseded job is not one."""
        if caller.attempt is None:
            self._authority.note(caller.actor, _OPERATIONS[action], refusal)

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
