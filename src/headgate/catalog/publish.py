"""The door: `publish` is the only function that changes a view or the set of branches.

Each publication is one SQL transaction, in this order: return the receipt of an operation that is
already recorded; check the attempt fence and lock the rows; check the expected heads and views,
and that nothing is condemned; write all effects and the publication.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import TypeGuard

from sqlalchemy import Connection, bindparam, delete, insert, select, union, update

from headgate import errors
from headgate.catalog import records
from headgate.catalog.database import NOW, Database, note_written
from headgate.catalog.effects import LockedState, check_condemned, check_read, record_effects
from headgate.catalog.operations import claim_operation, find_receipt, record_outcome
from headgate.catalog.schema import (
    branches,
    condemned_objects,
    datasets,
    deleted_branches,
    holds,
    log_counter,
    moves,
    publications,
    transactions,
    units,
    versions,
    working_objects,
)
from headgate.catalog.transactions import (
    PROTECTED,
    check_protected,
    close_aborted,
    end_expired,
    insert_versions,
    keep_deleted,
    reparent_children,
    restore_parents,
    to_protections,
)
from headgate.model import changes
from headgate.model.ancestry import common_ancestor
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import (
    BranchId,
    Instant,
    OperationId,
    PublicationNumber,
    TransactionId,
    mint_operation,
)
from headgate.model.nouns import PublicationKind, TransactionState

# Rows of a publication: transactions, number, moves.

# Built once: constructing a statement costs more than executing it.
_CLOSE = (
    update(transactions)
    .where(transactions.c.id == bindparam("the_id"))
    .values(
        state=TransactionState.COMMITTED,
        closed_at=bindparam("the_time"),
        publication=bindparam("the_publication"),
        type=bindparam("the_type"),
    )
)
_CLOSE_WITH_PROVENANCE = _CLOSE.values(
    inputs_key=bindparam("the_inputs_key"),
    build_key=bindparam("the_build_key"),
    adoptable=bindparam("the_adoptable"),
    provenance=bindparam("the_provenance"),
)
_FORGET_OBJECTS = delete(working_objects).where(
    working_objects.c.transaction_id.in_(bindparam("ids", expanding=True))
)
_ADD, _PUBLISHED, _MOVED = insert(transactions), insert(publications), insert(moves)
_COUNT = (
    update(log_counter)
    .where(log_counter.c.id == 1)
    .values(number=bindparam("the_number"), last_at=bindparam("the_time"))
)


def added_rows(
    state: LockedState, number: PublicationNumber, at: Instant
) -> list[dict[str, object]]:
    caller = state.request.caller
    return [
        {
            "id": t.id,
            "dataset_id": t.branch.dataset_id,
            "branch_id": t.branch.id,
            "branch_name": t.branch.name,
            "parent_id": t.change.parent,
            "depth": t.depth,
            "jump_id": t.jump,
            "type": t.change.type,
            "state": TransactionState.COMMITTED,
            "version_id": t.change.version.id if t.change.version else None,
            "actor": caller.actor,
            "opened_at": at,
            "closed_at": at,
            "attempt_key": caller.attempt.key if caller.attempt else None,
            "attempt_epoch": caller.attempt.epoch if caller.attempt else None,
            "publication": number,
            "inputs_key": t.change.provenance.inputs_key,
            "build_key": t.change.provenance.build_key,
            "adoptable": int(t.change.provenance.adoptable),
            "provenance": records.dump(dict(t.change.provenance.facts)),
            "renamed_from": t.change.renamed_from,
        }
        for t in state.added
    ]


def close_committed(
    connection: Connection, state: LockedState, number: PublicationNumber, at: Instant
) -> None:
    same = {"the_time": at, "the_publication": number}
    plain = [
        {**same, "the_id": c.transaction, "the_type": c.type}
        for c in state.committed
        if c.provenance is None
    ]
    known = [
        {
            **same,
            "the_id": c.transaction,
            "the_type": c.type,
            "the_inputs_key": c.provenance.inputs_key,
            "the_build_key": c.provenance.build_key,
            "the_adoptable": int(c.provenance.adoptable),
            "the_provenance": records.dump(dict(c.provenance.facts)),
        }
        for c in state.committed
        if c.provenance is not None
    ]
    if plain:
        connection.execute(_CLOSE, plain)
    if known:
        connection.execute(_CLOSE_WITH_PROVENANCE, known)
    if state.units:
        connection.execute(
            update(units)
            .where(units.c.id.in_(state.units))
            .values(state=TransactionState.COMMITTED)
        )
    for part in records.in_chunks(c.transaction for c in state.committed):
        connection.execute(_FORGET_OBJECTS, {"ids": part})


def write_publication(
    connection: Connection,
    state: LockedState,
    operation: OperationId,
    number: PublicationNumber,
    at: Instant,
) -> None:
    connection.execute(_COUNT, {"the_number": number, "the_time": at})
    connection.execute(
        _PUBLISHED,
        {
            "number": number,
            "at": at,
            "actor": state.request.caller.actor,
            "kind": state.request.kind,
            "operation_id": operation,
        },
    )
    connection.execute(
        _MOVED,
        [
            {
                "publication": number,
                "ordinal": ordinal,
                "dataset_id": move.branch.dataset_id,
                "branch_id": move.branch.id,
                "branch_name": move.branch.name,
                "from_id": move.from_view,
                "to_id": move.to_view,
                "change": move.change,
            }
            for ordinal, move in enumerate(state.moves)
        ],
    )


# Transactions removed by a reset or a replacement, in one statement however many there are.

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
_MARK_REMOVED = (
    update(transactions)
    .where(
        transactions.c.id.in_(select(_gone.c.id)),
        transactions.c.branch_id == bindparam("the_branch"),
        transactions.c.adoptable == 1,
    )
    .values(adoptable=0)
)
# A merge shows a build's version without its key: then the keys of the version count.
_key = transactions.c.inputs_key
_merged = select(_below.c.version_id).where(
    _below.c.id.in_(select(_gone.c.id)), _below.c.inputs_key.is_(None)
)
_gone_keys = union(
    select(_key).where(transactions.c.id.in_(select(_gone.c.id)), _key.is_not(None)),
    select(_key).where(transactions.c.version_id.in_(_merged), _key.is_not(None)),
).subquery("gone_keys")
_HOLD = insert(holds).from_select(
    ["inputs_key", "branch_id", "publication"],
    select(
        _gone_keys.c.inputs_key,
        bindparam("the_branch", type_=holds.c.branch_id.type),
        bindparam("the_number", type_=holds.c.publication.type),
    ),
)
_END_HOLDS = delete(holds).where(
    holds.c.branch_id == bindparam("the_branch"),
    holds.c.inputs_key.in_(select(_gone_keys.c.inputs_key)),
)
_END_HOLD = delete(holds).where(
    holds.c.branch_id == bindparam("the_branch"), holds.c.inputs_key == bindparam("the_key")
)


def mark_removed(
    connection: Connection,
    branch: BranchId,
    before: TransactionId,
    after: TransactionId | None,
    steps: records.Steps,
    *,
    reset: PublicationNumber | None,
) -> None:
    """Mark transactions that a reset or replacement removed from the branch as not adoptable.

    A reset also holds the results that it removes, and ends the holds of those that it shows.
    """
    shared = common_ancestor(steps(before), steps(after), steps) if after else None
    kept = shared.depth if shared else -1
    here = {"the_branch": branch}
    removed = {**here, "the_newest": before, "kept": kept}
    connection.execute(_MARK_REMOVED, removed)
    if reset is not None:
        connection.execute(_END_HOLDS, removed)
        connection.execute(_HOLD, {**removed, "the_number": reset})
        # With the shared transaction: it may be the new view, and have a key of a removed one.
        connection.execute(_END_HOLDS, {**here, "the_newest": after, "kept": kept - 1})


def _end_holds(connection: Connection, state: LockedState) -> None:
    """End the holds of results that a forced build or a merge brings back."""
    made = {t.id: t.change.provenance for t in state.added}
    made |= {c.transaction: c.provenance for c in state.committed if c.provenance is not None}
    brought = [
        {"the_branch": move.branch.id, "the_key": made[move.to_view].inputs_key}
        for move in state.moves
        if move.to_view in made and made[move.to_view].inputs_key is not None
    ]
    if brought:
        connection.execute(_END_HOLD, brought)
    if state.request.kind is PublicationKind.MERGE:
        for move in state.moves:
            if move.to_view is not None:
                here = {"the_branch": move.branch.id, "the_newest": move.to_view}
                kept = state.steps(move.to_view).depth - 1
                connection.execute(_END_HOLDS, {**here, "kept": kept})


# Built once: constructing a statement costs more than executing it.
_NAMES = select(datasets.c.id, *records.DATASET_NAME).where(
    datasets.c.id.in_(bindparam("ids", expanding=True))
)
_TAKEN = select(branches.c.id, branches.c.dataset_id, branches.c.name).where(
    branches.c.dataset_id.in_(bindparam("ids", expanding=True)),
    branches.c.name.in_(bindparam("names", expanding=True)),
)
_CONDEMNED_VERSIONS = select(versions.c.id).where(
    versions.c.id.in_(bindparam("ids", expanding=True)), versions.c.condemned_at.is_not(None)
)
_shown = select(transactions.c.version_id).where(
    transactions.c.id.in_(bindparam("ids", expanding=True))
)
_CONDEMNED_SHOWN = select(versions.c.id).where(
    versions.c.id.in_(_shown), versions.c.condemned_at.is_not(None)
)
_condemned = condemned_objects.c.location
_CONDEMNED_OBJECT = (
    select(_condemned).where(_condemned.in_(bindparam("ids", expanding=True))).limit(1)
)
_CONDEMNED_REUSED = (
    select(_condemned)
    .join(working_objects, working_objects.c.location == _condemned)
    .where(working_objects.c.transaction_id.in_(bindparam("ids", expanding=True)))
    .limit(1)
)
_MOVE = (
    update(branches)
    .where(branches.c.id == bindparam("the_branch"))
    .values(head_id=bindparam("the_head"), view_id=bindparam("the_view"))
)


class _BranchesChanged(Exception):
    """Raised if branches with an OPEN transaction, or a deleted branch, changed before the lock."""


def publish(
    database: Database, request: changes.PublishRequest, *, operation: OperationId | None = None
) -> changes.Receipt:
    """Make all changes visible at once, or raise and change nothing."""
    return publish_prepared(database, lambda _: request, operation=operation)


def publish_prepared(
    database: Database,
    prepare: Callable[[Connection], changes.PublishRequest],
    *,
    operation: OperationId | None = None,
) -> changes.Receipt:
    """Publish a request that `prepare` builds in the same unit of work as the publication."""
    id = operation or mint_operation()
    receipt = _publish(database, prepare, id)
    reach(Failpoint.PUBLISH_COMMITTED)
    return receipt


def _publish(
    database: Database, prepare: Callable[[Connection], changes.PublishRequest], id: OperationId
) -> changes.Receipt:
    while True:
        try:
            return database.write(lambda c: publish_in(c, prepare(c), id))
        except _BranchesChanged:
            continue
        except errors.HolderExpired as refused:
            holder = TransactionId(refused.facts["transaction"])
            end_expired(database, holder, caller=refused.wanted_by)
        except errors.CommitInterrupted as interrupted:
            return _find_lost_receipt(database, id, interrupted)


def publish_in(
    connection: Connection, request: changes.PublishRequest, operation: OperationId
) -> changes.Receipt:
    """Publish inside a unit of work that the caller commits."""
    if request.operation is not None:
        recorded = claim_operation(connection, operation, request.operation)
        if recorded is not None:
            return recorded
    state = _lock(connection, request)
    reach(Failpoint.PUBLISH_LOCKED)
    _check(connection, state)
    began = [state.transactions[closed.transaction].opened_at for closed in state.committed]
    at = Instant(max(state.now, state.counter.last_at + 1, *began))
    if not state.moves:
        return _outcome(connection, state, operation, publication=None, at=at)
    number = PublicationNumber(state.counter.number + 1)
    with records.pipelined(connection) if state.only_writes else nullcontext():
        _write_effects(connection, state, number, at)
        write_publication(connection, state, operation, number, at)
        receipt = _outcome(connection, state, operation, publication=number, at=at)
    note_written(connection, at, operation, publishes=True)
    reach(Failpoint.PUBLISH_APPLIED)
    return receipt


def _lock(connection: Connection, request: changes.PublishRequest) -> LockedState:
    """Lock the rows in their order, and read what is checked, in one round trip if possible."""
    if request.caller.attempt is not None:
        records.lock_attempt(connection, request.caller.attempt)
    closing = [c.transaction for c in request.changes if isinstance(c, changes.CommitTransaction)]
    added = [c for c in request.changes if isinstance(c, changes.AddTransaction)]
    created = [c for c in request.changes if isinstance(c, changes.CreateBranch)]
    units = records.lock_units(connection, closing) if closing else []
    shared = _shared_transactions(request)
    sharing = set(records.branches_with_head(connection, shared))
    below = _related_branches(connection, request)
    targets = {c.view for c in created}
    targets |= {c.to for c in request.changes if isinstance(c, changes.MoveBranch)}
    wanted = shared | targets | {c.head for c in created}
    wanted |= {c.parent for c in added if c.parent != c.expected_view}
    kinds = (changes.AddTransaction, changes.CommitTransaction)
    used = [c.version.id for c in request.changes if isinstance(c, kinds) and c.version]
    steps = records.Steps(connection)
    ask = partial(records.ask, connection)
    with records.pipelined(connection):
        locked = ask(records.BRANCH_LOCKS, sharing | below | _named_branches(request))
        sharing_now = ask(records.BRANCHES_WITH_HEAD, shared)
        steps.prepare_parents(c.parent for c in added)
        moment = ask(NOW[connection.dialect.name])
        read = ask(records.TRANSACTION_LOCKS, filter(None, wanted))
        names = ask(_NAMES, {c.dataset for c in created})
        counter = ask(records.COUNTER_LOCK)
        taken = ask(_TAKEN, {c.dataset for c in created}, names=sorted({c.name for c in created}))
        protected = iter(()) if request.caller.may_write_protected else ask(PROTECTED)
        condemned = [ask(_CONDEMNED_VERSIONS, used), ask(_CONDEMNED_SHOWN, filter(None, targets))]
        objects = chain.from_iterable(c.objects for c in added)
        gone = [ask(_CONDEMNED_REUSED, closing), ask(_CONDEMNED_OBJECT, objects)]
    states = records.to_branch_states(locked)
    if {id for id, _ in sharing_now} != sharing:
        raise _BranchesChanged
    found = records.to_transactions(connection, read)
    # OPEN heads, which do not end while their branches are locked; errors name their holders.
    heads = {b.head for b in states.values() if b.head != b.view and b.head}
    return LockedState(
        request=request,
        counter=records.to_counter(counter),
        now=Instant(next(moment)[0]),
        branches=states,
        transactions=found | records.load_transactions(connection, heads - found.keys()),
        dataset_names={row.id: records.dataset_name(row._mapping) for row in names},
        steps=steps,
        units=units,
        taken=list(taken),
        protections=to_protections(protected),
        condemned={id for (id,) in chain.from_iterable(condemned)},
        condemned_objects=[location for (location,) in chain.from_iterable(gone)],
    )


def _shared_transactions(request: changes.PublishRequest) -> set[TransactionId]:
    """Return transactions that several branches may have as head; all these branches are locked."""
    shared: set[TransactionId] = set()
    for change in request.changes:
        if isinstance(change, changes.CommitTransaction):
            shared.add(change.transaction)
        elif (
            isinstance(change, changes.DeleteBranch)
            and change.expected_head != change.expected_view
        ):
            shared |= {change.expected_head} if change.expected_head else set()
    return shared


def _named_branches(request: changes.PublishRequest) -> set[BranchId]:
    named = {read.branch for read in request.reads}
    for change in request.changes:
        if isinstance(change, changes.CreateBranch):
            named |= {change.parent} if change.parent else set()
        elif not isinstance(change, changes.CommitTransaction):
            named.add(change.branch)
    return named


def _related_branches(connection: Connection, request: changes.PublishRequest) -> set[BranchId]:
    """Return the branches whose parent may change: children of deleted, relatives of restored ones.

    They are locked in order together with all other branches, which prevents deadlocks.
    """
    deleted = [c.branch for c in request.changes if isinstance(c, changes.DeleteBranch)]
    restored = {c.dataset for c in request.changes if _is_restored(c)}
    return {
        BranchId(id)
        for column, ids in ((branches.c.parent_id, deleted), (branches.c.dataset_id, restored))
        if ids
        for (id,) in records.rows_of(connection, select(branches.c.id), ids, column=column)
    }


def _is_restored(change: changes.Change) -> TypeGuard[changes.CreateBranch]:
    return isinstance(change, changes.CreateBranch) and change.deleted_in is not None


def _check(connection: Connection, state: LockedState) -> None:
    request = state.request
    for read in request.reads:
        check_read(state, read)
    for change in request.changes:
        record_effects(state, change)
    if state.mismatches:
        raise errors.ViewConflict(state.mismatches)
    _check_names_free(state)
    moves = [m for m in state.moves if m.change != "moved" or m.from_view != m.to_view]
    moved = {(m.branch.name, m.branch.dataset) for m in moves}
    check_protected(connection, state.protections, moved)
    if request.caller.check_write is not None:
        for branch in _written(state):
            request.caller.check_write(branch.name, branch.dataset)
    check_condemned(state)
    for location in state.condemned_objects:
        raise errors.VersionExpired(what=f"object {location}")


def _written(state: LockedState) -> list[records.BranchState]:
    """Return the branches that the request names; the others move as children of an OPEN head."""
    named = set(_named_branches(state.request)) | {change.id for change in state.created}
    named |= {state.transactions[c.transaction].branch_id for c in state.committed}
    return [move.branch for move in state.moves if move.branch.id in named]


def _check_names_free(state: LockedState) -> None:
    deleted = {b.id for b, _ in state.deleted}
    wanted = {(change.dataset, change.name) for change in state.created}
    for id, dataset, name in state.taken:
        if (dataset, name) in wanted and id not in deleted:
            raise errors.BranchExists(dataset=str(state.dataset_names[dataset]), branch=name)


def _write_effects(
    connection: Connection, state: LockedState, number: PublicationNumber, at: Instant
) -> None:
    added_versions = [
        (t.branch.dataset_id, t.change.version) for t in state.added if t.change.version is not None
    ]
    insert_versions(connection, added_versions, at)
    if state.added:
        connection.execute(_ADD, added_rows(state, number, at))
    if state.committed:
        close_committed(connection, state, number, at)
    close_aborted(connection, state.aborted, at)
    reset = number if state.request.kind is PublicationKind.RESET else None
    for branch, before, after in state.removed:
        mark_removed(connection, branch, before, after, state.steps, reset=reset)
    _end_holds(connection, state)
    for gone, restorable in state.deleted:
        reparent_children(connection, gone)
        keep_deleted(connection, gone.id, number if restorable else None)
        connection.execute(delete(branches).where(branches.c.id == gone.id))
    if state.created:
        connection.execute(insert(branches), _created_rows(state, at))
    for change in filter(_is_restored, state.created):
        _take_record(connection, change)
    moved = [state.branches[id] for id in state.touched if id in state.branches]
    if moved:
        connection.execute(
            _MOVE, [{"the_branch": b.id, "the_head": b.head, "the_view": b.view} for b in moved]
        )


def _take_record(connection: Connection, change: changes.CreateBranch) -> None:
    """Give a restored branch its declared parent, and delete the record of its deletion."""
    record = (
        deleted_branches.c.id == change.id,
        deleted_branches.c.publication == change.deleted_in,
    )
    parent = select(deleted_branches.c.declared_parent_id).where(*record).scalar_subquery()
    connection.execute(
        update(branches).where(branches.c.id == change.id).values(declared_parent_id=parent)
    )
    if connection.execute(delete(deleted_branches).where(*record)).rowcount != 1:
        raise _BranchesChanged
    restore_parents(connection, change.dataset)


def _created_rows(state: LockedState, at: Instant) -> list[dict[str, object]]:
    return [
        {
            "id": change.id,
            "dataset_id": change.dataset,
            "name": change.name,
            "parent_id": change.parent,
            "declared_parent_id": change.parent,
            "head_id": state.branches[change.id].head,
            "view_id": state.branches[change.id].view,
            "remembered_chain": (
                records.dump(list(change.remembered_chain)) if change.remembered_chain else None
            ),
            "made_for": change.made_for,
            "created_at": at,
        }
        for change in state.created
    ]


def _outcome(
    connection: Connection,
    state: LockedState,
    operation: OperationId,
    *,
    publication: PublicationNumber | None,
    at: Instant,
) -> changes.Receipt:
    receipt = changes.Receipt(
        operation=operation,
        publication=publication,
        at=at,
        transactions={m.branch.id: m.to_view for m in state.moves},
    )
    if state.request.operation is not None:
        record_outcome(connection, operation, publication, at, receipt.transactions)
    return receipt


def _find_lost_receipt(
    database: Database, operation: OperationId, interrupted: errors.CommitInterrupted
) -> changes.Receipt:
    """Return the receipt of a COMMIT whose connection broke.

    Raise CatalogUnavailable if nothing was committed, OutcomeUnknown if the lookup fails too.
    """

    def work(connection: Connection) -> changes.Receipt | None:
        # An unfinished publication holds the counter's lock, so with the lock none is in progress.
        records.lock_counter(connection)
        return find_receipt(connection, operation)

    try:
        receipt = database.write(work)
    except errors.HeadgateError as error:
        raise errors.OutcomeUnknown(operation=operation) from error
    if receipt is None:
        reason = interrupted.facts["reason"]
        raise errors.CatalogUnavailable(
            where=database.where,
            reason=f"the connection broke before the commit ({reason}); nothing was changed",
        ) from interrupted
    return receipt
