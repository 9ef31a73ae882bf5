"""Who may use a served store: people by their tokens, jobs by their attempts'."""

from __future__ import annotations

from headgate.catalog.database import Connection, Database
from headgate.catalog.find import find_transaction
from headgate.catalog.tokens import find_grant
from headgate.catalog.units import find_unit
from headgate.endpoint.authorizing import job_principal
from headgate.endpoint.ports import Action, Principal
from headgate.errors import TokenRefused
from headgate.model.access import Right, Role, require
from headgate.model.contexts import BranchContext, Context, JobContext, UnitContext

_RIGHTS = {Action.READ: Right.READ, Action.WRITE: Right.WRITE}


class ServedTokens:
    """Checks every request of the endpoint against the catalog, so that a revocation bites."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __call__(self, token: str | None, context: Context, action: Action) -> Principal:
        if token is None:
            raise TokenRefused(reason="the request has none")
        return self._database.read(lambda c: _principal(c, token, context, action))


def _principal(connection: Connection, token: str, context: Context, action: Action) -> Principal:
    grant = find_grant(connection, token)
    if grant is None or isinstance(context, JobContext):
        return job_principal(connection, token, context)
    written = _written(connection, context) if action is Action.WRITE else ()
    require(grant, _RIGHTS[action], written=written)
    return Principal(actor=grant.actor, may_write_protected=grant.role is Role.ADMIN)


def _written(connection: Connection, context: Context) -> tuple[str, ...]:
    """The branch that a write in this context would change."""
    if isinstance(context, BranchContext):
        return (context.branch,)
    if isinstance(context, UnitContext):
        unit = find_unit(connection, context.id)
        single = find_transaction(connection, context.id) if unit is None else None
        return tuple(found.branch for found in (unit, single) if found is not None)
    return ()
