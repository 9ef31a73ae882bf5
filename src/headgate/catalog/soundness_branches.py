"""Whether branches, tags and versions are sound, one by one; and what they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, func, select, union, union_all

from headgate.catalog.rows import dataset_name
from headgate.catalog.schema import branches, datasets, tags, transactions, versions
from headgate.catalog.soundness import RESTORE, Finding
from headgate.model.nouns import DatasetKind, TransactionState

_heads = transactions.alias("heads")
_views = transactions.alias("views")
_parents = branches.alias("parents")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A version that somebody may read at any moment, and one place where."""

    where: str
    kind: DatasetKind
    owned: bool
    location: str


def check_branches(connection: Connection) -> Iterator[Finding]:
    """Head, view and parent of each branch exist and belong together."""
    query = (
        select(
            branches,
            datasets.c.namespace,
            datasets.c.name.label("dataset_name"),
            _heads.c.id.label("found_head"),
            _heads.c.state.label("head_state"),
            _heads.c.parent_id.label("head_parent"),
            _heads.c.dataset_id.label("head_dataset"),
            _views.c.id.label("found_view"),
            _views.c.state.label("view_state"),
            _views.c.dataset_id.label("view_dataset"),
            _parents.c.id.label("found_parent"),
            _parents.c.dataset_id.label("parent_dataset"),
        )
        .join(datasets, datasets.c.id == branches.c.dataset_id)
        .outerjoin(_heads, _heads.c.id == branches.c.head_id)
        .outerjoin(_views, _views.c.id == branches.c.view_id)
        .outerjoin(_parents, _parents.c.id == branches.c.parent_id)
    )
    parents: dict[str, str | None] = {}
    names: dict[str, str] = {}
    for row in connection.execute(query).mappings():
        where = f"{dataset_name(row)}@{row['name']}"
        parents[row["id"]], names[row["id"]] = row["parent_id"], where
        for what in (*_wrong_pointers(row), *_wrong_states(row)):
            yield Finding(what=what, where=where, remedy=RESTORE)
        if row["parent_id"] and row["parent_dataset"] != row["dataset_id"]:
            gone = "does not exist" if row["found_parent"] is None else "is of another dataset"
            dataset, name = dataset_name(row), row["name"]
            yield Finding(
                what=f"its parent branch {row['parent_id']} {gone}",
                where=where,
                remedy=f"headgate branch reparent {dataset} {name} --under PARENT",
            )
    yield from _cycles(parents, names)


def _wrong_pointers(row: RowMapping) -> Iterator[str]:
    for pointer in ("head", "view"):
        id = row[f"{pointer}_id"]
        if id is None:
            continue
        if row[f"found_{pointer}"] is None:
            yield f"its {pointer} is {id}, which does not exist"
        elif row[f"{pointer}_dataset"] != row["dataset_id"]:
            yield f"its {pointer} is {id}, which is of another dataset"


def _wrong_states(row: RowMapping) -> Iterator[str]:
    """The view is COMMITTED; the head is the view, or OPEN and a child of the view."""
    head, view = row["head_id"], row["view_id"]
    if row["view_state"] not in {None, TransactionState.COMMITTED}:
        yield f"its view {view} is {row['view_state']}, not COMMITTED"
    if head == view:
        return
    if head is None:
        yield f"it has the view {view}, but no head"
    elif row["head_state"] not in {None, TransactionState.OPEN}:
        yield f"its head {head} is {row['head_state']}, but it is not its view"
    elif row["head_state"] and row["head_parent"] != view:
        yield f"its head {head} is OPEN on {row['head_parent'] or 'nothing'}, not on its view"


def _cycles(parents: dict[str, str | None], names: dict[str, str]) -> Iterator[Finding]:
    done: set[str] = set()
    for start in parents:
        path: list[str] = []
        here: str | None = start
        while here is not None and here not in done and here not in path:
            path.append(here)
            here = parents.get(here)
        if here in path:
            ring = [names[id] for id in path[path.index(here) :]]
            yield Finding(
                what=f"it is its own ancestor: {' under '.join([*ring, ring[0]])}",
                where=ring[0],
                remedy="Take one out of the ring: headgate branch reparent DATASET NAME --under …",
            )
        done.update(path)


