"""State that the door reads under its locks, and the effects of each change on it.

Each kind of change has one function, which checks the expectations of the change and records its
effects in memory. Nothing here writes to the database: `publish` writes all effects at once, or
none if an expectation does not match. See ADR 0001.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headgate import errors
from headgate.catalog.records import BranchState, Counter, Steps, is_over
from headgate.model import changes, ids
from headgate.model.access import Protections
from headgate.model.ancestry import next_step_pointers
from headgate.model.names import DatasetName, find_build_of
from headgate.model.nouns import PublicationKind, Transaction, TransactionState, Version


@dataclass(frozen=True, kw_only=True)
class Move:
    """One move of a publication: the change of a branch, and its view before and after."""

    branch: BranchState
    from_view: ids.TransactionId | None
    to_view: ids.TransactionId | None
    change: str


@dataclass(frozen=True, kw_only=True)
class NewTransaction:
    id: ids.TransactionId
    branch: BranchState
    change: changes.AddTransaction
    depth: int
    jump: ids.TransactionId | None


@dataclass(kw_only=True)
class LockedState:
    """The locked rows, and the effects recorded so far."""

    request: changes.PublishRequest
    counter: Counter
    now: ids.Instant
    branches: dict[ids.BranchId, BranchState]
    transactions: dict[ids.TransactionId, Transaction]
    dataset_names: dict[ids.DatasetId, DatasetName]
    steps: Steps
    # Read under the counter's lock; `taken`: branches that may have the name of a new one.
    taken: list[Any]
    protections: Protections
    condemned: set[ids.VersionId]
    condemned_objects: list[str]
    # Units of which this publication commits every OPEN transaction.
    units: list[ids.UnitId] = field(default_factory=list)
    mismatches: list[errors.Mismatch] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    added: list[NewTransaction] = field(default_factory=list)
    # With the type that each transaction gets.
    committed: list[changes.CommitTransaction] = field(default_factory=list)
    aborted: list[ids.TransactionId] = field(default_factory=list)
    created: list[changes.CreateBranch] = field(default_factory=list)
    # With whether a record of the branch is kept.
    deleted: list[tuple[BranchState, bool]] = field(default_factory=list)
    # (branch, view before, view after) of each reset or replacement.
    removed: list[tuple[ids.BranchId, ids.TransactionId, ids.TransactionId | None]] = field(
        default_factory=list
    )
    touched: set[ids.BranchId] = field(default_factory=set)
    versions: dict[ids.VersionId, str] = field(default_factory=dict)

    @property
    def only_writes(self) -> bool:
        """Return whether writing the effects reads nothing: no removal, restoration or merge."""
        removes = self.aborted or self.removed or self.deleted
        restores = any(change.deleted_in is not None for change in self.created)
        return not (removes or restores or self.request.kind is PublicationKind.MERGE)

    def mismatch(
        self, branch: BranchState, what: str, expected: str | None, actual: str | None
    ) -> None:
        self.mismatches.append(
            errors.Mismatch(
                dataset=str(branch.dataset),
                branch=branch.name,
                field=what,
                expected=expected,
                actual=actual,
            )
        )


def record_effects(state: LockedState, change: changes.Change) -> None:
    """Check one change against the locked rows and record its effects."""
    rule: Callable[[LockedState, changes.Change], None] = _RULES[type(change)]  # type: ignore[assignment]
    rule(state, change)


def check_read(state: LockedState, read: changes.ReadView) -> None:
    branch = state.branches.get(read.branch)
    if branch is None:
        _missing(state, read.branch, expected=read.view)
    elif branch.view != read.view:
        state.mismatch(branch, "view (read)", read.view, branch.view)


def _commit(state: LockedState, change: changes.CommitTransaction) -> None:
    transaction = state.transactions.get(change.transaction)
    if transaction is None:
        raise errors.TransactionNotFound(transaction=change.transaction)
    if transaction.state is not TransactionState.OPEN:
        raise errors.TransactionNotOpen(transaction=transaction.id, state=transaction.state)
    attempt = state.request.caller.attempt
    if transaction.attempt is not None and transaction.attempt != attempt:
        raise errors.AttemptSuperseded(
            key=transaction.attempt.key,
            epoch=attempt.epoch if attempt else 0,
            newest=transaction.attempt.epoch,
            state="not the owner",
        )
    heads = [b for b in state.branches.values() if b.head == transaction.id]
    working = transaction.version.id if transaction.version else None
    checked = change.version.id if change.version else None
    for branch in heads:
        if branch.view != transaction.parent:
            state.mismatch(branch, "view", transaction.parent, branch.view)
        if working != checked:
            state.mismatch(branch, "working version", checked, working)
        _move(state, branch, transaction.id)
    _note_version(state, change.version, what=f"transaction {transaction.id}")
    state.committed.append(replace(change, type=change.type or transaction.type))


def _add(state: LockedState, change: changes.AddTransaction) -> None:
    _check_holder(state, change.branch)
    branch = _expected(state, change)
    if branch is None:
        return
    if change.parent is not None and change.parent != branch.view:
        _committed(state, branch.dataset_id, change.parent)
    parent = state.steps(change.parent) if change.parent else None
    depth, jump = next_step_pointers(parent, state.steps)
    id = change.id or ids.mint_transaction()
    state.added.append(NewTransaction(id=id, branch=branch, change=change, depth=depth, jump=jump))
    if branch.view is not None and branch.view != change.parent:
        state.removed.append((branch.id, branch.view, change.parent))
    _note_version(state, change.version, what=f"a version for {branch.dataset}")
    _move(state, branch, id)


def _relocate(state: LockedState, change: changes.MoveBranch) -> None:
    branch = _expected(state, change)
    if branch is None:
        return
    if change.to is not None:
        target = _committed(state, branch.dataset_id, change.to)
        _note_version(state, target.version, what=f"transaction {target.id}")
    if branch.view is not None:
        state.removed.append((branch.id, branch.view, change.to))
    _move(state, branch, change.to)


def _create(state: LockedState, change: changes.CreateBranch) -> None:
    if change.parent is not None and _unmoved(state, change.parent, change) is None:
        return
    if change.view is not None:
        shown = _committed(state, change.dataset, change.view)
        _note_version(state, shown.version, what=f"transaction {shown.id}")
    branch = BranchState(
        id=change.id,
        dataset_id=change.dataset,
        dataset=state.dataset_names[change.dataset],
        name=change.name,
        parent_id=change.parent,
        head=change.head,
        view=change.view,
    )
    state.branches[branch.id] = branch
    state.created.append(change)
    made = "created" if change.deleted_in is None else "restored"
    state.moves.append(Move(branch=branch, from_view=None, to_view=change.view, change=made))


def _delete(state: LockedState, change: changes.DeleteBranch) -> None:
    branch = _unmoved(state, change.branch, change)
    if branch is None:
        return
    del state.branches[branch.id]
    state.deleted.append((branch, change.restorable))
    state.moves.append(Move(branch=branch, from_view=branch.view, to_view=None, change="deleted"))
    is_open = branch.head is not None and branch.head != branch.view
    shared = any(b.head == branch.head for b in state.branches.values())
    if is_open and not shared and branch.head is not None:
        # Its last branch is deleted, so the transaction can never be committed.
        state.aborted.append(branch.head)


_RULES = {
    changes.CommitTransaction: _commit,
    changes.AddTransaction: _add,
    changes.MoveBranch: _relocate,
    changes.CreateBranch: _create,
    changes.DeleteBranch: _delete,
}


def _unmoved(
    state: LockedState, id: ids.BranchId, change: changes.CreateBranch | changes.DeleteBranch
) -> BranchState | None:
    """Return the branch if it has the expected head and view, which may be OPEN.

    Record a mismatch and return None if not.
    """
    branch = state.branches.get(id)
    if branch is None:
        _missing(state, id, expected=change.expected_view)
    elif (branch.head, branch.view) != (change.expected_head, change.expected_view):
        state.mismatch(branch, "head", change.expected_head, branch.head)
        return None
    return branch


def _expected(
    state: LockedState, change: changes.AddTransaction | changes.MoveBranch
) -> BranchState | None:
    """Return the branch if it exists by id and has the expected head and view.

    Record a mismatch and return None if not; raise if the branch has an OPEN transaction.
    """
    head, view = change.expected_head, change.expected_view
    branch = state.branches.get(change.branch)
    if branch is None:
        _missing(state, change.branch, expected=view)
        return None
    if branch.head != branch.view and branch.head is not None:
        raise already_open(state.transactions.get(branch.head), branch, state.now)
    if branch.view != view:
        state.mismatch(branch, "view", view, branch.view)
        return None
    if branch.head != head:
        state.mismatch(branch, "head", head, branch.head)
        return None
    return branch


def _check_holder(state: LockedState, id: ids.BranchId) -> None:
    """Raise HolderExpired if the branch has an OPEN transaction whose lease has expired.

    Adding a transaction opens one, so the writer may take over an expired holder.
    """
    branch = state.branches.get(id)
    if branch is None or branch.head is None or branch.head == branch.view:
        return
    holder = state.transactions.get(branch.head)
    if holder is not None and is_over(holder.lease_until, holder.lease_seconds, state.now):
        refusal = already_open(holder, branch, state.now)
        raise errors.HolderExpired(refusal, wanted_by=state.request.caller)


def _committed(state: LockedState, dataset: ids.DatasetId, id: ids.TransactionId) -> Transaction:
    """Return a COMMITTED transaction of the dataset, or raise.

    Only such a transaction may be the view of a branch or the parent of a new transaction.
    """
    found = state.transactions.get(id)
    if found is None or found.dataset_id != dataset:
        raise errors.TransactionNotFound(transaction=id)
    if found.state is not TransactionState.COMMITTED:
        raise errors.TransactionNotCommitted(transaction=id, state=found.state)
    return found


def already_open(
    transaction: Transaction | None, branch: BranchState, now: ids.Instant
) -> errors.OpenTransactionAlreadyExists:
    """Return the error that names the holder of the branch and the rest of its lease."""
    until = (transaction.lease_until if transaction else None) or now
    return errors.OpenTransactionAlreadyExists(
        dataset=str(branch.dataset),
        branch=branch.name,
        transaction=str(branch.head),
        holder=transaction.actor if transaction else "unknown",
        lease_left_seconds=max(0, -(-(until - now) // 1_000_000)),
        build=find_build_of(transaction.attempt.key)
        if transaction and transaction.attempt
        else None,
    )


def _missing(state: LockedState, id: ids.BranchId, *, expected: ids.TransactionId | None) -> None:
    state.mismatches.append(
        errors.Mismatch(
            dataset="?", branch=id, field="branch", expected=expected or id, actual=None
        )
    )


def _move(state: LockedState, branch: BranchState, to: ids.TransactionId | None) -> None:
    state.moves.append(Move(branch=branch, from_view=branch.view, to_view=to, change="moved"))
    branch.head = branch.view = to
    state.touched.add(branch.id)


def _note_version(state: LockedState, version: Version | None, *, what: str) -> None:
    if version is not None:
        state.versions[version.id] = what


def check_condemned(state: LockedState) -> None:
    for id, what in state.versions.items():
        if id in state.condemned:
            raise errors.VersionExpired(what=what)
