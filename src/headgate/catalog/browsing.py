"""What people leaf through: datasets and publications a page at a time.

The cost of each follows what is shown: pages go on where the last one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from headgate.catalog.find import branches_of
from headgate.catalog.rows import DATASETS, namespace_key, to_dataset
from headgate.catalog.schema import branches, datasets, jobspec_outputs, jobspecs, moves
from headgate.catalog.schema import publications as published
from headgate.model.ids import DatasetId, Instant, PublicationNumber
from headgate.model.names import DatasetName
from headgate.model.nouns import Dataset

# Of more branches than these only their number is told.
_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class LastMove:
    """The newest publication that concerned something."""

    publication: PublicationNumber
    at: Instant
    actor: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class DatasetLine:
    """A dataset as a list shows it; `blue` where the primary branch has a JobSpec for it."""

    dataset: Dataset
    branch_count: int
    # Empty where they are too many to be named.
    branches: tuple[str, ...]
    last: LastMove | None
    blue: bool


def count_datasets(connection: Connection, search: str = "") -> int:
    query = select(func.count()).select_from(datasets).where(*_matches(search))
    return int(connection.execute(query).scalar_one())


def list_dataset_lines(
    connection: Connection,
    *,
    primary: str,
    search: str = "",
    after: DatasetName | None = None,
    limit: int = 50,
) -> list[DatasetLine]:
    """Datasets whose name contains the text, by name, from behind `after` on."""
    query = DATASETS.where(*_matches(search)).order_by(datasets.c.namespace, datasets.c.name)
    if after is not None:
        query = query.where(_behind(after))
    rows = connection.execute(query.limit(limit)).mappings()
    found = [to_dataset(row) for row in rows]
    ids = [dataset.id for dataset in found]
    counts = _branch_counts(connection, ids)
    named = _branch_names(connection, [id for id in ids if counts.get(id, 0) <= _NAMED])
    last = last_moves(connection, ids)
    blue = made_on(connection, primary, [dataset.name for dataset in found])
    return [
        DatasetLine(
            dataset=dataset,
            branch_count=counts.get(dataset.id, 0),
            branches=tuple(sorted(named.get(dataset.id, ()))),
            last=last.get(dataset.id),
            blue=dataset.name in blue,
        )
        for dataset in found
    ]


def last_moves(connection: Connection, ids: Sequence[DatasetId]) -> dict[DatasetId, LastMove]:
    """The newest publication that moved a branch of each dataset."""
    newest = (
        select(moves.c.dataset_id, func.max(moves.c.publication).label("number"))
        .where(moves.c.dataset_id.in_(ids))
        .group_by(moves.c.dataset_id)
        .subquery()
    )
    query = select(newest.c.dataset_id, published).join(
        published, published.c.number == newest.c.number
    )
    return {
        DatasetId(row["dataset_id"]): LastMove(
            publication=PublicationNumber(row["number"]),
            at=Instant(row["at"]),
            actor=row["actor"],
            kind=row["kind"],
        )
        for row in connection.execute(query).mappings()
    }


def made_on(connection: Connection, branch: str, names: Sequence[DatasetName]) -> set[DatasetName]:
    """Those of the datasets that a JobSpec published on this branch name makes."""
    texts = {str(name): name for name in names}
    query = (
        select(jobspec_outputs.c.dataset)
        .join(jobspecs, jobspecs.c.id == jobspec_outputs.c.jobspec_id)
        .where(
            jobspec_outputs.c.branch == branch,
            jobspec_outputs.c.dataset.in_(list(texts)),
            jobspecs.c.removed == 0,
        )
    )
    return {texts[text] for text in connection.execute(query).scalars()}


def _matches(search: str) -> list[ColumnElement[bool]]:
    if not search:
        return []
    text = search.lower()
    for sign in ("\\", "%", "_"):
        text = text.replace(sign, f"\\{sign}")
    name = func.replace(datasets.c.namespace, "\x1f", ".") + "." + datasets.c.name
    return [func.lower(name).like(f"%{text}%", escape="\\")]


def _behind(after: DatasetName) -> ColumnElement[bool]:
    space = namespace_key(after.namespace)
    return or_(
        datasets.c.namespace > space,
        and_(datasets.c.namespace == space, datasets.c.name > after.name),
    )


def _branch_counts(connection: Connection, ids: Sequence[DatasetId]) -> dict[DatasetId, int]:
    query: Select[str, int] = (
        select(branches.c.dataset_id, func.count())
        .where(branches.c.dataset_id.in_(ids))
        .group_by(branches.c.dataset_id)
    )
    return {DatasetId(id): int(number) for id, number in connection.execute(query)}


def _branch_names(connection: Connection, ids: Sequence[DatasetId]) -> dict[DatasetId, list[str]]:
    found: dict[DatasetId, list[str]] = {}
    for branch in branches_of(connection, ids):
        found.setdefault(branch.dataset_id, []).append(branch.name)
    return found
