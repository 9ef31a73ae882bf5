"""From a table's effect to one staged version of it: data files, manifests, a metadata file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import Invalid
from headgate.model.changes import ReadView
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import BranchId, mint_content, mint_version
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import TransactionType, Version
from headgate.rows.branch_tables import Ground, Standing
from headgate.rows.engine import (
    Engine,
    columns_sql,
    equal_sql,
    from_engine,
    is_beyond_years,
    literal,
    quote,
    same_sql,
)
from headgate.rows.outcome import Counts
from headgate.tables.arrow import DataFile
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.inspect import columns_of, current_snapshot, recorded_row_count
from headgate.tables.scan import Conditions, TableScan
from headgate.tables.shape import Metadata
from headgate.tables.snapshot_writer import FileChange, check_writable, next_metadata, write_rows
from headgate.tables.versions import TableVersions

# One table inside a mutation's picture: its committed files, and the rows as they are by now.

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


# The picture of a mutation: committed rows plus what it has done so far, over many tables.


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


# What a picture amounts to for one table: the rows that go and the rows that come, net.


@dataclass(frozen=True, kw_only=True)
class TableEffect:
    """Names of two relations: rows that are there no more, and rows that were not there."""

    table: PicturedTable
    removed: str
    added: str
    counts: Counts

    @property
    def type(self) -> TransactionType:
        """The type that the change has where nobody names one."""
        if self.table.is_replaced:
            return TransactionType.SNAPSHOT
        if not self.counts.updated and not self.counts.deleted:
            return TransactionType.APPEND
        if not self.counts.updated and not self.counts.inserted:
            return TransactionType.DELETE
        return TransactionType.UPDATE

    def added_rows(self) -> pa.Table:
        columns = columns_sql(self.table.columns)
        rows = self.table.conform(self.table.engine.arrow(f"SELECT {columns} FROM {self.added}"))
        for name in rows.column_names:
            if is_beyond_years(rows.column(name)):
                raise Invalid(
                    f"{self.table.name}: a value of {name!r} is not in the years 1 to 9999; "
                    "nothing was changed.",
                    dataset=str(self.table.name),
                    column=name,
                )
        return rows

    def removed_ids(self) -> pa.Array:
        ids = self.table.engine.arrow(f"SELECT {RID} FROM {self.removed}").column(RID)
        return ids.combine_chunks()

    def fingerprint(self) -> tuple[int, int]:
        """The same for the same rows that go, whatever their order and files."""
        columns = columns_sql(self.table.columns)
        [(count, mark)] = self.table.engine.rows(
            f"SELECT count(*), coalesce(bit_xor(hash({columns})), 0) FROM {self.removed}"
        )
        return int(count), int(mark)


def effect_of(table: PicturedTable) -> TableEffect:
    """Compares the rows as they are by now with what they were; equal ones cancel out."""
    rows = table.begin()
    if table.is_replaced:
        return _replaced(table, rows)
    engine, before = table.engine, table.originals()
    removed, added = engine.new_name("removed"), engine.new_name("added")
    same = same_sql(table.columns, "old", "new")
    engine.do(
        f"CREATE TEMP TABLE {removed} AS SELECT old.* FROM {before} AS old ANTI JOIN {rows} AS new "
        f"ON old.{RID} = new.{RID} AND {same}"
    )
    engine.do(
        f"CREATE TEMP TABLE {added} AS SELECT new.* FROM {rows} AS new ANTI JOIN {before} AS old "
        f"ON old.{RID} = new.{RID} AND {same}"
    )
    _cancel(table, removed, added)
    return TableEffect(
        table=table, removed=removed, added=added, counts=_counts(table, removed, added)
    )


def _replaced(table: PicturedTable, rows: str) -> TableEffect:
    removed = table.engine.new_name("removed")
    table.engine.do(f"CREATE TEMP VIEW {removed} AS SELECT * FROM {rows} LIMIT 0")
    gone = recorded_row_count(table.scan.version.metadata) or 0
    counts = Counts(inserted=int(table.engine.value(f"SELECT count(*) FROM {rows}")), deleted=gone)
    return TableEffect(table=table, removed=removed, added=rows, counts=counts)


def _cancel(table: PicturedTable, removed: str, added: str) -> None:
    """A row that was deleted and came back as it was never went, where a key tells rows apart."""
    key = table.constraints.key
    engine = table.engine
    if not key or not engine.value(f"SELECT count(*) FROM {removed}"):
        return
    back = engine.new_name("back")
    engine.do(
        f"CREATE TEMP TABLE {back} AS SELECT old.{RID} AS was, new.rowid AS came "
        f"FROM {removed} AS old JOIN {added} AS new ON {equal_sql(key, 'old', 'new')} "
        f"AND {same_sql(table.columns, 'old', 'new')} "
        f"QUALIFY row_number() OVER (PARTITION BY old.{RID}) = 1"
    )
    engine.do(f"DELETE FROM {added} WHERE rowid IN (SELECT came FROM {back})")
    engine.do(f"DELETE FROM {removed} WHERE {RID} IN (SELECT was FROM {back})")


def _counts(table: PicturedTable, removed: str, added: str) -> Counts:
    engine = table.engine
    gone = int(engine.value(f"SELECT count(*) FROM {removed}"))
    come = int(engine.value(f"SELECT count(*) FROM {added}"))
    if not gone or not come:
        return Counts(inserted=come, deleted=gone)
    key = table.constraints.key
    pairing = equal_sql(key, "old", "new") if key else f"old.{quote(RID)} = new.{quote(RID)}"
    both = int(
        engine.value(f"SELECT count(*) FROM {removed} AS old SEMI JOIN {added} AS new ON {pairing}")
    )
    return Counts(inserted=come - both, updated=both, deleted=gone - both)


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A version that nobody sees yet."""

    effect: TableEffect
    version: Version


