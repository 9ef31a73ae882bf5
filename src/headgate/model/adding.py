"""A write of its own: one transaction on a branch that may have to be made first; pure."""

from __future__ import annotations

from headgate.model.changes import AddTransaction, Change, CreateBranch, Provenance
from headgate.model.ids import DatasetId, mint_branch
from headgate.model.nouns import Branch, TransactionType, Version


def add_on_branch(
    name: str,
    dataset: DatasetId,
    *,
    branch: Branch | None,
    source: Branch | None,
    type: TransactionType,
    version: Version | None,
    objects: frozenset[str] = frozenset(),
    provenance: Provenance | None = None,
) -> list[Change]:
    """The changes that add a transaction to a branch, which is made off its source if missing."""
    steps: list[Change] = []
    if branch is None:
        made = _new_branch(name, dataset, source)
        steps.append(made)
        id, view = made.id, made.view
    else:
        id, view = branch.id, branch.view
        if view is None and version is not None:
            # The branch was passed over: all that it is given is new on it.
            type = TransactionType.SNAPSHOT
    steps.append(
        AddTransaction(
            branch=id,
            expected_head=view,
            expected_view=view,
            parent=view,
            type=type,
            version=version,
            objects=objects,
            provenance=provenance or Provenance(),
        )
    )
    return steps


def _new_branch(name: str, dataset: DatasetId, source: Branch | None) -> CreateBranch:
    return CreateBranch(
        id=mint_branch(),
        dataset=dataset,
        name=name,
        parent=source.id if source else None,
        expected_head=source.head if source else None,
        expected_view=source.view if source else None,
        # At the view: nobody who only writes shares a transaction that is OPEN on the parent.
        head=source.view if source else None,
        view=source.view if source else None,
    )
