"""Table maintenance on Spark: compacts small files, and reads the manifests of a large store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.errors import HeadgateError, StorageUnavailable
from headgate.model.names import DatasetName
from headgate.spark.session import CATALOG
from headgate.spark.sql import quote, quote_text, run_sql, translated_errors
from headgate.storage.address import key_below, open_store
from headgate.tables.referenced_files import ManifestRef, get_below, open_manifests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --- compaction -----------------------------------------------------------------------------

_TARGET_BYTES = 512 * 1024 * 1024


def compact(
    session: Any, name: DatasetName, *, sort: Sequence[str], small_bytes: int, everything: bool
) -> None:
    """Rewrite files in the working version by Iceberg's own action; rows do not change.

    Files smaller than `small_bytes` are rewritten, and with `everything` all others as well.
    """
    options = {
        "target-file-size-bytes": str(max(_TARGET_BYTES, small_bytes)),
        "min-file-size-bytes": str(small_bytes),
        "min-input-files": "2",
        "delete-file-threshold": "1",
        "rewrite-all": str(everything).lower(),
    }
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    table = ".".join(map(quote, (*name.namespace, name.name)))
    order = ""
    if sort:
        columns = ", ".join(f"{quote(column)} ASC" for column in sort)
        order = f"strategy => 'sort', sort_order => {quote_text(columns)}, "
    run_sql(
        session,
        f"CALL {CATALOG}.system.rewrite_data_files(table => {quote_text(table)}, {order}"
        f"options => map({listed}))",
    )


# --- manifests ------------------------------------------------------------------------------
#
# Spark's Python workers run the same code as this process would, so the result is the same. They
# need the same Python environment, as on any cluster that runs Headgate's transforms.

# About four seconds of reading: long compared with the cost of a task, short with the whole mark.
_BYTES_PER_TASK = 32 * 1024 * 1024
_FEWEST_TASKS = 8
_IN = "path string, length bigint, files bigint"
_OUT = "path string, failure string"
_OUT_ARROW = pa.schema([("path", pa.string()), ("failure", pa.string())])


def mark_on_spark(
    session: SparkSession, url: str, options: Mapping[str, str], manifests: Sequence[ManifestRef]
) -> Iterator[str]:
    """Yield the addresses in the store at `url` that its manifests name, each once."""
    if not manifests:
        return
    size = sum(manifest.length for manifest in manifests)
    tasks = min(len(manifests), max(_FEWEST_TASKS, size // _BYTES_PER_TASK))
    rows = [(manifest.path, manifest.length, manifest.files) for manifest in manifests]
    with translated_errors():
        named = (
            session.createDataFrame(rows, _IN)
            .repartition(tasks)
            .mapInArrow(partial(_read, url, dict(options)), _OUT)
            .distinct()
        )
        for row in named.toLocalIterator():
            if row.failure is not None:
                raise StorageUnavailable(where=row.path, reason=row.failure)
            yield row.path


def _read(url: str, options: dict[str, str], batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Run in a worker; a manifest that cannot be read becomes a row with the failure."""
    reader = open_manifests(partial(get_below, open_store(url, options)))
    for batch in batches:
        for row in batch.to_pylist():
            failure: list[str | None]
            try:
                paths = [p for p in reader.paths(ManifestRef(**row)) if key_below(url, p)]
                failure = [None for _ in paths]
            except HeadgateError as error:
                paths, failure = [row["path"]], [error.message.rstrip(".")]
            columns = {"path": paths, "failure": failure}
            yield pa.RecordBatch.from_pydict(columns, schema=_OUT_ARROW)
