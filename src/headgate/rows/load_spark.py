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

from headgate import errors
from headgate.attempts import CommitOptions, Contents, Heartbeat, commit_transactions
from headgate.catalog.database import Connection
from headgate.catalog.records import Unit, load_transactions
from headgate.catalog.tickets import Line
from headgate.catalog.units import abort_unit_if_open, open_in_unit, open_unit, renew_unit
from headgate.model.changes import Provenance, ReadView, Receipt
from headgate.model.constraints import Constraints
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Dataset, Transaction
from headgate.rows import write
from headgate.rows.branch_tables import BranchTable, BranchTables, branch_context
from headgate.rows.load import LoadMode, check_merge_key
from headgate.rows.load_spark_files import Converter, TableFormat, check_readable
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.sources import SourcesByTable
from headgate.rows.validate import raise_if_any
from headgate.spark import load as spark_load
from headgate.spark import load_violations
from headgate.spark.load import SparkLoad
from headgate.spark.load_violations import Around, LoadCheck
from headgate.spark.session import table_identifier
from headgate.spark.sql import reporting_end, without_error_log
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.inspect import columns_of, recorded_size_bytes
from headgate.tables.scan import TableScan
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


def _open(load: _Load, unit: Unit, datasets: Sequence[Dataset]) -> dict[DatasetName, Transaction]:
    """Open all transactions, or none; wait for a transaction that is open."""

    def work(connection: Connection) -> dict[DatasetName, Transaction]:
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


def _execute(
    load: _Load, unit: Unit, opened: Mapping[DatasetName, Transaction]
) -> tuple[Receipt, Outcome]:
    # Read again: now no other writer can move them.
    branch_tables = load.branch_tables()
    converter = Converter(load.home)
    tables = [
        _table_load(load, branch_tables.load(name), opened[name].id, converter)
        for name in load.sources
    ]
    converter.raise_if_rejected()
    session = load.session(f"txn:{unit.id}")
    with _bad_row_errors(load, branch_tables, tables):
        staged = {table.load.dataset: _stage(load, session, table) for table in tables}
    ids = [rows.table.opened for rows in staged.values()]
    found = load.parts.database.read(lambda c: load_transactions(c, ids))
    counts = {
        name: _table_counts(load, session, branch_tables.load(name), found[rows.table.opened], rows)
        for name, rows in staged.items()
    }
    receipt, losses = _validate_and_commit(load, session, staged, counts)
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
        files = [file for table in tables for file in table.load.files]
        check_readable(files)
        try:
            _raise_violations(load, branch_tables, tables)
        except errors.HeadgateError:
            raise
        except Exception as again:
            # What Spark cannot write, it may not be able to check either.
            error.add_note(f"and while its rows were checked: {again}")
        reason = str(error).split("\n", 1)[0]
        file = files[0].name if files else str(tables[0].load.dataset)
        raise errors.InvalidSource(file=file, reason=f"Spark: {reason}") from error


def _validate_and_commit(
    load: _Load, session: Any, staged: StagedByTable, counts: CountsByTable
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
                return _commit(load, branch_tables, staged, counts, found), losses
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
    staged: StagedByTable,
    counts: CountsByTable,
    found: Validated,
) -> Receipt:
    ids = [rows.table.opened for rows in staged.values()] if any(counts.values()) else []
    facts = {
        staged[name].table.opened: Provenance(
            facts=write.facts_on(
                branch_tables.load(name),
                write.mutation_facts(f"load-{load.mode}", count, keys_hold=name in found.keys_hold),
            )
        )
        for name, count in counts.items()
    }
    written = [branch_tables.load(name).branch for name in staged]
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


@dataclass(frozen=True, kw_only=True)
class TableLoad:
    """The load of one table, and its state before."""

    load: SparkLoad
    # Its transaction in the unit.
    opened: TransactionId
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
    load: _Load, on_branch: BranchTable, opened: TransactionId, converter: Converter
) -> TableLoad:
    """Return a table's load before anything is staged."""
    name = on_branch.dataset.name
    version = _version_of(load.parts, on_branch)
    constraints = constraints_of(version.metadata)
    schema = TableScan(version, load.parts.options).schema
    files = converter.files(
        load.sources[name], TableFormat(str(name), schema, constraints.defaults)
    )
    snapshot = current_snapshot(version.metadata)
    size = recorded_size_bytes(version.metadata)
    never_repeats = snapshot is None or load.mode is LoadMode.OVERWRITE
    return TableLoad(
        load=SparkLoad(
            dataset=name,
            files=files,
            constraints=constraints,
            required=[column.name for column in columns_of(version.metadata) if column.required],
            # Of the size of the table.
            share=sum(file.size_bytes for file in files) / size if size else 1.0,
        ),
        opened=opened,
        snapshot=int(snapshot["snapshot-id"]) if snapshot else None,
        keys_hold=never_repeats or write.keys_hold(on_branch),
    )


def _stage(load: _Load, session: Any, table: TableLoad) -> StagedRows:
    """Write the rows into the table's working version; Spark fails on rows of other types."""
    into, deleted = table.load, 0
    rows = spark_load.read_rows(session, into)
    match load.mode:
        case LoadMode.APPEND:
            spark_load.append_rows(session, into, rows)
        case LoadMode.OVERWRITE:
            deleted = session.table(into.table).count()
            spark_load.overwrite_rows(session, into, rows)
        case LoadMode.MERGE:
            for frame in rows:
                check_merge_key(into.dataset, into.key, frame.columns)
            for at, frame in enumerate(rows):
                spark_load.merge_rows(session, into, at, frame)
    return StagedRows(table=table, rows=rows, deleted=deleted)


