"""Snapshots of a table: the current one, the effect of a step, and those still retained.

A version shows one snapshot and lists earlier ones for time travel. Snapshots that were current
within the retention time stay listed, and all that a ref names or keeps. The others are
forgotten by every version at once, and cleanup may remove the files that only they needed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from headgate.errors import TransactionTypeViolated
from headgate.model.nouns import TransactionType
from headgate.tables.metadata import MAIN, Json, Metadata, current_schema
from headgate.tables.schemas import same_schema
from headgate.tables.updates import State, remove_snapshots


def current_snapshot_id(metadata: Metadata) -> int | None:
    """Return the id of main's newest snapshot, or None for a table without one."""
    ref = (metadata.get("refs") or {}).get(MAIN)
    if ref is not None:
        return int(ref["snapshot-id"])
    # Version 1 has no refs.
    current = metadata.get("current-snapshot-id")
    return None if current in {None, -1} else int(str(current))


def current_snapshot(metadata: Metadata) -> Json | None:
    """Return main's newest snapshot, if the table has any."""
    id = current_snapshot_id(metadata)
    for snapshot in metadata.get("snapshots") or []:
        if snapshot["snapshot-id"] == id:
            return dict(snapshot)
    return None


def snapshots_since(metadata: Metadata, start: int | None) -> list[Json] | None:
    """Return the snapshots after `start`, newest first; None if it is not one of their ancestors.

    All snapshots are after None, the state without any.
    """
    added: list[Json] = []
    if current_snapshot_id(metadata) == start:
        return added
    for snapshot in _history(metadata):
        added.append(snapshot)
        if snapshot.get("parent-snapshot-id") == start:
            return added
    return None


def _history(metadata: Metadata) -> Iterator[Json]:
    """Yield the snapshots of main, newest first, as far back as the metadata has them."""
    left = list(metadata.get("snapshots") or [])
    at = current_snapshot_id(metadata)
    # Each usually follows its parent; only where one does not, all are sorted by id.
    while left and left[-1]["snapshot-id"] == at:
        snapshot = left.pop()
        yield snapshot
        at = snapshot.get("parent-snapshot-id")
    known = {snapshot["snapshot-id"]: snapshot for snapshot in left}
    while at in known:
        snapshot = known.pop(at)
        yield snapshot
        at = snapshot.get("parent-snapshot-id")


# Compaction: other files, the same rows.
_REWRITE = "replace"
# The only changing operation of a transaction of a type.
_ONLY = {TransactionType.APPEND: "append", TransactionType.DELETE: "delete"}
_INFERRED = {frozenset({operation}): type for type, operation in _ONLY.items()}


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of one step of a table's history, by the snapshots between two versions."""

    # The type of a transaction that was opened without one.
    inferred_type: TransactionType
    # False: the version holds the same rows and schema, so the content id is copied.
    changes_content: bool
    # The table was replaced or rolled back: the later rows do not continue the earlier ones.
    replaces: bool
    operations: frozenset[str] = frozenset()


def effect_between(base: Metadata | None, new: Metadata) -> Effect:
    """Return the effect of moving from `base`, or from no table, to `new`."""
    if base is None:
        return Effect(
            inferred_type=TransactionType.SNAPSHOT,
            changes_content=True,
            replaces=False,
            operations=_operations(_history(new)),
        )
    added = snapshots_since(new, current_snapshot_id(base))
    if added is None:
        return _replaced(base, new)
    operations = _operations(added)
    changing = operations - {_REWRITE}
    return Effect(
        inferred_type=_INFERRED.get(changing, TransactionType.UPDATE),
        changes_content=bool(changing) or _schema_changed(base, new),
        replaces=False,
        operations=operations,
    )


def _replaced(base: Metadata, new: Metadata) -> Effect:
    """Return the effect of a rollback to older snapshots, or of a new lineage."""
    known = {snapshot["snapshot-id"] for snapshot in base.get("snapshots") or []}
    rolled_back = current_snapshot_id(new) in known
    return Effect(
        inferred_type=TransactionType.UPDATE if rolled_back else TransactionType.SNAPSHOT,
        changes_content=True,
        replaces=True,
        operations=_operations(s for s in _history(new) if s["snapshot-id"] not in known),
    )


