"""Workspaces in `files` datasets: repository = dataset, ref = transaction, fenced by the door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from headgate.attempts import LEASE_SECONDS
from headgate.catalog.attempts import check_newest, dispatch_attempt, end_attempt, heartbeat
from headgate.catalog.database import Connection, Database
from headgate.catalog.publish import publish
from headgate.catalog.records import load_branch, load_dataset, load_transaction
from headgate.errors import (
    Invalid,
    PublishFenceRefused,
    TransactionNotCommitted,
    TransactionNotFound,
    VersionExpired,
    ViewConflict,
)
from headgate.files.objects import BATCHES_AHEAD, Digest, batched, in_parallel
from headgate.files.private_copy import Changes, LocalChange, PrivateCopy, copy_privately
from headgate.files.publication import (
    FileEdit,
    check_is_files,
    locations_in,
    natural_type,
    root_of,
    take_back,
    tree_version,
)
from headgate.files.transfer import Progress, counted, hash_file, relative_to
from headgate.files.tree import Entry
from headgate.files.trees import ContentCache, FileTrees
from headgate.model.changes import (
    AddTransaction,
    Change,
    MoveBranch,
    OperationKey,
    Provenance,
    PublishRequest,
    ReadView,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import (
    AttemptRef,
    AttemptState,
    Branch,
    Dataset,
    PublicationKind,
    Transaction,
    TransactionState,
)
from headgate.tasks.ports import Capabilities, Held, Identity, Staged, Together, WorkspaceRef

# The bytes' half of a workspace in a `files` dataset: a private copy, and a tree made from it.
#
# Which trees those are is the catalog's to say, wherever it is.


class WorkspaceBytes:
    """Copies trees to this machine and makes new ones from what became of the copies."""

    def __init__(self, trees: FileTrees, cache: ContentCache) -> None:
        self._trees = trees
        self._contents = trees.contents(cache)

    def download(
        self,
        workspace: WorkspaceRef,
        root: Digest,
        prefix: str,
        target: Path,
        progress: Progress | None,
    ) -> PrivateCopy:
        entries = list(self._trees.walk(root, prefix))
        if any(entry.path == prefix and not entry.is_directory for entry in entries):
            raise Invalid(f"prefix {prefix!r} of {workspace.repository} is a file, no directory.")
        below = relative_to((entry for entry in entries if entry.path != prefix), prefix)
        return copy_privately(self._contents, below, target, progress)

    def stage(
        self,
        workspace: WorkspaceRef,
        root: Digest,
        prefix: str,
        changes: Changes,
        progress: Progress | None,
    ) -> Staged:
        stored = counted(self._stored(changes.put), progress)
        edited = self._trees.edit(
            root,
            put=_placed(prefix, stored),
            remove=[_path(prefix, path) for path in changes.remove],
        )
        return Staged(
            repository=workspace.repository,
            ref=edited.root,
            objects=frozenset(locations_in(self._trees, edited)),
        )

    def _stored(self, changes: Sequence[LocalChange]) -> Iterator[Entry]:
        """The entries of what is put, each once its content is in the store."""
        if not self._trees.travel_together:
            return in_parallel(self._store, changes)
        batches = batched(changes, lambda change: change.entry.size, together=True)
        return chain.from_iterable(in_parallel(self._store_batch, batches, ahead=BATCHES_AHEAD))

    def _store_batch(self, changes: list[LocalChange]) -> list[Entry]:
        if len(changes) == 1:
            return [self._store(changes[0])]
        entries = [_hashed(change) for change in changes]
        pairs = zip(entries, changes, strict=True)
        self._trees.store_files({e.digest: c.source for e, c in pairs if not e.is_directory})
        return entries

    def _store(self, change: LocalChange) -> Entry:
        """Its content is in the store when this returns, and the entry names it."""
        if change.entry.is_directory:
            return change.entry
        if change.is_hashed:
            self._trees.store_file(change.entry.digest, change.source)
            return change.entry
        digest, size = self._trees.store_unhashed(change.source)
        return replace(change.entry, digest=digest, size=size)


def _hashed(change: LocalChange) -> Entry:
    if change.is_hashed or change.entry.is_directory:
        return change.entry
    digest, size = hash_file(change.source)
    return replace(change.entry, digest=digest, size=size)


def _path(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix else path


def _placed(prefix: str, entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entry, path=_path(prefix, entry.path)) for entry in entries]


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The branch as it is found, its head's maker, and the input."""

    dataset: Dataset
    branch: Branch
    head: Transaction | None
    given: Transaction


