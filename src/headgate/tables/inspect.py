"""Content of a table version, read without a JVM: columns, partitioning, row counts and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.errors import MissingExtra, NeedsSpark
from headgate.tables.metadata import Json, Metadata, Row, current_schema
from headgate.tables.snapshots import current_snapshot
from headgate.tables.versions import StoredVersion

if TYPE_CHECKING:
    from headgate.tables.scan import TableScan

_DELETES = ("total-delete-files", "total-position-deletes", "total-equality-deletes")


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    # A primitive's name, or the JSON object of a nested type.
    type: Any
    required: bool


def columns_of(metadata: Metadata) -> list[Column]:
    """Return the columns of the current schema, in order."""
    schema = current_schema(metadata) or {"fields": []}
    return [
        Column(name=f["name"], type=f["type"], required=bool(f["required"]))
        for f in schema["fields"]
    ]


def partitioning_of(metadata: Metadata) -> list[str]:
    """Return the fields of the default partition spec as SQL writes them: `bucket(16, id)`."""
    names = {f["id"]: f["name"] for f in (current_schema(metadata) or {"fields": []})["fields"]}
    default = metadata.get("default-spec-id", 0)
    for spec in metadata.get("partition-specs") or []:
        if spec["spec-id"] == default:
            return [_partition_text(field, names) for field in spec["fields"]]
    return []


def _partition_text(field: Json, names: Mapping[int, str]) -> str:
    sources = field.get("source-ids") or [field["source-id"]]
    columns = ", ".join(names.get(id, str(field["name"])) for id in sources)
    name, _, argument = str(field["transform"]).rstrip("]").partition("[")
    if name == "identity":
        return columns
    return f"{name}({argument}, {columns})" if argument else f"{name}({columns})"


def recorded_row_count(metadata: Metadata) -> int | None:
    """Return the number of rows, or None where the metadata alone does not give it exactly."""
    snapshot = current_snapshot(metadata)
    if snapshot is None:
        return 0
    summary = snapshot.get("summary") or {}
    # Without the first of these the writer did not record whether there are deletes.
    if any(summary.get(name, "?" if name == _DELETES[0] else "0") != "0" for name in _DELETES):
        return None
    total = str(summary.get("total-records", ""))
    return int(total) if total.isdigit() else None


def recorded_size_bytes(metadata: Metadata) -> int:
    """Return the total size of the data files, as far as their writers recorded it."""
    snapshot = current_snapshot(metadata) or {}
    total = str((snapshot.get("summary") or {}).get("total-files-size", ""))
    return int(total) if total.isdigit() else 0


def find_row_count(version: StoredVersion, *, options: Mapping[str, str]) -> int | None:
    """Return the number of rows, or None where that needs Spark or a missing extra."""
    recorded = recorded_row_count(version.metadata)
    if recorded is not None:
        return recorded
    try:
        scan = open_scan(version, options=options)
        return scan.count(scan.plan())
    except (MissingExtra, NeedsSpark):
        return None


def read_rows(version: StoredVersion, *, limit: int, options: Mapping[str, str]) -> list[Row]:
    """Return at most `limit` rows, in any order."""
    if limit == 0:
        return []
    scan = open_scan(version, options=options)
    return scan.rows(scan.first_files(limit), limit)


def show_rows(version: StoredVersion, *, limit: int, options: Mapping[str, str]) -> Json:
    """Return the number of rows and the first of them, as the document of a dataset has them."""
    count = find_row_count(version, options=options)
    return {"row_count": count, "rows": read_rows(version, limit=limit, options=options)}


def open_scan(version: StoredVersion, *, options: Mapping[str, str]) -> TableScan:
    """Open the version for reading; `options` are AWS_* variables by name."""
    try:
        from headgate.tables.scan import TableScan  # noqa: PLC0415 - an optional extra, and slow
    except ImportError as error:
        raise MissingExtra(feature="reading rows without Spark", extra="arrow") from error
    return TableScan(version, options)