def _table_counts(
    load: _Load, session: Any, on_branch: BranchTable, working: Transaction, staged: StagedRows
) -> Counts:
    """Return the counts from the summaries of Spark's snapshots, without reading rows."""
    if working.version is None or working.version == on_branch.version:
        return Counts()
    before = _version_of(load.parts, on_branch).metadata
    after = load.parts.versions.read(working.version.location).metadata
    known = {snapshot["snapshot-id"] for snapshot in before.get("snapshots") or []}
    summaries = [
        snapshot.get("summary") or {}
        for snapshot in after.get("snapshots") or []
        if snapshot["snapshot-id"] not in known
    ]
    if load.mode is LoadMode.MERGE:
        inserted = sum(_inserted_by_merge(one) for one in summaries)
        updated = sum(int(one.get(f"{_MERGE_SUMMARY}updated", 0)) for one in summaries)
        snapshot = staged.table.snapshot
        if len(summaries) > 1 and updated and snapshot is not None:
            # A row that several merges changed counts once.
            updated = spark_load.changed_rows(session, staged.table.load, snapshot)
        return Counts(inserted=inserted, updated=updated)
    inserted = sum(int(one.get("added-records", 0)) for one in summaries)
    return Counts(inserted=inserted, deleted=staged.deleted)


def _inserted_by_merge(summary: Mapping[str, Any]) -> int:
    """Return the inserted rows; Spark records a merge of key columns only as an append."""
    if summary.get("operation") == "append":
        return int(summary.get("added-records", 0))
    return int(summary.get(f"{_MERGE_SUMMARY}inserted", 0))


def _version_of(parts: Parts, on_branch: BranchTable) -> StoredVersion:
    return parts.versions.read(on_branch.stored.location)


@dataclass(frozen=True, kw_only=True)
class Validated:
    """The views that validation read, and the tables with unique keys."""

    reads: tuple[ReadView, ...]
    keys_hold: frozenset[DatasetName]


class RelatedTables:
    """Tables that refer to the loaded ones, or that these refer to, as the branch shows them."""

    def __init__(self, load: _Load, branch_tables: BranchTables) -> None:
        self._load = load
        self._branch_tables = branch_tables
        self.read: dict[DatasetName, BranchTable] = {}

    def around(self, table: SparkLoad, rows_of: Callable[[DatasetName], Any]) -> Around:
        """Return the tables around one, without missing ones, with rows as `rows_of` gives them."""
        referred: dict[str, tuple[Any, str]] = {}
        for reference in table.constraints.references:
            name = parse_dataset_name(reference.dataset)
            if (constraints := self._constraints(name)) is not None:
                [key] = constraints.key
                referred[reference.dataset] = (rows_of(name), key)
        referring: list[tuple[DatasetName, Any, str]] = []
        metadata = _version_of(self._load.parts, self._branch_tables.load(table.dataset)).metadata
        removes = self._load.mode is LoadMode.OVERWRITE
        for name in map(parse_dataset_name, referring_datasets(metadata) if removes else ()):
            if (constraints := self._constraints(name)) is not None:
                referring += [
                    (name, rows_of(name), reference.column)
                    for reference in constraints.references
                    if reference.dataset == str(table.dataset)
                ]
        return Around(referred=referred, referring=referring)

    def _constraints(self, name: DatasetName) -> Constraints | None:
        on_branch = self._branch_tables.find(name)
        if on_branch is None or on_branch.version is None:
            return None
        self.read[name] = on_branch
        return constraints_of(_version_of(self._load.parts, on_branch).metadata)


def _validate(
    load: _Load, session: Any, branch_tables: BranchTables, staged: StagedByTable
) -> Validated:
    """Raise violations where a quick check finds any; return the views that were read."""
    related = RelatedTables(load, branch_tables)
    merged = load.mode is LoadMode.MERGE
    checks = {
        name: LoadCheck(
            load=rows.table.load,
            rows=rows.rows,
            around=related.around(
                rows.table.load, lambda other: session.table(table_identifier(other))
            ),
            merged=merged,
            keys_hold=merged and rows.table.keys_hold,
            looks_at_all_keys=merged and rows.table.load.share >= _ALL_KEYS_FROM_SHARE,
        )
        for name, rows in staged.items()
    }
    repeated = {
        name
        for name, check in checks.items()
        if check.load.key
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


# Errors of bad rows, with file and line.
#
# Spark only reports that there is a bad row. The rows are found by previews of the tables.


def _raise_violations(
    load: _Load, branch_tables: BranchTables, tables: Sequence[TableLoad]
) -> None:
    """Raise for rows that violate constraints, by previews over the branch itself."""
    session = load.session(load.request.branch)
    replaced = load.mode is LoadMode.OVERWRITE
    loads = {table.load.dataset: table.load for table in tables}
    previews = {
        name: load_violations.preview_merge(session, each)
        if load.mode is LoadMode.MERGE
        else load_violations.preview_added(session, each, replaced=replaced)
        for name, each in loads.items()
    }

    def rows_of(name: DatasetName) -> Any:
        return previews[name].rows if name in previews else session.table(table_identifier(name))

    related = RelatedTables(load, branch_tables)
    raise_if_any(
        found
        for name, each in sorted(loads.items())
        for found in load_violations.find_violations(
            each, previews[name], related.around(each, rows_of)
        )
    )
