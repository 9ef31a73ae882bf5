"""Updates of a table's snapshots and of the refs that name them."""

from __future__ import annotations

from dataclasses import replace

from headgate.errors import RequirementFailed
from headgate.tables.shape import MAIN, Json, read_int, read_ints, read_object, read_str
from headgate.tables.state import State, refuse

_OPERATIONS = frozenset({"append", "replace", "overwrite", "delete"})
_RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


def add_snapshot(state: State, update: Json) -> State:
    """Adds a snapshot exactly as sent; one prepared on an older table is a conflict."""
    snapshot = read_object(update, "snapshot")
    snapshot_id = read_int(snapshot, "snapshot-id")
    _check_ready(state, snapshot, snapshot_id)
    if any(known["snapshot-id"] == snapshot_id for known in state.items("snapshots")):
        # A conflict rather than a defect: a client may be sending a commit that has landed.
        raise RequirementFailed(requirement="snapshot-id", expected="a new id", actual=snapshot_id)
    state = _next_sequence(state, snapshot)
    if state.format_version >= 3:
        state = _next_rows(state, snapshot)
    added = state.put(snapshots=[*state.items("snapshots"), snapshot])
    return replace(added, added_snapshots=state.added_snapshots | {snapshot_id})


def _check_ready(state: State, snapshot: Json, snapshot_id: int) -> None:
    for part in ("schemas", "partition-specs", "sort-orders"):
        if not state.metadata.get(part):
            raise refuse(f"add-snapshot {snapshot_id}", f"the table has no {part} yet")
    read_int(snapshot, "timestamp-ms")
    read_str(snapshot, "manifest-list")
    operation = read_str(read_object(snapshot, "summary"), "operation")
    if operation not in _OPERATIONS:
        raise refuse(f"add-snapshot {snapshot_id}", f"operation {operation!r} is not known")


def _next_sequence(state: State, snapshot: Json) -> State:
    sequence = read_int(snapshot, "sequence-number")
    last = int(state.metadata.get("last-sequence-number", 0))
    if sequence <= last:
        raise RequirementFailed(
            requirement="sequence-number", expected=f"more than {last}", actual=sequence
        )
    return state.put(last_sequence_number=sequence)


def _next_rows(state: State, snapshot: Json) -> State:
    """Row lineage: ids start at or after the table's next one, and move it on."""
    first, added = read_int(snapshot, "first-row-id"), read_int(snapshot, "added-rows")
    next_id = int(state.metadata.get("next-row-id", 0))
    if first < next_id:
        raise RequirementFailed(
            requirement="first-row-id", expected=f"{next_id} or more", actual=first
        )
    if added < 0:
        raise refuse("add-snapshot", "added-rows is negative")
    return state.put(next_row_id=first + added)


def set_snapshot_ref(state: State, update: Json) -> State:
    """Points a branch or tag at a snapshot; for main, also the current snapshot and the log."""
    name, snapshot_id = read_str(update, "ref-name"), read_int(update, "snapshot-id")
    kind = read_str(update, "type")
    if kind not in {"branch", "tag"}:
        raise refuse(f"set-snapshot-ref {name!r}", f"type {kind!r} is neither branch nor tag")
    if name == MAIN and kind != "branch":
        raise refuse("set-snapshot-ref 'main'", "main must be a branch")
    snapshot = _find(state, snapshot_id)
    if snapshot is None:
        raise refuse(f"set-snapshot-ref {name!r}", f"there is no snapshot {snapshot_id}")
    ref: Json = {"snapshot-id": snapshot_id, "type": kind}
    ref |= {key: read_int(update, key) for key in _RETENTION if update.get(key) is not None}
    refs = state.metadata.get("refs") or {}
    if refs.get(name) == ref:
        return state
    state = state.put(refs={**refs, name: ref})
    return _move_main(state, snapshot) if name == MAIN else state


def _move_main(state: State, snapshot: Json) -> State:
    """An added snapshot enters the log at its own time, a rollback at the time of the commit."""
    snapshot_id = snapshot["snapshot-id"]
    at = snapshot["timestamp-ms"] if snapshot_id in state.added_snapshots else state.now_ms
    entry = {"snapshot-id": snapshot_id, "timestamp-ms": at}
    # A snapshot that this same commit added and then replaced was never visible as current.
    log = [
        known
        for known in state.items("snapshot-log")
        if known["snapshot-id"] not in state.added_snapshots
    ]
    return state.put(current_snapshot_id=snapshot_id, snapshot_log=[*log, entry])


def remove_snapshot_ref(state: State, update: Json) -> State:
    """Removes a ref; without main the table has no current snapshot."""
    return _without_refs(state, {read_str(update, "ref-name")})


def remove_snapshots(state: State, update: Json) -> State:
    """Removes snapshots, with the refs, statistics and log entries that need them."""
    doomed = set(read_ints(update, "snapshot-ids"))
    kept = [item for item in state.items("snapshots") if item["snapshot-id"] not in doomed]
    state = state.put(snapshots=kept)
    for name in ("statistics", "partition-statistics"):
        if name in state.metadata:
            left = [item for item in state.items(name) if item["snapshot-id"] not in doomed]
            state = state.put(**{name.replace("-", "_"): left})
    refs = state.metadata.get("refs") or {}
    dangling = {name for name, ref in refs.items() if ref["snapshot-id"] in doomed}
    log: list[Json] = []
    for entry in state.items("snapshot-log"):
        # History before a gap would claim that its last snapshot stayed current through the gap.
        log = [] if entry["snapshot-id"] in doomed else [*log, entry]
    return _without_refs(state.put(snapshot_log=log), dangling)


def _without_refs(state: State, names: set[str]) -> State:
    refs = state.metadata.get("refs") or {}
    state = state.put(refs={name: ref for name, ref in refs.items() if name not in names})
    return state.drop("current-snapshot-id") if MAIN in names else state


def _find(state: State, snapshot_id: int) -> Json | None:
    for snapshot in reversed(state.metadata.get("snapshots") or []):
        if snapshot["snapshot-id"] == snapshot_id:
            return dict(snapshot)
    return None
