"""Opening, staging, renewal and abort of transactions.

The catalog records these changes, but they are not publications: none of them changes a view.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, insert, literal, select, update

from headgate import errors
from headgate.catalog import records, schema
from headgate.catalog.database import as_unit_of_work, insert_into, note_written, now
from headgate.catalog.effects import already_open
from headgate.model import changes, nouns
from headgate.model.access import Protections
from headgate.model.ancestry import after_deletion, next_step_pointers
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import (
    BranchId,
    DatasetId,
    Instant,
    PublicationNumber,
    TransactionId,
    UnitId,
    VersionId,
    mint,
    mint_transaction,
)
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, Transaction, TransactionState, TransactionType, Version

# Writes shared by the door and the verbs; none of them changes a view.


def insert_versions(
    connection: Connection, new: Sequence[tuple[DatasetId, Version]], at: Instant
) -> None:
    """Record versions; already recorded ones (adopted, shared) stay unchanged."""
    if not new:
        return
    connection.execute(
        insert_into(schema.versions, connection.dialect.name).on_conflict_do_nothing(),
        [
            {
                "id": version.id,
                "dataset_id": dataset,
                "location": version.location,
                "content_id": version.content_id,
                "created_at": at,
            }
            for dataset, version in new
        ],
    )


def close_aborted(connection: Connection, ids: Iterable[TransactionId], at: Instant) -> None:
    """Mark OPEN transactions ABORTED, and all OPEN transactions of the units they belong to."""
    gone = sorted(set(ids))
    if not gone:
        return
    gone += _unit_siblings(connection, gone)
    connection.execute(
        update(schema.transactions)
        .where(
            schema.transactions.c.id.in_(gone), schema.transactions.c.state == TransactionState.OPEN
        )
        .values(
            state=TransactionState.ABORTED,
            # The start is later than the parent's end, which may be ahead of a coarse clock.
            closed_at=case(
                (schema.transactions.c.opened_at > at, schema.transactions.c.opened_at), else_=at
            ),
        )
    )
    connection.execute(
        delete(schema.working_objects).where(schema.working_objects.c.transaction_id.in_(gone))
    )


def _unit_siblings(connection: Connection, ids: Sequence[TransactionId]) -> list[TransactionId]:
    """Abort the units of these transactions; return the other OPEN transactions of those units.

    The heads of the branches of the returned transactions are set back to the parents.
    """
    query = (
        select(schema.transactions.c.unit_id)
        .where(schema.transactions.c.id.in_(ids), schema.transactions.c.unit_id.is_not(None))
        .distinct()
    )
    lost = list(connection.execute(query).scalars())
    if not lost:
        return []
    connection.execute(
        update(schema.units)
        .where(schema.units.c.id.in_(lost), schema.units.c.state == TransactionState.OPEN)
        .values(state=TransactionState.ABORTED)
    )
    others = connection.execute(
        select(schema.transactions.c.id, schema.transactions.c.parent_id).where(
            schema.transactions.c.unit_id.in_(lost),
            schema.transactions.c.state == TransactionState.OPEN,
            schema.transactions.c.id.not_in(ids),
        )
    ).all()
    for id, parent in others:
        _set_heads_back(connection, id, parent)
    return [TransactionId(id) for id, _ in others]


def _set_heads_back(
    connection: Connection, aborted: TransactionId, parent: TransactionId | None
) -> None:
    """Set the heads of all branches of an aborted transaction back to its parent."""
    connection.execute(
        update(schema.branches).where(schema.branches.c.head_id == aborted).values(head_id=parent)
    )


def reparent_children(connection: Connection, gone: records.BranchState) -> None:
    """Move the children of a deleted branch to its parent; chains through it stay valid."""
    dataset = schema.branches.c.dataset_id == gone.dataset_id
    rows = list(connection.execute(records.BRANCHES.where(dataset)).mappings())
    before = {row["name"]: records.to_branch(row) for row in rows}
    after = after_deletion(gone.name, before)
    ids = {branch.name: branch.id for branch in before.values()}
    for name, lineage in after.items():
        was = before[name]
        if (was.parent, was.remembered_chain) == (lineage.parent, lineage.remembered_chain):
            continue
        chain = records.dump(list(lineage.remembered_chain)) if lineage.remembered_chain else None
        connection.execute(
            update(schema.branches)
            .where(schema.branches.c.id == was.id)
            .values(
                parent_id=ids[lineage.parent] if lineage.parent else None, remembered_chain=chain
            )
        )


def keep_deleted(
    connection: Connection, id: BranchId, publication: PublicationNumber | None
) -> None:
    """Record a branch that is about to be deleted, so that it can be restored.

    Without a publication no record is kept: the declared parents below it skip it.
    """
    kept = [column for column in schema.deleted_branches.columns if column.name != "publication"]
    this = schema.branches.c.id == id
    if publication is not None:
        source = select(*(schema.branches.c[column.name] for column in kept), literal(publication))
        names = [*(column.name for column in kept), "publication"]
        connection.execute(insert(schema.deleted_branches).from_select(names, source.where(this)))
        return
    above = connection.execute(select(schema.branches.c.declared_parent_id).where(this)).scalar()
    for table in (schema.branches, schema.deleted_branches):
        connection.execute(
            update(table).where(table.c.declared_parent_id == id).values(declared_parent_id=above)
        )


def restore_parents(connection: Connection, dataset: DatasetId) -> None:
    """Set the parent of each branch to the first of its declared ancestors that exists."""
    rows = [
        connection.execute(select(table).where(table.c.dataset_id == dataset)).mappings().all()
        for table in (schema.branches, schema.deleted_branches)
    ]
    declared = {row["id"]: row["declared_parent_id"] for part in rows for row in part}
    live = {row["id"]: row["parent_id"] for row in rows[0]}
    for id, parent in live.items():
        above = declared[id]
        while above is not None and above not in live:
            above = declared[above]
        if above != parent:
            connection.execute(
                update(schema.branches).where(schema.branches.c.id == id).values(parent_id=above)
            )


def record_event(
    connection: Connection,
    *,
    at: Instant,
    actor: str,
    kind: str,
    dataset: DatasetId | None = None,
    branch: str | None = None,
    transaction: TransactionId | None = None,
    id: str | None = None,
    **detail: object,
) -> None:
    """Record an event that is not a publication."""
    connection.execute(
        insert(schema.events).values(
            id=id or mint("e"),
            at=at,
            actor=actor,
            kind=kind,
            dataset_id=dataset,
            branch_name=branch,
            transaction_id=transaction,
            detail=records.dump(detail),
        )
    )


def count_events(connection: Connection, counts: Mapping[str, int]) -> None:
    """Set the `count` of events that stand for several of the same kind."""
    found = connection.execute(
        select(schema.events.c.id, schema.events.c.detail).where(schema.events.c.id.in_(counts))
    ).all()
    for id, detail in found:
        counted = records.dump({**records.load(detail), "count": counts[id]})
        connection.execute(
            update(schema.events).where(schema.events.c.id == id).values(detail=counted)
        )


# Staging of working versions, with the attempt fence of a publication. It is one UPDATE, which
# requires the expected version and the newest epoch as the owner.


def stage_in(
    connection: Connection,
    transaction: TransactionId,
    version: Version,
    *,
    expected: VersionId | None,
    attempt: AttemptRef | None = None,
    objects: Iterable[str] = (),
    caller: changes.Caller | None = None,
) -> Transaction:
    """Replace the working version if it is still the expected one, and renew the lease.

    :param caller: actor of a transaction that may be another's; None: the transaction is their own.
    """
    if attempt is not None:
        records.lock_attempt(connection, attempt)
    moment = now(connection)
    staged = records.load_transaction(connection, transaction)
    if caller is not None and attempt is None:
        check_owner(connection, caller, staged)
    insert_versions(connection, [(staged.dataset_id, version)], moment)
    changed = connection.execute(
        update(schema.transactions)
        .where(
            schema.transactions.c.id == transaction,
            schema.transactions.c.state == TransactionState.OPEN,
            schema.transactions.c.version_id.is_not_distinct_from(expected),
            schema.transactions.c.attempt_key.is_not_distinct_from(
                attempt.key if attempt else None
            ),
            schema.transactions.c.attempt_epoch.is_not_distinct_from(
                attempt.epoch if attempt else None
            ),
        )
        .values(
            version_id=version.id,
            lease_until=moment + schema.transactions.c.lease_seconds * 1_000_000,
        )
    )
    found = records.load_transaction(connection, transaction)
    if changed.rowcount != 1:
        raise _refusal(found, expected, attempt)
    _use_objects(connection, transaction, objects)
    note_written(connection, moment, version.id)
    reach(Failpoint.STAGE_APPLIED)
    return found


stage_version = as_unit_of_work(stage_in, then=Failpoint.STAGE_COMMITTED)


def _use_objects(
    connection: Connection, transaction: TransactionId, objects: Iterable[str]
) -> None:
    """Record the stored objects that the transaction reuses, so that the door can check them."""
    for part in records.in_chunks(objects):
        condemned = connection.execute(
            select(schema.condemned_objects.c.location)
            .where(schema.condemned_objects.c.location.in_(part))
            .limit(1)
        ).scalar_one_or_none()
        if condemned is not None:
            raise errors.VersionExpired(what=f"object {condemned}")
        query = select(schema.working_objects.c.location).where(
            schema.working_objects.c.transaction_id == transaction,
            schema.working_objects.c.location.in_(part),
        )
        new = set(part) - set(connection.execute(query).scalars())
        rows = [{"transaction_id": transaction, "location": place} for place in sorted(new)]
        if rows:
            connection.execute(insert(schema.working_objects), rows)


def _refusal(
    found: Transaction, expected: VersionId | None, attempt: AttemptRef | None
) -> Exception:
    if found.state is not TransactionState.OPEN:
        return errors.TransactionNotOpen(transaction=found.id, state=found.state)
    if found.attempt != attempt:
        return errors.AttemptSuperseded(
            key=found.attempt.key if found.attempt else found.id,
            epoch=attempt.epoch if attempt else 0,
            newest=found.attempt.epoch if found.attempt else 0,
            state="not the owner",
        )
    mismatch = errors.Mismatch(
        dataset=str(found.dataset),
        branch=found.branch,
        field="working version",
        expected=expected,
        actual=found.version.id if found.version else None,
    )
    return errors.ViewConflict([mismatch])


# Built once: constructing a statement costs more than executing it.
PROTECTED = select(schema.protected_branches.c.name, schema.protected_branches.c.datasets)
_SET_HEAD = (
    update(schema.branches)
    .where(schema.branches.c.id == bindparam("the_branch"))
    .values(head_id=bindparam("the_head"))
)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A branch on which to open a transaction."""

    branch: BranchId
    type: TransactionType
    # The view that the plan read (None: no view); compared only if `planned` is set.
    planned_view: TransactionId | None = None
    planned: bool = False


