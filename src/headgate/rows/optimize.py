"""`optimize`: compacts and sorts a table's files; its rows and its content id stay the same.

It never blocks a writer: if another writer publishes first, optimize reports that it lost.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.attempts import Heartbeat
from headgate.catalog.branches import create_branch, delete_branches
from headgate.catalog.operations import do_once
from headgate.catalog.publish import publish
from headgate.catalog.records import Unit, load_branch, load_transaction
from headgate.catalog.transactions import stage_version
from headgate.catalog.units import abort_unit_if_open, open_in_unit, open_unit, renew_unit
from headgate.errors import BranchNotFound, OpenTransactionAlreadyExists, ViewConflict
from headgate.model.changes import PublishRequest, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import PublicationNumber, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import PublicationKind, Transaction, TransactionType
from headgate.model.rules import MUTATION_FACT
from headgate.rows import engine, working_set, write
from headgate.rows.branch_tables import BranchTable, BranchTables, branch_context
from headgate.rows.evaluator_pool import EvaluatorPool
from headgate.rows.outcome import Counts, Optimized, OptimizeState, Parts, Request
from headgate.rows.working_set import WorkingSet
from headgate.tables import constraints, inspect, updates
from headgate.tables.metadata import Json, Metadata
from headgate.tables.scan import DataFile, TableScan
from headgate.tables.snapshot_writer import FileChange, check_writable, next_metadata, write_rows
from headgate.tables.versions import StoredVersion

# Rules: which files to compact, and into how many buckets.

# Files under this size are compacted.
SMALL_BYTES = 64 * 1024 * 1024
# The most rows of a bucket, and the number aimed at when there are more.
_ROWS_AT_MOST = 200_000
_ROWS_WANTED = 50_000
_BUCKETS_AT_MOST = 4096


def groups_to_compact(files: Sequence[DataFile], default_spec: int) -> list[list[DataFile]]:
    """Return groups of small files of one partition, and files in an old layout."""
    by_partition: dict[Any, list[DataFile]] = {}
    for file in files:
        held = file.task.file
        by_partition.setdefault((held.spec_id, repr(held.partition)), []).append(file)
    groups = []
    for (spec, _), held in by_partition.items():
        small = [f for f in held if f.size_bytes < SMALL_BYTES or f.deletes]
        if spec != default_spec:
            groups.append(held)
        elif len(small) > 1 or any(f.deletes for f in small):
            groups.append(small)
    return groups


def wanted_buckets(metadata: Metadata, rows: int) -> int | None:
    """Return a greater number of buckets where the present ones are too large; else None."""
    held = _bucket_count(metadata)
    if held is None or rows <= held * _ROWS_AT_MOST:
        return None
    # Powers of two times the old number: each old bucket then splits into whole new ones.
    wanted = held
    while wanted < _BUCKETS_AT_MOST and rows > wanted * _ROWS_WANTED:
        wanted *= 2
    return wanted


def rebucket_updates(metadata: Metadata, buckets: int) -> list[Json]:
    """Return the metadata updates that lay a table out in this many buckets."""
    [field] = _default_fields(metadata)
    changed = {key: value for key, value in field.items() if key != "field-id"}
    name = str(field["name"]).rstrip("0123456789_")
    changed |= {"transform": f"bucket[{buckets}]", "name": f"{name}_{buckets}"}
    return [
        {"action": "add-spec", "spec": {"fields": [changed]}},
        {"action": "set-default-spec", "spec-id": -1},
    ]


def snapshots_to_drop(metadata: Metadata, keep: int) -> list[int]:
    """Return ids of snapshots older than the newest few that no ref names."""
    named = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    held = sorted(metadata.get("snapshots") or [], key=lambda s: s["sequence-number"])
    ids = [int(snapshot["snapshot-id"]) for snapshot in held]
    return [id for id in ids[: max(0, len(ids) - keep)] if id not in named]


def _bucket_count(metadata: Metadata) -> int | None:
    fields = _default_fields(metadata)
    if len(fields) != 1 or not str(fields[0]["transform"]).startswith("bucket["):
        return None
    return int(str(fields[0]["transform"]).removeprefix("bucket[").rstrip("]"))


def _default_fields(metadata: Metadata) -> list[Json]:
    for spec in metadata["partition-specs"]:
        if spec["spec-id"] == metadata["default-spec-id"]:
            return list(spec["fields"])
    return []


VERB = "optimize"


@dataclass(frozen=True, kw_only=True)
class RewritePlan:
    """Groups of files to rewrite, in the layout of the metadata."""

    on_branch: BranchTable
    base: StoredVersion
    # The base's metadata, perhaps with more buckets.
    metadata: Metadata
    scan: TableScan
    groups: Sequence[Sequence[DataFile]]


# Returns the metadata after the rewrite; no branch shows it yet.
Rewrite: TypeAlias = Callable[[Parts, RewritePlan], Metadata]


def optimize(
    parts: Parts, request: Request, dataset: DatasetName, *, keep_snapshots: int, rewrite: Rewrite
) -> Optimized:
    """Compact one table of a branch; with an operation key, once."""

    def act() -> Optimized:
        return _optimize(parts, request, dataset, keep_snapshots, rewrite)

    result = do_once(parts.database, request.operation, act)
    return result if isinstance(result, Optimized) else _replayed(parts, request, dataset, result)


def _replayed(parts: Parts, request: Request, dataset: DatasetName, receipt: Receipt) -> Optimized:
    """Return the recorded result of a finished operation, from its transaction's provenance."""
    transaction = next(id for id in receipt.transactions.values() if id is not None)
    provenance = parts.database.read(lambda c: load_transaction(c, transaction)).provenance
    return Optimized(
        dataset=dataset,
        branch=branch_context(request.branch).branch,
        state=OptimizeState.OPTIMIZED,
        publication=receipt.publication,
        **provenance[MUTATION_FACT].get("work", {}),
    )


