"""From a table's effect to one staged version of it: data files, manifests, a metadata file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import mint_content, mint_version
from headgate.model.nouns import Version
from headgate.mutations.effects import TableEffect
from headgate.tables.arrow import DataFile
from headgate.tables.data_files import write_rows
from headgate.tables.shape import Metadata
from headgate.tables.snapshotting import FileChange, next_metadata
from headgate.tables.versions import TableVersions


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
