"""`load --engine spark`: a load with the outcome of one by Arrow, in a unit of transactions.

The unit holds the written tables open, so no other writer can move them. Only tables that
validation read can move; then the staged rows are validated again, and not loaded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from headgate import errors
from headgate.attempts import CommitOptions, Contents, Heartbeat, commit_transactions
from headgate.catalog.database import Connection
from headgate.catalog.records import Unit, load_transactions
from headgate.catalog.tickets import Line
from headgate.catalog.units import abort_unit_if_open, open_in_unit, open_unit, renew_unit
from headgate.model.changes import Provenance, ReadView, Receipt
from headgate.model.constraints import Constraints, Violation
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Dataset, Transaction
from headgate.rows import write
from headgate.rows.branch_tables import BranchTable, BranchTables, branch_context
from headgate.rows.load import LoadMode, check_merge_key
from headgate.rows.load_spark_files import FilesByTable, RowPlaces, SparkFile, as_files, check_files
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.sources import SourcesByTable
from headgate.rows.validate import raise_if_any
from headgate.spark import load as spark_load
from headgate.spark import load_violations
from headgate.spark.load import SparkLoad
from headgate.spark.load_violations import FoundViolation, LoadCheck, LoadedTable
from headgate.spark.session import table_identifier
from headgate.spark.sql import reporting_end, without_error_log
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.inspect import columns_of, recorded_size_bytes
from headgate.tables.metadata import Metadata
from headgate.tables.scan import TableScan, json_value
from headgate.tables.snapshots import current_snapshot
from headgate.tables.versions import StoredVersion

Session = Callable[[str], Any]
StagedByTable: TypeAlias = "Mapping[DatasetName, StagedRows]"
CountsByTable: TypeAlias = Mapping[DatasetName, Counts]

_LEASE_SECONDS = 900
# Keys of the snapshot summary that MERGE INTO writes.
_MERGE_SUMMARY = "spark.merge-into.num-target-rows-"
# From this share of a table on, checking all of its keys costs no more than only the new ones.
_ALL_KEYS_FROM_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class _OpenLoad:
    """A load with its request, its services and its open transactions."""

    parts: Parts
    request: Request
    files: FilesByTable
    mode: LoadMode
    session: Session
    contents: Contents
    unit: Unit
    opened: Mapping[DatasetName, Transaction]
    deadline: float

    def branch_tables(self) -> BranchTables:
        """Return the tables as the branch shows them now; the written ones cannot have moved."""
        branch_tables = BranchTables(self.parts.database, branch_context(self.request.branch))
        branch_tables.prefetch([*self.files, *self.request.if_heads])
        return branch_tables


def load_by_spark(
    parts: Parts,
    request: Request,
    sources: SourcesByTable,
    mode: LoadMode,
    *,
    session: Session,
    contents: Contents,
) -> Outcome:
    """Stage every table in one unit, validate all, and publish at once."""
    if branch_context(request.branch).fallbacks:
        raise errors.Invalid(
            "a load by Spark needs an existing branch: create it with `headgate branch create`."
        )
    write.check_may_write(parts, request)

    def act() -> tuple[Receipt, Outcome]:
        with (
            reporting_end(),
            as_files(sources) as files,
            _opened(parts, request, files, mode, session, contents) as loading,
        ):
            return _execute(loading)

    return write.run_once(parts, request, act)


@contextmanager
def _opened(
    parts: Parts,
    request: Request,
    files: FilesByTable,
    mode: LoadMode,
    session: Session,
    contents: Contents,
) -> Iterator[_OpenLoad]:
    """Hold the tables open; abort the unit unless it is committed."""
    deadline = time.monotonic() + request.timeout_seconds
    context = branch_context(request.branch)
    branch_tables = BranchTables(parts.database, context)
    branch_tables.prefetch([*files, *request.if_heads])
    datasets = [branch_tables.load(name).dataset for name in files]
    write.check_heads(branch_tables, request)
    unit = open_unit(
        parts.database, context.branch, actor=request.caller.actor, lease_seconds=_LEASE_SECONDS
    )
    try:
        opened = _open(parts, request, unit, datasets, deadline)
        with Heartbeat(partial(renew_unit, parts.database, unit.id)):
            yield _OpenLoad(
                parts=parts,
                request=request,
                files=files,
                mode=mode,
                session=session,
                contents=contents,
                unit=unit,
                opened=opened,
                deadline=deadline,
            )
    finally:
        abort_unit_if_open(parts.database, unit.id, caller=request.caller)


def _open(
    parts: Parts, request: Request, unit: Unit, datasets: Sequence[Dataset], deadline: float
) -> dict[DatasetName, Transaction]:
    """Open all transactions, or none; wait for a transaction that is open."""

    def work(connection: Connection) -> dict[DatasetName, Transaction]:
        return {
            dataset.name: open_in_unit(connection, unit, dataset, caller=request.caller)
            for dataset in datasets
        }

    while True:
        try:
            return parts.database.write(work)
        except errors.OpenTransactionAlreadyExists:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def _execute(loading: _OpenLoad) -> tuple[Receipt, Outcome]:
    branch_tables = loading.branch_tables()
    write.check_heads(branch_tables, loading.request)
    session = loading.session(f"txn:{loading.unit.id}")
    tables = [
        _table_load(loading.parts, branch_tables, name, files, loading.mode)
        for name, files in loading.files.items()
    ]
    with _bad_row_errors(loading, branch_tables, tables):
        staged = {table.name: _stage(session, table) for table in tables}
    _check_encodings(tables, staged)
    counts = _counts(loading, session, branch_tables, staged)
    receipt, losses = _validate_and_commit(loading, session, staged, counts)
    return receipt, Outcome(
        operation=receipt.operation,
        publication=receipt.publication,
        counts={str(name): count for name, count in counts.items() if count},
        losses=losses,
    )


@contextmanager
def _bad_row_errors(
    loading: _OpenLoad, branch_tables: BranchTables, tables: Sequence[TableLoad]
) -> Iterator[None]:
    """Raise Spark's failure as errors of all bad rows: Spark fails at the first one."""
    try:
        with reporting_end(), without_error_log():
            yield
    except errors.SparkStopped:
        raise
    except errors.HeadgateError:
        # A missing key column matters only in a file that can be read.
        _check_files(tables)
        raise
    except Exception as error:
        _check_files(tables)
        try:
            _raise_violations(loading, branch_tables, tables)
        except errors.HeadgateError:
            raise
        except Exception as again:
            # A file that cannot be read to be written cannot be read to be checked either.
            error.add_note(f"and while its rows were checked: {again}")
        reason = str(error).split("\n", 1)[0]
        file = tables[0].files[0].file
        raise errors.InvalidSource(file=file, reason=f"Spark: {reason}") from error


