"""Requests to the door itself, without the verbs that usually prepare them."""

from __future__ import annotations

from typing import Any

from headgate.catalog.publish import publish
from headgate.files.edits import root_of, tree_version
from headgate.files.tree import EMPTY
from headgate.model.changes import (
    AddTransaction,
    Caller,
    Change,
    CommitTransaction,
    PublishRequest,
    ReadView,
    Receipt,
)
from headgate.model.nouns import AttemptRef, PublicationKind, Transaction, TransactionType
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from tests.support.stores import load


def knock(
    store: Store, *changes: Change, attempt: AttemptRef | None = None, **more: Any
) -> Receipt:
    """Publish these changes in the name of an attempt; `more` are fields of the request."""
    caller = Caller(actor="ana", attempt=attempt)
    fields: dict[str, Any] = {"kind": PublicationKind.COMMIT, **more}
    return publish(store.database, PublishRequest(caller=caller, changes=changes, **fields))


def commit_of(transaction: Transaction) -> CommitTransaction:
    """Commit the working version that the transaction had when it was read."""
    return CommitTransaction(transaction=transaction.id, version=transaction.version)


def addition(branch: BranchHandle, path: str, text: str = "x", **more: Any) -> AddTransaction:
    """Add a file to the view of a branch; `more` overrides fields of the change."""
    store, here = branch.store, branch.load()
    before = root_of(load(store, here.view).version) if here.view else EMPTY
    edited = store.trees.edit(before, put=[store_bytes(store, path, text.encode())])
    fields: dict[str, Any] = {
        "expected_head": here.head,
        "expected_view": here.view,
        "parent": here.view,
        "type": TransactionType.UPDATE,
        "version": tree_version(edited.root),
        **more,
    }
    return AddTransaction(branch=here.id, **fields)


def seen(branch: BranchHandle) -> ReadView:
    """Return a member of the read set: the branch and its view."""
    here = branch.load()
    return ReadView(branch=here.id, view=here.view)
