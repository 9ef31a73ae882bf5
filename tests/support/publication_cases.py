"""Cases of the publication protocol that hold on every workspace store.

A is the input ref, H the head of the target and C the staged tree. Each case has its own target,
and raises `AssertionError` if the store violates the protocol.
"""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.records import load_transaction
from headgate.errors import HeadgateError, PublishFenceRefused
from headgate.files.edits import FileEdit, publish_edit
from headgate.files.private_copy import changes_of
from headgate.model.changes import Caller
from headgate.model.nouns import AttemptRef
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from headgate.tasks.ports import Identity, Publication, Staged, WorkspaceRef, WorkspaceStore


class StoreHarness(Protocol):
    """A workspace store under test, with access to its branches from outside."""

    @property
    def store(self) -> WorkspaceStore: ...

    def new_target(self, files: Mapping[str, str]) -> WorkspaceRef:
        """Create a target with these files; its head is the input."""

    def head(self, workspace: WorkspaceRef) -> str: ...

    def parent(self, workspace: WorkspaceRef, ref: str) -> str | None: ...

    def files(self, workspace: WorkspaceRef) -> dict[str, str]:
        """Return the files at the head."""

    def commit(self, workspace: WorkspaceRef, files: Mapping[str, str]) -> str:
        """Publish on top of the head as another writer."""

    def dispatch(self, key: str) -> AttemptRef: ...

    def staging_left(self, workspace: WorkspaceRef) -> list[str]: ...

    def spoil(self, workspace: WorkspaceRef, staged: Staged) -> None:
        """Make the publication of the staged tree impossible."""

    def remove(self, workspace: WorkspaceRef) -> None:
        """Remove the target."""


FILES = {"a": "1", "dir/b": "2"}


def publish_from_the_input(harness: StoreHarness, given: WorkspaceRef) -> None:
    """H == A: published on top of A."""
    made = _attempt(harness, given, {"a": "new", "c": "3"})
    assert harness.head(given) == made
    assert harness.parent(given, made) == given.ref
    assert harness.files(given) == {**FILES, "a": "new", "c": "3"}


def replace_an_abandoned_publication(harness: StoreHarness, given: WorkspaceRef) -> None:
    """parent(H) == A, made by an earlier attempt: A -> C, never A -> H -> C."""
    _attempt(harness, given, {"lost": "x"})
    made = _attempt(harness, given, {"kept": "y"})
    assert (harness.head(given), harness.parent(given, made)) == (made, given.ref)
    assert harness.files(given) == {**FILES, "kept": "y"}


def refuse_a_head_that_moved(harness: StoreHarness, given: WorkspaceRef) -> None:
    """Neither H == A nor parent(H) == A: fail closed, head unchanged."""
    harness.commit(given, {"theirs": "1"})
    head = harness.commit(given, {"theirs": "2"})
    _refused(lambda: _attempt(harness, given, {"mine": "x"}))
    _refused(lambda: _attempt(harness, given, {}))
    assert harness.head(given) == head


def refuse_a_bystander(harness: StoreHarness, given: WorkspaceRef) -> None:
    """parent(H) == A, made by another task: its publication stays."""
    theirs = _attempt(harness, given, {"theirs": "1"}, key="another")
    _refused(lambda: _attempt(harness, given, {"mine": "x"}))
    _refused(lambda: _attempt(harness, given, {}))
    assert harness.head(given) == theirs


def complete_without_a_change(harness: StoreHarness, given: WorkspaceRef) -> None:
    """No difference at H == A: no commit, output ref A."""
    assert _attempt(harness, given, {}) == given.ref
    assert harness.head(given) == given.ref


def relocate_without_a_change(harness: StoreHarness, given: WorkspaceRef) -> None:
    """No difference and an abandoned H: the target goes back to A."""
    _attempt(harness, given, {"lost": "x"})
    assert _attempt(harness, given, {}) == given.ref
    assert harness.head(given) == given.ref
    assert harness.files(given) == FILES


def fail_where_publishing_fails(harness: StoreHarness, given: WorkspaceRef) -> None:
    """A precondition of the move is gone: no success, head unchanged."""
    try:
        _attempt(harness, given, {"a": "new"}, spoil=True)
    except HeadgateError:
        pass
    else:
        raise AssertionError("a failed publication was reported as published")
    assert harness.head(given) == given.ref


CASES: Mapping[str, Callable[[StoreHarness, WorkspaceRef], None]] = {
    "merge": publish_from_the_input,
    "replacement": replace_an_abandoned_publication,
    "fail closed": refuse_a_head_that_moved,
    "bystander": refuse_a_bystander,
    "no-op": complete_without_a_change,
    "no-op relocation": relocate_without_a_change,
    "failing precondition": fail_where_publishing_fails,
}


def try_case(harness: StoreHarness, name: str) -> None:
    """Run a case on a new target; check that no staging is left."""
    given = harness.new_target(FILES)
    try:
        CASES[name](harness, given)
        left = harness.staging_left(given)
        assert left == [], f"staging was not removed: {left}"
    finally:
        harness.remove(given)


def _attempt(
    harness: StoreHarness,
    given: WorkspaceRef,
    files: Mapping[str, str],
    *,
    key: str = "task",
    spoil: bool = False,
) -> str:
    """Download, write these files, stage and publish; return the output ref."""
    store = harness.store
    identity = Identity(
        attempt=harness.dispatch(f"{key}:{given.repository}:{given.branch}"),
        execution=secrets.token_hex(8),
        actor="protocol",
        task="protocol",
    )
    with tempfile.TemporaryDirectory(prefix="headgate-protocol-") as scratch:
        copy = store.download(given, Path(scratch) / "workspace", None)
        for name, text in files.items():
            path = copy.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        changes = changes_of(copy)
        if not changes:
            return store.publish(given, Publication(staged=None, identity=identity))
        staged = store.stage(given, changes, identity)
        try:
            if spoil:
                harness.spoil(given, staged)
            return store.publish(given, Publication(staged=staged, identity=identity))
        finally:
            store.discard(staged)


def _refused(attempt: Callable[[], str]) -> None:
    try:
        attempt()
    except PublishFenceRefused:
        return
    raise AssertionError("the publish fence did not reject the attempt")


_BRANCH = "master"


class FilesHarness:
    """Implements `StoreHarness` on `files` datasets: each target is a dataset."""

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
            caller=Caller(actor="another writer"),
        )
        return self.head(workspace)

    def dispatch(self, key: str) -> AttemptRef:
        return dispatch_attempt(self._store.database, key, actor="protocol", lease_seconds=60).ref

    def staging_left(self, workspace: WorkspaceRef) -> list[str]:
        """Return nothing: there are no staging branches."""
        return []

    def spoil(self, workspace: WorkspaceRef, staged: Staged) -> None:
        """Supersede the attempt that staged."""
        self.dispatch(f"task:{workspace.repository}:{workspace.branch}")

    def remove(self, workspace: WorkspaceRef) -> None:
        """Delete the branch; the dataset keeps its history."""
        self._store.dataset(workspace.repository).branch(workspace.branch).delete(force=True)

    def _branch(self, workspace: WorkspaceRef) -> BranchHandle:
        return self._store.dataset(workspace.repository).branch(workspace.branch)
