"""Validation of what a load by Spark staged, over the tables as they are then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.model.changes import ReadView
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.mutations.ground import Ground, Standing
from headgate.mutations.load import LoadMode
from headgate.mutations.load_spark_tables import StagedRows, TableLoad, sql_name, version_of
from headgate.mutations.parts import Parts
from headgate.tables.constraints import constraints_of
from headgate.tables.references import referring_datasets

if TYPE_CHECKING:
    from headgate.spark.load_checks import LoadCheck

# From so much of a table on, it is no more work to look at all of its keys than at those that came.
_ALL_KEYS_FROM_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A column of another table that refers to a table's key."""

    dataset: DatasetName
    column: str


@dataclass(frozen=True, kw_only=True)
class Validated:
    """What validation looked at without writing it, and what it learned."""

    reads: tuple[ReadView, ...]
    # Tables of which no key is there twice.
    keys_hold: frozenset[DatasetName]


class Neighbours:
    """The tables around those that are loaded, each as the branch shows it when it is asked for."""

    def __init__(self, parts: Parts, ground: Ground) -> None:
        self._parts = parts
        self._ground = ground
        self.looked: dict[DatasetName, Standing] = {}

    def keys(self, table: TableLoad) -> dict[str, tuple[DatasetName, str]]:
        """The datasets that a table refers to, each with its key; those gone are left out."""
        found: dict[str, tuple[DatasetName, str]] = {}
        for reference in table.demands.references:
            other = parse_dataset_name(reference.dataset)
            standing = self._find(other)
            if standing is not None:
                [key] = constraints_of(version_of(self._parts, standing).metadata).key
                found[reference.dataset] = (other, key)
        return found

    def referring(self, table: TableLoad) -> list[Neighbour]:
        """Columns of other tables that refer to this one; asked only where rows went."""
        if table.mode is not LoadMode.OVERWRITE:
            return []
        found: list[Neighbour] = []
        metadata = version_of(self._parts, self._ground.load(table.name)).metadata
        for text in referring_datasets(metadata):
            other = parse_dataset_name(text)
            standing = self._find(other)
            if standing is None:
                continue
            held = constraints_of(version_of(self._parts, standing).metadata).references
            found += [
                Neighbour(dataset=other, column=r.column)
                for r in held
                if r.dataset == str(table.name)
            ]
        return found

    def _find(self, name: DatasetName) -> Standing | None:
        standing = self._ground.find(name)
        if standing is None or standing.version is None:
            return None
        self.looked[name] = standing
        return standing


def validate(
    parts: Parts,
    session: Any,
    ground: Ground,
    staged: Mapping[DatasetName, StagedRows],
    judge: Callable[[], None],
) -> Validated:
    """Has the rows judged where a quick look makes them doubtful; tells what it looked at."""
    from headgate.spark.load_checks import (  # noqa: PLC0415  (slow: Spark)
        is_doubtful,
        keys_are_doubtful,
    )

    around = Neighbours(parts, ground)
    checks = {name: _check(around, rows) for name, rows in staged.items()}
    doubled = {
        name
        for name, check in checks.items()
        if check.constraints.key and not check.keys_hold and keys_are_doubtful(session, check)
    }
    if doubled or any(is_doubtful(session, check) for check in checks.values()):
        judge()
    holding = {
        name
        for name, check in checks.items()
        if name not in doubled and (check.looks_at_all_keys or staged[name].table.keys_hold)
    }
    looked = [s.read for name, s in around.looked.items() if name not in staged]
    return Validated(
        reads=tuple(read for read in looked if read is not None), keys_hold=frozenset(holding)
    )


def _check(around: Neighbours, staged: StagedRows) -> LoadCheck:
    from headgate.spark.load_checks import LoadCheck  # noqa: PLC0415  (slow: Spark)

    table = staged.table
    merged = table.mode is LoadMode.MERGE
    return LoadCheck(
        table=table.load.table,
        rows=staged.rows,
        constraints=table.demands,
        merged=merged,
        keys_hold=merged and table.keys_hold,
        looks_at_all_keys=merged and table.load.share >= _ALL_KEYS_FROM_SHARE,
        referred={
            text: (sql_name(other), key) for text, (other, key) in around.keys(table).items()
        },
        referring=tuple((sql_name(n.dataset), n.column) for n in around.referring(table)),
    )
