"""The publication protocol as cases that hold on every workspace store.

A is the input ref, H the target's head, C what was staged. Each case makes its own target, and
raises `AssertionError` where the protocol is broken.
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
from headgate.files.private_copy import changes_of
from headgate.files.publication import FileEdit, publish_edit
from headgate.model.nouns import AttemptRef
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from headgate.tasks.ports import Identity, Staged, WorkspaceRef, WorkspaceStore


class Ground(Protocol):
    """A store to try, and the eyes and hands of somebody beside the attempts."""

    @property
    def store(self) -> WorkspaceStore: ...

    def new_target(self, files: Mapping[str, str]) -> WorkspaceRef:
        """A target of its own that shows these files; its head is the input."""
        ...

    def head(self, workspace: WorkspaceRef) -> str: ...

    def parent(self, workspace: WorkspaceRef, ref: str) -> str | None: ...

    def files(self, workspace: WorkspaceRef) -> dict[str, str]:
        """What the head shows."""
        ...

    def commit(self, workspace: WorkspaceRef, files: Mapping[str, str]) -> str:
        """Somebody else's publication on top of the head."""
        ...

    def dispatch(self, key: str) -> AttemptRef: ...

    def staging_left(self, workspace: WorkspaceRef) -> list[str]: ...

    def spoil(self, workspace: WorkspaceRef, staged: Staged) -> None:
        """Makes publishing what was staged impossible."""
        ...

    def remove(self, workspace: WorkspaceRef) -> None:
        """Takes the target away again."""
        ...


FILES = {"a": "1", "dir/b": "2"}


def publish_from_the_input(ground: Ground, given: WorkspaceRef) -> None:
    """H == A: published on top of A."""
    made = _attempt(ground, given, {"a": "new", "c": "3"})
    assert ground.head(given) == made
    assert ground.parent(given, made) == given.ref
    assert ground.files(given) == {**FILES, "a": "new", "c": "3"}


def replace_an_abandoned_publication(ground: Ground, given: WorkspaceRef) -> None:
    """parent(H) == A, made by an earlier attempt: A -> C, never A -> H -> C."""
    _attempt(ground, given, {"lost": "x"})
    made = _attempt(ground, given, {"kept": "y"})
    assert (ground.head(given), ground.parent(given, made)) == (made, given.ref)
    assert ground.files(given) == {**FILES, "kept": "y"}


def refuse_a_head_that_went_on(ground: Ground, given: WorkspaceRef) -> None:
    """Neither H == A nor parent(H) == A: fail closed, head unchanged."""
    ground.commit(given, {"theirs": "1"})
    head = ground.commit(given, {"theirs": "2"})
    _refused(lambda: _attempt(ground, given, {"mine": "x"}))
    _refused(lambda: _attempt(ground, given, {}))
    assert ground.head(given) == head


def refuse_a_bystander(ground: Ground, given: WorkspaceRef) -> None:
    """parent(H) == A, made by another task: its publication stays."""
    theirs = _attempt(ground, given, {"theirs": "1"}, key="another")
    _refused(lambda: _attempt(ground, given, {"mine": "x"}))
    _refused(lambda: _attempt(ground, given, {}))
    assert ground.head(given) == theirs


def complete_without_a_change(ground: Ground, given: WorkspaceRef) -> None:
    """No difference at H == A: no commit, output ref A."""
    assert _attempt(ground, given, {}) == given.ref
    assert ground.head(given) == given.ref


def relocate_without_a_change(ground: Ground, given: WorkspaceRef) -> None:
    """No difference and an abandoned H: the target goes back to A."""
    _attempt(ground, given, {"lost": "x"})
    assert _attempt(ground, given, {}) == given.ref
    assert ground.head(given) == given.ref
    assert ground.files(given) == FILES


def fail_where_publishing_fails(ground: Ground, given: WorkspaceRef) -> None:
    """A precondition of the move is gone: no success, head unchanged."""
    try:
        _attempt(ground, given, {"a": "new"}, spoil=True)
    except HeadgateError:
        pass
    else:
        raise AssertionError("what could not be published was said to be published")
    assert ground.head(given) == given.ref


CASES: Mapping[str, Callable[[Ground, WorkspaceRef], None]] = {
    "merge": publish_from_the_input,
    "replacement": replace_an_abandoned_publication,
    "fail closed": refuse_a_head_that_went_on,
    "bystander": refuse_a_bystander,
    "no-op": complete_without_a_change,
    "no-op relocation": relocate_without_a_change,
    "failing precondition": fail_where_publishing_fails,
}


def try_case(ground: Ground, name: str) -> None:
    """One case on a target of its own; no staging is left on any path."""
    given = ground.new_target(FILES)
    try:
        CASES[name](ground, given)
        left = ground.staging_left(given)
        assert left == [], f"staging is left: {left}"
    finally:
        ground.remove(given)


def _attempt(
    ground: Ground,
    given: WorkspaceRef,
    files: Mapping[str, str],
    *,
    key: str = "task",
    spoil: bool = False,
) -> str:
    """Downloads, writes these files, stages and publishes; the output ref."""
    store = ground.store
    identity = Identity(
        attempt=ground.dispatch(f"{key}:{given.repository}:{given.branch}"),
        execution=secrets.token_hex(8),
        actor="protocol",
        task="protocol",
    )
    with tempfile.TemporaryDirectory(prefix="headgate-protocol-") as scratch:
        copy = store.download(given, "", Path(scratch) / "workspace", None)
        for name, text in files.items():
            path = copy.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        changes = changes_of(copy)
        if not changes:
            return store.keep(given, identity)
        staged = store.stage(given, "", changes, identity)
        try:
            if spoil:
                ground.spoil(given, staged)
            return store.publish(given, staged, identity)
        finally:
            store.discard(staged)


def _refused(attempt: Callable[[], str]) -> None:
    try:
        attempt()
    except PublishFenceRefused:
        return
    raise AssertionError("the publish fence let it pass")


# The publication protocol's ground on `files` datasets of a store.

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
