"""Which snapshots of a table are still remembered; pure.

A version shows one snapshot and lists the earlier ones, so that they can be travelled to. Those
that were current within the time to retain stay listed, and all that a ref names or is to keep; the
others are forgotten by every version at once, and cleanup may take what only they held.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from headgate.tables.shape import Json, Metadata
from headgate.tables.snapshots import remove_snapshots
from headgate.tables.state import State

# How Iceberg's users say that some of the past is to stay, whatever its age.
_AT_LEAST = "history.expire.min-snapshots-to-keep"
_OF_REF = "min-snapshots-to-keep"


def forget_snapshots(metadata: Metadata, before_ms: int) -> Metadata:
    """The metadata without what was last current before a moment; the same object if all stays."""
    listed = metadata.get("snapshots") or []
    if all(snapshot["timestamp-ms"] >= before_ms for snapshot in listed):
        return metadata
    remembered = set(_remembered(metadata, before_ms))
    doomed = [s["snapshot-id"] for s in listed if s["snapshot-id"] not in remembered]
    if not doomed:
        return metadata
    state = State(metadata=metadata, now_ms=0)
    return remove_snapshots(state, {"snapshot-ids": doomed}).metadata


def _remembered(metadata: Metadata, before_ms: int) -> Iterator[int]:
    for ref in (metadata.get("refs") or {}).values():
        yield from _held_by(ref, metadata)
    # Version 1 may do without refs.
    if (current := metadata.get("current-snapshot-id")) is not None:
        yield current
    for snapshot in metadata.get("snapshots") or []:
        if snapshot["timestamp-ms"] >= before_ms:
            yield snapshot["snapshot-id"]
            # Until its child came, it was what its branch showed.
            if (parent := snapshot.get("parent-snapshot-id")) is not None:
                yield parent
    for shown, following in pairwise(metadata.get("snapshot-log") or []):
        if following["timestamp-ms"] >= before_ms:
            yield shown["snapshot-id"]


def _held_by(ref: Json, metadata: Metadata) -> Iterator[int]:
    """What a tag names; of a branch as many of its newest as it, or the table, asks for."""
    count = 1
    if ref.get("type") == "branch":
        asked = (metadata.get("properties") or {}).get(_AT_LEAST, "1")
        count = int(ref.get(_OF_REF) or (asked if asked.isdecimal() else 1))
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
    here: int | None = ref["snapshot-id"]
    while here is not None and count > 0:
        yield here
        here, count = parents.get(here), count - 1
