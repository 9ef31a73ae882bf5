"""Datasets, namespaces and tags: creating, reading, changing and removing them."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, and_, delete, exists, insert, or_, select, update

from headgate import errors
from headgate.catalog import records
from headgate.catalog.database import as_unit_of_work, now
from headgate.catalog.publish import publish_in
from headgate.catalog.records import check_committed
from headgate.catalog.schema import branches, datasets, namespaces, tags, transactions
from headgate.catalog.transactions import check_may_write
from headgate.model.changes import Caller, CreateBranch, OperationKey, PublishRequest
from headgate.model.contexts import is_moment
from headgate.model.ids import DatasetId, TransactionId, mint_dataset, mint_operation
from headgate.model.names import DatasetName, check_branch_name
from headgate.model.nouns import Dataset, DatasetKind, PublicationKind, Tag


def create_dataset_in(
    connection: Connection,
    name: DatasetName,
    *,
    kind: DatasetKind,
    branch: str | None,
    caller: Caller,
    owned: bool = True,
    id: DatasetId | None = None,
    operation: OperationKey | None = None,
) -> Dataset:
    """Create the namespace, the dataset and, if one is named, an empty root branch, atomically."""
    if branch is not None:
        check_branch_name(branch)
    if (policy := records.policy_of(connection)) is not None:
        # A dataset that is hidden from the caller may exist.
        policy.require_dataset(name)
    if records.find_dataset(connection, name) is not None:
        raise errors.DatasetExists(dataset=str(name))
    ensure_namespace(connection, name.namespace)
    id = id or mint_dataset()
    connection.execute(
        insert(datasets).values(
            id=id,
            namespace=records.namespace_key(name.namespace),
            name=name.name,
            kind=kind,
            owned=int(owned),
            created_at=now(connection),
        )
    )
    if branch is not None:
        root = CreateBranch(dataset=id, name=branch, parent=None)
        publish_in(
            connection,
            PublishRequest(
                caller=caller, kind=PublicationKind.CREATE, changes=(root,), operation=operation
            ),
            mint_operation(),
        )
    return records.load_dataset(connection, name)


create_dataset = as_unit_of_work(create_dataset_in)


def ensure_namespace(connection: Connection, parts: tuple[str, ...]) -> bool:
    """Create a namespace and its ancestors where they are missing.

    Existing ones are locked, so that they are not dropped before this database transaction ends.
    Return True if this call created the namespace itself.
    """
    made = False
    for depth in range(1, len(parts) + 1):
        key = records.namespace_key(parts[:depth])
        known = connection.execute(
            select(namespaces.c.name).where(namespaces.c.name == key).with_for_update(read=True)
        )
        made = known.one_or_none() is None
        if made:
            connection.execute(insert(namespaces).values(name=key, properties=records.dump({})))
    return made


def create_namespace_in(
    connection: Connection, parts: tuple[str, ...], properties: Mapping[str, str]
) -> None:
    """Create a namespace with properties, and its missing ancestors without properties."""
    if not ensure_namespace(connection, parts):
        raise errors.NamespaceExists(namespace=".".join(parts))
    _set_properties(connection, parts, properties)


def find_namespace(
    connection: Connection, parts: tuple[str, ...], *, lock: bool = False
) -> dict[str, str] | None:
    """Return the properties of a namespace; None if it does not exist."""
    query = select(namespaces.c.properties).where(namespaces.c.name == records.namespace_key(parts))
    text = connection.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    return dict(records.load(text)) if text is not None else None


def update_namespace_in(
    connection: Connection,
    parts: tuple[str, ...],
    *,
    removals: Sequence[str],
    updates: Mapping[str, str],
) -> set[str]:
    """Remove and set properties; return the names of those that were removed."""
    known = find_namespace(connection, parts, lock=True)
    if known is None:
        raise errors.NamespaceNotFound(namespace=".".join(parts))
    kept = {key: value for key, value in known.items() if key not in removals}
    _set_properties(connection, parts, {**kept, **updates})
    return known.keys() - kept.keys()


def _set_properties(
    connection: Connection, parts: tuple[str, ...], properties: Mapping[str, str]
) -> None:
    connection.execute(
        update(namespaces)
        .where(namespaces.c.name == records.namespace_key(parts))
        .values(properties=records.dump(dict(properties)))
    )


def list_namespaces(connection: Connection) -> list[tuple[str, ...]]:
    names = connection.execute(select(namespaces.c.name).order_by(namespaces.c.name)).scalars()
    return [records.namespace_parts(name) for name in names]


# A branch shows a dataset if its view has content, or if its head is an OPEN transaction.
_SHOWS = or_(
    transactions.c.version_id.is_not(None), branches.c.head_id.is_distinct_from(branches.c.view_id)
)
_SHOWN = (
    select(*records.DATASET_NAME, branches.c.name.label("branch"))
    .join_from(datasets, branches, branches.c.dataset_id == datasets.c.id)
    .outerjoin(transactions, transactions.c.id == branches.c.view_id)
    .where(branches.c.head_id.is_not(None), _SHOWS)
    .order_by(datasets.c.namespace, datasets.c.name, branches.c.name)
)


def list_outside_namespaces(connection: Connection) -> list[Dataset]:
    """Return the datasets whose namespace was dropped; their history is kept."""
    known = exists().where(namespaces.c.name == datasets.c.namespace)
    rows = connection.execute(records.DATASETS.where(~known)).mappings()
    return [records.to_dataset(row) for row in rows]


def list_shown(
    connection: Connection, parts: tuple[str, ...] | None = None
) -> list[tuple[DatasetName, str]]:
    """Return what any branch shows in a namespace, or in all dropped ones: datasets and branches.

    A dropped namespace is there again as soon as a branch shows something in it, as after a reset.
    """
    inside = (
        ~exists().where(namespaces.c.name == datasets.c.namespace)
        if parts is None
        else datasets.c.namespace == records.namespace_key(parts)
    )
    rows = connection.execute(_SHOWN.where(inside)).mappings()
    return [(records.dataset_name(row), row["branch"]) for row in rows]


def drop_namespace_in(connection: Connection, parts: tuple[str, ...]) -> None:
    """Drop a namespace in which no branch shows anything; its datasets keep their history."""
    shown = ".".join(parts)
    # Locked before the check: a writer that creates a dataset in it waits, and then recreates it.
    known = find_namespace(connection, parts, lock=True)
    policy = records.policy_of(connection)
    held = list_shown(connection, parts)
    below = [n for n in list_namespaces(connection) if n[: len(parts)] == parts and n != parts]
    if held or (known is not None and below):
        readable = [
            f"{name} on branch {branch!r}"
            for name, branch in held
            if policy is None or (policy.shows_dataset(name) and policy.shows_branch(branch))
        ]
        readable += [f"namespace {'.'.join(n)}" for n in below if policy is None]
        raise errors.NamespaceNotEmpty(
            namespace=shown, held=readable, hidden=len(held) + len(below) - len(readable)
        )
    if known is None:
        raise errors.NamespaceNotFound(namespace=shown)
    connection.execute(delete(namespaces).where(namespaces.c.name == records.namespace_key(parts)))


@as_unit_of_work
def create_tag(
    connection: Connection, dataset: Dataset, name: str, *, at: str, caller: Caller
) -> Tag:
    """Pin a COMMITTED transaction of the dataset under a name; cleanup keeps it."""
    check_branch_name(name, what="tag")
    if is_moment(name):
        reason = "a publication number or time after `@` would have the same name"
        raise errors.InvalidName(what="tag", name=name, reason=reason)
    transaction = records.load_transaction(connection, at)
    if transaction.dataset_id != dataset.id:
        raise errors.NotInHistory(
            dataset=str(dataset.name), branch=transaction.branch, transaction=at
        )
    check_committed(transaction)
    check_may_write(connection, caller, {(transaction.branch, dataset.name)})
    taken = select(tags.c.name).where(tags.c.dataset_id == dataset.id, tags.c.name == name)
    if connection.execute(taken).one_or_none() is not None:
        raise errors.Exists(f"dataset {dataset.name} has a tag {name!r} already.", tag=name)
    connection.execute(
        insert(tags).values(
            dataset_id=dataset.id,
            name=name,
            transaction_id=at,
            actor=caller.actor,
            created_at=now(connection),
        )
    )
    return Tag(dataset=dataset.name, name=name, transaction=TransactionId(at))


def list_tags(connection: Connection, dataset: Dataset | None = None) -> list[Tag]:
    query = (
        select(tags, *records.DATASET_NAME)
        .join(datasets, datasets.c.id == tags.c.dataset_id)
        .order_by(datasets.c.namespace, datasets.c.name, tags.c.name)
    )
    if dataset is not None:
        query = query.where(tags.c.dataset_id == dataset.id)
    return [
        Tag(
            dataset=records.dataset_name(row),
            name=row["name"],
            transaction=TransactionId(row["transaction_id"]),
        )
        for row in connection.execute(query).mappings()
    ]


@as_unit_of_work
def delete_tag(connection: Connection, dataset: Dataset, name: str, *, caller: Caller) -> None:
    named = and_(tags.c.dataset_id == dataset.id, tags.c.name == name)
    pinned = connection.execute(select(tags.c.transaction_id).where(named)).scalar_one_or_none()
    if pinned is None:
        raise errors.TagNotFound(tag=name, dataset=str(dataset.name))
    branch = records.load_transaction(connection, pinned).branch
    check_may_write(connection, caller, {(branch, dataset.name)})
    connection.execute(delete(tags).where(named))
