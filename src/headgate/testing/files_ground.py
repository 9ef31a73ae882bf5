"""The publication protocol's ground on `files` datasets of a store."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.find import load_transaction
from headgate.files.writing import FileEdit, publish_edit
from headgate.handles import BranchHandle, store_bytes
from headgate.model.nouns import AttemptRef
from headgate.store import Store
from headgate.tasks.inputs import WorkspaceRef
from headgate.tasks.ports import Staged, WorkspaceStore

_BRANCH = "master"


class FilesGround:
    """Implements `Ground`: each target is a dataset of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names = (f"protocol.case-{secrets.token_hex(4)}-{n}" for n in itertools.count())

    @property
    def store(self) -> WorkspaceStore:
        return self._store.workspaces(WorkspaceRef(repository="a.b", branch=_BRANCH, ref="-"))

    def new_target(self, files: Mapping[str, str]) -> WorkspaceRef:
        name = next(self._names)
        self._store.dataset(name).create(kind="files", branch=_BRANCH)
        workspace = WorkspaceRef(repository=name, branch=_BRANCH, ref="-")
        return workspace.at(self.commit(workspace, files))

    def head(self, workspace: WorkspaceRef) -> str:
        return str(self._branch(workspace).load().view)

    def parent(self, workspace: WorkspaceRef, ref: str) -> str | None:
        return self._store.database.read(lambda c: load_transaction(c, ref)).parent

    def files(self, workspace: WorkspaceRef) -> dict[str, str]:
        branch = self._branch(workspace)
        return {e.path: branch.read(e.path).decode() for e in branch.files()}

    def commit(self, workspace: WorkspaceRef, files: Mapping[str, str]) -> str:
        branch = self._branch(workspace)
        put = [store_bytes(self._store, path, text.encode()) for path, text in files.items()]
        publish_edit(
            self._store.database,
            self._store.trees,
            branch.dataset.load(),
            branch.name,
            FileEdit(put=put),
            actor="somebody",
        )
        return self.head(workspace)

    def dispatch(self, key: str) -> AttemptRef:
        return dispatch_attempt(self._store.database, key, actor="protocol", lease_seconds=60).ref

    def staging_left(self, workspace: WorkspaceRef) -> list[str]:
        """Nothing is staged where anybody could see it."""
        return []

    def spoil(self, workspace: WorkspaceRef, staged: Staged) -> None:
        """A newer attempt supersedes the one that staged."""
        self.dispatch(f"task:{workspace.repository}:{workspace.branch}")

    def remove(self, workspace: WorkspaceRef) -> None:
        """The branch goes; a dataset keeps its history."""
        self._store.dataset(workspace.repository).branch(workspace.branch).delete()

    def _branch(self, workspace: WorkspaceRef) -> BranchHandle:
        return self._store.dataset(workspace.repository).branch(workspace.branch)