@dataclass(frozen=True, kw_only=True)
class Opener:
    """The owner of the lease, and the attempt or unit that the transactions belong to."""

    caller: changes.Caller
    lease_seconds: int
    unit: UnitId | None = None


def open_in(
    connection: Connection, openings: Sequence[Opening], opener: Opener
) -> list[Transaction]:
    """Open all transactions or none; take over expired holders and abort their transactions."""
    if opener.caller.attempt is not None:
        records.lock_attempt(connection, opener.caller.attempt)
    named = [opening.branch for opening in openings]
    if len(set(named)) != len(named):
        raise errors.Invalid("a branch is named twice: it takes one OPEN transaction at a time.")
    locked = records.lock_branches(connection, named)
    moment = now(connection)
    wanted = [_ready(connection, o, locked, opener, moment) for o in openings]
    check_may_write(connection, opener.caller, {(b.name, b.dataset) for b in wanted})
    steps = records.Steps(connection)
    steps.prepare_parents(branch.view for branch in wanted)
    parents = records.load_transactions(connection, [b.view for b in wanted if b.view])
    rows = []
    for opening, branch in zip(openings, wanted, strict=True):
        depth, jump = next_step_pointers(steps(branch.view) if branch.view else None, steps)
        parent = parents.get(branch.view) if branch.view else None
        row = _row(opening, branch, parent, opener, moment)
        rows.append({**row, "depth": depth, "jump_id": jump})
    if not rows:
        return []
    connection.execute(insert(schema.transactions), rows)
    heads = [{"the_branch": row["branch_id"], "the_head": row["id"]} for row in rows]
    connection.execute(_SET_HEAD, heads)
    reach(Failpoint.OPEN_APPLIED)
    found = records.load_transactions(connection, [TransactionId(str(row["id"])) for row in rows])
    return [found[TransactionId(str(row["id"]))] for row in rows]


