"""What a reset or a replacement takes off its branch, in one statement however much it is."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select, update

from headgate.catalog.find import Steps
from headgate.catalog.schema import transactions
from headgate.model.history import Lookup, Step, ancestor_at_depth
from headgate.model.ids import BranchId, TransactionId

_columns = (transactions.c.id, transactions.c.parent_id, transactions.c.depth)
_below = transactions.alias("below")
_newest = (
    select(*_columns)
    .where(transactions.c.id == bindparam("the_newest"), transactions.c.depth > bindparam("kept"))
    .cte("gone", recursive=True)
)
_gone = _newest.union_all(
    select(_below.c.id, _below.c.parent_id, _below.c.depth).where(
        _below.c.id == _newest.c.parent_id, _below.c.depth > bindparam("kept")
    )
)
_TAKE_OFF = (
    update(transactions)
    .where(
        transactions.c.id.in_(select(_gone.c.id)),
        transactions.c.branch_id == bindparam("the_branch"),
        transactions.c.adoptable == 1,
    )
    .values(adoptable=0)
)


def take_off(
    connection: Connection,
    branch: BranchId,
    before: TransactionId,
    after: TransactionId | None,
    steps: Steps,
) -> None:
    """What a reset or replacement took off its branch is never adopted again."""
    kept = meeting_depth(steps(before), steps(after), steps) if after else -1
    connection.execute(_TAKE_OFF, {"the_newest": before, "kept": kept, "the_branch": branch})


def meeting_depth(one: Step, other: Step, lookup: Lookup) -> int:
    """How deep the newest transaction lies that two histories share; -1 where they share none.

    Side by side, at equal depth, both skip equally far: over what they do not share.
    """
    depth = min(one.depth, other.depth)
    left, right = ancestor_at_depth(one, depth, lookup), ancestor_at_depth(other, depth, lookup)
    while left is not None and right is not None and left.id != right.id:
        if left.jump != right.jump:
            left, right = _at(left.jump, lookup), _at(right.jump, lookup)
        else:
            left, right = _at(left.parent, lookup), _at(right.parent, lookup)
    return left.depth if left is not None else -1


def _at(id: TransactionId | None, lookup: Lookup) -> Step | None:
    return lookup(id) if id is not None else None
