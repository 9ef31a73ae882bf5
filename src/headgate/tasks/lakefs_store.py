"""Workspaces in lakeFS: staging branches, squash merge or hard reset, and the seeds' soft fence."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from headgate.catalog.attempts import check_newest
from headgate.catalog.database import Database
from headgate.catalog.workspaces import (
    PlannedMove,
    announce_move,
    find_maker,
    known_repositories,
    live_attempts,
    settle_move,
)
from headgate.errors import (
    HeadgateError,
    NotFound,
    ObjectCorrupted,
    ObjectNotFound,
    PublishFenceRefused,
    Unavailable,
    UnsafePath,
)
from headgate.files.objects import Digest, in_parallel
from headgate.files.private_copy import Changes, LocalChange, PrivateCopy, copy_privately
from headgate.files.transfer import Progress, counted
from headgate.files.tree import Entry, Mode
from headgate.files.trees import ContentCache
from headgate.lakefs.client import Commit, LakeFS, StoredObject
from headgate.lakefs.endpoint import MARK
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import check_file_path
from headgate.model.nouns import AttemptRef
from headgate.model.recovery import Landing, landing_of
from headgate.tasks.ports import Capabilities, Identity, Staged, Together, WorkspaceRef

# Objects of lakeFS as contents of this machine: fetched once, known by address and digest.

_AHEAD = 256


class LakeFSContents:
    """Implements `Contents`; what an address held before is not asked for again."""

    def __init__(
        self, lakefs: LakeFS, workspace: WorkspaceRef, below: str, cache: ContentCache
    ) -> None:
        self._lakefs = lakefs
        self._workspace = workspace
        self._below = below
        self._cache = cache

    def entries(self, found: Iterable[StoredObject]) -> Iterator[Entry]:
        """The objects as entries, each with its bytes in the cache; lakeFS keeps no modes."""
        listed = list(found)
        digests = in_parallel(self._digest, listed, ahead=_AHEAD)
        for one, digest in zip(listed, digests, strict=True):
            yield Entry(path=one.path, mode=Mode.FILE, size=one.size, digest=digest)

    def path(self, digest: Digest) -> str:
        found = self._cache.find(digest)
        if found is None:
            raise self.missing(digest)
        return str(found)

    def fetch(self, entries: Iterable[Entry]) -> None:
        """They were fetched when their digests became known."""

    def missing(self, digest: Digest) -> ObjectNotFound:
        return ObjectNotFound(location=f"{self._workspace.repository} {digest}")

    def _digest(self, one: StoredObject) -> Digest:
        known = self._cache.find_named(_name(one))
        if known is not None and self._cache.find(known) is not None:
            return known
        digest, path = self._cache.add_unnamed(self._read(one))
        if path.stat().st_size != one.size:
            raise ObjectCorrupted(
                location=f"{self._workspace.repository} {one.path}",
                expected=f"{one.size} bytes",
                actual=f"{path.stat().st_size} bytes",
            )
        self._cache.name(_name(one), digest)
        return digest

    def _read(self, one: StoredObject) -> Iterator[bytes]:
        path = f"{self._below}{one.path}"
        return self._lakefs.read(self._workspace.repository, self._workspace.ref, path)


def _name(one: StoredObject) -> str:
    text = f"{one.address}\n{one.checksum}\n{one.size}"
    return hashlib.sha256(text.encode()).hexdigest()


STAGING = "headgate-staging-"
_INTENT_SECONDS = 60


class LakeFSWorkspaces:
    """Implements `WorkspaceStore`; moves are announced, so that a crash leaves no riddle."""

    capabilities = Capabilities(
        hard_fence=False,
        keeps_executable_bit=False,
        keeps_empty_directories=False,
        stages_visibly=True,
    )

    def __init__(self, database: Database, lakefs: LakeFS, cache: ContentCache) -> None:
        self._database = database
        self._lakefs = lakefs
        self._cache = cache

    def download(
        self, workspace: WorkspaceRef, prefix: str, target: Path, progress: Progress | None
    ) -> PrivateCopy:
        # The slash, so that a sibling whose name only begins alike is not seen.
        below = f"{prefix}/" if prefix else ""
        listed = list(self._lakefs.list_objects(workspace.repository, workspace.ref, below))
        found = [replace(one, path=one.path.removeprefix(below)) for one in listed]
        for one in found:
            check_file_path(one.path)
        contents = LakeFSContents(self._lakefs, workspace, below, self._cache)
        return copy_privately(contents, contents.entries(found), target, progress)

    def stage(
        self,
        workspace: WorkspaceRef,
        prefix: str,
        changes: Changes,
        identity: Identity,
        progress: Progress | None = None,
    ) -> Staged:
        repository, branch = workspace.repository, staging_name(identity)
        below = f"{prefix}/" if prefix else ""
        self._lakefs.create_branch(repository, branch, workspace.ref)
        try:
            if changes.remove:
                removed = [f"{below}{path}" for path in changes.remove]
                self._lakefs.delete(repository, branch, removed)
            files = [change for change in changes.put if not change.entry.is_directory]

            def send(change: LocalChange) -> Entry:
                path = f"{below}{change.entry.path}"
                self._lakefs.upload(repository, branch, path, change.source)
                return change.entry

            counted(in_parallel(send, files), progress)
            message = f"{identity.task} ({identity.attempt.key}, attempt {identity.attempt.epoch})"
            made = self._lakefs.commit(repository, branch, message, identity.execution)
        except BaseException:
            self._lakefs.delete_branch(repository, branch)
            raise
        return Staged(repository=repository, branch=branch, ref=made)

    def publish(
        self,
        workspace: WorkspaceRef,
        staged: Staged,
        identity: Identity,
        *,
        timeout_seconds: float | None = None,
        together: Together | None = None,
    ) -> str:
        _refuse_tables(together)
        head, replaces = self._may_move(workspace, identity.attempt)
        reach(Failpoint.TASK_HEAD_READ)
        if replaces:
            return self._reset(workspace, head, staged.ref, identity, timeout_seconds)
        message = f"{identity.task} ({identity.attempt.key}, attempt {identity.attempt.epoch})"
        move = _planned(workspace, head, "merge", None, identity)
        return self._move(
            move,
            identity,
            lambda: self._lakefs.merge(
                workspace.repository,
                staged.branch or staged.ref,
                workspace.branch,
                message=message,
                mark=identity.execution,
                timeout_seconds=timeout_seconds,
            ),
        )

    def keep(
        self,
        workspace: WorkspaceRef,
        identity: Identity,
        *,
        timeout_seconds: float | None = None,
        together: Together | None = None,
    ) -> str:
        _refuse_tables(together)
        head, replaces = self._may_move(workspace, identity.attempt)
        reach(Failpoint.TASK_HEAD_READ)
        if replaces:
            return self._reset(workspace, head, workspace.ref, identity, timeout_seconds)
        return workspace.ref

    def discard(self, staged: Staged) -> None:
        if staged.branch is not None:
            self._lakefs.delete_branch(staged.repository, staged.branch)

    def _may_move(self, workspace: WorkspaceRef, attempt: AttemptRef) -> tuple[Commit, bool]:
        """The head, and whether it is an abandoned publication to be replaced."""
        self._database.read(partial(check_newest, ref=attempt))
        head = self._lakefs.load_head(workspace.repository, workspace.branch)
        if head.id == workspace.ref:
            return head, False
        why = self._why_not(workspace, head, attempt)
        if why is not None:
            raise PublishFenceRefused(
                repository=workspace.repository,
                branch=workspace.branch,
                input_ref=workspace.ref,
                head=head.id,
                why=why,
            )
        return head, True

    def _why_not(self, workspace: WorkspaceRef, head: Commit, attempt: AttemptRef) -> str | None:
        if not head.parents or head.parents[0] != workspace.ref:
            return "that is not a publication on top of the input either"
        maker = self._database.read(lambda c: find_maker(c, workspace.repository, head.id))
        # One that the ledger does not know is taken for abandoned, as the protocol says.
        if maker is not None and maker.key != attempt.key:
            return f"that was published by {maker.key!r}, not by an earlier attempt of this task"
        if maker is not None and maker.epoch >= attempt.epoch:
            return f"that was published by attempt {maker.epoch}, not by an earlier one"
        return None

    def _reset(
        self,
        workspace: WorkspaceRef,
        head: Commit,
        to: str,
        identity: Identity,
        timeout_seconds: float | None,
    ) -> str:
        def reset() -> str:
            self._lakefs.hard_reset(
                workspace.repository, workspace.branch, to, timeout_seconds=timeout_seconds
            )
            return to

        return self._move(_planned(workspace, head, "reset", to, identity), identity, reset)

    def _move(self, move: PlannedMove, identity: Identity, make: Callable[[], str]) -> str:
        """Announces, moves, and notes who made what is shown now."""
        ref = self._database.write(
            partial(announce_move, move=move, actor=identity.actor, lease_seconds=_INTENT_SECONDS)
        )
        reach(Failpoint.INTENT_RECORDED)
        try:
            made = make()
        except HeadgateError:
            landing, head = self._look(move)
            if landing is not Landing.UNKNOWN:
                landed = head if landing is Landing.LANDED else None
                self._database.write(lambda c: settle_move(c, ref, move, landed))
            raise
        reach(Failpoint.INTENT_EFFECT_DONE)
        self._database.write(lambda c: settle_move(c, ref, move, made))
        reach(Failpoint.INTENT_PUBLISHED)
        return made

    def _look(self, move: PlannedMove) -> tuple[Landing, str | None]:
        try:
            head = self._lakefs.load_head(move.repository, move.branch)
        except (Unavailable, NotFound):
            return Landing.UNKNOWN, None
        landing = landing_of(
            expected=move.expected,
            planned=move.planned,
            execution=move.execution,
            head=head.id,
            mark=head.metadata.get(MARK),
        )
        return landing, head.id


def staging_name(identity: Identity) -> str:
    """A name that no other execution has: its attempt first, then what people look for."""
    words = [identity.task, *identity.labels.values()]
    plain = "-".join(re.sub(r"[^A-Za-z0-9_-]+", "-", word) for word in words)
    return f"{staging_prefix(identity.attempt)}{plain[:120]}-{identity.execution[-32:]}"


def staging_prefix(attempt: AttemptRef) -> str:
    """By this, cleanup knows an attempt's staging branches from those of others."""
    key = hashlib.sha256(attempt.key.encode()).hexdigest()[:16]
    return f"{STAGING}{key}-{attempt.epoch}-"


