"""Workspaces in lakeFS: staged on a branch, published by a squash merge or a hard reset.

lakeFS cannot compare and move a branch in one request, so the publish fence is soft. The catalog
records an intent before each move, and its result afterwards (`headgate.catalog.workspaces`).
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from headgate import errors
from headgate.catalog import workspaces
from headgate.catalog.database import Database
from headgate.catalog.records import check_newest
from headgate.catalog.recovery import staging_owners
from headgate.catalog.workspaces import Action, Intent, PlannedMove
from headgate.files import private_copy
from headgate.files.objects import Digest, in_parallel
from headgate.files.private_copy import Changes, ContentCache, LocalChange, PrivateCopy
from headgate.files.transfer import Progress, counted
from headgate.files.tree import Entry, Mode
from headgate.lakefs.client import Commit, LakeFS, StoredObject
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import check_file_path
from headgate.model.nouns import AttemptRef
from headgate.model.recovery import Landing
from headgate.tasks.ports import Head, Identity, Publication, Staged, WorkspaceRef

STAGING = "headgate-staging-"
_INTENT_SECONDS = 60
_AHEAD = 256


class LakeFSWorkspaces:
    """`WorkspaceStore` over lakeFS; a ref is a lakeFS commit."""

    def __init__(self, database: Database, lakefs: LakeFS, cache: ContentCache) -> None:
        self._database = database
        self._lakefs = lakefs
        self._cache = cache

    def find_head(self, workspace: WorkspaceRef) -> Head:
        head = self._lakefs.load_head(workspace.repository, workspace.branch)
        maker = self._find_maker(workspace, head)
        return Head(ref=head.id, parent=head.parent, key=maker.key if maker is not None else None)

    def download(
        self, workspace: WorkspaceRef, target: Path, progress: Progress | None
    ) -> PrivateCopy:
        below = _below(workspace.prefix)
        listed = list(self._lakefs.list_objects(workspace.repository, workspace.ref, below))
        found = [replace(one, path=one.path.removeprefix(below)) for one in listed]
        for one in found:
            check_file_path(one.path)
        contents = LakeFSContents(self._lakefs, workspace, below, self._cache)
        copy = private_copy.copy_privately(contents, contents.entries(found), target, progress)
        return replace(copy, keeps_modes=False)

    def stage(
        self,
        workspace: WorkspaceRef,
        changes: Changes,
        identity: Identity,
        progress: Progress | None = None,
    ) -> Staged:
        repository, branch = workspace.repository, staging_name(identity)
        below = _below(workspace.prefix)
        self._lakefs.create_branch(repository, branch, workspace.ref)
        try:
            if changes.remove:
                removed = [f"{below}{path}" for path in changes.remove]
                self._lakefs.delete(repository, branch, removed)

            def send(change: LocalChange) -> Entry:
                path = f"{below}{change.entry.path}"
                self._lakefs.upload(repository, branch, path, change.source)
                return change.entry

            counted(in_parallel(send, changes.put), progress)
            made = self._lakefs.commit(repository, branch, _message(identity), identity.execution)
        except BaseException:
            # The first error is the reason; cleanup deletes a branch that stays here.
            with suppress(errors.HeadgateError):
                self._lakefs.delete_branch(repository, branch)
            raise
        return Staged(repository=repository, branch=branch, ref=made)

    def publish(self, workspace: WorkspaceRef, made: Publication) -> str:
        staged, identity = made.staged, made.identity
        head, replaces = self._may_move(workspace, made)
        if replaces and staged is not None:
            move = _planned(workspace, head, identity, Action.RESET, staged.ref)
            return self._reset(move, staged.ref, made)
        if replaces:
            move = _planned(workspace, head, identity, Action.RESET_TO_INPUT, workspace.ref)
            return self._reset(move, workspace.ref, made)
        if staged is None:
            return workspace.ref
        move = _planned(workspace, head, identity, Action.MERGE)

        def merge() -> str:
            return self._lakefs.merge(
                workspace.repository,
                staged.branch or staged.ref,
                workspace.branch,
                message=_message(identity),
                execution=identity.execution,
                timeout_seconds=made.timeout_seconds,
            )

        return self._move(move, merge, made)

    def discard(self, staged: Staged) -> None:
        if staged.branch is not None:
            self._lakefs.delete_branch(staged.repository, staged.branch)

    def _may_move(self, workspace: WorkspaceRef, made: Publication) -> tuple[Commit, bool]:
        """Return the head, and whether it is an abandoned publication that may be replaced."""
        if made.table_changes.changes:
            reason = "they cannot be published in one step with a lakeFS workspace"
            raise errors.UnsafePath(path="tables", reason=reason)
        self._database.read(partial(check_newest, ref=made.identity.attempt))
        head = self._lakefs.load_head(workspace.repository, workspace.branch)
        replaces = head.id != workspace.ref
        if replaces and (why := self._why_not(workspace, head, made.identity)) is not None:
            raise errors.PublishFenceRefused(
                repository=workspace.repository,
                branch=workspace.branch,
                input_ref=workspace.ref,
                head=head.id,
                why=why,
            )
        reach(Failpoint.TASK_HEAD_READ)
        return head, replaces

    def _find_maker(self, workspace: WorkspaceRef, head: Commit) -> AttemptRef | None:
        return self._database.read(
            lambda c: workspaces.find_maker(c, workspace.repository, head.id)
        )

    def _why_not(self, workspace: WorkspaceRef, head: Commit, identity: Identity) -> str | None:
        """Return the reason why the head may not be replaced; None if it may."""
        attempt = identity.attempt
        if head.parent != workspace.ref:
            return "that is not a publication on top of the input either"
        maker = self._find_maker(workspace, head)
        if head.id == identity.replaces:
            return None
        # The protocol treats a commit without a recorded maker as an abandoned publication.
        if maker is not None and maker.key != attempt.key:
            return (
                f"that was published by {maker.key!r}, not by an earlier attempt of this task "
                f"(`task run --replace {head.id}` replaces it)"
            )
        if maker is not None and maker.epoch >= attempt.epoch:
            return f"that was published by attempt {maker.epoch}, not by an earlier one"
        return None

    # --- moves: intent, effect, record ---

    def _reset(self, move: PlannedMove, to: str, of: Publication) -> str:
        def reset() -> str:
            self._lakefs.hard_reset(
                move.repository, move.branch, to, timeout_seconds=of.timeout_seconds
            )
            return to

        return self._move(move, reset, of)

    def _move(self, move: PlannedMove, make: Callable[[], str], of: Publication) -> str:
        """Record the intent, make the move, and record the attempt as the maker of the commit."""
        # Recovery must not read the branch while the request may still be in progress.
        lease_seconds = _INTENT_SECONDS + math.ceil(of.timeout_seconds or 0)
        intent = self._database.write(
            partial(
                workspaces.announce_move,
                move=move,
                actor=of.identity.actor,
                lease_seconds=lease_seconds,
            )
        )
        reach(Failpoint.INTENT_RECORDED)
        try:
            made = make()
        except errors.HeadgateError as error:
            self._record_failed(intent, move, error, of.timeout_seconds)
            raise
        reach(Failpoint.INTENT_EFFECT_DONE)
        if move.action is Action.MERGE:
            commit = self._lakefs.load_commit(move.repository, made)
            self._check_parent(intent, move, commit, of.timeout_seconds)
        self._record(intent, move, made)
        reach(Failpoint.INTENT_CLEARED)
        return made

    def _record(self, intent: Intent, move: PlannedMove, made: str | None) -> None:
        record = partial(workspaces.record_move, intent=intent, move=move, made=made)
        try:
            try:
                self._database.write(record)
            except errors.CommitInterrupted:
                # The outcome is unknown; a second record of the same commit changes nothing.
                self._database.write(record)
        except errors.IntentTakenOver:
            # Recovery found the branch unmoved, so this attempt fails. Its commit exists all the
            # same, and the next attempt needs its maker.
            if made is not None:
                self._database.write(partial(workspaces.record_maker, move=move, made=made))
            raise

    def _record_failed(
        self,
        intent: Intent,
        move: PlannedMove,
        error: errors.HeadgateError,
        timeout_seconds: float | None,
    ) -> None:
        """Record a move whose request failed; keep the intent if its outcome is unknown.

        A rejection proves that nothing landed. A branch that has not moved does not prove it where
        the reply is lost: the request may still be in progress.
        """
        try:
            head = self._lakefs.load_head(move.repository, move.branch)
            landed = move.landing(head.as_head()) is Landing.LANDED
        except errors.HeadgateError:
            landed = False
        if landed:
            self._check_parent(intent, move, head, timeout_seconds)
            self._record(intent, move, head.id)
        elif not isinstance(error, errors.Unavailable):
            self._record(intent, move, None)

    def _check_parent(
        self, intent: Intent, move: PlannedMove, made: Commit, timeout_seconds: float | None
    ) -> None:
        """Undo a merge that landed on another writer's commit, and raise.

        The branch is reset only while this merge is its head; otherwise the intent is kept.
        """
        below = made.parent
        if move.action is not Action.MERGE or below is None or below == move.expected:
            return
        try:
            head = self._lakefs.load_head(move.repository, move.branch).id
            if head != made.id:
                raise errors.Conflict(f"the branch has moved on to {head}.")
            self._lakefs.hard_reset(
                move.repository, move.branch, below, timeout_seconds=timeout_seconds
            )
        except errors.HeadgateError as error:
            raise errors.UndoRefused(
                operation=intent.operation,
                repository=move.repository,
                branch=move.branch,
                merge=made.id,
                below=below,
                why=error.message,
            ) from error
        with suppress(errors.IntentTakenOver):
            self._database.write(partial(workspaces.clear_intent, intent=intent))
        raise errors.PublishFenceRefused(
            repository=move.repository,
            branch=move.branch,
            input_ref=move.expected,
            head=below,
            why="another writer published that while this attempt merged; the merge was undone",
        )


def staging_name(identity: Identity) -> str:
    """Return a branch name unique to the execution: its attempt, then readable labels."""
    words = [identity.task, *identity.labels.values()]
    plain = "-".join(re.sub(r"[^A-Za-z0-9_-]+", "-", word) for word in words)
    return f"{staging_prefix(identity.attempt)}{plain[:120]}-{identity.execution[-32:]}"


def staging_prefix(attempt: AttemptRef) -> str:
    """Return the prefix of an attempt's staging branches."""
    key = hashlib.sha256(attempt.key.encode()).hexdigest()[:16]
    return f"{STAGING}{key}-{attempt.epoch}-"