def _check_encodings(tables: Sequence[TableLoad], staged: StagedByTable) -> None:
    """Check the bytes where Spark replaced some that are not UTF-8, which it does silently."""
    text = [t for t in tables if any(file.format != "parquet" for file in t.files)]
    if any(spark_load.has_replacement_characters(staged[table.name].rows) for table in text):
        _check_files(tables)


def _counts(
    loading: _OpenLoad, session: Any, branch_tables: BranchTables, staged: StagedByTable
) -> dict[DatasetName, Counts]:
    ids = [transaction.id for transaction in loading.opened.values()]
    found = loading.parts.database.read(lambda c: load_transactions(c, ids))
    return {
        name: _table_counts(
            loading.parts, session, branch_tables.load(name), found[loading.opened[name].id], rows
        )
        for name, rows in staged.items()
    }


def _validate_and_commit(
    loading: _OpenLoad, session: Any, staged: StagedByTable, counts: CountsByTable
) -> tuple[Receipt, int]:
    """Validate and commit; validate again where other writers moved what was read."""
    losses = 0
    line = Line(loading.parts.database, seconds=max(0.0, loading.deadline - time.monotonic()))
    try:
        while True:
            branch_tables = loading.branch_tables()
            write.check_heads(branch_tables, loading.request)
            found = _validate(loading, session, branch_tables, staged)
            reach(Failpoint.MUTATION_STAGED)
            try:
                return _commit(loading, branch_tables, counts, found), losses
            except errors.ViewConflict:
                losses += 1
                over = time.monotonic() >= loading.deadline and losses >= write.MIN_ATTEMPTS
                if over or loading.request.timeout_seconds <= 0:
                    raise
            if losses >= write.CONFLICTS_BEFORE_TICKET and line.ticket is None:
                # For the tables that validation reads; those that are written are held open.
                line.join(read.branch for read in found.reads)
                line.wait()
    finally:
        line.leave()