def _operations(snapshots: Iterable[Json]) -> frozenset[str]:
    return frozenset((s.get("summary") or {}).get("operation", "overwrite") for s in snapshots)


def _schema_changed(base: Metadata, new: Metadata) -> bool:
    before, after = current_schema(base), current_schema(new)
    if before is None or after is None:
        return before is not after
    return not same_schema(before, after)


def check_transaction_type(*, transaction: str, type: TransactionType, effect: Effect) -> None:
    """Raise if the transaction's type forbids the effect."""
    if type not in _ONLY:
        return
    forbidden = effect.operations - {_ONLY[type], _REWRITE}
    if effect.replaces:
        reason = "the table was replaced or rolled back"
    elif forbidden:
        reason = f"it has Iceberg {' and '.join(sorted(forbidden))} operations"
    else:
        return
    raise TransactionTypeViolated(transaction=transaction, type=type, reason=reason)


_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
}
_DELETE_TOTALS = ("total-delete-files", "total-position-deletes", "total-equality-deletes")


def total_counts(
    parent: Json | None, counts: Mapping[str, int], *, without_deletes: bool = False
) -> dict[str, str]:
    """Return the totals of a snapshot's summary, from those of its parent and its own counts.

    A total that the parent does not have is left out. `without_deletes`: the snapshot has no
    delete files; otherwise it lists those of its parent.
    """
    before: Mapping[str, str] = (parent or {}).get("summary") or {}
    totals = {}
    for name, (plus, minus) in _TOTALS.items():
        known = str(before.get(name, "0" if parent is None else "?"))
        if known.isdigit():
            totals[name] = str(int(known) + counts.get(plus, 0) - counts.get(minus, 0))
    for name in _DELETE_TOTALS:
        # Delete files stay listed, even if every file that they apply to is removed.
        if parent is None or without_deletes:
            totals[name] = "0"
        elif name in before:
            totals[name] = str(before[name])
    return totals


# How many of the newest snapshots a table, or one of its branches, keeps whatever their age.
_TABLE_MINIMUM = "history.expire.min-snapshots-to-keep"
_REF_MINIMUM = "min-snapshots-to-keep"


def forget_snapshots(metadata: Metadata, before_ms: int) -> Metadata:
    """Return the metadata without snapshots that were last current before a time.

    If all are retained, the same object is returned.
    """
    listed = metadata.get("snapshots") or []
    if all(snapshot["timestamp-ms"] >= before_ms for snapshot in listed):
        return metadata
    retained = set(_retained(metadata, before_ms))
    forgotten = [s["snapshot-id"] for s in listed if s["snapshot-id"] not in retained]
    if not forgotten:
        return metadata
    state = State(metadata=metadata, now_ms=0)
    return remove_snapshots(state, {"snapshot-ids": forgotten}).metadata


def _retained(metadata: Metadata, before_ms: int) -> Iterator[int]:
    for ref in (metadata.get("refs") or {}).values():
        yield from _kept_by(ref, metadata)
    # Version 1 has no refs.
    if (current := metadata.get("current-snapshot-id")) is not None:
        yield current
    for snapshot in metadata.get("snapshots") or []:
        if snapshot["timestamp-ms"] >= before_ms:
            yield snapshot["snapshot-id"]
            # The parent was current on its branch until then.
            if (parent := snapshot.get("parent-snapshot-id")) is not None:
                yield parent
    for shown, following in pairwise(metadata.get("snapshot-log") or []):
        if following["timestamp-ms"] >= before_ms:
            yield shown["snapshot-id"]


def _kept_by(ref: Json, metadata: Metadata) -> Iterator[int]:
    """Yield the snapshot of a tag, or the newest ones of a branch, as many as it must keep."""
    count = 1
    if ref.get("type") == "branch":
        minimum = (metadata.get("properties") or {}).get(_TABLE_MINIMUM, "1")
        count = int(ref.get(_REF_MINIMUM) or (minimum if minimum.isdecimal() else 1))
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}
    here: int | None = ref["snapshot-id"]
    while here is not None and count > 0:
        yield here
        here, count = parents.get(here), count - 1
