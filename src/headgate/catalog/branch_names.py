"""Branches by name, over all datasets: how each stands to the branch that it was made off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    case,
    distinct,
    func,
    or_,
    select,
)

from headgate.catalog.rows import dataset_name, namespace_key
from headgate.catalog.schema import branches, datasets, moves, transactions, versions
from headgate.catalog.schema import publications as published
from headgate.model.ids import Instant, TransactionId
from headgate.model.names import DatasetName

_parents = branches.alias("parent_branches")
_ours = transactions.alias("our_views")
_theirs = transactions.alias("their_views")
_our_versions = versions.alias("our_versions")
_their_versions = versions.alias("their_versions")

_DIFFERS: ColumnElement[bool] = func.coalesce(_our_versions.c.content_id, "") != func.coalesce(
    _their_versions.c.content_id, ""
)
# The parent was published on after this branch was, and shows something else: it has moved on.
_BEHIND: ColumnElement[bool] = and_(
    _DIFFERS, func.coalesce(_theirs.c.publication, 0) > func.coalesce(_ours.c.publication, 0)
)


@dataclass(frozen=True, kw_only=True)
class BranchNameLine:
    """A branch name: on how many datasets, off which parent, and how it stands to that."""

    name: str
    # The name that most of its branches have as their parent; None: most are roots.
    parent: str | None
    # Other names that some of its branches have as their parent.
    other_parents: tuple[str, ...]
    dataset_count: int
    # Datasets on which it shows other content than its parent, and on which that moved on since.
    ahead: int
    behind: int
    open: int
    last_at: Instant | None
    last_actor: str | None


@dataclass(frozen=True, kw_only=True)
class DifferingDataset:
    """A dataset on which a branch shows other content than its parent."""

    dataset: DatasetName
    kind: str
    parent: str
    ours: TransactionId | None
    theirs: TransactionId | None
    actor: str | None
    at: Instant | None
    is_behind: bool


def count_branch_names(connection: Connection, search: str = "") -> int:
    query = select(func.count(distinct(branches.c.name))).where(*_matches(search))
    return int(connection.execute(query).scalar_one())


def list_branch_names(
    connection: Connection, *, search: str = "", after: str | None = None, limit: int = 100
) -> list[BranchNameLine]:
    """Names in their order, from behind `after` on, each with what all its branches add up to."""
    wanted = select(branches.c.name).where(*_matches(search)).group_by(branches.c.name)
    if after is not None:
        wanted = wanted.where(branches.c.name > after)
    named = connection.execute(wanted.order_by(branches.c.name).limit(limit)).scalars()
    return list(_summed(connection, list(named)).values())


def load_branch_name(connection: Connection, name: str) -> BranchNameLine | None:
    return _summed(connection, [name]).get(name)


def list_differing_datasets(
    connection: Connection, name: str, *, after: DatasetName | None = None, limit: int = 50
) -> list[DifferingDataset]:
    """Datasets on which a branch of this name shows other content than its parent."""
    query = (
        _compared(
            select(
                datasets.c.namespace,
                datasets.c.name.label("dataset_name"),
                datasets.c.kind,
                _parents.c.name.label("parent"),
                branches.c.view_id.label("ours"),
                _parents.c.view_id.label("theirs"),
                _ours.c.actor,
                _ours.c.closed_at,
                case((_BEHIND, 1), else_=0).label("behind"),
            )
        )
        .join(datasets, datasets.c.id == branches.c.dataset_id)
        .where(branches.c.name == name, _parents.c.id.is_not(None), _DIFFERS)
        .order_by(datasets.c.namespace, datasets.c.name)
        .limit(limit)
    )
    if after is not None:
        space = namespace_key(after.namespace)
        beyond = and_(datasets.c.namespace == space, datasets.c.name > after.name)
        query = query.where(or_(datasets.c.namespace > space, beyond))
    return [
        DifferingDataset(
            dataset=dataset_name(row),
            kind=row["kind"],
            parent=row["parent"],
            ours=TransactionId(row["ours"]) if row["ours"] else None,
            theirs=TransactionId(row["theirs"]) if row["theirs"] else None,
            actor=row["actor"],
            at=Instant(row["closed_at"]) if row["closed_at"] is not None else None,
            is_behind=bool(row["behind"]),
        )
        for row in connection.execute(query).mappings()
    ]


def _compared(query: Select[Any]) -> Select[Any]:
    """From branches, with their parents and what both show."""
    return (
        query.select_from(branches)
        .outerjoin(_parents, _parents.c.id == branches.c.parent_id)
        .outerjoin(_ours, _ours.c.id == branches.c.view_id)
        .outerjoin(_theirs, _theirs.c.id == _parents.c.view_id)
        .outerjoin(_our_versions, _our_versions.c.id == _ours.c.version_id)
        .outerjoin(_their_versions, _their_versions.c.id == _theirs.c.version_id)
    )


def _summed(connection: Connection, names: Sequence[str]) -> dict[str, BranchNameLine]:
    query = (
        _compared(
            select(
                branches.c.name,
                _parents.c.name.label("parent"),
                func.count().label("datasets"),
                _number(and_(_parents.c.id.is_not(None), _DIFFERS)).label("ahead"),
                _number(and_(_parents.c.id.is_not(None), _BEHIND)).label("behind"),
                _number(_is_open()).label("open"),
            )
        )
        .where(branches.c.name.in_(names))
        .group_by(branches.c.name, _parents.c.name)
        .order_by(branches.c.name, func.count().desc(), _parents.c.name)
    )
    groups: dict[str, list[RowMapping]] = {}
    for row in connection.execute(query).mappings():
        groups.setdefault(row["name"], []).append(row)
    last = _last_moves(connection, names)
    return {name: _to_line(name, rows, last.get(name)) for name, rows in groups.items()}


def _to_line(
    name: str, rows: Sequence[RowMapping], last: tuple[Instant, str] | None
) -> BranchNameLine:
    return BranchNameLine(
        name=name,
        parent=rows[0]["parent"],
        other_parents=tuple(row["parent"] for row in rows[1:] if row["parent"] is not None),
        dataset_count=sum(row["datasets"] for row in rows),
        ahead=sum(row["ahead"] for row in rows),
        behind=sum(row["behind"] for row in rows),
        open=sum(row["open"] for row in rows),
        last_at=last[0] if last else None,
        last_actor=last[1] if last else None,
    )


def _last_moves(connection: Connection, names: Sequence[str]) -> dict[str, tuple[Instant, str]]:
    newest = (
        select(moves.c.branch_name, func.max(moves.c.publication).label("number"))
        .where(moves.c.branch_name.in_(names))
        .group_by(moves.c.branch_name)
        .subquery()
    )
    query = select(newest.c.branch_name, published.c.at, published.c.actor).join(
        published, published.c.number == newest.c.number
    )
    return {row[0]: (Instant(row[1]), row[2]) for row in connection.execute(query)}


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _is_open() -> ColumnElement[bool]:
    head, view = branches.c.head_id, branches.c.view_id
    return func.coalesce(head, "") != func.coalesce(view, "")


def _matches(search: str) -> list[ColumnElement[bool]]:
    return [branches.c.name.contains(search, autoescape=True)] if search else []