def _optimize(
    parts: Parts, request: Request, dataset: DatasetName, keep_snapshots: int, rewrite: Rewrite
) -> Optimized:
    branch_tables = BranchTables(parts.database, branch_context(request.branch))
    on_branch = branch_tables.load(dataset)
    branch = branch_tables.context.branch
    if on_branch.branch is None:
        raise BranchNotFound(dataset=str(dataset), branch=branch)
    result = partial(Optimized, dataset=dataset, branch=branch)
    if on_branch.branch.is_open:
        return result(state=OptimizeState.SKIPPED)
    base = parts.versions.read(on_branch.stored.location)
    files = TableScan(base, parts.options).plan()
    metadata = _compacted(parts, on_branch, base, files, rewrite)
    dropped = snapshots_to_drop(metadata, keep_snapshots)
    if dropped:
        metadata = updates.apply_updates(
            metadata,
            [{"action": "remove-snapshots", "snapshot-ids": dropped}],
            now_ms=working_set.now_ms(),
            base_location=base.location if metadata is base.metadata else None,
        )
    if metadata is base.metadata:
        return result(
            state=OptimizeState.UNCHANGED, files_before=len(files), files_after=len(files)
        )
    stored = parts.versions.write(on_branch.dataset.id, metadata, base=base.metadata)
    reach(Failpoint.MUTATION_STAGED)
    work: dict[str, Any] = {
        "files_before": len(files),
        "files_after": len(TableScan(stored, parts.options).plan()),
        "snapshots_dropped": len(dropped),
    }
    number = _publish(parts, request, branch_tables, on_branch, stored, work)
    state = OptimizeState.OPTIMIZED if number is not None else OptimizeState.LOST
    return result(state=state, publication=number, **work)


def advice_for(parts: Parts, request: Request, dataset: DatasetName) -> str | None:
    """Return the advice to rewrite by Spark; None where Arrow is right."""
    on_branch = BranchTables(parts.database, branch_context(request.branch)).load(dataset)
    metadata = parts.versions.read(on_branch.stored.location).metadata
    return engine.advice_on_optimize(str(dataset), inspect.recorded_size_bytes(metadata))


def _compacted(
    parts: Parts,
    on_branch: BranchTable,
    base: StoredVersion,
    files: Sequence[DataFile],
    rewrite: Rewrite,
) -> Metadata:
    """Return metadata with compacted files; the base's own where there is nothing to do."""
    metadata = base.metadata
    buckets = wanted_buckets(metadata, sum(file.row_count for file in files))
    if buckets is not None:
        metadata = updates.apply_updates(
            metadata,
            rebucket_updates(metadata, buckets),
            now_ms=working_set.now_ms(),
            base_location=base.location,
        )
    scan = working_set.scan_with(base, metadata, parts.options)
    groups = groups_to_compact(files, scan.metadata.default_spec_id)
    if not groups:
        return metadata
    result = rewrite(
        parts,
        RewritePlan(on_branch=on_branch, base=base, metadata=metadata, scan=scan, groups=groups),
    )
    reach(Failpoint.MUTATION_DATA_WRITTEN)
    return result


def rewrite_in_memory(pool: EvaluatorPool | None, request: Request) -> Rewrite:
    """Return a rewrite without Spark: a group of files at a time, in memory."""

    def rewrite(parts: Parts, plan: RewritePlan) -> Metadata:
        if pool is None:
            return _rewrite(plan.scan, plan.groups, plan.metadata)
        assert plan.on_branch.version is not None
        tables = BranchTables(parts.database, branch_context(request.branch))
        task = partial(
            _rewrite_apart, location=plan.on_branch.version.location, metadata=plan.metadata
        )
        return pool.perform(parts, tables, task, request.interrupt)

    return rewrite


def _rewrite_apart(working: WorkingSet, *, location: str, metadata: Metadata) -> Metadata:
    base = working.versions.read(location)
    scan = working_set.scan_with(base, metadata, working.options)
    files = TableScan(base, working.options).plan()
    return _rewrite(scan, groups_to_compact(files, scan.metadata.default_spec_id), metadata)


