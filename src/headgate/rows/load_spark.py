"""`load --engine spark`: a load with the outcome of one by Arrow, in a unit of transactions.

The unit holds the written tables open, so no other writer can move them. Only tables that
validation read can move; then the staged rows are validated again, and not loaded again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
from headgate.rows.load_spark_files import Converter, TableFormat, check_readable
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.sources import SourceLike, SourcesByTable
from headgate.rows.validate import raise_if_any
from headgate.spark import load as spark_load
from headgate.spark import load_violations
from headgate.spark.load import LoadFile, SparkLoad
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
OpenByTable: TypeAlias = Mapping[DatasetName, Transaction]

_LEASE_SECONDS = 900
# Keys of the snapshot summary that MERGE INTO writes.
_MERGE_SUMMARY = "spark.merge-into.num-target-rows-"
# From this share of a table on, checking all of its keys costs no more than only the new ones.
_ALL_KEYS_FROM_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class _Load:
    """A load with its request and its services."""

    parts: Parts
    request: Request
    sources: SourcesByTable
    mode: LoadMode
    session: Session
    contents: Contents
    # Directory of converted sources.
    home: Path
    deadline: float

    def branch_tables(self) -> BranchTables:
        """Return the tables as the branch shows them now."""
        branch_tables = BranchTables(self.parts.database, branch_context(self.request.branch))
        branch_tables.prefetch([*self.sources, *self.request.if_heads])
        write.check_heads(branch_tables, self.request)
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
        with reporting_end(), tempfile.TemporaryDirectory(prefix="headgate-load-") as home:
            load = _Load(
                parts=parts,
                request=request,
                sources=sources,
                mode=mode,
                session=session,
                contents=contents,
                home=Path(home),
                deadline=time.monotonic() + request.timeout_seconds,
            )
            return _hold_and_execute(load)

    return write.run_once(parts, request, act)


def _hold_and_execute(load: _Load) -> tuple[Receipt, Outcome]:
    """Hold the tables open; abort the unit unless it is committed."""
    database, caller = load.parts.database, load.request.caller
    branch_tables = load.branch_tables()
    datasets = [branch_tables.load(name).dataset for name in load.sources]
    branch = branch_context(load.request.branch).branch
    unit = open_unit(database, branch, actor=caller.actor, lease_seconds=_LEASE_SECONDS)
    try:
        opened = _open(load, unit, datasets)
        with Heartbeat(partial(renew_unit, database, unit.id)):
            return _execute(load, unit, opened)
    finally:
        abort_unit_if_open(database, unit.id, caller=caller)


def _open(load: _Load, unit: Unit, datasets: Sequence[Dataset]) -> OpenByTable:
    """Open all transactions, or none; wait for a transaction that is open."""

    def work(connection: Connection) -> OpenByTable:
        return {
            dataset.name: open_in_unit(connection, unit, dataset, caller=load.request.caller)
            for dataset in datasets
        }

    while True:
        try:
            return load.parts.database.write(work)
        except errors.OpenTransactionAlreadyExists:
            if time.monotonic() >= load.deadline:
                raise
            time.sleep(0.2)


def _execute(load: _Load, unit: Unit, opened: OpenByTable) -> tuple[Receipt, Outcome]:
    # Read again: now no other writer can move them.
    branch_tables = load.branch_tables()
    converter = Converter(load.home)
    tables = [
        _table_load(load, branch_tables, name, given, converter)
        for name, given in load.sources.items()
    ]
    converter.raise_if_rejected()
    session = load.session(f"txn:{unit.id}")
    with _bad_row_errors(load, branch_tables, tables):
        staged = {table.name: _stage(session, table) for table in tables}
    counts = _counts(load, session, branch_tables, staged, opened)
    receipt, losses = _validate_and_commit(load, session, staged, opened, counts)
    return receipt, Outcome(
        operation=receipt.operation,
        publication=receipt.publication,
        counts={str(name): count for name, count in counts.items() if count},
        losses=losses,
    )


@contextmanager
def _bad_row_errors(
    load: _Load, branch_tables: BranchTables, tables: Sequence[TableLoad]
) -> Iterator[None]:
    """Raise Spark's failure as errors of all bad rows: Spark fails at the first one."""
    try:
        with reporting_end(), without_error_log():
            yield
    except errors.HeadgateError:
        raise
    except Exception as error:
        check_readable(file for table in tables for file in table.load.files)
        try:
            _raise_violations(load, branch_tables, tables)
        except errors.HeadgateError:
            raise
        except Exception as again:
            # What Spark cannot write, it may not be able to check either.
            error.add_note(f"and while its rows were checked: {again}")
        reason = str(error).split("\n", 1)[0]
        names = (file.name for table in tables for file in table.load.files)
        file = next(names, str(tables[0].name))
        raise errors.InvalidSource(file=file, reason=f"Spark: {reason}") from error


def _counts(
    load: _Load,
    session: Any,
    branch_tables: BranchTables,
    staged: StagedByTable,
    opened: OpenByTable,
) -> dict[DatasetName, Counts]:
    ids = [transaction.id for transaction in opened.values()]
    found = load.parts.database.read(lambda c: load_transactions(c, ids))
    return {
        name: _table_counts(
            load.parts, session, branch_tables.load(name), found[opened[name].id], rows
        )
        for name, rows in staged.items()
    }


