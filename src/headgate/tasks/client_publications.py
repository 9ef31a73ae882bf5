"""Publications of attempts that clients of a server do: taken in here, on the catalog's side.

The body ran elsewhere; the fence, the look at the target and the door are these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headgate.catalog.database import Connection, Database
from headgate.catalog.operations import do_once
from headgate.catalog.records import load_transactions
from headgate.errors import ContentSwept, Invalid
from headgate.files.objects import Digest, in_parallel
from headgate.files.publication import locations_in
from headgate.files.tree import Entry
from headgate.files.trees import FileTrees
from headgate.model.changes import OperationKey, Receipt, request_hash
from headgate.model.ids import TransactionId
from headgate.tasks.files_store import FilesWorkspaces
from headgate.tasks.ports import Identity, Staged, WorkspaceRef
from headgate.tasks.table_work import HeldTables

_KIND = "task-publish"


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What an attempt has come to: the tree that it made of its input, or None for no change."""

    workspace: WorkspaceRef
    identity: Identity
    root: Digest | None
    # Whether only its tables are to be published.
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where publications of clients are taken in: the store's side of files and of tables."""

    database: Database
    trees: FileTrees
    workspaces: FilesWorkspaces
    tables: HeldTables


@dataclass(frozen=True, kw_only=True)
class HandedOutcome:
    ref: str
    # Whether it was published by an earlier request, whose reply was lost.
    replayed: bool = False


def publish_handed(desk: Desk, handed: Handed) -> HandedOutcome:
    """Publishes, replaces, keeps or refuses, as on the store itself; of an attempt, once.

    The same request again gives the first answer, whatever the branch looks like by now.
    """
    key = _operation(handed)
    done = do_once(desk.database, key, lambda: _publish(desk, handed, key))
    if isinstance(done, Receipt):
        ref = desk.database.read(partial(_published, receipt=done, workspace=handed.workspace))
        return HandedOutcome(ref=ref, replayed=True)
    return HandedOutcome(ref=done)


def receive_tree(trees: FileTrees, workspace: WorkspaceRef, before: Digest, root: Digest) -> Staged:
    """The tree that a client says it made, if all of it has come and it is one.

    It is made here once more, at a cost that follows the change: a tree's name says all that it
    holds, so whoever comes to the same name was sent nothing that is malformed.
    """
    try:
        found = list(trees.difference(before, root))
    except TypeError as error:
        raise Invalid(f"{root} does not name a tree of files: {error}.", root=root) from error
    put = [change.after for change in found if change.after is not None]
    remove = [change.path for change in found if change.after is None]

    def check(entry: Entry) -> None:
        if not entry.is_directory and trees.find_size(entry.digest) != entry.size:
            raise ContentSwept(path=entry.path)

    for _ in in_parallel(check, put):
        pass
    edited = trees.edit(before, put=put, remove=remove)
    if edited.root != root:
        raise Invalid(f"{root} is not the name of the tree that its files make.", root=root)
    return Staged(
        repository=workspace.repository,
        ref=edited.root,
        objects=frozenset(locations_in(trees, edited)),
    )


def _publish(desk: Desk, handed: Handed, operation: OperationKey) -> str:
    workspace, identity, root = handed.workspace, handed.identity, handed.root
    # A superseded attempt is told so, whatever it has made.
    before = desk.workspaces.find_root(workspace, identity.attempt)
    together = desk.tables.finish()
    if handed.read_only:
        desk.tables.publish(together, operation=operation)
        return workspace.ref
    if root is None:
        return desk.workspaces.keep(workspace, identity, together=together, operation=operation)
    staged = receive_tree(desk.trees, workspace, before, root)
    return desk.workspaces.publish(
        workspace, staged, identity, together=together, operation=operation
    )


def _operation(handed: Handed) -> OperationKey:
    """An attempt publishes once, so it is the key; another request of it is refused."""
    attempt, workspace = handed.identity.attempt, handed.workspace
    request = {
        "repository": workspace.repository,
        "ref": workspace.ref,
        "root": handed.root,
        "read_only": handed.read_only,
    }
    return OperationKey(
        principal=handed.identity.actor,
        kind=_KIND,
        branch=workspace.branch,
        key=f"{attempt.key}:{attempt.epoch}",
        request_hash=request_hash(_KIND, request),
    )


def _published(connection: Connection, receipt: Receipt, workspace: WorkspaceRef) -> str:
    """What a publication made of the workspace; of one that only kept it, the input."""
    moved = [TransactionId(id) for id in receipt.transactions.values() if id is not None]
    for id, transaction in load_transactions(connection, moved).items():
        if str(transaction.dataset) == workspace.repository:
            return id
    return workspace.ref