def _rewrite(scan: TableScan, groups: Sequence[Sequence[DataFile]], metadata: Metadata) -> Metadata:
    check_writable(scan)
    key = constraints.constraints_of(metadata).key
    added: list[Any] = []
    for group in groups:
        rows = pa.concat_tables([scan.read(file) for file in group])
        added += write_rows(scan, rows, key)
    removed = [file for group in groups for file in group]
    change = FileChange(operation="replace", removed=removed, added=added)
    return next_metadata(scan, change, now_ms=working_set.now_ms(), base=metadata)


def _publish(
    parts: Parts,
    request: Request,
    branch_tables: BranchTables,
    on_branch: BranchTable,
    stored: StoredVersion,
    work: Mapping[str, int],
) -> PublicationNumber | None:
    version = replace(on_branch.stored, id=mint_version(), location=stored.location)
    facts = write.mutation_facts(VERB, Counts(), keys_hold=write.keys_hold(on_branch), work=work)
    changes = write.add_version(
        branch_tables, on_branch, version=version, type=TransactionType.UPDATE, facts=facts
    )
    made = PublishRequest(
        caller=request.caller,
        kind=PublicationKind.COMMIT,
        changes=tuple(changes),
        operation=request.operation,
    )
    try:
        return publish(parts.database, made).publication
    except (ViewConflict, OpenTransactionAlreadyExists):
        return None


# The rewrite by Spark, off the branch.
#
# It runs on a temporary child of the branch, in a unit that is never committed, so that writers of
# the branch never wait. The metadata that Spark wrote is then published as without Spark.

Session = Callable[[str], Any]

_LEASE_SECONDS = 900
_TARGET_BYTES = 512 * 1024 * 1024


def spark_rewrite(request: Request, session: Session) -> Rewrite:
    """Return a rewrite of the groups of files by Spark."""

    def rewrite(parts: Parts, plan: RewritePlan) -> Metadata:
        with _private_unit(parts, request, plan.on_branch) as (unit, transaction):
            if plan.metadata is not plan.base.metadata:
                _stage(parts, plan, transaction)
            with Heartbeat(partial(renew_unit, parts.database, unit.id)):
                _compact(session(f"txn:{unit.id}"), plan)
            written = parts.database.read(lambda c: load_transaction(c, transaction.id)).version
            assert written is not None
            return parts.versions.read(written.location).metadata

    return rewrite


def _compact(session: Any, plan: RewritePlan) -> None:
    """Rewrite files in the working version by Iceberg's own action; rows do not change.

    Small files are rewritten, and all others as well if the partitioning has changed.
    """
    from headgate.spark.session import CATALOG  # noqa: PLC0415  (slow: Spark)
    from headgate.spark.sql import quote, quote_text, run_sql  # noqa: PLC0415  (slow: Spark)

    held = {file.task.file.spec_id for group in plan.groups for file in group}
    options = {
        "target-file-size-bytes": str(_TARGET_BYTES),
        "min-file-size-bytes": str(SMALL_BYTES),
        "min-input-files": "2",
        "delete-file-threshold": "1",
        "rewrite-all": str(held != {int(plan.metadata["default-spec-id"])}).lower(),
    }
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    name = plan.on_branch.dataset.name
    table = ".".join(map(quote, (*name.namespace, name.name)))
    columns = ", ".join(f"{quote(c)} ASC" for c in constraints.constraints_of(plan.metadata).key)
    order = f"strategy => 'sort', sort_order => {quote_text(columns)}, " if columns else ""
    run_sql(
        session,
        f"CALL {CATALOG}.system.rewrite_data_files(table => {quote_text(table)}, {order}"
        f"options => map({listed}))",
    )


@contextmanager
def _private_unit(
    parts: Parts, request: Request, on_branch: BranchTable
) -> Iterator[tuple[Unit, Transaction]]:
    """Open a transaction on a temporary child of the branch, deleted in the end."""
    assert on_branch.branch is not None and on_branch.shown is not None
    name = f"optimize/{secrets.token_hex(6)}"
    create_branch(
        parts.database,
        on_branch.dataset,
        name,
        parent=on_branch.branch.name,
        at=on_branch.shown.id,
        caller=request.caller,
    )
    unit = open_unit(parts.database, name, actor=request.caller.actor, lease_seconds=_LEASE_SECONDS)
    try:
        yield (
            unit,
            parts.database.write(
                lambda c: open_in_unit(c, unit, on_branch.dataset, caller=request.caller)
            ),
        )
    finally:
        abort_unit_if_open(parts.database, unit.id, caller=request.caller)
        branch_aside = parts.database.read(lambda c: load_branch(c, on_branch.dataset, name))
        delete_branches(
            parts.database, [branch_aside], caller=request.caller, force=True, restorable=False
        )


def _stage(parts: Parts, plan: RewritePlan, transaction: Transaction) -> None:
    """Stage the table's new layout, before files are rewritten into it."""
    held, base = transaction.version, plan.base.metadata
    stored = parts.versions.write(plan.on_branch.dataset.id, plan.metadata, base=base)
    version = replace(plan.on_branch.stored, id=mint_version(), location=stored.location)
    stage_version(parts.database, transaction.id, version, expected=held.id if held else None)
