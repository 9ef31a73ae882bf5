"""Which files of a table are worth writing together, and into how many buckets; pure rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.tables.arrow import DataFile
from headgate.tables.shape import Json, Metadata

# A file under this is small; a group of files under it is worth one file.
SMALL_BYTES = 64 * 1024 * 1024
# How many rows a bucket should have at most, and how many it gets when there are more.
_ROWS_AT_MOST = 200_000
_ROWS_WANTED = 50_000
_BUCKETS_AT_MOST = 4096


def groups_to_compact(files: Sequence[DataFile], default_spec: int) -> list[list[DataFile]]:
    """Files of one partition that together are better than apart, or that lie in an old layout."""
    by_partition: dict[Any, list[DataFile]] = {}
    for file in files:
        held = file.task.file
        by_partition.setdefault((held.spec_id, repr(held.partition)), []).append(file)
    groups = []
    for (spec, _), held in by_partition.items():
        small = [f for f in held if f.size_bytes < SMALL_BYTES or f.deletes]
        if spec != default_spec:
            groups.append(held)
        elif len(small) > 1 or any(f.deletes for f in small):
            groups.append(small)
    return groups


def wanted_buckets(metadata: Metadata, rows: int) -> int | None:
    """A greater number of buckets, where those there are have grown too large; else None."""
    held = _bucket_count(metadata)
    if held is None or rows <= held * _ROWS_AT_MOST:
        return None
    # Powers of two times the old number: each old bucket then parts into whole new ones.
    wanted = held
    while wanted < _BUCKETS_AT_MOST and rows > wanted * _ROWS_WANTED:
        wanted *= 2
    return wanted


def rebucketed(metadata: Metadata, buckets: int) -> list[Json]:
    """The updates that lay a table out in this many buckets."""
    [field] = _default_fields(metadata)
    changed = {key: value for key, value in field.items() if key != "field-id"}
    name = str(field["name"]).rstrip("0123456789_")
    changed |= {"transform": f"bucket[{buckets}]", "name": f"{name}_{buckets}"}
    return [
        {"action": "add-spec", "spec": {"fields": [changed]}},
        {"action": "set-default-spec", "spec-id": -1},
    ]


def snapshots_to_drop(metadata: Metadata, keep: int) -> list[int]:
    """Ids of snapshots older than the newest few that no ref names."""
    named = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    held = sorted(metadata.get("snapshots") or [], key=lambda s: s["sequence-number"])
    ids = [int(snapshot["snapshot-id"]) for snapshot in held]
    return [id for id in ids[: max(0, len(ids) - keep)] if id not in named]


def _bucket_count(metadata: Metadata) -> int | None:
    fields = _default_fields(metadata)
    if len(fields) != 1 or not str(fields[0]["transform"]).startswith("bucket["):
        return None
    return int(str(fields[0]["transform"]).removeprefix("bucket[").rstrip("]"))


def _default_fields(metadata: Metadata) -> list[Json]:
    for spec in metadata["partition-specs"]:
        if spec["spec-id"] == metadata["default-spec-id"]:
            return list(spec["fields"])
    return []
