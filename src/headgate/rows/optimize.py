"""`optimize`: a table's files written together and sorted; its rows and content id stay.

It waits for nobody: whoever publishes first while it works has the branch, and it has lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.attempts import Pulse
from headgate.catalog.branches import create_branch, delete_branches
from headgate.catalog.operations import do_once
from headgate.catalog.publish import publish
from headgate.catalog.records import load_branch, load_transaction, load_transactions
from headgate.catalog.transactions import stage_version
from headgate.catalog.units import Unit, abort_unit_if_open, open_in_unit, open_unit, renew_unit
from headgate.errors import BranchNotFound, OpenTransactionAlreadyExists, ViewConflict
from headgate.model.changes import PublishRequest, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import PublicationNumber, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import PublicationKind, Transaction, TransactionType, Version
from headgate.rows.branch_tables import Ground, Standing, branch_context
from headgate.rows.engine import advice_on_optimize
from headgate.rows.outcome import Counts, Optimized, OptimizeState, Parts, Request
from headgate.rows.write import FACT, add_version, fact, keys_hold
from headgate.tables.arrow import DataFile
from headgate.tables.constraints import constraints_of
from headgate.tables.inspect import recorded_size_bytes
from headgate.tables.scan import TableScan
from headgate.tables.shape import Json, Metadata
from headgate.tables.snapshot_writer import FileChange, check_writable, next_metadata, write_rows
from headgate.tables.updates import apply_updates
from headgate.tables.versions import StoredVersion

# Which files of a table are worth writing together, and into how many buckets; pure rules.

# A file under this is small; a group of files under it is worth one file.
SMALL_BYTES = 64 * 1024 * 1024
# How many rows a bucket should have at most, and how many it gets when there are more.
_ROWS_AT_MOST = 200_000
_ROWS_WANTED = 50_000
_BUCKETS_AT_MOST = 4096


def groups_to_compact(files: Sequence[DataFile], default_spec: int) -> list[list[DataFile]]:
    """Files of one partition that together are better than apart, or that lie in an old layout."""
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
    """A greater number of buckets, where those there are have grown too large; else None."""
    held = _bucket_count(metadata)
    if held is None or rows <= held * _ROWS_AT_MOST:
        return None
    # Powers of two times the old number: each old bucket then parts into whole new ones.
    wanted = held
    while wanted < _BUCKETS_AT_MOST and rows > wanted * _ROWS_WANTED:
        wanted *= 2
    return wanted


def rebucketed(metadata: Metadata, buckets: int) -> list[Json]:
    """The updates that lay a table out in this many buckets."""
    [field] = _default_fields(metadata)
    changed = {key: value for key, value in field.items() if key != "field-id"}
    name = str(field["name"]).rstrip("0123456789_")
    changed |= {"transform": f"bucket[{buckets}]", "name": f"{name}_{buckets}"}
    return [
        {"action": "add-spec", "spec": {"fields": [changed]}},
        {"action": "set-default-spec", "spec-id": -1},
    ]


def snapshots_to_drop(metadata: Metadata, keep: int) -> list[int]:
    """Ids of snapshots older than the newest few that no ref names."""
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


KEEP_SNAPSHOTS = 100
VERB = "optimize"


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """Files to be written together, in the layout of the metadata."""

    standing: Standing
    base: StoredVersion
    # What the base became so far: with more buckets, perhaps.
    metadata: Metadata
    scan: TableScan
    groups: Sequence[Sequence[DataFile]]


# The metadata after the rewriting; nothing shows it yet.
Rewrite: TypeAlias = Callable[[Parts, Rewriting], Metadata]


def optimize(
    parts: Parts,
    request: Request,
    dataset: DatasetName,
    *,
    keep_snapshots: int = KEEP_SNAPSHOTS,
    rewrite: Rewrite | None = None,
) -> Optimized:
    """Compacts one table of a branch, or says why it did not; with a key, once."""

    def act() -> Optimized:
        return _optimize(parts, request, dataset, keep_snapshots, rewrite or _rewrite)

    done = do_once(parts.database, request.operation, act)
    return done if isinstance(done, Optimized) else _replayed(parts, request, dataset, done)


def _replayed(parts: Parts, request: Request, dataset: DatasetName, receipt: Receipt) -> Optimized:
    """What the first request with this key was told; the transaction it made remembers it."""
    made = next(id for id in receipt.transactions.values() if id is not None)
    told = parts.database.read(lambda c: load_transaction(c, made)).provenance[FACT]
    return Optimized(
        dataset=dataset,
        branch=branch_context(request.branch).branch,
        state=OptimizeState.OPTIMIZED,
        publication=receipt.publication,
        **told.get("work", {}),
    )


def _optimize(
    parts: Parts, request: Request, dataset: DatasetName, keep_snapshots: int, rewrite: Rewrite
) -> Optimized:
    ground = Ground(parts.database, branch_context(request.branch))
    standing = ground.load(dataset)
    branch = ground.context.branch
    if standing.branch is None:
        raise BranchNotFound(dataset=str(dataset), branch=branch)
    if standing.branch.is_open:
        return Optimized(dataset=dataset, branch=branch, state=OptimizeState.SKIPPED)
    assert standing.version is not None
    base = parts.versions.read(standing.version.location)
    scan = TableScan(base, parts.options)
    files = scan.plan()
    metadata = _rewritten(parts, standing, base, files, rewrite)
    doomed = snapshots_to_drop(metadata, keep_snapshots)
    if doomed:
        metadata = apply_updates(
            metadata,
            [{"action": "remove-snapshots", "snapshot-ids": doomed}],
            now_ms=_now_ms(),
            base_location=base.location if metadata is base.metadata else None,
        )
    if metadata is base.metadata:
        return Optimized(
            dataset=dataset,
            branch=branch,
            state=OptimizeState.UNCHANGED,
            files_before=len(files),
            files_after=len(files),
        )
    stored = parts.versions.write(standing.dataset.id, metadata)
    reach(Failpoint.MUTATION_STAGED)
    work = {
        "files_before": len(files),
        "files_after": len(TableScan(stored, parts.options).plan()),
        "snapshots_dropped": len(doomed),
    }
    number = _publish(parts, request, ground, standing, stored, work)
    return Optimized(
        dataset=dataset,
        branch=branch,
        state=OptimizeState.OPTIMIZED if number is not None else OptimizeState.LOST,
        publication=number,
        **work,
    )


def advice_for(parts: Parts, request: Request, dataset: DatasetName) -> str | None:
    """A word for people whose table is better rewritten by Spark; None where Arrow is right."""
    standing = Ground(parts.database, branch_context(request.branch)).load(dataset)
    assert standing.version is not None
    metadata = parts.versions.read(standing.version.location).metadata
    return advice_on_optimize(str(dataset), recorded_size_bytes(metadata))


def _rewritten(
    parts: Parts,
    standing: Standing,
    base: StoredVersion,
    files: Sequence[DataFile],
    rewrite: Rewrite,
) -> Metadata:
    """The base's own metadata where nothing is to be done, else one with better files."""
    metadata = base.metadata
    buckets = wanted_buckets(metadata, sum(file.row_count for file in files))
    if buckets is not None:
        metadata = apply_updates(
            metadata,
            rebucketed(metadata, buckets),
            now_ms=_now_ms(),
            base_location=base.location,
        )
    version = StoredVersion(location=base.location, content=b"", metadata=metadata)
    scan = TableScan(version, parts.options)
    groups = groups_to_compact(files, scan.metadata.default_spec_id)
    if not groups:
        return metadata
    done = rewrite(
        parts,
        Rewriting(standing=standing, base=base, metadata=metadata, scan=scan, groups=groups),
    )
    reach(Failpoint.MUTATION_DATA_WRITTEN)
    return done


