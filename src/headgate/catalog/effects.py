"""State that the door reads under its locks, and the effects of each change on it.

Each kind of change has one function, which checks the expectations of the change and records its
effects in memory. Nothing here writes to the database: `publish` writes all effects at once, or
none if an expectation does not match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headgate import errors
from headgate.catalog.records import BranchState, Steps
from headgate.model.ancestry import next_step_pointers
from headgate.model.changes import (
    AddTransaction,
    Change,
    CommitTransaction,
    CreateBranch,
    DeleteBranch,
    MoveBranch,
    Provenance,
    PublishRequest,
    ReadView,
)
from headgate.model.ids import (
    BranchId,
    DatasetId,
    Instant,
    TransactionId,
    UnitId,
    VersionId,
    mint_transaction,
)
from headgate.model.names import DatasetName
from headgate.model.nouns import Transaction, TransactionState, TransactionType, Version


@dataclass(frozen=True, kw_only=True)
class Move:
    """One move of a publication: the change of a branch, and its view before and after."""

    branch: BranchState
    from_view: TransactionId | None
    to_view: TransactionId | None
    change: str


@dataclass(frozen=True, kw_only=True)
class NewTransaction:
    id: TransactionId
    branch: BranchState
    parent: TransactionId | None
    depth: int
    jump: TransactionId | None
    type: TransactionType
    version: Version | None
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Closed:
    id: TransactionId
    type: TransactionType
    provenance: Provenance | None


@dataclass(kw_only=True)
class Picture:
    """The locked rows, and the effects recorded so far."""

    request: PublishRequest
    now: Instant
    branches: dict[BranchId, BranchState]
    transactions: dict[TransactionId, Transaction]
    dataset_names: dict[DatasetId, DatasetName]
    steps: Steps
    # Units of which this publication commits every OPEN transaction.
    units: list[UnitId] = field(default_factory=list)
    mismatches: list[errors.Mismatch] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    added: list[NewTransaction] = field(default_factory=list)
    committed: list[Closed] = field(default_factory=list)
    aborted: list[TransactionId] = field(default_factory=list)
    created: list[CreateBranch] = field(default_factory=list)
    deleted: list[BranchState] = field(default_factory=list)
    # (branch, view before, view after) of each reset or replacement.
    taken_off: list[tuple[BranchId, TransactionId, TransactionId | None]] = field(
        default_factory=list
    )
    touched: set[BranchId] = field(default_factory=set)
    versions: dict[VersionId, str] = field(default_factory=dict)
    objects: set[str] = field(default_factory=set)

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


def look_at(picture: Picture, change: Change) -> None:
    """Check one change against the locked rows and record its effects."""
    rule: Callable[[Picture, Change], None] = _RULES[type(change)]  # type: ignore[assignment]
    rule(picture, change)


def check_read(picture: Picture, read: ReadView) -> None:
    branch = picture.branches.get(read.branch)
    if branch is None:
        _missing(picture, read.branch, expected=read.view)
    elif branch.view != read.view:
        picture.mismatch(branch, "view (read)", read.view, branch.view)


def _commit(picture: Picture, change: CommitTransaction) -> None:
    transaction = picture.transactions.get(change.transaction)
    if transaction is None:
        raise errors.TransactionNotFound(transaction=change.transaction)
    if transaction.state is not TransactionState.OPEN:
        raise errors.TransactionNotOpen(transaction=transaction.id, state=transaction.state)
    attempt = picture.request.caller.attempt
    if transaction.attempt is not None and transaction.attempt != attempt:
        raise errors.AttemptSuperseded(
            key=transaction.attempt.key,
            epoch=attempt.epoch if attempt else 0,
            newest=transaction.attempt.epoch,
            state="not the owner",
        )
    heads = [b for b in picture.branches.values() if b.head == transaction.id]
    working = transaction.version.id if transaction.version else None
    checked = change.version.id if change.version else None
    for branch in heads:
        if branch.view != transaction.parent:
            picture.mismatch(branch, "view", transaction.parent, branch.view)
        if working != checked:
            picture.mismatch(branch, "working version", checked, working)
        _move(picture, branch, head=transaction.id, view=transaction.id)
    _use(picture, change.version, what=f"transaction {transaction.id}")
    picture.committed.append(
        Closed(
            id=transaction.id,
            type=change.type or transaction.type,
            provenance=change.provenance,
        )
    )


def _add(picture: Picture, change: AddTransaction) -> None:
    _check_holder(picture, change.branch)
    branch = _expected(picture, change.branch, change.expected_head, change.expected_view)
    if branch is None:
        return
    if change.parent is not None and change.parent != branch.view:
        _past(picture, branch.dataset_id, change.parent)
    parent = picture.steps(change.parent) if change.parent else None
    depth, jump = next_step_pointers(parent, picture.steps)
    id = change.id or mint_transaction()
    picture.added.append(
        NewTransaction(
            id=id,
            branch=branch,
            parent=change.parent,
            depth=depth,
            jump=jump,
            type=change.type,
            version=change.version,
            provenance=change.provenance,
        )
    )
    if branch.view is not None and branch.view != change.parent:
        picture.taken_off.append((branch.id, branch.view, change.parent))
    _use(picture, change.version, what=f"a version for {branch.dataset}")
    picture.objects |= change.objects
    _move(picture, branch, head=id, view=id)


def _relocate(picture: Picture, change: MoveBranch) -> None:
    branch = _expected(picture, change.branch, change.expected_head, change.expected_view)
    if branch is None:
        return
    if change.to is not None:
        target = _past(picture, branch.dataset_id, change.to)
        _use(picture, target.version, what=f"transaction {target.id}")
    if branch.view is not None:
        picture.taken_off.append((branch.id, branch.view, change.to))
    _move(picture, branch, head=change.to, view=change.to)


def _create(picture: Picture, change: CreateBranch) -> None:
    if change.parent is not None:
        parent = picture.branches.get(change.parent)
        if parent is None:
            _missing(picture, change.parent, expected=change.expected_view)
            return
        if (parent.head, parent.view) != (change.expected_head, change.expected_view):
            picture.mismatch(parent, "head", change.expected_head, parent.head)
            return
    if change.view is not None:
        shown = _past(picture, change.dataset, change.view)
        _use(picture, shown.version, what=f"transaction {shown.id}")
    branch = BranchState(
        id=change.id,
        dataset_id=change.dataset,
        dataset=picture.dataset_names[change.dataset],
        name=change.name,
        parent_id=change.parent,
        head=change.head,
        view=change.view,
    )
    picture.branches[branch.id] = branch
    picture.created.append(change)
    picture.moves.append(Move(branch=branch, from_view=None, to_view=change.view, change="created"))


def _delete(picture: Picture, change: DeleteBranch) -> None:
    branch = picture.branches.get(change.branch)
    if branch is None:
        _missing(picture, change.branch, expected=change.expected_view)
        return
    if (branch.head, branch.view) != (change.expected_head, change.expected_view):
        picture.mismatch(branch, "head", change.expected_head, branch.head)
        return
    del picture.branches[branch.id]
    picture.deleted.append(branch)
    picture.moves.append(Move(branch=branch, from_view=branch.view, to_view=None, change="deleted"))
    is_open = branch.head is not None and branch.head != branch.view
    shared = any(b.head == branch.head for b in picture.branches.values())
    if is_open and not shared and branch.head is not None:
        # Its last branch is deleted, so the transaction can never be committed.
        picture.aborted.append(branch.head)


_RULES = {
    CommitTransaction: _commit,
    AddTransaction: _add,
    MoveBranch: _relocate,
    CreateBranch: _create,
    DeleteBranch: _delete,
}


def _expected(
    picture: Picture,
    id: BranchId,
    head: TransactionId | None,
    view: TransactionId | None,
) -> BranchState | None:
    """Return the branch if it exists by id and has the expected head and view.

    Record a mismatch and return None if not; raise if the branch has an OPEN transaction.
    """
    branch = picture.branches.get(id)
    if branch is None:
        _missing(picture, id, expected=view)
        return None
    if branch.head != branch.view and branch.head is not None:
        raise already_open(picture.transactions.get(branch.head), branch, picture.now)
    if branch.view != view:
        picture.mismatch(branch, "view", view, branch.view)
        return None
    if branch.head != head:
        picture.mismatch(branch, "head", head, branch.head)
        return None
    return branch


def _check_holder(picture: Picture, id: BranchId) -> None:
    """Raise HolderExpired if the branch has an OPEN transaction whose lease has expired.

    Adding a transaction opens one, so the writer may take over an expired holder.
    """
    branch = picture.branches.get(id)
    if branch is None or branch.head is None or branch.head == branch.view:
        return
    holder = picture.transactions.get(branch.head)
    if holder is not None and (holder.lease_until or picture.now) < picture.now:
        refusal = already_open(holder, branch, picture.now)
        raise errors.HolderExpired(refusal, wanted_by=picture.request.caller.actor)


def _past(picture: Picture, dataset: DatasetId, id: TransactionId) -> Transaction:
    """Return a COMMITTED transaction of the dataset, or raise.

    Only such a transaction may be the view of a branch or the parent of a new transaction.
    """
    found = picture.transactions.get(id)
    if found is None or found.dataset_id != dataset:
        raise errors.TransactionNotFound(transaction=id)
    if found.state is not TransactionState.COMMITTED:
        raise errors.TransactionNotCommitted(transaction=id, state=found.state)
    return found


def already_open(
    transaction: Transaction | None, branch: BranchState, now: Instant
) -> errors.OpenTransactionAlreadyExists:
    """Return the error that names the holder of the branch and the rest of its lease."""
    until = (transaction.lease_until if transaction else None) or now
    return errors.OpenTransactionAlreadyExists(
        dataset=str(branch.dataset),
        branch=branch.name,
        transaction=str(branch.head),
        holder=transaction.actor if transaction else "unknown",
        lease_left_seconds=max(0, -(-(until - now) // 1_000_000)),
    )


def _missing(picture: Picture, id: BranchId, *, expected: TransactionId | None) -> None:
    picture.mismatches.append(
        errors.Mismatch(
            dataset="?", branch=id, field="branch", expected=expected or id, actual=None
        )
    )


def _move(
    picture: Picture,
    branch: BranchState,
    *,
    head: TransactionId | None,
    view: TransactionId | None,
) -> None:
    picture.moves.append(Move(branch=branch, from_view=branch.view, to_view=view, change="moved"))
    branch.head, branch.view = head, view
    picture.touched.add(branch.id)


def _use(picture: Picture, version: Version | None, *, what: str) -> None:
    if version is not None:
        picture.versions[version.id] = what


def check_condemned(picture: Picture, condemned: set[VersionId]) -> None:
    for id, what in picture.versions.items():
        if id in condemned:
            raise errors.VersionExpired(what=what)
