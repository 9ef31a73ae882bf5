"""Tables beside a workspace: a Spark session in the attempt's own context, published together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from headgate.attempts.committing import Contents
from headgate.catalog.database import Database
from headgate.tasks.held_tables import HeldTables
from headgate.tasks.inputs import WorkspaceRef
from headgate.tasks.ports import Identity, Together
from headgate.tasks.tables import TableSpec

# Gives a session of a context, with the token that opens it.
OpenSession = Callable[[str, str], Any]


class JobSession:
    """A session in the context of one attempt, made when it is first asked for."""

    def __init__(
        self, open_session: OpenSession, spec: TableSpec, identity: Identity, token: str
    ) -> None:
        self._open_session = open_session
        self._spec = spec
        self._identity = identity
        self._token = token
        self._session: Any = None

    def get(self) -> Any:
        if self._session is None:
            attempt = self._identity.attempt
            self._session = self._open_session(f"job:{attempt.key}:{attempt.epoch}", self._token)
            for key, value in self._spec.conf.items():
                self._session.conf.set(key, value)
        return self._session


class SparkTables:
    """Implements `TableWork` at the catalog itself."""

    def __init__(
        self,
        database: Database,
        contents: Contents,
        open_session: OpenSession,
        spec: TableSpec,
        workspace: WorkspaceRef,
        identity: Identity,
    ) -> None:
        token = secrets.token_urlsafe(32)
        self._held = HeldTables(database, contents, identity)
        self._held.open(spec.read, spec.written, workspace, token)
        self._session = JobSession(open_session, spec, identity, token)

    @property
    def session(self) -> Any:
        return self._session.get()

    def finish(self) -> Together:
        return self._held.finish()

    def publish(self, together: Together) -> None:
        self._held.publish(together)

    def close(self) -> None:
        """Aborts what is still open; the session ends with the process's own Spark."""
        self._held.close()
