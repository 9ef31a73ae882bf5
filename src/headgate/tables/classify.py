"""What the step from one version of a table to the next amounts to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.errors import TransactionTypeViolated
from headgate.model.nouns import TransactionType
from headgate.tables.schemas import current_schema, same_schema
from headgate.tables.shape import MAIN, Json, Metadata

# Compaction: other files, the same rows.
_REWRITE = "replace"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One step of a table's history, judged by the snapshots that lie between two versions."""

    # The type that a transaction gets when nobody named one.
    natural: TransactionType
    # False: the version holds the same rows and schema, so the content id is copied.
    changes_content: bool
    # The earlier rows are not the start of the later ones: the table was replaced or rolled back.
    replaces: bool
    operations: frozenset[str] = frozenset()


def effect_between(base: Metadata | None, new: Metadata) -> Effect:
    """The effect of moving from `base`, or from no table, to `new`."""
    if base is None:
        operations = frozenset(_operations(_history(new)))
        return Effect(
            natural=TransactionType.SNAPSHOT,
            changes_content=True,
            replaces=False,
            operations=operations,
        )
    added = added_snapshots(base, new)
    if added is None:
        return _rebuilt(base, new)
    return _continued(base, new, frozenset(_operations(iter(added))))


def _continued(base: Metadata, new: Metadata, operations: frozenset[str]) -> Effect:
    telling = operations - {_REWRITE}
    if telling == {"append"}:
        natural = TransactionType.APPEND
    elif telling == {"delete"}:
        natural = TransactionType.DELETE
    else:
        natural = TransactionType.UPDATE
    return Effect(
        natural=natural,
        changes_content=bool(telling) or _schema_changed(base, new),
        replaces=False,
        operations=operations,
    )


def _rebuilt(base: Metadata, new: Metadata) -> Effect:
    """A rollback shows older snapshots again; a replaced table starts a lineage of its own."""
    known = {snapshot["snapshot-id"] for snapshot in base.get("snapshots") or []}
    tip = tip_of(new)
    rolled_back = tip is not None and tip in known
    return Effect(
        natural=TransactionType.UPDATE if rolled_back else TransactionType.SNAPSHOT,
        changes_content=True,
        replaces=True,
        operations=frozenset(
            _operations(s for s in _history(new) if s["snapshot-id"] not in known)
        ),
    )


def check_declared(*, transaction: str, declared: TransactionType, effect: Effect) -> None:
    """Refuses a commit that does what the transaction's type forbids."""
    forbidden: frozenset[str] = frozenset()
    if declared is TransactionType.APPEND:
        forbidden = effect.operations - {"append", _REWRITE}
    elif declared is TransactionType.DELETE:
        forbidden = effect.operations - {"delete", _REWRITE}
    else:
        return
    if effect.replaces:
        raise TransactionTypeViolated(
            transaction=transaction, type=declared, reason="the table was replaced or rolled back"
        )
    if forbidden:
        raise TransactionTypeViolated(
            transaction=transaction,
            type=declared,
            reason=f"it holds Iceberg {' and '.join(sorted(forbidden))} operations",
        )


def tip_of(metadata: Metadata) -> int | None:
    """The newest snapshot of main, or None where there is none."""
    ref = (metadata.get("refs") or {}).get(MAIN)
    if ref is None:
        # Version 1 has no refs.
        current = metadata.get("current-snapshot-id")
        return None if current in {None, -1} else int(str(current))
    return int(ref["snapshot-id"])


def _history(metadata: Metadata) -> Iterator[Json]:
    """Snapshots of main, newest first, as far back as the metadata has them."""
    left = list(metadata.get("snapshots") or [])
    at = tip_of(metadata)
    # Each usually lies behind its parent; only where one does not, all are sorted by id.
    while left and left[-1]["snapshot-id"] == at:
        snapshot = left.pop()
        yield snapshot
        at = snapshot.get("parent-snapshot-id")
    known = {snapshot["snapshot-id"]: snapshot for snapshot in left}
    while at in known:
        snapshot = known.pop(at)
        yield snapshot
        at = snapshot.get("parent-snapshot-id")


def added_snapshots(base: Metadata, new: Metadata) -> list[Json] | None:
    """Snapshots on top of the base's tip, or None where its tip is not among their ancestors."""
    return snapshots_since(new, tip_of(base))


def snapshots_since(metadata: Metadata, start: int | None) -> list[Json] | None:
    """Snapshots after that one, newest first; all for None; None where it is no ancestor."""
    added: list[Json] = []
    if tip_of(metadata) == start:
        return added
    for snapshot in _history(metadata):
        added.append(snapshot)
        if snapshot.get("parent-snapshot-id") == start:
            return added
    return None


def _operations(snapshots: Iterator[Json]) -> Iterator[str]:
    return ((snapshot.get("summary") or {}).get("operation", "overwrite") for snapshot in snapshots)


def _schema_changed(base: Metadata, new: Metadata) -> bool:
    before, after = current_schema(base), current_schema(new)
    if before is None or after is None:
        return before is not after
    return not same_schema(before, after)