open_transactions = as_unit_of_work(open_in, then=Failpoint.OPEN_COMMITTED)


def _ready(
    connection: Connection,
    opening: Opening,
    locked: dict[BranchId, records.BranchState],
    opener: Opener,
    moment: Instant,
) -> records.BranchState:
    """Return the branch, free to open: abort an expired holder, raise if the lease is valid."""
    branch = locked.get(opening.branch)
    if branch is None:
        raise errors.BranchNotFound(dataset="?", branch=opening.branch)
    if branch.head is not None and branch.head != branch.view:
        holder = records.lock_transactions(connection, [branch.head])[branch.head]
        if not records.is_over(holder.lease_until, holder.lease_seconds, moment):
            raise already_open(holder, branch, moment)
        # Another opening of this call may have aborted it already, by its unit or a shared head.
        if holder.state is TransactionState.OPEN:
            # It may belong to the parent, whose branch the caller may not be allowed to write.
            check_owner(connection, opener.caller, holder)
            _abort(connection, holder, actor=opener.caller.actor, kind="taken_over", at=moment)
        branch.head = branch.view
    if opening.planned and branch.view != opening.planned_view:
        raise errors.PlanChanged(reason=f"branch {branch.name!r} of {branch.dataset} moved")
    return branch


def find_protections(connection: Connection) -> Protections:
    """Return the protected branch names, each with the patterns of its protected datasets."""
    return to_protections(records.ask(connection, PROTECTED))


