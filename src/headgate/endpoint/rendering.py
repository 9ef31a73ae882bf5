"""Table versions as clients get them: the stored metadata with the server's own settings on top."""

from __future__ import annotations

import hashlib

import orjson

from headgate.endpoint.replies import Reply
from headgate.tables.cache import WeighedCache
from headgate.tables.shape import Json, Metadata
from headgate.tables.versions import StoredVersion

# Makes clients refuse to expire snapshots, remove orphans and purge: branches share files.
OVERLAY = {"gc.enabled": "false"}
_ALL, _REFS = "all", "refs"


class RenderedTables:
    """Response bodies by version; a version never changes, but it may forget snapshots."""

    def __init__(self, *, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self._bodies: WeighedCache[bytes] = WeighedCache(limit=cache_bytes)

    def reply(
        self, version: StoredVersion, *, snapshots: str = _ALL, known_etag: str | None = None
    ) -> Reply:
        """The version as a load or commit result; 304 where the client has it already."""
        listed = len(version.metadata.get("snapshots") or [])
        etag = etag_of(version.location, f"{snapshots} {listed}")
        if known_etag == etag:
            return Reply(status=304, headers={"etag": etag})
        body = self._bodies.find(etag)
        if body is None:
            metadata = version.to_encode() if snapshots == _ALL else _only_refs(version.metadata)
            body = orjson.dumps(table_result(metadata, version.location))
            self._bodies.put(etag, body, weight=len(body))
        return Reply(
            status=200, body=body, headers={"content-type": "application/json", "etag": etag}
        )


def table_result(metadata: Metadata, location: str | None) -> Json:
    """A load result; without a location for a table that is only staged."""
    properties = {**(metadata.get("properties") or {}), **OVERLAY}
    result: Json = {"metadata": {**metadata, "properties": properties}, "config": {}}
    return {"metadata-location": location, **result} if location else result


def etag_of(location: str, snapshots: str) -> str:
    """A tag that differs wherever the body differs."""
    digest = hashlib.sha256(f"{snapshots} {location}".encode()).hexdigest()
    return f'"{digest[:32]}"'


def _only_refs(metadata: Metadata) -> Metadata:
    wanted = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    kept = [item for item in metadata.get("snapshots") or [] if item["snapshot-id"] in wanted]
    return {**metadata, "snapshots": kept}
