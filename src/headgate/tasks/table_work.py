"""Tables beside a workspace: a Spark session in the attempt's own context, published together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headgate.attempts import LEASE_SECONDS, CommitOptions, Contents, checked_commits
from headgate.catalog.attempts import equip_attempt, find_scope
from headgate.catalog.database import Connection, Database
from headgate.catalog.publish import publish
from headgate.catalog.records import (
    find_branch,
    load_branch,
    load_dataset,
    load_transaction,
    load_transactions,
)
from headgate.catalog.transactions import (
    Opener,
    Opening,
    abort_transactions,
    open_transactions,
    open_transactions_of,
)
from headgate.errors import InputNotFound, Invalid
from headgate.model.changes import Change, MoveBranch, OperationKey, PublishRequest
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import (
    AttemptRef,
    Branch,
    DatasetKind,
    PublicationKind,
    Transaction,
    TransactionType,
)
from headgate.tasks.declare import TableSpec
from headgate.tasks.ports import Identity, Together, WorkspaceRef

# The catalog's half of a task's tables: opened for one attempt, and committed with its files.
#
# What is open is in the catalog alone, so that any process may go on with it.


class HeldTables:
    """The tables of one attempt; outputs are its OPEN transactions until it publishes."""

    def __init__(
        self,
        database: Database,
        contents: Contents,
        identity: Identity,
        *,
        may_write_protected: bool = False,
    ) -> None:
        self._database = database
        self._contents = contents
        self._identity = identity
        self._may_write_protected = may_write_protected

    def open(
        self,
        read: Sequence[DatasetName],
        written: Sequence[DatasetName],
        workspace: WorkspaceRef,
        token: str,
    ) -> None:
        """Opens them on the workspace's branch, to whoever has the token; repeated, once."""
        if "." not in workspace.repository:
            raise Invalid("tables are published with a files dataset, not with a lakeFS branch.")
        branch = workspace.branch
        outputs = self._find_open()
        if not outputs:
            self._undo_abandoned(written, workspace)
            outputs = self._open(written, branch)
        elif {one.dataset for one in outputs} != set(written):
            raise Invalid("this attempt has other tables open: an attempt opens its tables once.")
        inputs = self._database.read(partial(_pinned, names=read, branch=branch))
        equip_attempt(
            self._database,
            self._identity.attempt,
            token=token,
            scope={
                "branch": branch,
                "inputs": {
                    str(one.dataset): {"branch": one.branch, "transaction": one.id}
                    for one in inputs
                },
                "outputs": {str(one.dataset): one.id for one in outputs},
            },
        )

    def finish(self) -> Together:
        """Commits of what was written; an output that was left as it was is not one of them."""
        # As they were opened: one that somebody took over since must not be left out unseen.
        opened = self._database.read(partial(_outputs, attempt=self._identity.attempt))
        written = self._database.read(partial(_written, ids=opened))
        options = CommitOptions(
            actor=self._identity.actor, attempt=self._identity.attempt, natural=written
        )
        return Together(
            changes=tuple(checked_commits(self._database, self._contents, written, options))
        )

    def publish(self, together: Together, *, operation: OperationKey | None = None) -> None:
        """Publishes them alone, where the workspace is only read."""
        request = replace(self._request(together.changes), operation=operation)
        publish(self._database, request)

    def close(self) -> None:
        """Aborts what is still open."""
        left = self._find_open()
        if left:
            abort_transactions(self._database, [one.id for one in left], actor=self._identity.actor)

    def _find_open(self) -> list[Transaction]:
        attempt = self._identity.attempt
        return self._database.read(partial(open_transactions_of, attempt=attempt))

    def _open(self, written: Sequence[DatasetName], branch: str) -> list[Transaction]:
        def find(connection: Connection) -> list[Opening]:
            found = []
            for name in written:
                dataset = load_dataset(connection, name)
                _check_is_table(dataset.kind, name)
                opened = load_branch(connection, dataset, branch)
                found.append(Opening(branch=opened.id, type=TransactionType.UPDATE))
            return found

        openings = self._database.read(find)
        if not openings:
            return []
        opener = Opener(
            actor=self._identity.actor,
            lease_seconds=LEASE_SECONDS,
            attempt=self._identity.attempt,
            may_write_protected=self._may_write_protected,
        )
        return open_transactions(self._database, openings, opener)

    def _undo_abandoned(self, written: Sequence[DatasetName], workspace: WorkspaceRef) -> None:
        """Takes back, files and tables in one publication, what an earlier attempt published.

        A table is written on top of what it shows: on an abandoned publication, twice.
        """
        names = (parse_dataset_name(workspace.repository), *written)
        attempt = self._identity.attempt
        changes = self._database.read(
            partial(_taken_back, names=names, branch=workspace.branch, attempt=attempt)
        )
        if changes:
            request = replace(self._request(tuple(changes)), kind=PublicationKind.REPLACE)
            publish(self._database, request)

    def _request(self, changes: tuple[Change, ...]) -> PublishRequest:
        return PublishRequest(
            actor=self._identity.actor,
            kind=PublicationKind.COMMIT,
            changes=changes,
            attempt=self._identity.attempt,
            may_write_protected=self._may_write_protected,
        )


def _taken_back(
    connection: Connection, names: Sequence[DatasetName], branch: str, attempt: AttemptRef
) -> list[MoveBranch]:
    changes = []
    for name in names:
        here = find_branch(connection, load_dataset(connection, name).id, branch)
        if here is None or here.view is None or here.is_open:
            continue
        shown = load_transaction(connection, here.view)
        made_by = shown.attempt
        if made_by is not None and made_by.key == attempt.key and made_by.epoch < attempt.epoch:
            changes.append(_back(here, shown))
    return changes


def _back(branch: Branch, shown: Transaction) -> MoveBranch:
    return MoveBranch(
        branch=branch.id,
        expected_head=branch.head,
        expected_view=branch.view,
        to=shown.parent,
    )


def _pinned(connection: Connection, names: Sequence[DatasetName], branch: str) -> list[Transaction]:
    found = []
    for name in names:
        dataset = load_dataset(connection, name)
        _check_is_table(dataset.kind, name)
        here = load_branch(connection, dataset, branch)
        if here.view is None:
            raise InputNotFound(
                dataset=str(name), where=f"on branch {branch!r}", needed_by="the task"
            )
        found.append(load_transaction(connection, here.view))
    return found


def _outputs(connection: Connection, attempt: AttemptRef) -> list[TransactionId]:
    scope = find_scope(connection, attempt.key, attempt.epoch) or {}
    return [TransactionId(id) for id in scope.get("outputs", {}).values()]


def _written(connection: Connection, ids: Sequence[TransactionId]) -> list[TransactionId]:
    """Those whose working version is not the one that they began with."""
    opened = load_transactions(connection, ids)
    bases = load_transactions(connection, [t.parent for t in opened.values() if t.parent])
    return [
        one.id
        for one in opened.values()
        if one.version != (bases[one.parent].version if one.parent else None)
    ]


def _check_is_table(kind: DatasetKind, name: DatasetName) -> None:
    if kind is not DatasetKind.TABLE:
        raise Invalid(f"dataset {name} is a tree of files, not a table.", dataset=str(name))


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
