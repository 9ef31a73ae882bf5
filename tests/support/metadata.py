"""Builders of table metadata and of the updates that change it."""

from __future__ import annotations

from typing import Any

from headgate.tables.creation import create_metadata
from headgate.tables.updates import apply_updates

LOCATION = "file:///wh/tables/d-1"
NOW = 1_800_000_000_000


def column(id_: int, name: str, kind: Any = "long", **more: Any) -> dict[str, Any]:
    return {"id": id_, "name": name, "type": kind, "required": False, **more}


def schema(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns), **more}


def two_columns() -> dict[str, Any]:
    return schema(column(1, "id"), column(2, "day", "date"))


def table(*updates: dict[str, Any], version: int = 2, **request: Any) -> dict[str, Any]:
    """Return a table of two columns, `id` and `day`, after some updates."""
    properties = {"format-version": str(version), **request.pop("properties", {})}
    body = {"schema": two_columns(), "properties": properties, **request}
    created = create_metadata(body, location=LOCATION, now_ms=NOW)
    return change(created, *updates) if updates else created


def change(
    metadata: dict[str, Any], *updates: dict[str, Any], now: int = NOW + 1
) -> dict[str, Any]:
    """Return the metadata after one commit."""
    return apply_updates(metadata, updates, now_ms=now, base_location=f"{LOCATION}/v.json")


def snapshot(
    id_: int, *, parent: int | None = None, op: str = "append", **more: Any
) -> dict[str, Any]:
    """Return a snapshot as clients send it; its sequence number is its id by default."""
    sent: dict[str, Any] = {
        "snapshot-id": id_,
        "sequence-number": id_,
        "timestamp-ms": NOW + id_,
        "manifest-list": f"{LOCATION}/metadata/snap-{id_}.avro",
        "summary": {"operation": op, **more.pop("summary", {})},
        "schema-id": 0,
        **more,
    }
    return {**sent, "parent-snapshot-id": parent} if parent is not None else sent


def add(id_: int, **more: Any) -> dict[str, Any]:
    return {"action": "add-snapshot", "snapshot": snapshot(id_, **more)}


def point(id_: int, ref: str = "main", kind: str = "branch", **more: Any) -> dict[str, Any]:
    return {
        "action": "set-snapshot-ref",
        "ref-name": ref,
        "snapshot-id": id_,
        "type": kind,
        **more,
    }


def commit(id_: int, **more: Any) -> list[dict[str, Any]]:
    """Return the updates of an ordinary write: a snapshot, and main moved to it."""
    return [add(id_, **more), point(id_)]
