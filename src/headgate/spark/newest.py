"""The snapshot that a table shows, as Iceberg describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NewestSnapshot:
    """Its id, and what Iceberg counted when it was made."""

    id: int
    summary: Mapping[str, str]


def find_newest(session: Any, table: str) -> NewestSnapshot | None:
    """The snapshot that a table shows, from the catalog or, on a server, by two small queries."""
    if hasattr(session, "_jsparkSession"):
        return _from_catalog(session, table)
    return _from_metadata_tables(session, table)


def descends(session: Any, table: str, snapshot: int) -> bool:
    """Whether what the table shows goes back to that snapshot."""
    if hasattr(session, "_jsparkSession"):
        ancestry = session._jvm.org.apache.iceberg.util.SnapshotUtil
        return bool(ancestry.isAncestorOf(_load(session, table), snapshot))
    known = session.sql(f"select snapshot_id from {table}.history where is_current_ancestor")
    return known.where(known.snapshot_id == snapshot).first() is not None


def _from_catalog(session: Any, table: str) -> NewestSnapshot | None:
    """Costs no Spark job."""
    found = _load(session, table).currentSnapshot()
    return NewestSnapshot(id=found.snapshotId(), summary=found.summary()) if found else None


def _load(session: Any, table: str) -> Any:
    iceberg = session._jvm.org.apache.iceberg.spark.Spark3Util
    return iceberg.loadIcebergTable(session._jsparkSession, table)


def _from_metadata_tables(session: Any, table: str) -> NewestSnapshot | None:
    """A Connect client has no hold of the catalog's objects."""
    main = session.sql(f"select snapshot_id from {table}.refs where name = 'main'").first()
    if main is None:
        return None
    query = f"select summary from {table}.snapshots where snapshot_id = {main['snapshot_id']}"
    return NewestSnapshot(id=main["snapshot_id"], summary=session.sql(query).first()["summary"])
