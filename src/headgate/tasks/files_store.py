"""Workspaces in `files` datasets, and attempts at the catalog.

The repository of a workspace is a dataset and its ref is a transaction. `WorkspaceBytes` copies and
stores contents, also for clients of a server; `FilesWorkspaces` publishes at the catalog.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from headgate import errors
from headgate.attempts import LEASE_SECONDS
from headgate.catalog import records
from headgate.catalog.attempts import dispatch_attempt, end_attempt, heartbeat
from headgate.catalog.database import Connection, Database
from headgate.catalog.publish import publish
from headgate.files import edits, private_copy
from headgate.files.edits import FileEdit
from headgate.files.objects import BATCHES_AHEAD, Digest, batched, in_parallel
from headgate.files.transfer import Progress, counted, hash_file, relative_to
from headgate.files.tree import Entry, infer_type
from headgate.files.tree_store import FileTrees
from headgate.model import nouns
from headgate.model.changes import (
    AddTransaction,
    Change,
    MoveBranch,
    Provenance,
    PublishRequest,
    ReadView,
    Receipt,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import check_task_key, parse_dataset_name
from headgate.tasks.ports import AttemptHandle, Head, Identity, Publication, Staged, WorkspaceRef

# Provenance of a publication by a task.
_TASK_KEY = "task_key"


class WorkspaceBytes:
    """Copies trees to this machine and stores trees from changed copies."""

    def __init__(self, trees: FileTrees, cache: private_copy.ContentCache) -> None:
        self._trees = trees
        self._contents = private_copy.LocalContents(trees.objects, cache)

    def download(
        self, workspace: WorkspaceRef, root: Digest, target: Path, progress: Progress | None
    ) -> private_copy.PrivateCopy:
        prefix = workspace.prefix
        entries = list(self._trees.walk(root, prefix))
        if any(entry.path == prefix and not entry.is_directory for entry in entries):
            raise errors.Invalid(
                f"prefix {prefix!r} of {workspace.repository} is a file, not a directory."
            )
        below = relative_to((entry for entry in entries if entry.path != prefix), prefix)
        return private_copy.copy_privately(self._contents, below, target, progress)

    def stage(
        self,
        workspace: WorkspaceRef,
        root: Digest,
        changes: private_copy.Changes,
        progress: Progress | None,
    ) -> Staged:
        prefix = workspace.prefix
        stored = counted(self._stored(changes.put), progress)
        edited = self._trees.edit(
            root,
            put=[replace(entry, path=_path(prefix, entry.path)) for entry in stored],
            remove=[_path(prefix, path) for path in changes.remove],
        )
        return Staged(repository=workspace.repository, ref=edited.root, objects=edited.locations)

    def _stored(self, changes: Sequence[private_copy.LocalChange]) -> Iterator[Entry]:
        if not self._trees.objects.in_batches:
            return in_parallel(self._store, changes)
        batches = batched(changes, lambda change: change.entry.size, together=True)
        return chain.from_iterable(in_parallel(self._store_batch, batches, ahead=BATCHES_AHEAD))

    def _store_batch(self, changes: list[private_copy.LocalChange]) -> list[Entry]:
        if len(changes) == 1:
            return [self._store(changes[0])]
        entries = [_hashed(change) for change in changes]
        pairs = zip(entries, changes, strict=True)
        self._trees.objects.put_files({e.digest: c.source for e, c in pairs if not e.is_directory})
        return entries

    def _store(self, change: private_copy.LocalChange) -> Entry:
        if change.entry.is_directory:
            return change.entry
        if change.is_hashed:
            self._trees.objects.put_file(change.entry.digest, change.source)
            return change.entry
        digest, size = self._trees.objects.put_unhashed(change.source)
        return replace(change.entry, digest=digest, size=size)


def _hashed(change: private_copy.LocalChange) -> Entry:
    if change.is_hashed or change.entry.is_directory:
        return change.entry
    digest, size = hash_file(change.source)
    return replace(change.entry, digest=digest, size=size)


def _path(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix else path


@dataclass(frozen=True, kw_only=True)
class _Target:
    """State of the target branch and of the input transaction."""

    dataset: nouns.Dataset
    branch: nouns.Branch
    head: nouns.Transaction | None
    given: nouns.Transaction


class FilesWorkspaces:
    """Implements `WorkspaceStore` at the catalog, whose publication checks the fence."""

    def __init__(
        self, database: Database, trees: FileTrees, cache: private_copy.ContentCache
    ) -> None:
        self._database = database
        self.trees = trees
        self._bytes = WorkspaceBytes(trees, cache)

    def find_root(self, workspace: WorkspaceRef, attempt: nouns.AttemptRef | None = None) -> Digest:
        """Return the tree of the input ref; raise if it is gone or the attempt is superseded.

        Raise also if the target branch is missing, unless the workspace is read-only.
        """
        if not workspace.read_only:
            return edits.root_of(self._load_target(workspace, attempt).given.version)
        load = partial(_load_given_in, workspace=workspace, attempt=attempt)
        return edits.root_of(self._database.read(load)[1].version)

    def find_head(self, workspace: WorkspaceRef) -> Head | None:
        head = self._load_target(workspace).head
        if head is None:
            return None
        return Head(ref=head.id, parent=head.parent, key=head.provenance.get(_TASK_KEY))

    def download(
        self, workspace: WorkspaceRef, target: Path, progress: Progress | None
    ) -> private_copy.PrivateCopy:
        return self._bytes.download(workspace, self.find_root(workspace), target, progress)

    def stage(
        self,
        workspace: WorkspaceRef,
        changes: private_copy.Changes,
        identity: Identity,
        progress: Progress | None = None,
    ) -> Staged:
        given = self._database.read(partial(records.load_transaction, id=workspace.ref))
        return self._bytes.stage(workspace, edits.root_of(given.version), changes, progress)

    def publish(self, workspace: WorkspaceRef, made: Publication) -> str:
        identity, tables = made.identity, made.table_changes
        target, replaced = self._may_move(workspace, identity)
        moves: list[Change] = []
        reads, tree = tables.reads, None
        if made.staged is not None:
            tree = Digest(made.staged.ref)
            provenance = _provenance(identity, replaced)
            moves.append(self._addition(target, tree, made.staged, provenance))
        elif replaced is not None:
            move = MoveBranch(
                branch=target.branch.id,
                expected_head=target.branch.head,
                expected_view=target.branch.view,
                to=target.given.id,
            )
            moves.append(move)
        elif tables.changes or made.operation is not None:
            # On condition that the workspace is still at the input.
            reads = (ReadView(branch=target.branch.id, view=target.branch.view), *reads)
        else:
            return target.given.id
        if moves:
            # The tables that were published together with the replaced head.
            undo = partial(undo_replaced, workspace=workspace, identity=identity)
            moves += self._database.read(undo)[1:]
        kind = nouns.PublicationKind.COMMIT if replaced is None else nouns.PublicationKind.REPLACE
        request = PublishRequest(
            caller=identity.caller,
            kind=kind,
            changes=(*moves, *tables.changes),
            reads=reads,
            operation=made.operation,
        )
        receipt = self._publish(workspace, target, request, tree)
        return target.given.id if tree is None else str(receipt.transactions[target.branch.id])

    def discard(self, staged: Staged) -> None:
        """Do nothing: there is no staging branch, and cleanup deletes unreferenced contents."""

    def _addition(
        self, target: _Target, root: Digest, staged: Staged, provenance: Provenance
    ) -> AddTransaction:
        return AddTransaction(
            branch=target.branch.id,
            expected_head=target.branch.head,
            expected_view=target.branch.view,
            parent=target.given.id,
            type=infer_type(self.trees.difference(edits.root_of(target.given.version), root)),
            version=edits.tree_version(root),
            objects=staged.objects,
            provenance=provenance,
        )

    def _load_target(
        self, workspace: WorkspaceRef, attempt: nouns.AttemptRef | None = None
    ) -> _Target:
        return self._database.read(partial(_load_target_in, workspace=workspace, attempt=attempt))

    def _may_move(
        self, workspace: WorkspaceRef, identity: Identity
    ) -> tuple[_Target, nouns.Transaction | None]:
        """Return the target, and the abandoned publication to replace unless it is at the input."""
        target = self._load_target(workspace, identity.attempt)
        is_moved = target.head is None or target.head.id != target.given.id
        if is_moved and (why := _why_not_replaceable(target.head, target.given, identity)):
            raise _fence_refused(workspace, target, why)
        reach(Failpoint.TASK_HEAD_READ)
        return target, target.head if is_moved else None

    def _publish(
        self, workspace: WorkspaceRef, target: _Target, request: PublishRequest, tree: Digest | None
    ) -> Receipt:
        """Publish; a condemned content of the new tree is kept, since its bytes exist."""
        try:
            return publish(self._database, request)
        except errors.ViewConflict as conflict:
            why = "another writer moved it concurrently"
            raise _fence_refused(workspace, target, why) from conflict
        except errors.VersionExpired:
            if tree is None:
                raise
            self._spare(target, tree)
            return publish(self._database, request)

    def _spare(self, target: _Target, root: Digest) -> None:
        before = edits.root_of(target.given.version)
        edit = FileEdit.of(self.trees.difference(before, root))
        apply = partial(self.trees.edit, before, put=edit.put, remove=edit.remove)
        edits.spare_condemned(self._database, self.trees, edit, apply)


def undo_replaced(
    connection: Connection, workspace: WorkspaceRef, identity: Identity
) -> list[MoveBranch]:
    """Return the moves that undo the publication of another task that the attempt may replace.

    The first is of the workspace; the others are of tables that were published with it. None are
    returned if the branch does not show that publication.
    """
    if identity.replaces is None:
        return []
    target = _load_target_in(connection, workspace, identity.attempt)
    head = target.head
    if head is None or head.id != identity.replaces or head.id == target.given.id:
        return []
    if why := _why_not_replaceable(head, target.given, identity):
        raise _fence_refused(workspace, target, why)
    made = records.transactions_published_with(connection, head)
    return [
        MoveBranch(branch=one.branch_id, expected_head=one.id, expected_view=one.id, to=one.parent)
        for one in (head, *made)
    ]


def _load_given_in(
    connection: Connection, workspace: WorkspaceRef, attempt: nouns.AttemptRef | None
) -> tuple[nouns.Dataset, nouns.Transaction]:
    if attempt is not None:
        # Checked first: a superseded attempt explains any state of the branch.
        records.check_newest(connection, attempt)
    dataset = records.load_dataset(connection, parse_dataset_name(workspace.repository))
    edits.check_is_files(dataset)
    given = records.load_transaction(connection, workspace.ref)
    if given.dataset_id != dataset.id:
        raise errors.TransactionNotFound(transaction=workspace.ref)
    records.check_committed(given)
    return dataset, given


def _load_target_in(
    connection: Connection, workspace: WorkspaceRef, attempt: nouns.AttemptRef | None
) -> _Target:
    dataset, given = _load_given_in(connection, workspace, attempt)
    branch = records.load_branch(connection, dataset, workspace.branch)
    head = records.load_transaction(connection, branch.view) if branch.view else None
    return _Target(dataset=dataset, branch=branch, head=head, given=given)


def _why_not_replaceable(
    head: nouns.Transaction | None, given: nouns.Transaction, identity: Identity
) -> str | None:
    """Return why the head may not be replaced: it is not an abandoned publication. Else None."""
    attempt = identity.attempt
    if head is None or head.parent != given.id:
        return "that is not a publication on top of the input"
    if head.id == identity.replaces and _TASK_KEY in head.provenance:
        return None
    if head.attempt is None or head.attempt.key != attempt.key:
        maker = f"by {head.attempt.key!r}" if head.attempt else f"by {head.actor}"
        why = f"that was published {maker}, not by an earlier attempt of this task"
        is_task = _TASK_KEY in head.provenance
        return f"{why} (`task run --replace {head.id}` replaces it)" if is_task else why
    if head.attempt.epoch >= attempt.epoch:
        return f"that was published by attempt {head.attempt.epoch}, not by an earlier one"
    return None


def _fence_refused(
    workspace: WorkspaceRef, target: _Target, why: str
) -> errors.PublishFenceRefused:
    return errors.PublishFenceRefused(
        repository=workspace.repository,
        branch=workspace.branch,
        input_ref=workspace.ref,
        head=target.head.id if target.head else None,
        why=why,
    )


def _provenance(identity: Identity, replaced: nouns.Transaction | None) -> Provenance:
    facts = {
        "task": identity.task,
        _TASK_KEY: identity.attempt.key,
        "epoch": identity.attempt.epoch,
        "execution": identity.execution,
        "orchestrator": dict(identity.labels),
        "replaced": replaced.id if replaced else None,
    }
    return Provenance(facts=facts)


class CatalogAttempts:
    """Implements `Attempts` at the catalog, for one actor and without secrets."""

    def __init__(self, database: Database, actor: str) -> None:
        self._database = database
        self._actor = actor

    def dispatch(self, key: str, *, branch: str | None = None) -> AttemptHandle:
        made = dispatch_attempt(
            self._database,
            check_task_key(key),
            actor=self._actor,
            lease_seconds=LEASE_SECONDS,
            scope=attempt_scope(branch),
        )
        return AttemptHandle(ref=made.ref)

    def renew(self, handle: AttemptHandle) -> None:
        heartbeat(self._database, handle.ref)

    def check(self, handle: AttemptHandle) -> None:
        self._database.read(partial(records.check_newest, ref=handle.ref))

    def end(self, handle: AttemptHandle, state: nouns.AttemptState) -> None:
        end_attempt(self._database, handle.ref, state)


def attempt_scope(branch: str | None) -> dict[str, Any]:
    """Return the scope of a new attempt; its tables are added when they are opened."""
    return {"branch": branch, "inputs": {}, "outputs": {}}
