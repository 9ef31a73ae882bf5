"""Writing a table's small files together by Spark: Iceberg's own action, with our measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.errors import HeadgateError, StorageUnavailable
from headgate.storage.address import open_store
from headgate.storage.keys import key_below
from headgate.tables.named_files import ManifestRef, get_below, open_manifests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Reading the manifests of a large store with many processes: Spark's Python workers.
#
# The workers run the same code as this process would, so the result is the same; they need the same
# Python environment, as on any cluster that runs Headgate's transforms.

# About four seconds of reading: long beside what a task costs, short beside a whole mark.
_BYTES_PER_TASK = 32 * 1024 * 1024
_FEWEST_TASKS = 8
_IN = "path string, length bigint, files bigint"
_OUT = "path string, trouble string"


def mark_on_spark(
    session: SparkSession, url: str, options: Mapping[str, str], manifests: Sequence[ManifestRef]
) -> Iterator[str]:
    """The addresses in the store at `url` that these manifests of it name, each once."""
    if not manifests:
        return
    size = sum(manifest.length for manifest in manifests)
    tasks = min(len(manifests), max(_FEWEST_TASKS, size // _BYTES_PER_TASK))
    rows = [(manifest.path, manifest.length, manifest.files) for manifest in manifests]
    named = (
        session.createDataFrame(rows, _IN)
        .repartition(tasks)
        .mapInArrow(partial(_read, url, dict(options)), _OUT)
        .distinct()
    )
    for row in named.toLocalIterator():
        if row.trouble is not None:
            raise StorageUnavailable(where=row.path, reason=row.trouble)
        yield row.path


def _read(url: str, options: dict[str, str], batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Runs in a worker; what cannot be read comes back as a row that says so."""
    reader = open_manifests(partial(get_below, open_store(url, options)))
    for batch in batches:
        for row in batch.to_pylist():
            try:
                paths = [p for p in reader.paths(ManifestRef(**row)) if key_below(url, p)]
                trouble = [None for _ in paths]
            except HeadgateError as error:
                paths, trouble = [row["path"]], [error.message.rstrip(".")]  # type: ignore[list-item]
            columns = {"path": paths, "trouble": trouble}
            yield pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


_SCHEMA = pa.schema([("path", pa.string()), ("trouble", pa.string())])


_TARGET_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """What is to be written together, and in which order rows lie then."""

    namespace: tuple[str, ...]
    name: str
    sort: Sequence[str]
    # Files under it are small.
    small_bytes: int
    # Also those that are large enough: their layout is not the table's any more.
    everything: bool


def compact(session: Any, asked: Compaction) -> None:
    """Rewrites files in the session's working version; rows stay what they are."""
    options = {
        "target-file-size-bytes": str(max(_TARGET_BYTES, asked.small_bytes)),
        "min-file-size-bytes": str(asked.small_bytes),
        "min-input-files": "2",
        "delete-file-threshold": "1",
        "rewrite-all": str(asked.everything).lower(),
    }
    told = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    table = ".".join(_quote(part) for part in (*asked.namespace, asked.name))
    order = ""
    if asked.sort:
        columns = ", ".join(f"{_quote(column)} ASC" for column in asked.sort)
        order = f"strategy => 'sort', sort_order => '{_escape(columns)}', "
    session.sql(
        f"CALL headgate.system.rewrite_data_files(table => '{_escape(table)}', {order}"
        f"options => map({told}))"
    )


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
