"""Tables of an attempt: open transactions in the catalog and a Spark session on them.

The catalog records what is open, so that any process can continue: `AttemptTables` also serves
clients of a server.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headgate.attempts import LEASE_SECONDS, CommitOptions, Contents, checked_commits
from headgate.catalog import records
from headgate.catalog.attempts import find_scope, set_attempt_scope
from headgate.catalog.database import Connection, Database
from headgate.catalog.publish import publish
from headgate.catalog.transactions import Opener, Opening, abort_transactions, open_transactions
from headgate.errors import InputNotFound, Invalid
from headgate.model import nouns
from headgate.model.changes import MoveBranch, OperationKey, PublishRequest
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.tasks.declare import TableSpec
from headgate.tasks.files_store import undo_replaced
from headgate.tasks.ports import Identity, TableChanges, WorkspaceRef


class AttemptTables:
    """Tables of one attempt; outputs are its OPEN transactions until it publishes."""

    def __init__(self, database: Database, contents: Contents, identity: Identity) -> None:
        self._database = database
        self._contents = contents
        self._identity = identity

    def open(
        self,
        read: Sequence[DatasetName],
        written: Sequence[DatasetName],
        workspace: WorkspaceRef,
        token: str,
    ) -> None:
        """Open the tables on the workspace's branch for the holder of the token; idempotent."""
        if "." not in workspace.repository:
            raise Invalid("tables need a workspace in a files dataset, not in lakeFS.")
        branch = workspace.branch
        outputs = self._find_open()
        if not outputs:
            self._undo_abandoned(written, workspace)
            outputs = self._open(written, branch)
        elif {one.dataset for one in outputs} != set(written):
            raise Invalid("this attempt has other tables open; an attempt opens its tables once.")
        inputs = self._database.read(partial(_pinned, names=read, branch=branch))
        set_attempt_scope(
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

    def finish(self) -> TableChanges:
        """Return the commits of written outputs; unchanged outputs are left out."""
        # From the scope, not the open transactions: one that was taken over must raise.
        opened = self._database.read(partial(_outputs, attempt=self._identity.attempt))
        written = self._database.read(partial(_written, ids=opened))
        options = CommitOptions(caller=self._identity.caller, inferred=written)
        checked = checked_commits(self._database, self._contents, written, options)
        return TableChanges(changes=checked.changes, reads=checked.reads)

    def publish(
        self,
        table_changes: TableChanges,
        *,
        kind: nouns.PublicationKind = nouns.PublicationKind.COMMIT,
        operation: OperationKey | None = None,
    ) -> None:
        """Publish the changes alone, as for a read-only workspace."""
        request = PublishRequest(
            caller=self._identity.caller,
            kind=kind,
            changes=table_changes.changes,
            reads=table_changes.reads,
            operation=operation,
        )
        publish(self._database, request)

    def close(self) -> None:
        """Abort open transactions."""
        opened = self._find_open()
        if opened:
            # Without the fence: also where the attempt has ended.
            caller = replace(self._identity.caller, attempt=None)
            abort_transactions(self._database, [one.id for one in opened], caller=caller)

    def _find_open(self) -> list[nouns.Transaction]:
        attempt = self._identity.attempt
        return self._database.read(partial(records.open_transactions_of, attempt=attempt))

    def _open(self, written: Sequence[DatasetName], branch: str) -> list[nouns.Transaction]:
        if not written:
            return []
        branches = self._database.read(partial(_load_branches, names=written, branch=branch))
        openings = [Opening(branch=b.id, type=nouns.TransactionType.UPDATE) for b in branches]
        opener = Opener(caller=self._identity.caller, lease_seconds=LEASE_SECONDS)
        return open_transactions(self._database, openings, opener)

    def _undo_abandoned(self, written: Sequence[DatasetName], workspace: WorkspaceRef) -> None:
        """Revert the publication that this attempt replaces, files and tables together.

        Otherwise the attempt would write its rows on top of the abandoned ones.
        """
        names = (parse_dataset_name(workspace.repository), *written)
        attempt = self._identity.attempt
        undo = partial(undo_replaced, workspace=workspace, identity=self._identity)
        changes = self._database.read(undo) or self._database.read(
            partial(_reverting_moves, names=names, branch=workspace.branch, attempt=attempt)
        )
        if changes:
            self.publish(TableChanges(changes=tuple(changes)), kind=nouns.PublicationKind.REPLACE)


def _reverting_moves(
    connection: Connection, names: Sequence[DatasetName], branch: str, attempt: nouns.AttemptRef
) -> list[MoveBranch]:
    changes = []
    for name in names:
        here = records.find_branch(connection, records.load_dataset(connection, name).id, branch)
        if here is None or here.view is None or here.is_open:
            continue
        shown = records.load_transaction(connection, here.view)
        made_by = shown.attempt
        if made_by is not None and made_by.key == attempt.key and made_by.epoch < attempt.epoch:
            move = MoveBranch(
                branch=here.id, expected_head=here.head, expected_view=here.view, to=shown.parent
            )
            changes.append(move)
    return changes


def _pinned(
    connection: Connection, names: Sequence[DatasetName], branch: str
) -> list[nouns.Transaction]:
    found = []
    for here in _load_branches(connection, names, branch):
        if here.view is None:
            raise InputNotFound(
                dataset=str(here.dataset), where=f"on branch {branch!r}", needed_by="the task"
            )
        found.append(records.load_transaction(connection, here.view))
    return found


def _load_branches(
    connection: Connection, names: Sequence[DatasetName], branch: str
) -> list[nouns.Branch]:
    """Return the branch of each table; raise for a files dataset."""
    found = []
    for name in names:
        dataset = records.load_dataset(connection, name)
        if dataset.kind is not nouns.DatasetKind.TABLE:
            raise Invalid(f"dataset {name} has kind {dataset.kind}, not table.", dataset=str(name))
        found.append(records.load_branch(connection, dataset, branch))
    return found


def _outputs(connection: Connection, attempt: nouns.AttemptRef) -> list[TransactionId]:
    scope = find_scope(connection, attempt.key, attempt.epoch) or {}
    return [TransactionId(id) for id in scope.get("outputs", {}).values()]


def _written(connection: Connection, ids: Sequence[TransactionId]) -> list[TransactionId]:
    """Return the transactions whose version differs from that of their parent."""
    opened = records.load_transactions(connection, ids)
    bases = records.load_transactions(connection, [t.parent for t in opened.values() if t.parent])
    return [
        one.id
        for one in opened.values()
        if one.version != (bases[one.parent].version if one.parent else None)
    ]


# Opens a session on a context, with its token.
OpenSession = Callable[[str, str], Any]


class LazySession:
    """A Spark session in the context of one attempt, opened at its first use."""

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


class SparkTables(AttemptTables):
    """Implements `TableWork` at the catalog; the session ends with the Spark of the process."""

    def __init__(
        self,
        database: Database,
        contents: Contents,
        open_session: OpenSession,
        spec: TableSpec,
        workspace: WorkspaceRef,
        identity: Identity,
    ) -> None:
        super().__init__(database, contents, identity)
        token = secrets.token_urlsafe(32)
        self.open(spec.read, spec.written, workspace, token)
        self._session = LazySession(open_session, spec, identity, token)

    @property
    def session(self) -> Any:
        return self._session.get()
