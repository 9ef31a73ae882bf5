"""Who calls: the bearer of a token, let through by the rule of the route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from headgate.errors import Denied
from headgate.model.access import Grant, allow, require, rule_of
from headgate.server.authorizing import Authority
from headgate.server.building import ServerBuilds
from headgate.store import Store

_bearer = HTTPBearer(auto_error=False, description="A token of `headgate token create`.")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """One request's right to act. A store to write on is had only by naming the branches."""

    grant: Grant
    operation: str
    served: Store
    authority: Authority
    builds: ServerBuilds

    def looking(self) -> Store:
        """The store in the caller's name, to look at; whoever came as far may read."""
        return self.served.acting_as(self.grant.actor, may_write_protected=False)

    @contextmanager
    def acting(self, *written: str) -> Iterator[Store]:
        """The store in the caller's name, if the route's rule lets them write these branches."""
        try:
            allow(self.grant, self.operation, written=written)
            yield self.served.acting_as(
                self.grant.actor, may_write_protected=self.grant.may_write_protected
            )
        except Denied as refused:
            branch = next(iter(written), None)
            self.authority.note(self.grant.actor, self.operation, refused, branch=branch)
            raise


def identify(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    """The caller, refused here if their role can never do what this route does."""
    operation = str(request.scope["route"].operation_id)
    rule = rule_of(operation)
    authority: Authority = request.app.state.authority
    grant = authority.grant(credentials.credentials if credentials else None, operation)
    # For the access log.
    request.state.actor = grant.actor
    try:
        require(grant, rule.right)
    except Denied as refused:
        authority.note(grant.actor, operation, refused)
        raise
    return Caller(
        grant=grant,
        operation=operation,
        served=request.app.state.store,
        authority=authority,
        builds=request.app.state.builds,
    )


CallerDependency = Annotated[Caller, Depends(identify)]