class FilesWorkspaces:
    """Implements `WorkspaceStore` on the catalog: the fence is the one door."""

    capabilities = Capabilities(
        hard_fence=True,
        keeps_executable_bit=True,
        keeps_empty_directories=True,
        stages_visibly=False,
    )

    def __init__(
        self,
        database: Database,
        trees: FileTrees,
        cache: ContentCache,
        *,
        may_write_protected: bool = False,
    ) -> None:
        self._database = database
        self._trees = trees
        self._bytes = WorkspaceBytes(trees, cache)
        self._may_write_protected = may_write_protected

    def find_root(self, workspace: WorkspaceRef, attempt: AttemptRef | None = None) -> Digest:
        """The tree of the input ref, if an attempt can begin with it, or this one go on."""
        return root_of(self._look(workspace, attempt).given.version)

    def download(
        self, workspace: WorkspaceRef, prefix: str, target: Path, progress: Progress | None
    ) -> PrivateCopy:
        root = self.find_root(workspace)
        return self._bytes.download(workspace, root, prefix, target, progress)

    def stage(
        self,
        workspace: WorkspaceRef,
        prefix: str,
        changes: Changes,
        identity: Identity,
        progress: Progress | None = None,
    ) -> Staged:
        given = self._database.read(partial(load_transaction, id=workspace.ref))
        return self._bytes.stage(workspace, root_of(given.version), prefix, changes, progress)

    def publish(
        self,
        workspace: WorkspaceRef,
        staged: Staged,
        identity: Identity,
        *,
        timeout_seconds: float | None = None,
        together: Together | None = None,
        operation: OperationKey | None = None,
    ) -> str:
        target = self._look(workspace, identity.attempt)
        replaced = self._may_move(workspace, target, identity.attempt)
        reach(Failpoint.TASK_HEAD_READ)
        before, after = root_of(target.given.version), Digest(staged.ref)
        change = AddTransaction(
            branch=target.branch.id,
            expected_head=target.branch.head,
            expected_view=target.branch.view,
            parent=target.given.id,
            type=natural_type(self._trees.difference(before, after)),
            version=tree_version(after),
            objects=staged.objects,
            provenance=_provenance(identity, replaced),
        )
        request = self._request(identity, (change, *_changes(together)), operation)
        if replaced is not None:
            request = replace(request, kind=PublicationKind.REPLACE)
        return self._through_the_door(workspace, target, change, request)

    def keep(
        self,
        workspace: WorkspaceRef,
        identity: Identity,
        *,
        timeout_seconds: float | None = None,
        together: Together | None = None,
        operation: OperationKey | None = None,
    ) -> str:
        target = self._look(workspace, identity.attempt)
        replaced = self._may_move(workspace, target, identity.attempt)
        reach(Failpoint.TASK_HEAD_READ)
        if replaced is None:
            if _changes(together) or operation is not None:
                beside = self._request(identity, _changes(together), operation)
                self._publish_beside(workspace, target, beside)
            return target.given.id
        change = MoveBranch(
            branch=target.branch.id,
            expected_head=target.branch.head,
            expected_view=target.branch.view,
            to=target.given.id,
        )
        request = self._request(identity, (change, *_changes(together)), operation)
        if replaced is not None:
            request = replace(request, kind=PublicationKind.REPLACE)
        return self._through_the_door(workspace, target, change, request)

    def discard(self, staged: Staged) -> None:
        """Contents that nothing names are cleanup's to find; there is no branch to remove."""

    def _look(self, workspace: WorkspaceRef, attempt: AttemptRef | None = None) -> _Target:
        return self._database.read(partial(_look_in, workspace=workspace, attempt=attempt))

    def _may_move(
        self, workspace: WorkspaceRef, target: _Target, attempt: AttemptRef
    ) -> Transaction | None:
        """None where the branch is at the input; else the abandoned publication to be replaced."""
        head = target.head
        if head is not None and head.id == target.given.id:
            return None
        why = _why_not(head, target.given, attempt)
        if why is not None:
            raise _refused(workspace, target, why)
        return head

    def _request(
        self, identity: Identity, changes: tuple[Change, ...], operation: OperationKey | None
    ) -> PublishRequest:
        return PublishRequest(
            actor=identity.actor,
            kind=PublicationKind.COMMIT,
            changes=changes,
            attempt=identity.attempt,
            operation=operation,
            may_write_protected=self._may_write_protected,
        )

    def _through_the_door(
        self,
        workspace: WorkspaceRef,
        target: _Target,
        change: AddTransaction | MoveBranch,
        request: PublishRequest,
    ) -> str:
        try:
            receipt = publish(self._database, request)
        except ViewConflict as conflict:
            raise _refused(workspace, target, "somebody moved it at this moment") from conflict
        except VersionExpired:
            # A content of the new tree was condemned: its bytes are here, so it is spared.
            if not isinstance(change, AddTransaction) or change.version is None:
                raise
            self._spare(target, Digest(change.version.location))
            receipt = publish(self._database, request)
        return str(receipt.transactions[target.branch.id])

    def _publish_beside(
        self, workspace: WorkspaceRef, target: _Target, request: PublishRequest
    ) -> None:
        """Tables alone, on condition that the workspace, which was read, is still at the input."""
        read = ReadView(branch=target.branch.id, view=target.branch.view)
        try:
            publish(self._database, replace(request, reads=(read,)))
        except ViewConflict as conflict:
            raise _refused(workspace, target, "somebody moved it at this moment") from conflict

    def _spare(self, target: _Target, root: Digest) -> None:
        before = root_of(target.given.version)
        found = list(self._trees.difference(before, root))
        put = [change.after for change in found if change.after is not None]
        remove = [change.path for change in found if change.after is None]
        take_back(
            self._database,
            self._trees,
            FileEdit(put=put),
            lambda: self._trees.edit(before, put=put, remove=remove),
        )


