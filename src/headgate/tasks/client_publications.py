"""Publishes, on the server, the results of attempts that ran on clients.

The client uploads contents and trees; the server checks the fence and the tree, and publishes.
"""

from dataclasses import dataclass
from functools import partial

from headgate.catalog.database import Connection, Database
from headgate.catalog.operations import do_once
from headgate.catalog.records import load_transactions
from headgate.errors import ContentSwept, Invalid
from headgate.files.edits import FileEdit
from headgate.files.objects import Digest, in_parallel
from headgate.files.tree import Entry
from headgate.files.tree_store import FileTrees
from headgate.model.changes import OperationKey, Receipt, request_hash
from headgate.model.ids import TransactionId
from headgate.tasks.files_store import FilesWorkspaces
from headgate.tasks.ports import Identity, Publication, Staged, WorkspaceRef
from headgate.tasks.table_work import AttemptTables

_KIND = "task-publish"


@dataclass(frozen=True, kw_only=True)
class ClientPublication:
    """A client's request to publish the result of its attempt."""

    # If it is read-only, only the tables are published.
    workspace: WorkspaceRef
    identity: Identity
    # The new tree; None if no file changed.
    root: Digest | None


@dataclass(frozen=True, kw_only=True)
class ClientPublicationResult:
    ref: str
    # Published by an earlier request with the same content.
    replayed: bool = False


def publish_for_client(
    database: Database,
    workspaces: FilesWorkspaces,
    tables: AttemptTables,
    publication: ClientPublication,
) -> ClientPublicationResult:
    """Publish the result of an attempt, once: a repeated request returns the first result."""
    key = _operation(publication)
    done = do_once(database, key, lambda: _publish(workspaces, tables, publication, key))
    if isinstance(done, Receipt):
        ref = database.read(partial(_published, receipt=done, workspace=publication.workspace))
        return ClientPublicationResult(ref=ref, replayed=True)
    return ClientPublicationResult(ref=done)


def _received_tree(
    trees: FileTrees, workspace: WorkspaceRef, before: Digest, root: Digest
) -> Staged:
    """Return the uploaded tree; raise if it is malformed or its contents are missing.

    The tree is rebuilt from its changes, at a cost proportional to them. Trees are named by their
    content, so the same name proves that the upload is well formed.
    """
    try:
        edit = FileEdit.of(trees.difference(before, root))
    except TypeError as error:
        raise Invalid(f"{root} is not a tree of files: {error}.", root=root) from error

    def check(entry: Entry) -> None:
        if not entry.is_directory and trees.objects.find_size(entry.digest) != entry.size:
            raise ContentSwept(path=entry.path)

    for _ in in_parallel(check, edit.put):
        pass
    edited = trees.edit(before, put=edit.put, remove=edit.remove)
    if edited.root != root:
        raise Invalid(f"tree {root} does not match its files; upload it again.", root=root)
    return Staged(repository=workspace.repository, ref=edited.root, objects=edited.locations)


def _publish(
    workspaces: FilesWorkspaces,
    tables: AttemptTables,
    publication: ClientPublication,
    operation: OperationKey,
) -> str:
    workspace, identity, root = publication.workspace, publication.identity, publication.root
    # Raises for a superseded attempt before its upload is read.
    before = workspaces.find_root(workspace, identity.attempt)
    table_changes = tables.finish()
    if workspace.read_only:
        tables.publish(table_changes, operation=operation)
        return workspace.ref
    staged = _received_tree(workspaces.trees, workspace, before, root) if root is not None else None
    made = Publication(
        staged=staged, identity=identity, table_changes=table_changes, operation=operation
    )
    return workspaces.publish(workspace, made)


def _operation(publication: ClientPublication) -> OperationKey:
    """Return the operation key: the attempt, since an attempt publishes once."""
    attempt, workspace = publication.identity.attempt, publication.workspace
    request = {
        "repository": workspace.repository,
        "ref": workspace.ref,
        "root": publication.root,
        "read_only": workspace.read_only,
    }
    return OperationKey(
        principal=publication.identity.actor,
        kind=_KIND,
        branch=workspace.branch,
        key=f"{attempt.key}:{attempt.epoch}",
        request_hash=request_hash(_KIND, request),
    )


def _published(connection: Connection, receipt: Receipt, workspace: WorkspaceRef) -> str:
    """Return the transaction published for the workspace, or the input ref if it was kept."""
    moved = [TransactionId(id) for id in receipt.transactions.values() if id is not None]
    for id, transaction in load_transactions(connection, moved).items():
        if str(transaction.dataset) == workspace.repository:
            return id
    return workspace.ref