def _planned(
    workspace: WorkspaceRef, head: Commit, action: str, planned: str | None, identity: Identity
) -> PlannedMove:
    return PlannedMove(
        repository=workspace.repository,
        branch=workspace.branch,
        expected=head.id,
        action=action,
        planned=planned,
        key=identity.attempt.key,
        epoch=identity.attempt.epoch,
        execution=identity.execution,
    )


def _refuse_tables(together: Together | None) -> None:
    if together is not None and together.changes:
        raise UnsafePath(
            path="tables", reason="they cannot be published in one step with a lakeFS workspace"
        )


# Staging branches whose attempt is over: removed by cleanup, however the attempt ended.


def sweep_staging(database: Database, lakefs: LakeFS, *, dry_run: bool = False) -> list[str]:
    """Deletes them in every repository that tasks have published to; which they were."""
    swept = []
    for repository in database.read(known_repositories):
        try:
            found = lakefs.list_branches(repository, STAGING)
        except NotFound:
            # The whole repository is gone, and its branches with it.
            continue
        # Asked after the listing: what is listed and not live now was left behind.
        living = tuple(staging_prefix(attempt) for attempt in database.read(live_attempts))
        for branch in found:
            if living and branch.startswith(living):
                continue
            if not dry_run:
                lakefs.delete_branch(repository, branch)
            swept.append(f"{repository}/{branch}")
    return swept
