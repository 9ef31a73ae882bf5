"""The one door: every change of what any branch shows is one call of `publish`.

One SQL transaction, in this order: the operation may be on record already; locks; the attempt
fence; the expected heads and views; nothing condemned; then all effects and the publication.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from headgate.catalog.chunks import in_chunks
from headgate.catalog.database import Database, now
from headgate.catalog.find import Steps
from headgate.catalog.intents import after_recovery, check_no_foreign_intent, check_own_intent
from headgate.catalog.locks import (
    branches_with_head,
    lock_attempt,
    lock_branches,
    lock_counter,
    lock_transactions,
    lock_units,
)
from headgate.catalog.operations import claim_operation, find_receipt, record_outcome
from headgate.catalog.picture import Picture, check_condemned, check_read, look_at
from headgate.catalog.recording import added_rows, close_committed, write_publication
from headgate.catalog.rows import dataset_name, dump
from headgate.catalog.schema import (
    branches,
    condemned_objects,
    datasets,
    protected_branches,
    transactions,
    versions,
    working_objects,
)
from headgate.catalog.taking_off import take_off
from headgate.catalog.transactions import end_expired
from headgate.catalog.writes import (
    close_aborted,
    hand_down_ancestry,
    insert_versions,
)
from headgate.errors import (
    BranchExists,
    BranchProtected,
    CatalogUnavailable,
    CommitInterrupted,
    HeadgateError,
    HolderExpired,
    OutcomeUnknown,
    VersionExpired,
    ViewConflict,
)
from headgate.model.changes import (
    AddTransaction,
    CommitTransaction,
    CreateBranch,
    DeleteBranch,
    MoveBranch,
    PublishRequest,
    Receipt,
)
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import (
    BranchId,
    DatasetId,
    Instant,
    OperationId,
    PublicationNumber,
    TransactionId,
    VersionId,
    mint_operation,
)
from headgate.model.names import DatasetName

# Built once: making a statement costs more than running it.
_NAMES = select(datasets.c.id, datasets.c.namespace, datasets.c.name.label("dataset_name")).where(
    datasets.c.id.in_(bindparam("ids", expanding=True))
)
_TAKEN = select(branches.c.id, branches.c.dataset_id, branches.c.name).where(
    branches.c.dataset_id.in_(bindparam("ids", expanding=True)),
    branches.c.name.in_(bindparam("names", expanding=True)),
)
_PROTECTED = select(protected_branches.c.name)
_CONDEMNED_VERSIONS = select(versions.c.id).where(
    versions.c.id.in_(bindparam("ids", expanding=True)), versions.c.condemned_at.is_not(None)
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
    """A branch joined or left an OPEN transaction between looking and locking."""


def publish(
    database: Database, request: PublishRequest, *, operation: OperationId | None = None
) -> Receipt:
    """Makes all changes visible at once, or raises and changes nothing."""
    return publish_prepared(database, lambda _: request, operation=operation)


def publish_prepared(
    database: Database,
    prepare: Callable[[Connection], PublishRequest],
    *,
    operation: OperationId | None = None,
) -> Receipt:
    """As `publish`, for a request that is read, decided and made in the same unit of work."""
    id = operation or mint_operation()
    receipt = after_recovery(database, lambda: _through(database, prepare, id))
    reach(Failpoint.PUBLISH_COMMITTED)
    return receipt


def _through(
    database: Database, prepare: Callable[[Connection], PublishRequest], id: OperationId
) -> Receipt:
    while True:
        try:
            return database.write(lambda c: publish_in(c, prepare(c), id))
        except _BranchesChanged:
            continue
        except HolderExpired as refused:
            holder = TransactionId(refused.facts["transaction"])
            end_expired(database, holder, actor=refused.wanted_by)
        except CommitInterrupted as interrupted:
            return _look_up(database, id, interrupted)


def publish_in(connection: Connection, request: PublishRequest, operation: OperationId) -> Receipt:
    """The door itself, inside a unit of work that the caller commits."""
    if request.operation is not None:
        recorded = claim_operation(connection, operation, request.operation)
        if recorded is not None:
            return recorded
    picture = _lock(connection, request)
    counter = lock_counter(connection)
    reach(Failpoint.PUBLISH_LOCKED)
    _check(connection, picture)
    began = [picture.transactions[closed.id].opened_at for closed in picture.committed]
    at = Instant(max(picture.now, counter.last_at + 1, *began))
    if not picture.moves:
        return _outcome(connection, picture, operation, publication=None, at=at)
    number = PublicationNumber(counter.number + 1)
    _write_effects(connection, picture, number, at)
    write_publication(connection, picture, operation, number, at)
    receipt = _outcome(connection, picture, operation, publication=number, at=at)
    reach(Failpoint.PUBLISH_APPLIED)
    return receipt


def rehearse_in(connection: Connection, request: PublishRequest) -> None:
    """Everything the door would check, and nothing that it would change.

    An operation with an effect outside does this first: a refusal now costs nothing to undo.
    """
    _check(connection, _lock(connection, request))


def _lock(connection: Connection, request: PublishRequest) -> Picture:
    if request.attempt is not None:
        lock_attempt(connection, request.attempt)
    closing = [c.transaction for c in request.changes if isinstance(c, CommitTransaction)]
    units = lock_units(connection, closing) if closing else []
    shared = _shared_transactions(request)
    sharing = set(branches_with_head(connection, shared))
    below = _children_of_deleted(connection, request)
    locked = lock_branches(connection, sharing | below | _named_branches(request))
    if shared and set(branches_with_head(connection, shared)) != sharing:
        raise _BranchesChanged
    wanted = shared | {b.head for b in locked.values() if b.head != b.view and b.head}
    for change in request.changes:
        if isinstance(change, MoveBranch) and change.to:
            wanted.add(change.to)
        elif isinstance(change, CreateBranch):
            wanted |= {id for id in (change.head, change.view) if id is not None}
        elif isinstance(change, AddTransaction) and change.parent != change.expected_view:
            wanted |= {change.parent} if change.parent else set()
    steps = Steps(connection)
    steps.prepare_parents(c.parent for c in request.changes if isinstance(c, AddTransaction))
    return Picture(
        request=request,
        now=now(connection),
        branches=locked,
        transactions=lock_transactions(connection, wanted),
        dataset_names=_names(connection, request),
        steps=steps,
        units=units,
    )


def _shared_transactions(request: PublishRequest) -> set[TransactionId]:
    """Transactions that several branches may have as their head: all of them are locked."""
    shared: set[TransactionId] = set()
    for change in request.changes:
        if isinstance(change, CommitTransaction):
            shared.add(change.transaction)
        elif isinstance(change, DeleteBranch) and change.expected_head != change.expected_view:
            shared |= {change.expected_head} if change.expected_head else set()
    return shared


def _named_branches(request: PublishRequest) -> set[BranchId]:
    named = {read.branch for read in request.reads}
    for change in request.changes:
        if isinstance(change, CreateBranch):
            named |= {change.parent} if change.parent else set()
        elif not isinstance(change, CommitTransaction):
            named.add(change.branch)
    return named


def _children_of_deleted(connection: Connection, request: PublishRequest) -> set[BranchId]:
    """Their parent will change: locked in order with all others, so that nobody deadlocks."""
    deleted = [c.branch for c in request.changes if isinstance(c, DeleteBranch)]
    if not deleted:
        return set()
    query = select(branches.c.id).where(branches.c.parent_id.in_(deleted))
    return {BranchId(id) for id in connection.execute(query).scalars()}


def _names(connection: Connection, request: PublishRequest) -> dict[DatasetId, DatasetName]:
    wanted = {c.dataset for c in request.changes if isinstance(c, CreateBranch)}
    found: dict[DatasetId, DatasetName] = {}
    for part in in_chunks(wanted):
        rows = connection.execute(_NAMES, {"ids": part}).mappings()
        found |= {DatasetId(row["id"]): dataset_name(row) for row in rows}
    return found


def _check(connection: Connection, picture: Picture) -> None:
    request = picture.request
    if request.intent is not None:
        check_own_intent(connection, request.intent)
    for read in request.reads:
        check_read(picture, read)
    for change in request.changes:
        look_at(picture, change)
    if picture.mismatches:
        raise ViewConflict(picture.mismatches)
    check_no_foreign_intent(connection, [m.branch for m in picture.moves], request.intent)
    _check_names_free(connection, picture)
    _check_protection(connection, picture)
    _check_nothing_condemned(connection, picture)


def _check_names_free(connection: Connection, picture: Picture) -> None:
    deleted = {b.id for b in picture.deleted}
    wanted = {(change.dataset, change.name) for change in picture.created}
    for part in in_chunks(dataset for dataset, _ in wanted):
        names = sorted({name for dataset, name in wanted if dataset in part})
        for id, dataset, name in connection.execute(_TAKEN, {"ids": part, "names": names}):
            if (dataset, name) in wanted and id not in deleted:
                raise BranchExists(dataset=str(picture.dataset_names[dataset]), branch=name)


def _check_protection(connection: Connection, picture: Picture) -> None:
    if picture.request.may_write_protected:
        return
    moved = {m.branch.name for m in picture.moves if m.from_view != m.to_view}
    for name in connection.execute(_PROTECTED).scalars():
        if name in moved:
            raise BranchProtected(branch=name)


def _check_nothing_condemned(connection: Connection, picture: Picture) -> None:
    for ids in in_chunks(picture.versions):
        found = connection.execute(_CONDEMNED_VERSIONS, {"ids": ids}).scalars()
        check_condemned(picture, {VersionId(id) for id in found})
    for query, keys in (
        (_CONDEMNED_REUSED, [closed.id for closed in picture.committed]),
        (_CONDEMNED_OBJECT, picture.objects),
    ):
        for part in in_chunks(keys):
            location = connection.execute(query, {"ids": part}).scalar_one_or_none()
            if location is not None:
                raise VersionExpired(what=f"object {location}")


def _write_effects(
    connection: Connection, picture: Picture, number: PublicationNumber, at: Instant
) -> None:
    added_versions = [
        (t.branch.dataset_id, t.version) for t in picture.added if t.version is not None
    ]
    insert_versions(connection, added_versions, at)
    if picture.added:
        connection.execute(insert(transactions), added_rows(picture, number, at))
    if picture.committed:
        close_committed(connection, picture, number, at)
    close_aborted(connection, picture.aborted, at)
    for branch, before, after in picture.taken_off:
        take_off(connection, branch, before, after, picture.steps)
    for gone in picture.deleted:
        hand_down_ancestry(connection, gone)
        connection.execute(delete(branches).where(branches.c.id == gone.id))
    if picture.created:
        connection.execute(insert(branches), _created_rows(picture, at))
    moved = [picture.branches[id] for id in picture.touched if id in picture.branches]
    if moved:
        connection.execute(
            _MOVE, [{"the_branch": b.id, "the_head": b.head, "the_view": b.view} for b in moved]
        )


def _created_rows(picture: Picture, at: Instant) -> list[dict[str, object]]:
    return [
        {
            "id": change.id,
            "dataset_id": change.dataset,
            "name": change.name,
            "parent_id": change.parent,
            "head_id": picture.branches[change.id].head,
            "view_id": picture.branches[change.id].view,
            "remembered_chain": (
                dump(list(change.remembered_chain)) if change.remembered_chain else None
            ),
            "made_for": change.made_for,
            "created_at": at,
        }
        for change in picture.created
    ]


def _outcome(
    connection: Connection,
    picture: Picture,
    operation: OperationId,
    *,
    publication: PublicationNumber | None,
    at: Instant,
) -> Receipt:
    receipt = Receipt(
        operation=operation,
        publication=publication,
        at=at,
        transactions={m.branch.id: m.to_view for m in picture.moves},
    )
    if picture.request.operation is not None:
        record_outcome(connection, operation, publication, at, receipt.transactions)
    return receipt


def _look_up(database: Database, operation: OperationId, interrupted: CommitInterrupted) -> Receipt:
    """What became of a COMMIT whose connection broke: done, not done, or unknown."""

    def ask(connection: Connection) -> Receipt | None:
        # An unfinished publication still holds the counter, so having it means they are over.
        lock_counter(connection)
        return find_receipt(connection, operation)

    try:
        receipt = database.write(ask)
    except HeadgateError as error:
        raise OutcomeUnknown(operation=operation) from error
    if receipt is None:
        reason = interrupted.facts["reason"]
        raise CatalogUnavailable(
            where=database.where,
            reason=f"the connection broke before the commit ({reason}); nothing was changed",
        ) from interrupted
    return receipt