def _look_in(
    connection: Connection, workspace: WorkspaceRef, attempt: AttemptRef | None
) -> _Target:
    if attempt is not None:
        # Said first: where the branch stands is only what follows from it.
        check_newest(connection, attempt)
    dataset = load_dataset(connection, parse_dataset_name(workspace.repository))
    check_is_files(dataset)
    branch = load_branch(connection, dataset, workspace.branch)
    given = load_transaction(connection, workspace.ref)
    if given.dataset_id != dataset.id:
        raise TransactionNotFound(transaction=workspace.ref)
    if given.state is not TransactionState.COMMITTED:
        raise TransactionNotCommitted(transaction=given.id, state=given.state)
    if given.condemned:
        raise VersionExpired(what=f"transaction {given.id}")
    head = load_transaction(connection, branch.view) if branch.view else None
    return _Target(dataset=dataset, branch=branch, head=head, given=given)


def _why_not(head: Transaction | None, given: Transaction, attempt: AttemptRef) -> str | None:
    """Why a head that is not the input is not an abandoned publication of this very task."""
    if head is None or head.parent != given.id:
        return "that is not a publication on top of the input either"
    if head.attempt is None or head.attempt.key != attempt.key:
        maker = f"by {head.attempt.key!r}" if head.attempt else f"by {head.actor}"
        return f"that was published {maker}, not by an earlier attempt of this task"
    if head.attempt.epoch >= attempt.epoch:
        return f"that was published by attempt {head.attempt.epoch}, not by an earlier one"
    return None


def _refused(workspace: WorkspaceRef, target: _Target, why: str) -> PublishFenceRefused:
    return PublishFenceRefused(
        repository=workspace.repository,
        branch=workspace.branch,
        input_ref=workspace.ref,
        head=target.head.id if target.head else None,
        why=why,
    )


def _provenance(identity: Identity, replaced: Transaction | None) -> Provenance:
    facts = {
        "task": identity.task,
        "task_key": identity.attempt.key,
        "epoch": identity.attempt.epoch,
        "execution": identity.execution,
        "orchestrator": dict(identity.labels),
        "replaced": replaced.id if replaced else None,
    }
    return Provenance(facts=facts)


def _changes(together: Together | None) -> tuple[Change, ...]:
    return together.changes if together is not None else ()


# Attempts of tasks at the catalog itself.


class CatalogAttempts:
    """Implements `Attempts` in one actor's name; whoever has the catalog needs no secret."""

    def __init__(self, database: Database, actor: str) -> None:
        self._database = database
        self._actor = actor

    def dispatch(self, key: str, *, branch: str | None = None) -> Held:
        made = dispatch_attempt(
            self._database,
            key,
            actor=self._actor,
            lease_seconds=LEASE_SECONDS,
            scope=attempt_scope(branch),
        )
        return Held(ref=made.ref)

    def renew(self, held: Held) -> None:
        heartbeat(self._database, held.ref)

    def check(self, held: Held) -> None:
        self._database.read(partial(check_newest, ref=held.ref))

    def end(self, held: Held, state: AttemptState) -> None:
        end_attempt(self._database, held.ref, state)


def attempt_scope(branch: str | None) -> dict[str, Any]:
    """What is known of a task's attempt when it is dispatched; tables come later, if at all."""
    return {"branch": branch, "inputs": {}, "outputs": {}}
