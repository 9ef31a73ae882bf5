"""Summaries for lists, pages and monitoring: datasets, branch names and counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from headgate.catalog import records
from headgate.catalog.branches import list_protected
from headgate.catalog.merge_base import find_merge_bases, is_unchanged
from headgate.catalog.schema import (
    attempts,
    branches,
    builds,
    datasets,
    intents,
    jobspec_outputs,
    jobspecs,
    log_counter,
    moves,
    transactions,
    versions,
)
from headgate.catalog.schema import publications as published
from headgate.model import nouns
from headgate.model.ids import BranchId, DatasetId, Instant, PublicationNumber
from headgate.model.names import DatasetName

# Pages of datasets. The cost of a page depends on its size: it starts where the last one ended.

# A dataset with more branches than this is listed with their count only.
_NAMED = 4


def count_datasets(connection: sa.Connection, search: str = "") -> int:
    return _count(connection, datasets, *_matches_dataset(search))


def list_dataset_lines(
    connection: sa.Connection,
    *,
    primary: str,
    search: str = "",
    after: DatasetName | None = None,
    limit: int = 50,
) -> list[nouns.DatasetLine]:
    """Return datasets whose name contains `search`, in order of name, starting after `after`."""
    query = records.DATASETS.where(*_matches_dataset(search)).order_by(
        datasets.c.namespace, datasets.c.name
    )
    if after is not None:
        query = query.where(records.is_behind(after))
    found = [records.to_dataset(row) for row in connection.execute(query.limit(limit)).mappings()]
    ids = [dataset.id for dataset in found]
    counts = _branch_counts(connection, ids)
    named = _branch_names(connection, [id for id in ids if counts.get(id, 0) <= _NAMED])
    last = _last_moves(connection, moves.c.dataset_id, ids)
    blue = datasets_built_on(connection, primary, [dataset.name for dataset in found])
    return [
        nouns.DatasetLine(
            dataset=dataset,
            branch_count=counts.get(dataset.id, 0),
            branches=tuple(sorted(named.get(dataset.id, ()))),
            last=last.get(dataset.id),
            blue=dataset.name in blue,
        )
        for dataset in found
    ]


def _last_moves(
    connection: sa.Connection, key: sa.ColumnElement[Any], values: Sequence[Any]
) -> dict[Any, nouns.LastMove]:
    """Return the newest publication that moved a branch, by a column of the moves."""
    newest = (
        sa.select(key.label("key"), sa.func.max(moves.c.publication).label("number"))
        .where(key.in_(values))
        .group_by(key)
        .subquery()
    )
    query = sa.select(newest.c.key, published).join(
        published, published.c.number == newest.c.number
    )
    return {
        row["key"]: nouns.LastMove(
            publication=PublicationNumber(row["number"]),
            at=Instant(row["at"]),
            actor=row["actor"],
            kind=row["kind"],
        )
        for row in connection.execute(query).mappings()
    }


def find_last_move(connection: sa.Connection, branch: BranchId) -> nouns.LastMove | None:
    """Return the newest publication that moved a branch of a dataset."""
    return _last_moves(connection, moves.c.branch_id, [branch]).get(branch)


def datasets_built_on(
    connection: sa.Connection, branch: str, names: Sequence[DatasetName]
) -> set[DatasetName]:
    """Return those of the datasets that a JobSpec published on this branch name produces."""
    texts = {str(name): name for name in names}
    query = (
        sa.select(jobspec_outputs.c.dataset)
        .join(jobspecs, jobspecs.c.id == jobspec_outputs.c.jobspec_id)
        .where(
            jobspec_outputs.c.branch == branch,
            jobspec_outputs.c.dataset.in_(list(texts)),
            jobspecs.c.removed == 0,
        )
    )
    return {texts[text] for text in connection.execute(query).scalars()}


def _matches_dataset(search: str) -> list[sa.ColumnElement[bool]]:
    if not search:
        return []
    name = sa.func.replace(datasets.c.namespace, "\x1f", ".") + "." + datasets.c.name
    return [sa.func.lower(name).contains(word, autoescape=True) for word in search.lower().split()]


def _branch_counts(connection: sa.Connection, ids: Sequence[DatasetId]) -> dict[DatasetId, int]:
    query: sa.Select[str, int] = (
        sa.select(branches.c.dataset_id, sa.func.count())
        .where(branches.c.dataset_id.in_(ids))
        .group_by(branches.c.dataset_id)
    )
    return {DatasetId(id): int(number) for id, number in connection.execute(query)}


def _branch_names(
    connection: sa.Connection, ids: Sequence[DatasetId]
) -> dict[DatasetId, list[str]]:
    found: dict[DatasetId, list[str]] = {}
    for branch in records.branches_of(connection, ids):
        found.setdefault(branch.dataset_id, []).append(branch.name)
    return found


# Branch names over all datasets, compared with their parent branches

_parents = branches.alias("parent_branches")
_ours = transactions.alias("our_views")
_theirs = transactions.alias("their_views")
_our_versions = versions.alias("our_versions")
_their_versions = versions.alias("their_versions")

_DIFFERS: sa.ColumnElement[bool] = sa.func.coalesce(
    _our_versions.c.content_id, ""
) != sa.func.coalesce(_their_versions.c.content_id, "")
_IS_OPEN: sa.ColumnElement[bool] = sa.func.coalesce(branches.c.head_id, "") != sa.func.coalesce(
    branches.c.view_id, ""
)


def count_branch_names(connection: sa.Connection, search: str = "") -> int:
    query = sa.select(sa.func.count(sa.distinct(branches.c.name))).where(
        *_matches_branch_name(search)
    )
    return int(connection.execute(query).scalar_one())


def list_branch_names(
    connection: sa.Connection, *, search: str = "", after: str | None = None, limit: int = 100
) -> list[nouns.BranchNameLine]:
    """Return branch names in order, starting after `after`, each summed over its branches."""
    wanted = (
        sa.select(branches.c.name).where(*_matches_branch_name(search)).group_by(branches.c.name)
    )
    if after is not None:
        wanted = wanted.where(branches.c.name > after)
    named = connection.execute(wanted.order_by(branches.c.name).limit(limit)).scalars()
    return list(_summed(connection, list(named)).values())


def list_logic_names(connection: sa.Connection, *, after: str = "", limit: int) -> list[str]:
    """Return branch names, in order, that have JobSpecs and that no dataset has as a branch."""
    name = jobspec_outputs.c.branch
    is_apart = name.not_in(sa.select(branches.c.name))
    query = sa.select(name).distinct().where(is_apart, name > after)
    return list(connection.execute(query.order_by(name).limit(limit)).scalars())


def load_branch_name(connection: sa.Connection, name: str) -> nouns.BranchNameLine | None:
    return _summed(connection, [name]).get(name)


def list_differing_datasets(
    connection: sa.Connection, name: str, *, after: DatasetName | None = None, limit: int = 50
) -> list[nouns.DifferingDataset]:
    """Return datasets on which the content of the branch differs from that of its parent."""
    query = (
        _compared(
            sa.select(
                *records.DATASET_NAME,
                datasets.c.kind,
                _parents.c.name.label("parent"),
                _ours.c.actor,
                _ours.c.closed_at,
                _ours.c.id.label("ours"),
                _theirs.c.id.label("theirs"),
            )
        )
        .join(datasets, datasets.c.id == branches.c.dataset_id)
        .where(branches.c.name == name, _parents.c.id.is_not(None), _DIFFERS)
        .order_by(datasets.c.namespace, datasets.c.name)
        .limit(limit)
    )
    if after is not None:
        query = query.where(records.is_behind(after))
    rows = list(connection.execute(query).mappings())
    views = records.load_transactions(
        connection, [r[k] for r in rows for k in ("ours", "theirs") if r[k]]
    )
    return [
        nouns.DifferingDataset(
            dataset=records.dataset_name(row),
            kind=row["kind"],
            parent=row["parent"],
            actor=row["actor"],
            at=Instant(row["closed_at"]) if row["closed_at"] is not None else None,
            is_changed=_is_changed(connection, views.get(row["ours"]), views.get(row["theirs"])),
        )
        for row in rows
    ]


def _is_changed(
    connection: sa.Connection, ours: nouns.Transaction | None, theirs: nouns.Transaction | None
) -> bool:
    """Return whether a merge takes the content of a branch, by the rule of merges."""
    if ours is None:
        return False
    bases = find_merge_bases(connection, ours, theirs) if theirs is not None else ()
    return not is_unchanged(ours, theirs, bases)


def _compared(query: sa.Select[Any]) -> sa.Select[Any]:
    """Join branches with their parents, and both with their views and versions."""
    return (
        query.select_from(branches)
        .outerjoin(_parents, _parents.c.id == branches.c.parent_id)
        .outerjoin(_ours, _ours.c.id == branches.c.view_id)
        .outerjoin(_theirs, _theirs.c.id == _parents.c.view_id)
        .outerjoin(_our_versions, _our_versions.c.id == _ours.c.version_id)
        .outerjoin(_their_versions, _their_versions.c.id == _theirs.c.version_id)
    )


def _summed(connection: sa.Connection, names: Sequence[str]) -> dict[str, nouns.BranchNameLine]:
    query = (
        _compared(
            sa.select(
                branches.c.name,
                _parents.c.name.label("parent"),
                sa.func.count().label("datasets"),
                _number(sa.and_(_parents.c.id.is_not(None), _DIFFERS)).label("differing"),
                _number(_IS_OPEN).label("open"),
            )
        )
        .where(branches.c.name.in_(names))
        .group_by(branches.c.name, _parents.c.name)
        .order_by(branches.c.name, sa.func.count().desc(), _parents.c.name)
    )
    groups: dict[str, list[sa.RowMapping]] = {}
    for row in connection.execute(query).mappings():
        groups.setdefault(row["name"], []).append(row)
    last = _last_moves(connection, moves.c.branch_name, names)
    protected = list_protected(connection)
    return {
        name: _to_line(name, rows, last.get(name), protected=protected.get(name, ()))
        for name, rows in groups.items()
    }


def _to_line(
    name: str,
    rows: Sequence[sa.RowMapping],
    last: nouns.LastMove | None,
    *,
    protected: tuple[str, ...],
) -> nouns.BranchNameLine:
    return nouns.BranchNameLine(
        name=name,
        parent=rows[0]["parent"],
        other_parents=tuple(row["parent"] for row in rows[1:] if row["parent"] is not None),
        dataset_count=sum(row["datasets"] for row in rows),
        differing=sum(row["differing"] for row in rows),
        open=sum(row["open"] for row in rows),
        last=last,
        protected=protected,
    )


def _number(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def _matches_branch_name(search: str) -> list[sa.ColumnElement[bool]]:
    name = sa.func.lower(branches.c.name)
    return [name.contains(word, autoescape=True) for word in search.lower().split()]


@dataclass(frozen=True, kw_only=True)
class CatalogFigures:
    publications: int
    datasets: int
    branches: int
    open_transactions: int
    intents_pending: int
    builds_by_state: Mapping[str, int]
    attempts_by_state: Mapping[str, int]


def read_figures(connection: sa.Connection) -> CatalogFigures:
    """Return counts from indexes and small tables; frequent reads cost little."""
    is_open = transactions.c.state == nouns.TransactionState.OPEN
    return CatalogFigures(
        publications=int(connection.execute(sa.select(log_counter.c.number)).scalar() or 0),
        datasets=_count(connection, datasets),
        branches=_count(connection, branches),
        open_transactions=_count(connection, transactions, is_open),
        intents_pending=_count(connection, intents),
        builds_by_state=_by_state(connection, builds),
        attempts_by_state=_by_state(connection, attempts),
    )


def _count(connection: sa.Connection, table: sa.Table, *rows: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(*rows)
    return int(connection.execute(query).scalar_one())


def _by_state(connection: sa.Connection, table: sa.Table) -> dict[str, int]:
    query = sa.select(table.c.state, sa.func.count()).group_by(table.c.state)
    return {str(state): int(number) for state, number in connection.execute(query)}