def _commit(
    loading: _OpenLoad, branch_tables: BranchTables, counts: CountsByTable, found: Validated
) -> Receipt:
    opened = loading.opened
    ids = [transaction.id for transaction in opened.values()] if any(counts.values()) else []
    facts = {
        opened[name].id: Provenance(
            facts=write.mutation_facts(
                f"load-{loading.mode}", count, keys_hold=name in found.keys_hold
            )
        )
        for name, count in counts.items()
    }
    written = [branch_tables.load(name).branch for name in opened]
    reads = {one.branch for one in found.reads} | {branch.id for branch in written if branch}
    return commit_transactions(
        loading.parts.database,
        loading.contents,
        # Without any effect nothing is committed, and the unit is aborted.
        ids,
        CommitOptions(
            caller=loading.request.caller,
            operation=loading.request.operation,
            provenance=facts,
            is_validated=True,
            reads=(*found.reads, *write.head_reads(branch_tables, loading.request, reads)),
        ),
    )


# One table's part: its files staged, its rows counted.


@dataclass(frozen=True, kw_only=True)
class TableLoad:
    """The load of one table: its files, its constraints and its state."""

    name: DatasetName
    load: SparkLoad
    files: Sequence[SparkFile]
    mode: LoadMode
    constraints: Constraints
    required: Sequence[str]
    schema: pa.Schema
    # The Iceberg snapshot; None for a table that never had a row.
    snapshot: int | None
    # Keys are known to be unique.
    keys_hold: bool


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """The rows that a load staged in a table, as Spark reads them."""

    table: TableLoad
    # Data frames, one for each set of columns.
    rows: Sequence[Any]
    # Rows that an overwrite removed.
    deleted: int = 0


def _table_load(
    parts: Parts,
    branch_tables: BranchTables,
    name: DatasetName,
    files: Sequence[SparkFile],
    mode: LoadMode,
) -> TableLoad:
    """Return a table's load before anything is staged."""
    on_branch = branch_tables.load(name)
    version = _version_of(parts, on_branch)
    constraints = constraints_of(version.metadata)
    snapshot = current_snapshot(version.metadata)
    return TableLoad(
        name=name,
        load=SparkLoad(
            table=table_identifier(name),
            files=[(str(file.path), file.format) for file in files],
            key=constraints.key,
            defaults=constraints.defaults,
            share=_share(files, version.metadata),
        ),
        files=files,
        mode=mode,
        constraints=constraints,
        required=[column.name for column in columns_of(version.metadata) if column.required],
        schema=TableScan(version, parts.options).schema,
        snapshot=int(snapshot["snapshot-id"]) if snapshot else None,
        keys_hold=snapshot is None or mode is LoadMode.OVERWRITE or write.keys_hold(on_branch),
    )


def _stage(session: Any, table: TableLoad) -> StagedRows:
    """Write the rows into the table's working version; Spark fails on rows of other types."""
    load, deleted = table.load, 0
    rows = spark_load.read_rows(session, load)
    match table.mode:
        case LoadMode.APPEND:
            spark_load.append_rows(session, load, rows)
        case LoadMode.OVERWRITE:
            deleted = session.table(load.table).count()
            spark_load.overwrite_rows(session, load, rows)
        case LoadMode.MERGE:
            for frame in rows:
                check_merge_key(table.name, load.key, frame.columns)
            for at, frame in enumerate(rows):
                spark_load.merge_rows(session, load, at, frame)
    return StagedRows(table=table, rows=rows, deleted=deleted)