def to_protections(rows: Iterable[Any]) -> Protections:
    return Protections({name: tuple(records.load(text)) for name, text in rows})


def check_protected(
    connection: Connection, found: Protections, written: Collection[tuple[str, DatasetName]]
) -> None:
    """Raise if one of these branches, each of a dataset, is protected."""
    policy = records.policy_of(connection)
    for branch, dataset in written:
        if branch not in found:
            continue
        if policy is None or policy.shows_branch(branch):
            found.check(branch, [dataset])
        elif found.covers(branch, dataset):
            # A child that moves too, and whose name is hidden: its parent stands for it.
            shown = (name for name, _ in written if policy.shows_branch(name))
            raise errors.BranchProtected(branch=next(shown, "of another"))


def check_may_write(
    connection: Connection, caller: changes.Caller, written: Collection[tuple[str, DatasetName]]
) -> None:
    """Raise unless the caller may write these branches, each of a dataset."""
    if caller.check_write is not None:
        for branch, dataset in written:
            caller.check_write(branch, dataset)
    if written and not caller.may_write_protected:
        check_protected(connection, find_protections(connection), written)


def check_owner(connection: Connection, caller: changes.Caller, transaction: Transaction) -> None:
    """Raise unless the caller may change an OPEN transaction: its actor, or a writer of its branch.

    Its actor may continue on a branch that was protected since; only the commit is refused.
    """
    if caller.actor != transaction.actor:
        check_may_write(connection, caller, {(transaction.branch, transaction.dataset)})


def _row(
    opening: Opening,
    branch: records.BranchState,
    parent: Transaction | None,
    opener: Opener,
    moment: Instant,
) -> dict[str, object]:
    base = parent.version if parent and opening.type is not TransactionType.SNAPSHOT else None
    after = (parent.closed_at or 0) + 1 if parent else 0
    return {
        "id": mint_transaction(),
        "dataset_id": branch.dataset_id,
        "branch_id": branch.id,
        "branch_name": branch.name,
        "parent_id": branch.view,
        "type": opening.type,
        "state": TransactionState.OPEN,
        "version_id": base.id if base else None,
        "actor": opener.caller.actor,
        # Transactions of a branch stay ordered by start and commit, whatever the clock does.
        "opened_at": max(moment, after),
        "lease_seconds": opener.lease_seconds,
        "lease_until": moment + opener.lease_seconds * 1_000_000,
        "attempt_key": opener.caller.attempt.key if opener.caller.attempt else None,
        "attempt_epoch": opener.caller.attempt.epoch if opener.caller.attempt else None,
        "unit_id": opener.unit,
        "adoptable": 0,
        "provenance": records.dump({}),
    }


