"""One table inside a mutation's picture: its committed files, and the rows as they are by now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.model.names import DatasetName
from headgate.model.nouns import Version
from headgate.mutations.engine import Engine, columns_sql, literal, quote
from headgate.mutations.ground import Standing
from headgate.mutations.typing import from_engine
from headgate.tables.arrow import DataFile
from headgate.tables.conditions import Conditions
from headgate.tables.constraints import constraints_of
from headgate.tables.reading import columns_of, current_snapshot
from headgate.tables.scanning import TableScan
from headgate.tables.shape import Metadata
from headgate.tables.snapshotting import check_writable

# Where a row came from: its file's number and its place there; NULL for a new one.
RID = "__rid"
# Who wrote it: the number of a statement, or of a row of a source; 0 for a committed row.
BY = "__by"
_FILE_SHIFT = 2**32
# From then on it pays to ask first whether any file is left: a cascade down a tree asks again
# and again.
_BROUGHT_OFTEN = 8


class PicturedTable:
    """Committed rows are left in their files until a statement may change them."""

    def __init__(
        self,
        engine: Engine,
        standing: Standing,
        scan: TableScan,
        *,
        demands: Metadata | None = None,
    ) -> None:
        """`demands`: the metadata whose constraints count, where they are not the version's own."""
        self.engine = engine
        self.standing = standing
        self.scan = scan
        self.name: DatasetName = standing.dataset.name
        metadata = demands or scan.version.metadata
        self.constraints = constraints_of(metadata)
        self.columns = [field.name for field in scan.schema]
        self.types = {c.name: c.type for c in columns_of(metadata)}
        self.required = [c.name for c in columns_of(metadata) if c.required]
        # None until a statement writes the table.
        self.rows: str | None = None
        # Load in overwrite mode: nothing of what was there counts any more.
        self.is_replaced = False
        # A merge's ways to stage it: another branch's version, or its files, as they are.
        self.pointer: Version | None = None
        self.reused: list[DataFile] = []
        # The metadata that the next version builds on, where more than rows changes.
        self.final: Metadata | None = None
        self.facts: dict[str, Any] = {}
        self._loaded: dict[str, tuple[int, DataFile, pa.Table]] = {}
        self._plans: dict[Any, list[DataFile]] = {}
        self._brought = 0

    @property
    def is_empty(self) -> bool:
        return current_snapshot(self.scan.version.metadata) is None

    def plan(self, where: Conditions = ()) -> list[DataFile]:
        """The committed files that may hold such rows."""
        if self.is_empty or self.is_replaced:
            return []
        key = tuple(where)
        if key not in self._plans:
            self._plans[key] = self.scan.plan(where)
        return self._plans[key]

    def begin(self) -> str:
        """The table of rows that statements change; made at the first of them."""
        if self.rows is None:
            check_writable(self.scan)
            self.rows = self.engine.new_name("t")
            empty = self.engine.register(self.scan.schema.empty_table())
            self.engine.do(
                f"CREATE TEMP TABLE {self.rows} AS SELECT *, NULL::BIGINT AS {RID}, "
                f"0::BIGINT AS {BY} FROM {empty}"
            )
            self.engine.do(f"ALTER TABLE {self.rows} ALTER COLUMN {BY} SET DEFAULT -1")
            for column, value in self.constraints.defaults.items():
                self.engine.do(
                    f"ALTER TABLE {self.rows} ALTER COLUMN {quote(column)} "
                    f"SET DEFAULT {literal(value)}"
                )
        return self.rows

    def bring(self, where: Conditions = ()) -> str:
        """Brings whole rows in reach of a statement: those of every file that may hold such."""
        name = self.begin()
        self._brought += 1
        if self._brought > _BROUGHT_OFTEN and all(f.path in self._loaded for f in self.plan()):
            return name
        missing = [f for f in self.plan(where) if f.path not in self._loaded]
        for file in self.scan.narrow(missing, where):
            number = len(self._loaded)
            rows = self.scan.read(file)
            ids = pa.array(range(number * _FILE_SHIFT, number * _FILE_SHIFT + rows.num_rows))
            marked = rows.append_column(RID, ids.cast(pa.int64()))
            self._loaded[file.path] = (number, file, marked)
            source = self.engine.register(marked)
            self.engine.do(f"INSERT INTO {name} SELECT *, 0 FROM {source}")
        return name

    def relation(self, columns: Sequence[str], where: Conditions = ()) -> str:
        """A name for the table as it is by now, for reading these columns of such rows."""
        parts = []
        if self.rows is not None:
            parts.append(f"SELECT {columns_sql(columns)} FROM {self.rows}")
        unread = [file for file in self.plan(where) if file.path not in self._loaded]
        for file in unread:
            source = self.engine.register(self.scan.read(file, list(columns)))
            parts.append(f"SELECT {columns_sql(columns)} FROM {source}")
        if not parts:
            empty = self.engine.register(self.scan.schema.empty_table())
            parts.append(f"SELECT {columns_sql(columns)} FROM {empty}")
        name = self.engine.new_name("r")
        self.engine.do(f"CREATE TEMP VIEW {name} AS {' UNION ALL '.join(parts)}")
        return name

    def originals(self) -> str:
        """The committed rows in reach, as they were."""
        loaded = [rows for _, _, rows in self._loaded.values()]
        empty = self.scan.schema.empty_table().append_column(RID, pa.array([], pa.int64()))
        return self.engine.register(pa.concat_tables([empty, *loaded]))

    def kept_rows(self, gone: pa.Array) -> tuple[list[DataFile], pa.Table]:
        """The files that lose these rows, and what is left of them."""
        numbers = set(pc.unique(pc.divide(gone, _FILE_SHIFT)).to_pylist())
        touched = [held for held in self._loaded.values() if held[0] in numbers]
        empty = self.scan.schema.empty_table()
        left = [
            rows.filter(pc.invert(pc.is_in(rows.column(RID), gone))).drop_columns([RID])
            for _, _, rows in touched
        ]
        return [file for _, file, _ in touched], pa.concat_tables([empty, *left])

    def conform(self, rows: pa.Table) -> pa.Table:
        """Rows from the engine as the table's own schema has them."""
        return from_engine(rows, self.scan.schema)