def _table_counts(
    parts: Parts, session: Any, on_branch: BranchTable, working: Transaction, staged: StagedRows
) -> Counts:
    """Return the counts from the summaries of Spark's snapshots, without reading rows."""
    if working.version is None or working.version == on_branch.version:
        return Counts()
    before = _version_of(parts, on_branch).metadata
    after = parts.versions.read(working.version.location).metadata
    known = {snapshot["snapshot-id"] for snapshot in before.get("snapshots") or []}
    summaries = [
        snapshot.get("summary") or {}
        for snapshot in after.get("snapshots") or []
        if snapshot["snapshot-id"] not in known
    ]
    if staged.table.mode is LoadMode.MERGE:
        inserted = sum(_inserted_by_merge(one) for one in summaries)
        updated = sum(int(one.get(f"{_MERGE_SUMMARY}updated", 0)) for one in summaries)
        if len(summaries) > 1 and updated and staged.table.snapshot is not None:
            # A row that several merges changed counts once.
            load, snapshot = staged.table.load, staged.table.snapshot
            updated = spark_load.changed_rows(session, load, snapshot)
        return Counts(inserted=inserted, updated=updated)
    inserted = sum(int(one.get("added-records", 0)) for one in summaries)
    return Counts(inserted=inserted, deleted=staged.deleted)


def _inserted_by_merge(summary: Mapping[str, Any]) -> int:
    """Return the inserted rows; Spark records a merge of key columns only as an append."""
    if summary.get("operation") == "append":
        return int(summary.get("added-records", 0))
    return int(summary.get(f"{_MERGE_SUMMARY}inserted", 0))


def _version_of(parts: Parts, on_branch: BranchTable) -> StoredVersion:
    assert on_branch.version is not None
    return parts.versions.read(on_branch.version.location)


def _share(files: Sequence[SparkFile], metadata: Metadata) -> float:
    """Return the size of the files relative to that of the table."""
    table = recorded_size_bytes(metadata)
    return sum(file.path.stat().st_size for file in files) / table if table else 1.0


# Validation of the staged rows.


@dataclass(frozen=True, kw_only=True)
class Validated:
    """The views that validation read, and the tables with unique keys."""

    reads: tuple[ReadView, ...]
    keys_hold: frozenset[DatasetName]


class RelatedTables:
    """Tables that refer to the loaded ones, or that these refer to, as the branch shows them."""

    def __init__(self, parts: Parts, branch_tables: BranchTables) -> None:
        self._parts = parts
        self._branch_tables = branch_tables
        self.read: dict[DatasetName, BranchTable] = {}

    def keys(self, table: TableLoad) -> dict[str, tuple[DatasetName, str]]:
        """Return the datasets that a table refers to, each with its key; without missing ones."""
        found: dict[str, tuple[DatasetName, str]] = {}
        for reference in table.constraints.references:
            name = parse_dataset_name(reference.dataset)
            if (constraints := self._constraints(name)) is not None:
                [key] = constraints.key
                found[reference.dataset] = (name, key)
        return found

    def referring(self, table: TableLoad) -> list[tuple[DatasetName, str]]:
        """Return columns of other tables that refer to this one, where rows are removed."""
        if table.mode is not LoadMode.OVERWRITE:
            return []
        found: list[tuple[DatasetName, str]] = []
        metadata = _version_of(self._parts, self._branch_tables.load(table.name)).metadata
        for name in map(parse_dataset_name, referring_datasets(metadata)):
            if (constraints := self._constraints(name)) is not None:
                references = constraints.references
                found += [(name, r.column) for r in references if r.dataset == str(table.name)]
        return found

    def _constraints(self, name: DatasetName) -> Constraints | None:
        on_branch = self._branch_tables.find(name)
        if on_branch is None or on_branch.version is None:
            return None
        self.read[name] = on_branch
        return constraints_of(_version_of(self._parts, on_branch).metadata)