def check_open(connection: Connection) -> Iterator[Finding]:
    """Every OPEN transaction is the head of some branch, and a branch has one at most."""
    lost = (
        select(transactions.c.id, transactions.c.branch_name)
        .outerjoin(branches, branches.c.head_id == transactions.c.id)
        .where(transactions.c.state == TransactionState.OPEN, branches.c.id.is_(None))
    )
    for id, name in connection.execute(lost):
        yield Finding(
            what=f"transaction {id} is OPEN, but no branch has it as its head",
            where=f"branch {name}",
            remedy=f"headgate txn abort {id}",
        )
    # Counted here: a database that groups them reads all the transactions there are.
    held = select(transactions.c.branch_id, transactions.c.branch_name).where(
        transactions.c.state == TransactionState.OPEN
    )
    counts = Counter((id, name) for id, name in connection.execute(held))
    for (_, name), count in counts.items():
        if count > 1:
            yield Finding(
                what=f"{count} transactions are OPEN on it at once",
                where=f"branch {name}",
                remedy="Abort all but the one that is its head: headgate txn abort TXN",
            )


def check_tags(connection: Connection) -> Iterator[Finding]:
    """Each tag pins a COMMITTED transaction of its dataset."""
    query = (
        select(
            tags.c.name.label("tag"),
            tags.c.transaction_id,
            tags.c.dataset_id,
            transactions.c.state,
            transactions.c.dataset_id.label("found_dataset"),
            datasets.c.namespace,
            datasets.c.name.label("dataset_name"),
        )
        .join(datasets, datasets.c.id == tags.c.dataset_id)
        .outerjoin(transactions, transactions.c.id == tags.c.transaction_id)
    )
    for row in connection.execute(query).mappings():
        same = row["found_dataset"] == row["dataset_id"]
        if not same or row["state"] != TransactionState.COMMITTED:
            state = row["state"] if same else "no transaction of this dataset"
            yield Finding(
                what=f"it pins {row['transaction_id']}, which is {state}",
                where=f"tag {row['tag']} of {dataset_name(row)}",
                remedy=f"headgate tag delete {dataset_name(row)} {row['tag']}",
            )


def check_versions(connection: Connection, *, deep: bool) -> Iterator[Finding]:
    """The version of what branches show, or of every transaction, is on record and alive."""
    needed = union(
        select(branches.c.view_id), select(branches.c.head_id), select(tags.c.transaction_id)
    ).subquery()
    query = (
        select(transactions.c.id, transactions.c.version_id, versions.c.condemned_at)
        .outerjoin(versions, versions.c.id == transactions.c.version_id)
        .where(transactions.c.version_id.is_not(None))
    )
    missing = query.where(versions.c.id.is_(None))
    if not deep:
        missing = missing.where(transactions.c.id.in_(select(needed)))
    for id, version, _ in connection.execute(missing):
        yield Finding(
            what=f"its version {version} is not on record",
            where=f"transaction {id}",
            remedy=RESTORE,
        )
    condemned = query.where(
        versions.c.condemned_at.is_not(None), transactions.c.id.in_(select(needed))
    )
    for id, version, _ in connection.execute(condemned):
        yield Finding(
            what=f"its version {version} is condemned, though a branch or tag needs it",
            where=f"transaction {id}",
            remedy="Run `headgate cleanup`: it spares what is needed again.",
        )


def list_shown(connection: Connection) -> list[Shown]:
    """Every version that branches show, OPEN transactions hold or tags pin, each once."""
    places = union_all(
        select(branches.c.view_id.label("id"), branches.c.name.label("name")),
        select(branches.c.head_id, branches.c.name),
        select(tags.c.transaction_id, tags.c.name),
    ).subquery()
    query = (
        select(
            versions.c.location,
            datasets.c.kind,
            datasets.c.owned,
            datasets.c.namespace,
            datasets.c.name.label("dataset_name"),
            func.min(places.c.name).label("place"),
        )
        .join(transactions, transactions.c.version_id == versions.c.id)
        .join(places, places.c.id == transactions.c.id)
        .join(datasets, datasets.c.id == versions.c.dataset_id)
        .group_by(
            versions.c.location,
            datasets.c.kind,
            datasets.c.owned,
            datasets.c.namespace,
            datasets.c.name,
        )
        .order_by(versions.c.location)
    )
    found: dict[str, Shown] = {}
    for row in connection.execute(query).mappings():
        shown = Shown(
            where=f"{dataset_name(row)}@{row['place']}",
            kind=DatasetKind(row["kind"]),
            owned=bool(row["owned"]),
            location=row["location"],
        )
        found.setdefault(shown.location, shown)
    return list(found.values())