def _validate_and_commit(
    load: _Load,
    session: Any,
    staged: StagedByTable,
    opened: OpenByTable,
    counts: CountsByTable,
) -> tuple[Receipt, int]:
    """Validate and commit; validate again where other writers moved what was read."""
    losses = 0
    line = Line(load.parts.database, seconds=max(0.0, load.deadline - time.monotonic()))
    try:
        while True:
            branch_tables = load.branch_tables()
            found = _validate(load, session, branch_tables, staged)
            reach(Failpoint.MUTATION_STAGED)
            try:
                return _commit(load, branch_tables, opened, counts, found), losses
            except errors.ViewConflict:
                losses += 1
                over = time.monotonic() >= load.deadline and losses >= write.MIN_ATTEMPTS
                if over or load.request.timeout_seconds <= 0:
                    raise
            if losses >= write.CONFLICTS_BEFORE_TICKET and line.ticket is None:
                # For the tables that validation reads; those that are written are held open.
                line.join(read.branch for read in found.reads)
                line.wait()
    finally:
        line.leave()


def _commit(
    load: _Load,
    branch_tables: BranchTables,
    opened: OpenByTable,
    counts: CountsByTable,
    found: Validated,
) -> Receipt:
    ids = [transaction.id for transaction in opened.values()] if any(counts.values()) else []
    facts = {
        opened[name].id: Provenance(
            facts=write.mutation_facts(
                f"load-{load.mode}", count, keys_hold=name in found.keys_hold
            )
        )
        for name, count in counts.items()
    }
    written = [branch_tables.load(name).branch for name in opened]
    reads = {one.branch for one in found.reads} | {branch.id for branch in written if branch}
    return commit_transactions(
        load.parts.database,
        load.contents,
        # Without any effect nothing is committed, and the unit is aborted.
        ids,
        CommitOptions(
            caller=load.request.caller,
            operation=load.request.operation,
            provenance=facts,
            is_validated=True,
            reads=(*found.reads, *write.head_reads(branch_tables, load.request, reads)),
        ),
    )


# One table's part: its files staged, its rows counted.


@dataclass(frozen=True, kw_only=True)
class TableLoad:
    """The load of one table: its files, its constraints and its state."""

    name: DatasetName
    load: SparkLoad
    mode: LoadMode
    constraints: Constraints
    required: Sequence[str]
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
    load: _Load,
    branch_tables: BranchTables,
    name: DatasetName,
    given: Sequence[SourceLike],
    converter: Converter,
) -> TableLoad:
    """Return a table's load before anything is staged."""
    on_branch = branch_tables.load(name)
    version = _version_of(load.parts, on_branch)
    constraints = constraints_of(version.metadata)
    schema = TableScan(version, load.parts.options).schema
    files = converter.files(given, TableFormat(str(name), schema, constraints.defaults))
    snapshot = current_snapshot(version.metadata)
    never_repeats = snapshot is None or load.mode is LoadMode.OVERWRITE
    return TableLoad(
        name=name,
        load=SparkLoad(
            table=table_identifier(name),
            files=files,
            key=constraints.key,
            defaults=constraints.defaults,
            share=_share(files, version.metadata),
        ),
        mode=load.mode,
        constraints=constraints,
        required=[column.name for column in columns_of(version.metadata) if column.required],
        snapshot=int(snapshot["snapshot-id"]) if snapshot else None,
        keys_hold=never_repeats or write.keys_hold(on_branch),
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


def _share(files: Sequence[LoadFile], metadata: Metadata) -> float:
    """Return the size of the files relative to that of the table."""
    table = recorded_size_bytes(metadata)
    return sum(file.size_bytes for file in files) / table if table else 1.0


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
    load: _Load, session: Any, branch_tables: BranchTables, staged: StagedByTable
) -> Validated:
    """Raise violations where a quick check finds any; return the views that were read."""
    related = RelatedTables(load.parts, branch_tables)
    checks = {name: _check(related, rows) for name, rows in staged.items()}
    repeated = {
        name
        for name, check in checks.items()
        if check.constraints.key
        and not check.keys_hold
        and load_violations.may_repeat_keys(session, check)
    }
    if repeated or any(load_violations.may_violate(session, check) for check in checks.values()):
        _raise_violations(load, branch_tables, [rows.table for rows in staged.values()])
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
# Spark only reports that there is a bad row. The rows are found by previews of the tables.


def _raise_violations(
    load: _Load, branch_tables: BranchTables, tables: Sequence[TableLoad]
) -> None:
    """Raise for rows that violate constraints, by previews over the branch itself."""
    session = load.session(load.request.branch)
    files = {str(table.name): table.load.files for table in tables}

    def type_of(dataset: str, column: str) -> pa.DataType:
        on_branch = branch_tables.load(parse_dataset_name(dataset))
        scan = TableScan(_version_of(load.parts, on_branch), load.parts.options)
        return scan.schema.field(column).type

    raise_if_any(
        _violation(found, type_of, files)
        for table in _loaded_tables(load.parts, session, branch_tables, tables)
        for found in load_violations.find_violations(table)
    )


def _violation(
    found: FoundViolation,
    type_of: Callable[[str, str], pa.DataType],
    files: Mapping[str, Sequence[LoadFile]],
) -> Violation:
    where: dict[str, Any] = {}
    if found.position is not None:
        number, row = found.position
        file = files[found.dataset][number]
        where = {"file": file.name, "line": file.line_of(row)}
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