def stage(versions: TableVersions, effect: TableEffect) -> Staged:
    """Writes what the effect makes of the table; if it is never published, cleanup finds it."""
    if effect.table.pointer is not None:
        return Staged(effect=effect, version=effect.table.pointer)
    base = effect.table.final
    # A merge may bring a schema and no row.
    metadata = base if base is not None and not effect.counts else stage_rows(effect, base)
    stored = versions.write(effect.table.standing.dataset.id, metadata)
    reach(Failpoint.MUTATION_VERSION_STAGED)
    return Staged(
        effect=effect,
        version=Version(id=mint_version(), location=stored.location, content_id=mint_content()),
    )


def stage_rows(effect: TableEffect, base: Metadata | None = None) -> Metadata:
    """The table's next metadata, its data files written; `base` as in `next_metadata`."""
    table = effect.table
    added = effect.added_rows()
    if table.is_replaced:
        change = FileChange(
            operation="overwrite",
            removed=_all_files(effect),
            added=write_rows(table.scan, added, table.constraints.key),
            replaces_all=True,
        )
    else:
        removed, kept = table.kept_rows(effect.removed_ids())
        operation = "overwrite" if removed else "append"
        if removed and not kept.num_rows and not added.num_rows:
            operation = "delete"
        change = FileChange(
            operation=operation, removed=removed, added=_added_files(effect, kept, added)
        )
    reach(Failpoint.MUTATION_DATA_WRITTEN)
    return next_metadata(table.scan, change, now_ms=time.time_ns() // 1_000_000, base=base)


def _added_files(effect: TableEffect, kept: pa.Table, added: pa.Table) -> list[Any]:
    """New files, or another branch's where they hold exactly the rows that come."""
    table = effect.table
    whole = sum(file.row_count for file in table.reused)
    if table.reused and not kept.num_rows and whole == added.num_rows:
        return [file.task.file for file in table.reused]
    rows = pa.concat_tables([kept.cast(added.schema), added])
    return write_rows(table.scan, rows, table.constraints.key)


def _all_files(effect: TableEffect) -> list[DataFile]:
    table = effect.table
    return [] if table.is_empty else table.scan.plan()