def sweep_staging(database: Database, lakefs: LakeFS, *, dry_run: bool = False) -> list[str]:
    """Delete the staging branches of dead attempts in all known repositories."""
    swept = []
    for repository in database.read(workspaces.known_repositories):
        try:
            found = lakefs.list_branches(repository, STAGING)
        except errors.NotFound:
            # The repository is gone, with its branches.
            continue
        # Read after the listing, so that it includes the owner of every listed live branch.
        kept = tuple(staging_prefix(attempt) for attempt in database.read(staging_owners))
        for branch in found:
            if kept and branch.startswith(kept):
                continue
            if not dry_run:
                lakefs.delete_branch(repository, branch)
            swept.append(f"{repository}/{branch}")
    return swept


def _below(prefix: str) -> str:
    # The slash excludes siblings whose names begin with the prefix.
    return f"{prefix}/" if prefix else ""


def _message(identity: Identity) -> str:
    return f"{identity.task} ({identity.attempt.key}, attempt {identity.attempt.epoch})"


def _planned(
    workspace: WorkspaceRef,
    head: Commit,
    identity: Identity,
    action: Action,
    planned: str | None = None,
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


class LakeFSContents:
    """`Contents` over lakeFS: objects are fetched once and cached by address and digest."""

    def __init__(
        self, lakefs: LakeFS, workspace: WorkspaceRef, below: str, cache: ContentCache
    ) -> None:
        self._lakefs = lakefs
        self._workspace = workspace
        self._below = below
        self._cache = cache

    def entries(self, found: Iterable[StoredObject]) -> Iterator[Entry]:
        """Yield the objects as entries, each with its bytes in the cache; lakeFS has no modes."""
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
        """Do nothing: an object is fetched when its digest is computed."""

    def missing(self, digest: Digest) -> errors.ObjectNotFound:
        return errors.ObjectNotFound(location=f"{self._workspace.repository} {digest}")

    def _digest(self, one: StoredObject) -> Digest:
        known = self._cache.find_named(_name(one))
        if known is not None and self._cache.find(known) is not None:
            return known
        digest, path = self._cache.add_unhashed(self._read(one))
        if path.stat().st_size != one.size:
            raise errors.ObjectCorrupted(
                location=f"{self._workspace.repository} {one.path}",
                expected=f"{one.size} bytes",
                actual=f"{path.stat().st_size} bytes",
            )
        self._cache.add_name(_name(one), digest)
        return digest

    def _read(self, one: StoredObject) -> Iterator[bytes]:
        path = f"{self._below}{one.path}"
        return self._lakefs.read(self._workspace.repository, self._workspace.ref, path)


def _name(one: StoredObject) -> str:
    text = f"{one.address}\n{one.checksum}\n{one.size}"
    return hashlib.sha256(text.encode()).hexdigest()
