"""Nouns for tests that need no catalog."""

from __future__ import annotations

from headgate.model.ids import BranchId, DatasetId, Instant, TransactionId
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import Branch, Transaction, TransactionState, TransactionType


def a_branch(
    name: str,
    *,
    parent: str | None = None,
    head: str | None = None,
    view: str | None = None,
    dataset: str = "sales.orders",
) -> Branch:
    return Branch(
        id=BranchId(f"b-{name}"),
        dataset_id=DatasetId("d-1"),
        dataset=parse_dataset_name(dataset),
        name=name,
        parent_id=BranchId(f"b-{parent}") if parent else None,
        parent=parent,
        head=TransactionId(head) if head else None,
        view=TransactionId(view) if view else None,
    )


def a_transaction(
    id: str,
    *,
    state: TransactionState = TransactionState.OPEN,
    opened_at: int = 0,
    actor: str = "ana",
) -> Transaction:
    return Transaction(
        id=TransactionId(id),
        dataset_id=DatasetId("d-1"),
        dataset=parse_dataset_name("sales.orders"),
        branch_id=BranchId("b-master"),
        branch="master",
        parent=None,
        depth=0,
        jump=None,
        type=TransactionType.UPDATE,
        state=state,
        version=None,
        actor=actor,
        opened_at=Instant(opened_at),
        closed_at=None,
        lease_until=None,
        lease_seconds=None,
        attempt=None,
        unit=None,
        publication=None,
    )
