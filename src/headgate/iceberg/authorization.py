"""Who may use an embedded endpoint: its own sessions, and job attempts, each by a token."""

from __future__ import annotations

import secrets

from headgate.catalog.attempts import check_newest, find_attempt_by_token
from headgate.catalog.database import Connection, Database
from headgate.errors import TokenRefused
from headgate.iceberg.service import Action, Principal
from headgate.model.contexts import Context, JobContext


class EmbeddedTokens:
    """Tokens of one loopback endpoint; a session's stands for a person, a job's for an attempt."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sessions: dict[str, str] = {}

    def issue(self, actor: str) -> str:
        """A token for one session of this process; it is kept in memory only."""
        token = secrets.token_urlsafe(32)
        self._sessions[token] = actor
        return token

    def __call__(self, token: str | None, context: Context, action: Action) -> Principal:
        if token is None:
            raise TokenRefused(reason="the request has none")
        actor = self._sessions.get(token)
        if actor is None:
            return self._database.read(lambda c: job_principal(c, token, context))
        refuse_job(context)
        return Principal(actor=actor)


def refuse_job(context: Context) -> None:
    """A job's context is open to that job's own attempt, to nobody else whatever their role."""
    if isinstance(context, JobContext):
        raise TokenRefused(reason=f"{context} is open to its own attempt only", is_good=True)


def job_principal(connection: Connection, token: str, context: Context) -> Principal:
    """A job's token opens its own job's context only, and only while it is the newest attempt."""
    found = find_attempt_by_token(connection, token)
    if found is None:
        raise TokenRefused(reason="it is unknown here")
    attempt, _ = found
    if not isinstance(context, JobContext) or context.id != job_id(
        attempt.ref.key, attempt.ref.epoch
    ):
        raise TokenRefused(reason=f"it is for another context than {context}", is_good=True)
    check_newest(connection, attempt.ref)
    return Principal(actor=attempt.actor, attempt=attempt.ref)


def job_id(key: str, epoch: int) -> str:
    """How an attempt is called in a context: `job:<key>:<epoch>`."""
    return f"{key}:{epoch}"
