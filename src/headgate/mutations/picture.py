"""The picture of a mutation: committed rows plus what it has done so far, over many tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from headgate.model.changes import ReadView
from headgate.model.ids import BranchId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import TransactionType, Version
from headgate.mutations.counts import Counts
from headgate.mutations.engine import Engine
from headgate.mutations.ground import Ground, Standing
from headgate.mutations.pictured import PicturedTable
from headgate.tables.references import referring_datasets
from headgate.tables.scanning import TableScan
from headgate.tables.versions import TableVersions


@dataclass(frozen=True, kw_only=True)
class PlainMove:
    """A branch that is to show a version as it is, without a look at its rows."""

    standing: Standing
    version: Version | None
    type: TransactionType
    facts: Mapping[str, Any]
    counts: Counts
    # Of a tree of files: objects that the branch's own tree does not hold.
    objects: frozenset[str] = frozenset()


class Picture:
    """Tables are opened when a statement or a constraint first asks for them."""

    def __init__(self, ground: Ground, versions: TableVersions, options: Mapping[str, str]) -> None:
        self.ground = ground
        self.versions = versions
        self.options = options
        self.engine = Engine()
        self.tables: dict[DatasetName, PicturedTable] = {}
        self.moves: list[PlainMove] = []

    def table(self, name: DatasetName, *, line: int = 0, column: int = 0) -> PicturedTable:
        """A table of the branch; one that it does not show is an error at that place."""
        if name not in self.tables:
            standing = self.ground.load(name, line=line, column=column)
            assert standing.version is not None
            scan = TableScan(self.versions.read(standing.version.location), self.options)
            self.tables[name] = PicturedTable(self.engine, standing, scan)
        return self.tables[name]

    def find_table(self, name: DatasetName) -> PicturedTable | None:
        """As `table`, for one that may be gone from the branch."""
        if name in self.tables:
            return self.tables[name]
        standing = self.ground.find(name)
        if standing is None or standing.version is None:
            return None
        return self.table(name)

    def referring(self, table: PicturedTable) -> list[tuple[PicturedTable, str]]:
        """Tables, each with its column, whose values are keys of this one."""
        found = []
        for text in referring_datasets(table.scan.version.metadata):
            other = self.find_table(parse_dataset_name(text))
            if other is None:
                continue
            found += [
                (other, reference.column)
                for reference in other.constraints.references
                if reference.dataset == str(table.name)
            ]
        return found

    @property
    def written(self) -> list[PicturedTable]:
        """Tables that a statement may have changed, in the order of their names."""
        tables = [t for t in self.tables.values() if t.rows is not None]
        return sorted(tables, key=lambda table: table.name)

    def reads(self, moved: set[BranchId]) -> tuple[ReadView, ...]:
        """Branches that were looked at and are not moved: they must still show the same."""
        found: dict[BranchId, ReadView] = {}
        for table in self.tables.values():
            read = table.standing.read
            if read is not None and read.branch not in moved:
                found[read.branch] = read
        return tuple(found.values())

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
