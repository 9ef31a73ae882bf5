"""Harness of the publication protocol on a lakeFS server."""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lakefs_sdk import RepositoryCreation

from headgate.catalog.attempts import dispatch_attempt
from headgate.lakefs.client import LakeFS
from headgate.lakefs.endpoint import connect
from headgate.model.nouns import AttemptRef
from headgate.store.embedded import Store
from headgate.tasks.lakefs_store import STAGING
from headgate.tasks.ports import Staged, WorkspaceRef, WorkspaceStore

_STORAGE = "local://headgate-protocol"
_MAIN = "main"


class LakeFSHarness:
    """Implements `StoreHarness`: each target is a branch of one repository."""

    def __init__(self, store: Store, lakefs: LakeFS, repository: str) -> None:
        self._store = store
        self._lakefs = lakefs
        self._repository = repository
        self._names = (f"case-{secrets.token_hex(4)}-{n}" for n in itertools.count())

    @property
    def store(self) -> WorkspaceStore:
        return self._store.workspaces(
            WorkspaceRef(repository=self._repository, branch=_MAIN, ref="-")
        )

    def new_target(self, files: Mapping[str, str]) -> WorkspaceRef:
        name = next(self._names)
        self._lakefs.create_branch(self._repository, name, _MAIN)
        workspace = WorkspaceRef(repository=self._repository, branch=name, ref="-")
        return workspace.at(self.commit(workspace, files))

    def head(self, workspace: WorkspaceRef) -> str:
        return self._lakefs.load_head(workspace.repository, workspace.branch).id

    def parent(self, workspace: WorkspaceRef, ref: str) -> str | None:
        return next(iter(self._lakefs.load_commit(workspace.repository, ref).parents), None)

    def files(self, workspace: WorkspaceRef) -> dict[str, str]:
        repository, head = workspace.repository, self.head(workspace)
        return {
            one.path: b"".join(self._lakefs.read(repository, head, one.path)).decode()
            for one in self._lakefs.list_objects(repository, head, "")
        }

    def commit(self, workspace: WorkspaceRef, files: Mapping[str, str]) -> str:
        with tempfile.TemporaryDirectory() as scratch:
            for number, (path, text) in enumerate(files.items()):
                source = Path(scratch) / str(number)
                source.write_text(text)
                self._lakefs.upload(workspace.repository, workspace.branch, path, source)
        return self._lakefs.commit(
            workspace.repository, workspace.branch, "by hand", "another writer"
        )

    def dispatch(self, key: str) -> AttemptRef:
        return dispatch_attempt(self._store.database, key, actor="protocol", lease_seconds=60).ref

    def staging_left(self, workspace: WorkspaceRef) -> list[str]:
        return self._lakefs.list_branches(workspace.repository, STAGING)

    def spoil(self, workspace: WorkspaceRef, staged: Staged) -> None:
        if staged.branch is not None:
            self._lakefs.delete_branch(staged.repository, staged.branch)

    def remove(self, workspace: WorkspaceRef) -> None:
        self._lakefs.delete_branch(workspace.repository, workspace.branch)


@contextmanager
def lakefs_harness(store: Store, storage: str | None = None) -> Iterator[LakeFSHarness]:
    """Yield a harness with a new repository on the configured server; delete it afterwards."""
    lakefs = connect(store.settings)
    name = f"headgate-protocol-{secrets.token_hex(4)}"
    create_repository(lakefs, name, f"{storage or _STORAGE}/{name}", _MAIN)
    try:
        yield LakeFSHarness(store, lakefs, name)
    finally:
        lakefs._api.repositories_api.delete_repository(name)


def create_repository(lakefs: LakeFS, name: str, storage: str, branch: str) -> None:
    """Create an empty repository whose objects are below an address of the storage."""
    wanted = RepositoryCreation(name=name, storage_namespace=storage, default_branch=branch)
    lakefs._api.repositories_api.create_repository(wanted)
