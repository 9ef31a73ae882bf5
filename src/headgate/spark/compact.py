"""Writing a table's small files together by Spark: Iceberg's own action, with our measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