def _rewrite(parts: Parts, asked: Rewriting) -> Metadata:
    """Without Spark: a group of files at a time, in memory."""
    check_writable(asked.scan)
    key = constraints_of(asked.metadata).key
    added: list[Any] = []
    for group in asked.groups:
        rows = pa.concat_tables([asked.scan.read(file) for file in group])
        added += write_rows(asked.scan, rows, key)
    removed = [file for group in asked.groups for file in group]
    change = FileChange(operation="replace", removed=removed, added=added)
    return next_metadata(asked.scan, change, now_ms=_now_ms(), base=asked.metadata)


def _publish(
    parts: Parts,
    request: Request,
    ground: Ground,
    standing: Standing,
    stored: StoredVersion,
    work: Mapping[str, int],
) -> PublicationNumber | None:
    assert standing.version is not None
    version = Version(
        id=mint_version(), location=stored.location, content_id=standing.version.content_id
    )
    facts = fact(VERB, Counts(), keys_hold=keys_hold(standing), work=work)
    try:
        receipt = publish(
            parts.database,
            PublishRequest(
                actor=request.actor,
                kind=PublicationKind.COMMIT,
                changes=tuple(
                    add_version(
                        ground, standing, version=version, type=TransactionType.UPDATE, facts=facts
                    )
                ),
                operation=request.operation,
                may_write_protected=request.may_write_protected,
            ),
        )
    except (ViewConflict, OpenTransactionAlreadyExists):
        return None
    return receipt.publication


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# `optimize --engine spark`: files are written together by Spark, off the branch.
#
# The work is done on a child of the branch that only this optimize knows, in a unit that is never
# committed: whoever writes the branch meanwhile waits for nobody. What Spark made of the files is
# then published as without Spark, or has lost.