def _validate(
    loading: _OpenLoad, session: Any, branch_tables: BranchTables, staged: StagedByTable
) -> Validated:
    """Raise violations where a quick check finds any; return the views that were read."""
    related = RelatedTables(loading.parts, branch_tables)
    checks = {name: _check(related, rows) for name, rows in staged.items()}
    repeated = {
        name
        for name, check in checks.items()
        if check.constraints.key
        and not check.keys_hold
        and load_violations.may_repeat_keys(session, check)
    }
    if repeated or any(load_violations.may_violate(session, check) for check in checks.values()):
        _raise_violations(loading, branch_tables, [rows.table for rows in staged.values()])
    holding = {
        name
        for name, check in checks.items()
        if name not in repeated and (check.looks_at_all_keys or staged[name].table.keys_hold)
    }
    reads = [table.read for name, table in related.read.items() if name not in staged]
    return Validated(
        reads=tuple(read for read in reads if read is not None), keys_hold=frozenset(holding)
    )


def _check(related: RelatedTables, staged: StagedRows) -> LoadCheck:
    table = staged.table
    merged = table.mode is LoadMode.MERGE
    return LoadCheck(
        table=table.load.table,
        rows=staged.rows,
        constraints=table.constraints,
        merged=merged,
        keys_hold=merged and table.keys_hold,
        looks_at_all_keys=merged and table.load.share >= _ALL_KEYS_FROM_SHARE,
        referred={
            text: (table_identifier(other), key)
            for text, (other, key) in related.keys(table).items()
        },
        referring=tuple(
            (table_identifier(other), column) for other, column in related.referring(table)
        ),
    )


# Errors of bad rows, with file and line.
#
# Spark only reports that there is a bad row. The rows are found by reading the files again, with
# the reader that names rows, and then by checking previews of the tables.


def _check_files(tables: Sequence[TableLoad]) -> None:
    """Raise for files that cannot be read, and for rows that cannot be cast to their table."""
    files = {table.name: table.files for table in tables}
    check_files(files, {table.name: table.schema for table in tables})


def _raise_violations(
    loading: _OpenLoad, branch_tables: BranchTables, tables: Sequence[TableLoad]
) -> None:
    """Raise for rows that violate constraints, by previews over the branch itself."""
    session = loading.session(loading.request.branch)
    places = {str(table.name): RowPlaces(table.files) for table in tables}

    def type_of(dataset: str, column: str) -> pa.DataType:
        on_branch = branch_tables.load(parse_dataset_name(dataset))
        scan = TableScan(_version_of(loading.parts, on_branch), loading.parts.options)
        return scan.schema.field(column).type

    raise_if_any(
        _violation(found, type_of, places)
        for table in _loaded_tables(loading.parts, session, branch_tables, tables)
        for found in load_violations.find_violations(table)
    )


def _violation(
    found: FoundViolation,
    type_of: Callable[[str, str], pa.DataType],
    places: Mapping[str, RowPlaces],
) -> Violation:
    where = places[found.dataset].of(*found.position) if found.position is not None else {}
    return Violation(
        dataset=found.dataset,
        kind=found.kind,
        columns=found.columns,
        values=tuple(
            json_value(value, type_of(found.dataset, column))
            for column, value in zip(found.columns, found.values, strict=True)
        ),
        detail={**found.detail, **where},
    )


def _loaded_tables(
    parts: Parts, session: Any, branch_tables: BranchTables, tables: Sequence[TableLoad]
) -> Iterator[LoadedTable]:
    preview = {
        LoadMode.APPEND: load_violations.preview_append,
        LoadMode.OVERWRITE: load_violations.preview_overwrite,
        LoadMode.MERGE: load_violations.preview_merge,
    }
    previews = {table.name: preview[table.mode](session, table.load) for table in tables}
    related = RelatedTables(parts, branch_tables)

    def rows_of(name: DatasetName) -> Any:
        return previews[name].rows if name in previews else session.table(table_identifier(name))

    for table in sorted(tables, key=lambda table: table.name):
        yield LoadedTable(
            dataset=str(table.name),
            preview=previews[table.name],
            constraints=table.constraints,
            required=table.required,
            referred={
                text: (rows_of(other), key) for text, (other, key) in related.keys(table).items()
            },
            referring=[
                (str(other), rows_of(other), column) for other, column in related.referring(table)
            ],
        )