@as_unit_of_work
def renew_transactions(connection: Connection, ids: Sequence[TransactionId]) -> None:
    """Renew the leases by the database's clock; any use of a transaction renews its lease."""
    moment = now(connection)
    connection.execute(
        update(schema.transactions)
        .where(
            schema.transactions.c.id.in_(ids), schema.transactions.c.state == TransactionState.OPEN
        )
        .values(lease_until=moment + schema.transactions.c.lease_seconds * 1_000_000)
    )


def _abort_checked(
    connection: Connection,
    ids: Collection[TransactionId],
    *,
    caller: changes.Caller,
    kind: str = "aborted",
) -> None:
    """Abort all transactions; the head of each branch returns to the transaction's parent."""
    if caller.attempt is not None:
        records.lock_attempt(connection, caller.attempt)
    else:
        for transaction in records.load_transactions(connection, ids).values():
            check_owner(connection, caller, transaction)
    abort_in(connection, list(ids), caller=caller, kind=kind)


abort_transactions = as_unit_of_work(_abort_checked, then=Failpoint.ABORT_APPLIED)


@as_unit_of_work
def end_expired(connection: Connection, id: TransactionId, *, caller: changes.Caller) -> None:
    """Abort an OPEN transaction whose lease has expired, unless it was renewed meanwhile."""
    records.lock_branches(connection, records.branches_with_head(connection, [id]))
    holder = records.lock_transactions(connection, [id]).get(id)
    moment = now(connection)
    if holder is None or holder.state is not TransactionState.OPEN:
        return
    if records.is_over(holder.lease_until, holder.lease_seconds, moment):
        check_owner(connection, caller, holder)
        _abort(connection, holder, actor=caller.actor, kind="taken_over", at=moment)


def abort_in(
    connection: Connection,
    ids: Sequence[TransactionId],
    *,
    caller: changes.Caller,
    kind: str = "aborted",
) -> None:
    records.lock_branches(connection, records.branches_with_head(connection, ids))
    found = records.lock_transactions(connection, ids)
    for id in ids:
        if id not in found:
            raise errors.TransactionNotFound(transaction=id)
        if found[id].state is not TransactionState.OPEN:
            raise errors.TransactionNotOpen(transaction=id, state=found[id].state)
        owner, attempt = found[id].attempt, caller.attempt
        if attempt is not None and owner is not None and owner != attempt:
            raise errors.AttemptSuperseded(
                key=attempt.key, epoch=attempt.epoch, newest=owner.epoch, state="not the owner"
            )
    moment = now(connection)
    for id in ids:
        _abort(connection, found[id], actor=caller.actor, kind=kind, at=moment)


def _abort(
    connection: Connection, transaction: Transaction, *, actor: str, kind: str, at: Instant
) -> None:
    _set_heads_back(connection, transaction.id, transaction.parent)
    close_aborted(connection, [transaction.id], at)
    record_event(
        connection,
        at=at,
        actor=actor,
        kind=kind,
        dataset=transaction.dataset_id,
        branch=transaction.branch,
        transaction=transaction.id,
        original_actor=transaction.actor,
    )


# Writes of one transaction


def add_on_branch(
    name: str,
    dataset: DatasetId,
    *,
    branch: nouns.Branch | None,
    source: nouns.Branch | None,
    type: TransactionType,
    version: Version | None,
    objects: frozenset[str] = frozenset(),
    provenance: changes.Provenance | None = None,
    renamed_from: TransactionId | None = None,
) -> list[changes.Change]:
    """Return the changes that add a transaction to a branch, created from `source` if missing."""
    steps: list[changes.Change] = []
    if branch is None:
        made = changes.CreateBranch(dataset=dataset, name=name, **nouns.branch_off(source))
        steps.append(made)
        id, view = made.id, made.view
    else:
        id, view = branch.id, branch.view
        if view is None and version is not None:
            # The branch shows nothing yet: all of its content is new.
            type = TransactionType.SNAPSHOT
    steps.append(
        changes.AddTransaction(
            branch=id,
            expected_head=view,
            expected_view=view,
            parent=view,
            type=type,
            version=version,
            objects=objects,
            provenance=provenance or changes.Provenance(),
            renamed_from=renamed_from,
        )
    )
    return steps