Session = Callable[[str], Any]

_LEASE_SECONDS = 900


def rewriting_by_spark(request: Request, session: Session) -> Rewrite:
    """How `optimize` has its groups of files rewritten by Spark."""

    def rewrite(parts: Parts, asked: Rewriting) -> Metadata:
        with _aside(parts, request, asked.standing) as (unit, transaction):
            if asked.metadata is not asked.base.metadata:
                _stage(parts, asked, transaction)
            with Pulse(partial(renew_unit, parts.database, unit.id)):
                _compact(session(f"txn:{unit.id}"), asked)
            found = parts.database.read(lambda c: load_transactions(c, [transaction.id]))
            made = found[transaction.id].version
            assert made is not None
            return parts.versions.read(made.location).metadata

    return rewrite


def _compact(session: Any, asked: Rewriting) -> None:
    from headgate.spark.maintenance import Compaction, compact  # noqa: PLC0415  (slow: Spark)

    name = asked.standing.dataset.name
    spec = int(asked.metadata["default-spec-id"])
    held = {file.task.file.spec_id for group in asked.groups for file in group}
    compact(
        session,
        Compaction(
            namespace=name.namespace,
            name=name.name,
            sort=constraints_of(asked.metadata).key,
            small_bytes=SMALL_BYTES,
            everything=held != {spec},
        ),
    )


@contextmanager
def _aside(
    parts: Parts, request: Request, standing: Standing
) -> Iterator[tuple[Unit, Transaction]]:
    """A transaction on a child of the branch, which is gone again in the end."""
    assert standing.branch is not None and standing.shown is not None
    name = f"optimize/{secrets.token_hex(6)}"
    create_branch(
        parts.database,
        standing.dataset,
        name,
        parent=standing.branch.name,
        at=standing.shown.id,
        actor=request.actor,
    )
    unit = open_unit(parts.database, name, actor=request.actor, lease_seconds=_LEASE_SECONDS)
    try:
        yield unit, parts.database.write(lambda c: open_in_unit(c, unit, standing.dataset))
    finally:
        abort_unit_if_open(parts.database, unit.id, actor=request.actor)
        aside = parts.database.read(lambda c: load_branch(c, standing.dataset, name))
        delete_branches(parts.database, [aside], actor=request.actor)


def _stage(parts: Parts, asked: Rewriting, transaction: Transaction) -> None:
    """The table with its new layout, before files follow it."""
    held = transaction.version
    assert asked.standing.version is not None
    stored = parts.versions.write(asked.standing.dataset.id, asked.metadata)
    version = Version(
        id=mint_version(),
        location=stored.location,
        content_id=asked.standing.version.content_id,
    )
    stage_version(parts.database, transaction.id, version, expected=held.id if held else None)
