"""One table's part in a load by Spark: its files staged, its rows counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.model.constraints import Constraints
from headgate.model.names import DatasetName
from headgate.model.nouns import Transaction
from headgate.mutations.counts import Counts
from headgate.mutations.ground import Ground, Standing
from headgate.mutations.load import LoadMode, check_merge_key
from headgate.mutations.load_spark_files import SparkFile
from headgate.mutations.parts import Parts
from headgate.mutations.steps import keys_hold
from headgate.tables.constraints import constraints_of
from headgate.tables.reading import columns_of, current_snapshot, recorded_size_bytes
from headgate.tables.scanning import TableScan
from headgate.tables.shape import Metadata
from headgate.tables.versions import StoredVersion

if TYPE_CHECKING:
    from headgate.spark.load_reading import SparkLoad

# What MERGE INTO writes of itself into the snapshot that it makes.
_MERGED = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True, kw_only=True)
class TableLoad:
    """What is to be loaded into one table, and what holds for it."""

    name: DatasetName
    load: SparkLoad
    files: Sequence[SparkFile]
    mode: LoadMode
    demands: Constraints
    required: Sequence[str]
    schema: pa.Schema
    # The Iceberg snapshot that it shows; None for a table that never had a row.
    snapshot: int | None
    # Whether no key of it is there twice, as far as is known.
    keys_hold: bool


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """The rows that a load brought to a table, as Spark reads them."""

    table: TableLoad
    # Frames, one for each set of columns.
    rows: Sequence[Any]
    # How many an overwrite took away.
    deleted: int = 0


def table_load(
    parts: Parts, ground: Ground, name: DatasetName, files: Sequence[SparkFile], mode: LoadMode
) -> TableLoad:
    """What there is to know of a table before anything is staged."""
    from headgate.spark.load_reading import SparkLoad  # noqa: PLC0415  (slow: Spark)

    standing = ground.load(name)
    version = version_of(parts, standing)
    demands = constraints_of(version.metadata)
    snapshot = current_snapshot(version.metadata)
    return TableLoad(
        name=name,
        load=SparkLoad(
            table=sql_name(name),
            dataset=str(name),
            files=[(str(file.path), file.format) for file in files],
            key=demands.key,
            defaults=demands.defaults,
            share=_share(files, version.metadata),
        ),
        files=files,
        mode=mode,
        demands=demands,
        required=[column.name for column in columns_of(version.metadata) if column.required],
        schema=TableScan(version, parts.options).schema,
        snapshot=int(snapshot["snapshot-id"]) if snapshot else None,
        keys_hold=snapshot is None or mode is LoadMode.OVERWRITE or keys_hold(standing),
    )


def stage_by_spark(session: Any, table: TableLoad) -> StagedRows:
    """Writes the rows into the table's working version; Spark fails on those that do not fit."""
    from headgate.spark import load as spark  # noqa: PLC0415  (slow: Spark)
    from headgate.spark.load_reading import read_rows  # noqa: PLC0415  (slow: Spark)

    load, deleted = table.load, 0
    rows = read_rows(session, load)
    match table.mode:
        case LoadMode.APPEND:
            spark.append_rows(session, load, rows)
        case LoadMode.OVERWRITE:
            deleted = session.table(load.table).count()
            spark.overwrite_rows(session, load, rows)
        case LoadMode.MERGE:
            for frame in rows:
                check_merge_key(table.name, load.key, frame.columns)
            for at, frame in enumerate(rows):
                spark.merge_rows(session, load, at, frame)
    return StagedRows(table=table, rows=rows, deleted=deleted)


def counts_of(
    parts: Parts, session: Any, standing: Standing, working: Transaction, staged: StagedRows
) -> Counts:
    """How many rows came and went, as the snapshots say that Spark made: nothing is read again."""
    if working.version is None or working.version == standing.version:
        return Counts()
    before = version_of(parts, standing).metadata
    after = parts.versions.read(working.version.location).metadata
    known = {snapshot["snapshot-id"] for snapshot in before.get("snapshots") or []}
    made = [
        snapshot.get("summary") or {}
        for snapshot in after.get("snapshots") or []
        if snapshot["snapshot-id"] not in known
    ]
    if staged.table.mode is LoadMode.MERGE:
        inserted = sum(_inserted_by_merge(one) for one in made)
        updated = sum(int(one.get(f"{_MERGED}updated", 0)) for one in made)
        if len(made) > 1 and updated:
            updated = _changed(session, staged.table)
        return Counts(inserted=inserted, updated=updated)
    inserted = sum(int(one.get("added-records", 0)) for one in made)
    return Counts(inserted=inserted, deleted=staged.deleted)


def _inserted_by_merge(summary: Mapping[str, Any]) -> int:
    """A merge that can only add, since it brings nothing but keys, is an append to Spark."""
    if summary.get("operation") == "append":
        return int(summary.get("added-records", 0))
    return int(summary.get(f"{_MERGED}inserted", 0))


def _changed(session: Any, table: TableLoad) -> int:
    """Rows that are not what they were: one that several merges changed counts once."""
    from headgate.spark.load import changed_rows  # noqa: PLC0415  (slow: Spark)

    return 0 if table.snapshot is None else changed_rows(session, table.load, table.snapshot)


def version_of(parts: Parts, standing: Standing) -> StoredVersion:
    assert standing.version is not None
    return parts.versions.read(standing.version.location)


def sql_name(name: DatasetName) -> str:
    parts = ("headgate", *name.namespace, name.name)
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _share(files: Sequence[SparkFile], metadata: Metadata) -> float:
    """How much comes, in times of what is there."""
    held = recorded_size_bytes(metadata)
    came = sum(file.path.stat().st_size for file in files)
    return came / held if held else 1.0
