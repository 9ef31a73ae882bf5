"""Verbs on branches: create, delete, restore, reset, reparent, protect.

Each verb that changes a view or the set of branches reads, decides and publishes through the door.
See ADR 0013.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, delete, exists, insert, select, update

from headgate import errors
from headgate.catalog import records, schema
from headgate.catalog.database import Database, as_unit_of_work, now, repeat_overtaken
from headgate.catalog.publish import publish, publish_prepared
from headgate.catalog.records import check_committed
from headgate.catalog.resolve import check_exists, find_tagged
from headgate.catalog.transactions import check_may_write, find_protections, record_event
from headgate.model import changes, nouns
from headgate.model.access import ALL, Protections, check_patterns
from headgate.model.ids import BranchId
from headgate.model.names import check_branch_name


def create_branch(
    database: Database,
    dataset: nouns.Dataset,
    name: str,
    *,
    parent: str | None,
    at: str | None = None,
    caller: changes.Caller,
    operation: changes.OperationKey | None = None,
) -> nouns.Branch:
    """Create a root branch, or a child of `parent`.

    A child starts at the head and view of its parent, or at transaction `at`: any COMMITTED one of
    the dataset that is retained, also of a branch that was deleted. Off an OPEN transaction of a
    build or task it starts at the view, so that no attempt moves it.
    """
    check_branch_name(name)

    def request(connection: Connection) -> changes.PublishRequest:
        change = _create_change(connection, dataset, name, parent=parent, at=at)
        return changes.PublishRequest(
            caller=caller, kind=nouns.PublicationKind.CREATE, changes=(change,), operation=operation
        )

    # Where the parent moved between read and lock, the child starts at the new position.
    repeat_overtaken(lambda: publish_prepared(database, request))
    return database.read(lambda connection: records.load_branch(connection, dataset, name))


def _create_change(
    connection: Connection, dataset: nouns.Dataset, name: str, *, parent: str | None, at: str | None
) -> changes.CreateBranch:
    if records.find_branch(connection, dataset.id, name) is not None:
        raise errors.BranchExists(dataset=str(dataset.name), branch=name)
    if parent is None:
        if at is not None:
            raise errors.Invalid("a root has no history: `at` needs a branch to start `from`.")
        return changes.CreateBranch(dataset=dataset.id, name=name, parent=None)
    source = records.load_branch(connection, dataset, parent)
    head, view = source.head, source.view
    if at is not None:
        head = view = _committed(connection, source, at).id
    elif head is not None and head != view:
        attempt = records.load_transactions(connection, [head])[head].attempt
        head = view if attempt is not None else head
    return changes.CreateBranch(
        dataset=dataset.id,
        name=name,
        parent=source.id,
        expected_head=source.head,
        expected_view=source.view,
        head=head,
        view=view,
    )


def delete_branches(
    database: Database,
    targets: Sequence[nouns.Branch],
    *,
    caller: changes.Caller,
    force: bool,
    operation: changes.OperationKey | None = None,
    restorable: bool = True,
) -> changes.Receipt:
    """Delete the branches, all at once; their children move under the grandparent.

    Without `force`, a branch that is the primary one, or that others still use, is not deleted.

    :param restorable: keep a record of each, so that `restore_branches` can bring it back.
    """
    request = changes.PublishRequest(
        caller=caller,
        kind=nouns.PublicationKind.DELETE,
        changes=tuple(
            changes.DeleteBranch(
                branch=b.id, expected_head=b.head, expected_view=b.view, restorable=restorable
            )
            for b in targets
        ),
        operation=operation,
    )

    def prepare(connection: Connection) -> changes.PublishRequest:
        if not force and (uses := _uses(connection, targets)):
            raise errors.BranchInUse(branch=targets[0].name, uses=uses)
        return request

    return publish_prepared(database, prepare)


def _uses(connection: Connection, targets: Sequence[nouns.Branch]) -> list[str]:
    """Return the reasons not to delete these branches, of one name."""
    found, names = [], {b.name for b in targets}
    ids = {b.id for b in targets}
    if records.primary_of(connection) in names:
        found.append("is the primary branch")
    children = select(schema.branches.c.id).where(schema.branches.c.parent_id.is_not(None))
    parts = list(records.in_chunks(ids))
    below = (schema.branches.c.parent_id.in_(part) for part in parts)
    if any(set(connection.execute(children.where(test)).scalars()) - ids for test in below):
        found.append("has child branches")
    opened = select(schema.transactions.c.id).where(
        schema.transactions.c.state == nouns.TransactionState.OPEN
    )
    mine = (schema.transactions.c.branch_id.in_(part) for part in parts)
    if any(connection.execute(opened.where(test).limit(1)).first() for test in mine):
        found.append("has OPEN transactions")
    running = select(schema.builds.c.id).where(
        schema.builds.c.branch.in_(names), schema.builds.c.state == nouns.BuildState.RUNNING
    )
    if connection.execute(running.limit(1)).first() is not None:
        found.append("has running builds")
    return found


def restore_branches(
    database: Database,
    dataset: nouns.Dataset | None,
    name: str,
    *,
    caller: changes.Caller,
    operation: changes.OperationKey | None = None,
) -> changes.Receipt:
    """Restore the branch that was last deleted under this name, of one dataset or of all.

    It gets its id, view and parent back, and the children that no user has moved since. Its head is
    its view: a transaction that was OPEN when it was deleted stays aborted.
    """
    check_branch_name(name)

    def request(connection: Connection) -> changes.PublishRequest:
        if dataset is not None:
            # Before other refusals, which would tell what the caller may not change.
            check_may_write(connection, caller, {(name, dataset.name)})
        return changes.PublishRequest(
            caller=caller,
            kind=nouns.PublicationKind.RESTORE,
            changes=tuple(_restored(connection, name, dataset)),
            operation=operation,
        )

    return publish_prepared(database, request)


def _restored(
    connection: Connection, name: str, dataset: nouns.Dataset | None
) -> list[changes.CreateBranch]:
    deleted = schema.deleted_branches
    query = (
        select(deleted, *records.DATASET_NAME)
        .join(schema.datasets, schema.datasets.c.id == deleted.c.dataset_id)
        .order_by(deleted.c.publication)
    )
    if dataset is not None:
        query = query.where(deleted.c.dataset_id == dataset.id)
    policy = records.policy_of(connection)

    def shown(query: Select[Any]) -> Iterator[RowMapping]:
        for row in connection.execute(query).mappings():
            if policy is None or policy.shows_dataset(records.dataset_name(row)):
                yield row

    # The newest deletion of each dataset that the caller may read.
    found = {row["dataset_id"]: row for row in shown(query.where(deleted.c.name == name))}
    views = records.load_transactions(
        connection, [row["view_id"] for row in found.values() if row["view_id"]]
    )
    expired = {
        id for id, row in found.items() if row["view_id"] and views[row["view_id"]].condemned
    }
    if dataset is None and len(expired) < len(found):
        # Deleted so long ago that nothing is left of them.
        found = {id: row for id, row in found.items() if id not in expired}
    taken = records.branches_named(connection, [name], list(found))
    if dataset is not None and not taken:
        taken = records.branches_named(connection, [name], [dataset.id])
    if taken:
        raise errors.RestoreRefused(branch=name, datasets=[str(branch.dataset) for branch in taken])
    if not found:
        known = (row["name"] for row in shown(query))
        raise errors.DeletedBranchNotFound(
            branch=name,
            dataset=str(dataset.name) if dataset else None,
            near=records.nearest_branch(connection, name, known),
        )
    return [
        changes.CreateBranch(
            id=row["id"],
            dataset=row["dataset_id"],
            name=name,
            parent=None,
            head=row["view_id"],
            view=row["view_id"],
            remembered_chain=tuple(records.load(row["remembered_chain"] or "[]")),
            deleted_in=row["publication"],
        )
        for row in found.values()
    ]


def reset_branch(
    database: Database,
    dataset: nouns.Dataset,
    name: str,
    *,
    to: str,
    caller: changes.Caller,
    operation: changes.OperationKey | None = None,
) -> changes.Receipt:
    """Move a branch to a COMMITTED transaction of its dataset that is retained, of any branch."""

    def decide(connection: Connection) -> changes.MoveBranch:
        branch = records.load_branch(connection, dataset, name)
        return changes.MoveBranch(
            branch=branch.id,
            expected_head=branch.head,
            expected_view=branch.view,
            to=_committed(connection, branch, to).id,
        )

    change = database.read(decide)
    return publish(
        database,
        changes.PublishRequest(
            caller=caller,
            kind=nouns.PublicationKind.RESET,
            changes=() if change.to == change.expected_view == change.expected_head else (change,),
            operation=operation,
        ),
    )


def _committed(connection: Connection, branch: nouns.Branch, id: str) -> nouns.Transaction:
    """Return a transaction of the branch's dataset that a branch may show, or raise.

    :param id: the transaction, or a tag of the dataset.
    """
    tagged = find_tagged(connection, id, [branch.dataset_id]).get(branch.dataset_id)
    if tagged is not None and records.find_transaction(connection, tagged) is None:
        # The caller may not read it, so that the tag does not exist for it either.
        tagged = None
    transaction = records.load_transaction(connection, tagged or id)
    if transaction.dataset_id != branch.dataset_id:
        raise errors.NotInHistory(
            dataset=str(branch.dataset), branch=branch.name, transaction=transaction.id
        )
    check_committed(transaction)
    return transaction


@as_unit_of_work
def reparent_branch(
    connection: Connection,
    dataset: nouns.Dataset,
    name: str,
    *,
    under: str | None,
    caller: changes.Caller,
) -> nouns.Branch:
    """Correct the recorded parent of a branch; no transaction moves, no view changes."""
    # Two at once, each valid alone, could form a cycle: this lock serializes a dataset's.
    connection.execute(
        select(schema.datasets.c.id)
        .where(schema.datasets.c.id == dataset.id)
        .with_for_update(key_share=True)
    )
    branch = records.load_branch(connection, dataset, name)
    parent = records.load_branch(connection, dataset, under) if under is not None else None
    check_may_write(connection, caller, {(name, dataset.name)})
    locked = records.lock_branches(connection, [b.id for b in (branch, parent) if b is not None])
    for one in (branch, parent):
        if one is not None and one.id not in locked:
            raise errors.BranchNotFound(dataset=str(dataset.name), branch=one.name)
    # By id: the caller may not be allowed to read all of these branches.
    known = {one.id: one for one in records.branches_of(connection, [dataset.id])}
    above = parent
    while above is not None:
        if above.id == branch.id:
            raise errors.Invalid(
                f"branch {under!r} is below {name!r} on {dataset.name}: "
                "a branch cannot be its own ancestor.",
                dataset=str(dataset.name),
            )
        above = known.get(above.parent_id) if above.parent_id else None
    connection.execute(
        update(schema.branches)
        .where(schema.branches.c.id == branch.id)
        .values(
            parent_id=parent.id if parent else None,
            declared_parent_id=parent.id if parent else None,
        )
    )
    record_event(
        connection,
        at=now(connection),
        actor=caller.actor,
        kind="reparented",
        dataset=dataset.id,
        branch=name,
        under=under,
        was=branch.parent,
    )
    return records.load_branch(connection, dataset, name)


@as_unit_of_work
def protect_branch(
    connection: Connection,
    name: str,
    *,
    actor: str,
    protected: bool = True,
    datasets: Sequence[str] = ALL,
) -> None:
    """Protect a branch name on the datasets that patterns match, or remove its protection.

    A protected name accepts writes only from builds of clean commits and from admins.
    """
    check_branch_name(name)
    patterns = check_patterns(datasets, what="protected datasets")
    if (policy := records.policy_of(connection)) is not None:
        before = find_protections(connection).get(name, ())
        policy.require_patterns((*before, *patterns) if protected else before)
    connection.execute(
        delete(schema.protected_branches).where(schema.protected_branches.c.name == name)
    )
    moment = now(connection)
    if protected:
        check_exists(connection, [name])
        connection.execute(
            insert(schema.protected_branches).values(
                name=name, actor=actor, created_at=moment, datasets=records.dump([*patterns])
            )
        )
    kind = "protected" if protected else "unprotected"
    facts: dict[str, Any] = {} if patterns == ALL else {"datasets": [*patterns]}
    record_event(connection, at=moment, actor=actor, kind=kind, branch=name, **facts)


def list_protected(connection: Connection) -> Protections:
    """Return the protected branch names, with their patterns, that the caller may read."""
    return find_protections(connection).shown_to(records.policy_of(connection))


# Tries to drop branches while other writers begin to use some of them.
_DROP_TRIES = 3


def drop_unused_branches(
    database: Database, candidates: Iterable[BranchId], *, actor: str
) -> list[nouns.Branch]:
    """Delete and return the candidates that were made for work of which nothing was committed.

    They would only hide other branches.
    """
    wanted = list(candidates)
    for _ in range(_DROP_TRIES):
        unused = database.read(partial(_unused, ids=wanted))
        if not unused:
            break
        try:
            delete_branches(
                database,
                unused,
                caller=changes.Caller(actor=actor, may_write_protected=True),
                force=True,
                restorable=False,
            )
            return unused
        except errors.Conflict:
            # Another writer began to use one of them: read again.
            continue
    return []


def _unused(connection: Connection, ids: Iterable[BranchId]) -> list[nouns.Branch]:
    committed = exists().where(
        schema.transactions.c.branch_id == schema.branches.c.id,
        schema.transactions.c.state == nouns.TransactionState.COMMITTED,
    )
    query = records.BRANCHES.where(
        schema.branches.c.made_for.is_not(None),
        schema.branches.c.head_id.is_not_distinct_from(schema.branches.c.view_id),
        ~committed,
    )
    rows = records.mappings_of(connection, query, ids, column=schema.branches.c.id)
    return [records.to_branch(row) for row in rows]
