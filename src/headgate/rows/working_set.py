"""The working set of a write: committed rows of many tables plus the changes made so far.

`WorkingTable` reads committed files only when a statement needs them. `effect_of` reduces a
table's changes to the rows removed and added, and `stage` writes these as a version of the table.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import Invalid
from headgate.model.constraints import Reference
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import mint_content, mint_version
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import TransactionType, Version
from headgate.model.rules import ChangedTable
from headgate.rows import engine as sql
from headgate.rows.branch_tables import BranchTable, BranchTables, new_table
from headgate.rows.engine import Engine
from headgate.rows.outcome import Counts
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.inspect import columns_of, recorded_row_count
from headgate.tables.metadata import Metadata, current_schema
from headgate.tables.scan import Condition, Conditions, DataFile, TableScan, changed_files
from headgate.tables.snapshot_writer import FileChange, check_writable, next_metadata, write_rows
from headgate.tables.snapshots import current_snapshot
from headgate.tables.versions import StoredVersion, TableVersions

# The origin of a row: the number of its file and its position there; NULL for a new row.
RID = "__rid"
# The writer: the number of a statement, or of a row of a source; 0 for a committed row.
BY = "__by"
# The position of a row in a source: of two rows with one key the greater counts.
ORDER = "__order"
_FILE_SHIFT = 2**32
# From so many calls on, check first whether a file is left to load: a cascade down a tree calls
# `bring` very often.
_MANY_CALLS = 8


class WorkingTable:
    """One table; committed rows stay in their files until a statement needs them."""

    def __init__(
        self,
        engine: Engine,
        on_branch: BranchTable,
        scan: TableScan,
        *,
        constraints_from: Metadata | None = None,
        is_new: bool = False,
    ) -> None:
        """`constraints_from`: metadata whose constraints apply in place of the version's own."""
        self.engine = engine
        self.on_branch = on_branch
        self.scan = scan
        self.name: DatasetName = on_branch.dataset.name
        # The write creates the table: no version of it is stored.
        self.is_new = is_new
        metadata = constraints_from or scan.version.metadata
        self.constraints = constraints_of(metadata)
        self.columns = [field.name for field in scan.schema]
        self.types = {c.name: c.type for c in columns_of(metadata)}
        self.required = [c.name for c in columns_of(metadata) if c.required]
        # None until a statement writes the table.
        self.rows: str | None = None
        # Load in overwrite mode: committed rows no longer count.
        self.is_replaced = False
        # For a merge: another branch's version, or its files, used as they are.
        self.pointer: Version | None = None
        self.reused: list[DataFile] = []
        # The metadata of the next version, where more than rows changes.
        self.final: Metadata | None = scan.version.metadata if is_new else None
        self.facts: dict[str, Any] = {}
        self._loaded: dict[str, tuple[int, DataFile, pa.Table]] = {}
        self._plans: dict[Any, list[DataFile]] = {}
        self._calls = 0

    @property
    def is_empty(self) -> bool:
        return current_snapshot(self.scan.version.metadata) is None

    def plan(self, where: Conditions = ()) -> list[DataFile]:
        """Return the committed files that may hold rows that meet the conditions."""
        if self.is_empty or self.is_replaced:
            return []
        key = tuple(where)
        if key not in self._plans:
            self._plans[key] = self.scan.plan(where)
        return self._plans[key]

    def begin(self) -> str:
        """Return the table of rows that statements change; the first call creates it."""
        if self.rows is None:
            check_writable(self.scan)
            self.rows = self.engine.new_name("t")
            empty = self.engine.register(self.scan.schema.empty_table())
            self.engine.execute(
                f"CREATE TEMP TABLE {self.rows} AS SELECT *, NULL::BIGINT AS {RID}, "
                f"0::BIGINT AS {BY} FROM {empty}"
            )
            for name, value in {BY: -1, **self.constraints.defaults}.items():
                column = f"ALTER TABLE {self.rows} ALTER COLUMN {sql.quote(name)}"
                self.engine.execute(f"{column} SET DEFAULT {sql.literal(value)}")
        return self.rows

    def bring(self, where: Conditions = ()) -> str:
        """Load the whole rows of every file that may hold such rows, for a statement to change."""
        name = self.begin()
        self._calls += 1
        if self._calls > _MANY_CALLS and all(f.path in self._loaded for f in self.plan()):
            return name
        missing = [f for f in self.plan(where) if f.path not in self._loaded]
        for file in self.scan.narrow(missing, where):
            number = len(self._loaded)
            rows = self.scan.read(file)
            ids = pa.array(range(number * _FILE_SHIFT, number * _FILE_SHIFT + rows.num_rows))
            marked = rows.append_column(RID, ids.cast(pa.int64()))
            self._loaded[file.path] = (number, file, marked)
            source = self.engine.register(marked)
            self.engine.execute(f"INSERT INTO {name} SELECT *, 0 FROM {source}")
        return name

    def merge(
        self,
        source: str,
        columns: list[str],
        *,
        by: str = "-1",
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Update rows by key with the source's values in these columns, and insert the others.

        No two rows of `source` have the same key; `by` is the SQL expression of the writer. `given`
        names, by column, the column that says which rows have it: the others leave it as it is.
        """
        key = self.constraints.key
        name = self.bring(self.key_conditions(source))
        others = [column for column in columns if column not in key]
        if others:
            sets = ", ".join(
                f"{sql.quote(column)} = {_new_value(column, given)}" for column in others
            )
            self.engine.execute(
                f"UPDATE {name} AS held SET {sets}, {BY} = {by} FROM {source} AS source "
                f"WHERE {sql.equal_sql(key, 'held', 'source')}"
            )
        self.insert_missing(source, columns, by=by)

    def insert_missing(self, source: str, columns: list[str], *, by: str = "-1") -> None:
        """Insert the rows of the source whose key the table does not have."""
        name = self.bring(self.key_conditions(source))
        self.engine.execute(
            f"INSERT INTO {name} ({sql.columns_sql(columns)}, {BY}) "
            f"SELECT {sql.columns_sql(columns, 'source')}, {by} FROM {source} AS source "
            f"ANTI JOIN {name} AS held ON {sql.equal_sql(self.constraints.key, 'held', 'source')}"
        )

    def newest_by_key(
        self, source: str, columns: Sequence[str] = (), given: Mapping[str, str] | None = None
    ) -> str:
        """Return a relation of the last row of each key by `ORDER`; rows without a key all stay.

        Where rows lack columns, which `given` names as in `merge`, each of these has the value of
        the last row that has it, as if the rows had been merged one after the other.
        """
        key = self.constraints.key
        name = self.engine.new_name("s")
        known = " AND ".join(f"{sql.quote(column)} IS NOT NULL" for column in key)
        if given:
            values = [_last_value(column, given) for column in columns if column not in key]
            marks = [f"bool_or({mark}) AS {mark}" for mark in given.values()]
            keys = sql.columns_sql(key)
            selected = ", ".join([keys, *values, *marks, f"max({ORDER}) AS {ORDER}"])
            self.engine.execute(
                f"CREATE TEMP TABLE {name} AS SELECT {selected} FROM {source} WHERE {known} "
                f"GROUP BY {keys} UNION ALL BY NAME SELECT * FROM {source} WHERE NOT ({known})"
            )
            return name
        self.engine.execute(
            f"CREATE TEMP TABLE {name} AS SELECT * FROM {source} QUALIFY NOT ({known}) OR "
            f"row_number() OVER (PARTITION BY {sql.columns_sql(key)} ORDER BY {ORDER} DESC) = 1"
        )
        return name

    def key_conditions(self, source: str) -> list[Condition]:
        """Return conditions that every row with a key of the source meets."""
        return [sql.conditions_of(self.engine, source, column) for column in self.constraints.key]

    def relation(self, columns: Sequence[str], where: Conditions = ()) -> str:
        """Return a name under which SQL reads these columns of the table in its current state."""
        parts = []
        if self.rows is not None:
            parts.append(f"SELECT {sql.columns_sql(columns)} FROM {self.rows}")
        unread = [file for file in self.plan(where) if file.path not in self._loaded]
        for file in unread:
            source = self.engine.register(self.scan.read(file, list(columns)))
            parts.append(f"SELECT {sql.columns_sql(columns)} FROM {source}")
        if not parts:
            empty = self.engine.register(self.scan.schema.empty_table())
            parts.append(f"SELECT {sql.columns_sql(columns)} FROM {empty}")
        name = self.engine.new_name("r")
        self.engine.execute(f"CREATE TEMP VIEW {name} AS {' UNION ALL '.join(parts)}")
        return name

    def originals(self) -> str:
        """Return a relation of the loaded rows as they were committed."""
        loaded = [rows for _, _, rows in self._loaded.values()]
        empty = self.scan.schema.empty_table().append_column(RID, pa.array([], pa.int64()))
        return self.engine.register(pa.concat_tables([empty, *loaded]))

    def kept_rows(self, removed: pa.Array) -> tuple[list[DataFile], pa.Table]:
        """Return the files that hold the removed rows, and the other rows of these files."""
        numbers = set(pc.unique(pc.divide(removed, _FILE_SHIFT)).to_pylist())
        touched = [held for held in self._loaded.values() if held[0] in numbers]
        empty = self.scan.schema.empty_table()
        left = [
            rows.filter(pc.invert(pc.is_in(rows.column(RID), removed))).drop_columns([RID])
            for _, _, rows in touched
        ]
        return [file for _, file, _ in touched], pa.concat_tables([empty, *left])


def _new_value(column: str, given: Mapping[str, str]) -> str:
    """Return SQL for a column of a row that a merge updates."""
    new = f"source.{sql.quote(column)}"
    if column not in given:
        return new
    return f"CASE WHEN source.{given[column]} THEN {new} ELSE held.{sql.quote(column)} END"


def _last_value(column: str, given: Mapping[str, str]) -> str:
    """Return SQL for the last value of a column among the rows of one key."""
    name = sql.quote(column)
    last = f"last({name} ORDER BY {ORDER})"
    if column in given:
        mark = given[column]
        last = f"CASE WHEN bool_or({mark}) THEN {last} FILTER (WHERE {mark}) ELSE {last} END"
    return f"{last} AS {name}"


@dataclass(frozen=True, kw_only=True)
class VersionMove:
    """A branch that is to show an existing version; its rows are not read."""

    on_branch: BranchTable
    version: Version | None
    type: TransactionType
    facts: Mapping[str, Any]
    counts: Counts
    # Objects of a file tree that the branch's own tree does not hold.
    objects: frozenset[str] = frozenset()


class WorkingSet:
    """The tables of one write, opened by the first statement or constraint that needs them."""

    def __init__(
        self, branch_tables: BranchTables, versions: TableVersions, options: Mapping[str, str]
    ) -> None:
        self.branch_tables = branch_tables
        self.versions = versions
        self.options = options
        self.engine = Engine()
        self.tables: dict[DatasetName, WorkingTable] = {}
        self.moves: list[VersionMove] = []

    def table(self, name: DatasetName, *, line: int = 0, column: int = 0) -> WorkingTable:
        """Return a table of the branch; one that it does not show raises an error at that place."""
        if name not in self.tables:
            on_branch = self.branch_tables.load(name, line=line, column=column)
            scan = TableScan(self.versions.read(on_branch.stored.location), self.options)
            self.tables[name] = WorkingTable(self.engine, on_branch, scan)
        return self.tables[name]

    def create(self, on_branch: BranchTable, metadata: Metadata) -> WorkingTable:
        """Return a table that the branch does not show, with this metadata as its first."""
        version = StoredVersion(location=metadata["location"], content=b"", metadata=metadata)
        scan = TableScan(version, self.options)
        table = WorkingTable(self.engine, on_branch, scan, is_new=True)
        self.tables[table.name] = table
        return table

    def find_table(self, name: DatasetName) -> WorkingTable | None:
        """Return the table, or None if the branch does not show it."""
        on_branch = self.branch_tables.find(name) if name not in self.tables else None
        is_shown = on_branch is not None and on_branch.version is not None
        return self.table(name) if name in self.tables or is_shown else None

    def referring(self, table: WorkingTable) -> list[tuple[WorkingTable, Reference]]:
        """Return the references of other tables to the key of this one."""
        found = []
        for text in referring_datasets(table.scan.version.metadata):
            other = self.find_table(parse_dataset_name(text))
            if other is None:
                continue
            found += [
                (other, reference)
                for reference in other.constraints.references
                if reference.dataset == str(table.name)
            ]
        return found

    @property
    def written(self) -> list[WorkingTable]:
        """Tables that a statement may have changed, in the order of their names."""
        tables = [t for t in self.tables.values() if t.rows is not None]
        return sorted(tables, key=lambda table: table.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()


@dataclass(frozen=True, kw_only=True)
class TableEffect:
    """The net change of one table; `removed` and `added` are names of relations."""

    table: WorkingTable
    removed: str
    added: str
    counts: Counts

    @property
    def type(self) -> TransactionType:
        """The type of the change, where the caller gives none."""
        if self.table.is_replaced or self.table.is_new:
            return TransactionType.SNAPSHOT
        if not self.counts.updated and not self.counts.deleted:
            return TransactionType.APPEND
        if not self.counts.updated and not self.counts.inserted:
            return TransactionType.DELETE
        return TransactionType.UPDATE

    def added_rows(self) -> pa.Table:
        columns = sql.columns_sql(self.table.columns)
        found = self.table.engine.arrow(f"SELECT {columns} FROM {self.added}")
        rows = sql.from_engine(found, self.table.scan.schema)
        for name in rows.column_names:
            if sql.has_year_out_of_range(rows.column(name)):
                raise Invalid(
                    f"{self.table.name}: a value of {name!r} is not in the years 1 to 9999; "
                    "nothing was changed.",
                    dataset=str(self.table.name),
                    column=name,
                )
        return rows

    def fingerprint(self) -> tuple[int, int]:
        """Return a count and hash of the removed rows, whatever their order and files."""
        columns = sql.columns_sql(self.table.columns)
        [(count, mark)] = self.table.engine.rows(
            f"SELECT count(*), coalesce(bit_xor(hash({columns})), 0) FROM {self.removed}"
        )
        return int(count), int(mark)


def effect_of(table: WorkingTable) -> TableEffect:
    """Compare the rows with the committed ones; equal rows cancel out."""
    rows = table.begin()
    if table.is_replaced or not table._loaded:
        # All committed rows are removed, or none.
        return _all_new(table, rows)
    engine, before = table.engine, table.originals()
    removed, added = engine.new_name("removed"), engine.new_name("added")
    same = sql.same_sql(table.columns, "old", "new")
    engine.execute(
        f"CREATE TEMP TABLE {removed} AS SELECT old.* FROM {before} AS old ANTI JOIN {rows} AS new "
        f"ON old.{RID} = new.{RID} AND {same}"
    )
    engine.execute(
        f"CREATE TEMP TABLE {added} AS SELECT new.* FROM {rows} AS new ANTI JOIN {before} AS old "
        f"ON old.{RID} = new.{RID} AND {same}"
    )
    _cancel(table, removed, added)
    return TableEffect(
        table=table, removed=removed, added=added, counts=_counts(table, removed, added)
    )


def _all_new(table: WorkingTable, rows: str) -> TableEffect:
    removed = table.engine.new_name("removed")
    table.engine.execute(f"CREATE TEMP VIEW {removed} AS SELECT * FROM {rows} LIMIT 0")
    recorded = recorded_row_count(table.scan.version.metadata) if table.is_replaced else 0
    count = int(table.engine.value(f"SELECT count(*) FROM {rows}"))
    counts = Counts(inserted=count, deleted=recorded or 0)
    return TableEffect(table=table, removed=removed, added=rows, counts=counts)


def _cancel(table: WorkingTable, removed: str, added: str) -> None:
    """Drop rows that were deleted and added again unchanged, where a key identifies rows."""
    key = table.constraints.key
    engine = table.engine
    if not key or not engine.value(f"SELECT count(*) FROM {removed}"):
        return
    back = engine.new_name("back")
    engine.execute(
        f"CREATE TEMP TABLE {back} AS SELECT old.{RID} AS old_id, new.rowid AS new_id "
        f"FROM {removed} AS old JOIN {added} AS new ON {sql.equal_sql(key, 'old', 'new')} "
        f"AND {sql.same_sql(table.columns, 'old', 'new')} "
        f"QUALIFY row_number() OVER (PARTITION BY old.{RID}) = 1"
    )
    engine.execute(f"DELETE FROM {added} WHERE rowid IN (SELECT new_id FROM {back})")
    engine.execute(f"DELETE FROM {removed} WHERE {RID} IN (SELECT old_id FROM {back})")


def _counts(table: WorkingTable, removed: str, added: str) -> Counts:
    engine = table.engine
    old = int(engine.value(f"SELECT count(*) FROM {removed}"))
    new = int(engine.value(f"SELECT count(*) FROM {added}"))
    if not old or not new:
        return Counts(inserted=new, deleted=old)
    key = table.constraints.key
    pairing = (
        sql.equal_sql(key, "old", "new") if key else f"old.{sql.quote(RID)} = new.{sql.quote(RID)}"
    )
    both = int(
        engine.value(f"SELECT count(*) FROM {removed} AS old SEMI JOIN {added} AS new ON {pairing}")
    )
    return Counts(inserted=new - both, updated=both, deleted=old - both)


# Commits of engines: both versions are stored, and the later one is the working set.


def committed_effect(
    working: WorkingSet, changed: ChangedTable, needed: Callable[[WorkingTable], Sequence[str]]
) -> TableEffect:
    """Return the effect of a commit, and show its version in the working set.

    Only files that one of the versions lacks are read, and of them only the `needed` columns of
    added rows, and the keys of removed rows to which other tables may refer.
    """
    versions = working.versions
    after = versions.read(changed.after)
    before = versions.read(changed.before) if changed.before is not None else None
    on_branch = working.branch_tables.find(changed.name) or new_table(changed.name)
    loose = relaxed(after.metadata)
    scan = scan_with(after, loose, working.options)
    table = WorkingTable(working.engine, on_branch, scan, constraints_from=after.metadata)
    working.tables[table.name] = table
    old = None
    if before is not None:
        held = {part: before.metadata[part] for part in _SNAPSHOTS if part in before.metadata}
        now = {name: part for name, part in loose.items() if name not in _SNAPSHOTS}
        old = scan_with(before, {**now, **held}, working.options)
    gone, come = changed_files(old, scan)
    engine, key = working.engine, table.constraints.key
    added = collect(engine, scan, come, needed(table), also=f", 0::BIGINT AS {BY}")
    is_referred = len(key) == 1 and bool(referring_datasets(after.metadata))
    removed = collect(engine, old or scan, gone if is_referred else (), key)
    return TableEffect(table=table, removed=removed, added=added, counts=Counts())


# The parts of metadata that say which rows a version shows.
_SNAPSHOTS = frozenset({"snapshots", "refs", "current-snapshot-id"})


def collect(
    engine: Engine,
    scan: TableScan,
    files: Iterable[DataFile],
    columns: Sequence[str],
    *,
    also: str = "",
) -> str:
    """Return a table of these columns of all rows in the files, read one file at a time."""
    name = engine.new_name("c")
    # A table without columns of interest has one, and no row.
    selected = f"{sql.columns_sql(columns) or 'NULL'}{also}"
    empty = engine.register(scan.schema.empty_table())
    engine.execute(f"CREATE TEMP TABLE {name} AS SELECT {selected} FROM {empty}")
    for batch in scan.batches(files, columns=columns) if columns else ():
        engine.insert(name, batch, selected)
    return name


def relaxed(metadata: Metadata) -> Metadata:
    """Return metadata without required columns, so that rows without a value can be read."""
    schema = current_schema(metadata)
    assert schema is not None
    fields = [{**field, "required": False} for field in schema["fields"]]
    loose = {**schema, "fields": fields, "identifier-field-ids": []}
    others = [s for s in metadata["schemas"] if s["schema-id"] != schema["schema-id"]]
    return {**metadata, "schemas": [*others, loose]}


def stage(versions: TableVersions, effect: TableEffect) -> Version:
    """Write the effect as a version that no branch shows; cleanup removes it if none ever does."""
    if effect.table.pointer is not None:
        return effect.table.pointer
    base = effect.table.final
    # A merge may bring a schema and no rows.
    metadata = base if base is not None and not effect.counts else stage_rows(effect, base)
    dataset, read = effect.table.on_branch.dataset, effect.table.scan.version
    before = None if effect.table.is_new else read.metadata
    stored = versions.write(dataset.id, metadata, base=before)
    reach(Failpoint.MUTATION_VERSION_STAGED)
    return Version(id=mint_version(), location=stored.location, content_id=mint_content())


def stage_rows(effect: TableEffect, base: Metadata | None = None) -> Metadata:
    """Write the data files and return the table's next metadata; `base` as in `next_metadata`."""
    table = effect.table
    added = effect.added_rows()
    if table.is_replaced:
        change = FileChange(
            operation="overwrite",
            removed=[] if table.is_empty else table.scan.plan(),
            added=write_rows(table.scan, added, table.constraints.key),
            replaces_all=True,
        )
    else:
        ids = table.engine.arrow(f"SELECT {RID} FROM {effect.removed}").column(RID)
        removed, kept = table.kept_rows(ids.combine_chunks())
        operation = "overwrite" if removed else "append"
        if removed and not kept.num_rows and not added.num_rows:
            operation = "delete"
        change = FileChange(
            operation=operation, removed=removed, added=_added_files(effect, kept, added)
        )
    reach(Failpoint.MUTATION_DATA_WRITTEN)
    return next_metadata(table.scan, change, now_ms=now_ms(), base=base, is_first=table.is_new)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def scan_with(version: StoredVersion, metadata: Metadata, options: Mapping[str, str]) -> TableScan:
    """Return a scan of a version's files by other metadata, such as one with a later schema."""
    return TableScan(replace(version, content=b"", metadata=metadata), options)


def _added_files(effect: TableEffect, kept: pa.Table, added: pa.Table) -> list[Any]:
    """Return new files, or another branch's where they hold exactly the added rows."""
    table = effect.table
    whole = sum(file.row_count for file in table.reused)
    if table.reused and not kept.num_rows and whole == added.num_rows:
        return [file.task.file for file in table.reused]
    rows = pa.concat_tables([kept.cast(added.schema), added])
    return write_rows(table.scan, rows, table.constraints.key)
