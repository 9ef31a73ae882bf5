"""Updates of what lies beside a table's data: statistics files and encryption keys."""

from __future__ import annotations

from headgate.tables.shape import Json, read_int, read_object, read_str
from headgate.tables.state import State, refuse


def set_statistics(state: State, update: Json) -> State:
    """Sets the one statistics file of a snapshot."""
    return _replace(state, "statistics", read_object(update, "statistics"))


def remove_statistics(state: State, update: Json) -> State:
    """Removes a snapshot's statistics file, if it has one."""
    return _without(state, "statistics", read_int(update, "snapshot-id"))


def set_partition_statistics(state: State, update: Json) -> State:
    """Sets the one partition statistics file of a snapshot."""
    return _replace(state, "partition-statistics", read_object(update, "partition-statistics"))


def remove_partition_statistics(state: State, update: Json) -> State:
    """Removes a snapshot's partition statistics file, if it has one."""
    return _without(state, "partition-statistics", read_int(update, "snapshot-id"))


def add_encryption_key(state: State, update: Json) -> State:
    """Adds an encryption key; one that is there stays as it is."""
    if state.format_version < 3:
        raise refuse("add-encryption-key", "encryption keys need format version 3")
    key = read_object(update, "encryption-key")
    key_id = read_str(key, "key-id")
    read_str(key, "encrypted-key-metadata")
    keys = state.items("encryption-keys")
    if any(known["key-id"] == key_id for known in keys):
        return state
    return state.put(encryption_keys=[*keys, key])


def remove_encryption_key(state: State, update: Json) -> State:
    """Removes an encryption key, if it is there."""
    doomed = read_str(update, "key-id")
    kept = [key for key in state.items("encryption-keys") if key["key-id"] != doomed]
    return state.put(encryption_keys=kept)


def _replace(state: State, name: str, file: Json) -> State:
    snapshot_id = read_int(file, "snapshot-id")
    read_str(file, "statistics-path")
    others = [item for item in state.items(name) if item["snapshot-id"] != snapshot_id]
    return state.put(**{name.replace("-", "_"): [*others, file]})


def _without(state: State, name: str, snapshot_id: int) -> State:
    kept = [item for item in state.items(name) if item["snapshot-id"] != snapshot_id]
    return state.put(**{name.replace("-", "_"): kept})
