"""`optimize`: a table's files written together and sorted; its rows and content id stay.

It waits for nobody: whoever publishes first while it works has the branch, and it has lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headgate.catalog.find import load_transaction
from headgate.catalog.operations import do_once
from headgate.catalog.publish import publish
from headgate.errors import BranchNotFound, OpenTransactionAlreadyExists, ViewConflict
from headgate.model.changes import PublishRequest, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import PublicationNumber, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import PublicationKind, TransactionType, Version
from headgate.mutations.advising import advice_on_optimize
from headgate.mutations.counts import Counts
from headgate.mutations.ground import Ground, Standing, branch_context
from headgate.mutations.outcomes import Optimized, OptimizeState
from headgate.mutations.parts import Parts, Request
from headgate.mutations.steps import FACT, add_version, fact, keys_hold
from headgate.tables.arrow import DataFile
from headgate.tables.compacting import (
    groups_to_compact,
    rebucketed,
    snapshots_to_drop,
    wanted_buckets,
)
from headgate.tables.constraints import constraints_of
from headgate.tables.data_files import write_rows
from headgate.tables.reading import recorded_size_bytes
from headgate.tables.scanning import TableScan
from headgate.tables.shape import Metadata
from headgate.tables.snapshotting import FileChange, check_writable, next_metadata
from headgate.tables.updates import apply_updates
from headgate.tables.versions import StoredVersion

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
