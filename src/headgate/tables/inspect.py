"""What is in a table version, read without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.errors import MissingExtra, NeedsSpark
from headgate.tables.rows import Row
from headgate.tables.schemas import current_schema
from headgate.tables.shape import MAIN, Json, Metadata
from headgate.tables.versions import StoredVersion

if TYPE_CHECKING:
    from headgate.tables.arrow import ArrowTable


_DELETES = ("total-delete-files", "total-position-deletes", "total-equality-deletes")


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    # A primitive's name, or the JSON object of a nested type.
    type: Any
    required: bool


def columns_of(metadata: Metadata) -> list[Column]:
    """The columns of the current schema, in order."""
    schema = current_schema(metadata) or {"fields": []}
    return [
        Column(name=f["name"], type=f["type"], required=bool(f["required"]))
        for f in schema["fields"]
    ]


def partitioning_of(metadata: Metadata) -> list[str]:
    """The fields of the default partition spec, as SQL writes them: `bucket(16, id)`."""
    names = {f["id"]: f["name"] for f in (current_schema(metadata) or {"fields": []})["fields"]}
    default = metadata.get("default-spec-id", 0)
    for spec in metadata.get("partition-specs") or []:
        if spec["spec-id"] == default:
            return [_partition_text(field, names) for field in spec["fields"]]
    return []


def type_text(kind: Any) -> str:
    """A column type as SQL writes it: `struct<a: int, b: list<string>>`."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            fields = (f"{f['name']}: {type_text(f['type'])}" for f in kind["fields"])
            return f"struct<{', '.join(fields)}>"
        case "list":
            return f"list<{type_text(kind['element'])}>"
        case "map":
            return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"
        case other:
            return str(other)


def recorded_row_count(metadata: Metadata) -> int | None:
    """How many rows the version has, where its metadata alone says so exactly."""
    snapshot = current_snapshot(metadata)
    if snapshot is None:
        return 0
    summary = snapshot.get("summary") or {}
    # Without the first of these the writer did not say whether there are deletes.
    if any(summary.get(name, "?" if name == _DELETES[0] else "0") != "0" for name in _DELETES):
        return None
    total = str(summary.get("total-records", ""))
    return int(total) if total.isdigit() else None


def recorded_size_bytes(metadata: Metadata) -> int:
    """How much the version's files hold, as far as its writers said."""
    snapshot = current_snapshot(metadata) or {}
    total = str((snapshot.get("summary") or {}).get("total-files-size", ""))
    return int(total) if total.isdigit() else 0


def find_row_count(version: StoredVersion, *, options: Mapping[str, str]) -> int | None:
    """How many rows the version has; None where only Spark, or an extra, could tell."""
    recorded = recorded_row_count(version.metadata)
    if recorded is not None:
        return recorded
    try:
        table = open_table(version, options=options)
        return table.count(table.files())
    except (MissingExtra, NeedsSpark):
        return None


def read_rows(version: StoredVersion, *, limit: int, options: Mapping[str, str]) -> list[Row]:
    """At most `limit` rows; which ones is not promised."""
    if limit == 0:
        return []
    table = open_table(version, options=options)
    return table.rows(table.first_files(limit), limit)


def open_table(version: StoredVersion, *, options: Mapping[str, str]) -> ArrowTable:
    """The version, ready to be read; `options` are AWS_* variables by name."""
    try:
        from headgate.tables.arrow import ArrowTable  # noqa: PLC0415 - an optional extra, and slow
    except ImportError as error:
        raise MissingExtra(feature="reading rows without Spark", extra="arrow") from error
    return ArrowTable(version, options)


def current_snapshot(metadata: Metadata) -> Json | None:
    """The snapshot that main points at, if the table has any."""
    ref = (metadata.get("refs") or {}).get(MAIN)
    id = ref["snapshot-id"] if ref else metadata.get("current-snapshot-id")
    for snapshot in metadata.get("snapshots") or []:
        if snapshot["snapshot-id"] == id:
            return dict(snapshot)
    return None


def _partition_text(field: Json, names: Mapping[int, str]) -> str:
    sources = field.get("source-ids") or [field["source-id"]]
    columns = ", ".join(names.get(id, str(field["name"])) for id in sources)
    name, _, argument = str(field["transform"]).rstrip("]").partition("[")
    if name == "identity":
        return columns
    return f"{name}({argument}, {columns})" if argument else f"{name}({columns})"
