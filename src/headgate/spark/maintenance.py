"""Table maintenance on Spark: compacts small files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headgate.model.names import DatasetName
from headgate.spark.session import CATALOG
from headgate.spark.sql import quote, quote_text, run_sql

if TYPE_CHECKING:
    pass

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
