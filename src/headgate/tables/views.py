"""Metadata of views: creation, commits and comparison, as pure functions on the view specification.

A view is a JSON document of its own: versions with a query in each engine's dialect, their schemas,
and a log of the versions that were current. Queries are stored as sent and never translated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from headgate.errors import InvalidViewVersion, MalformedRequest, RequirementFailed, ViewDialectLost
from headgate.model.nouns import TransactionType
from headgate.tables import updates
from headgate.tables.metadata import (
    Json,
    Metadata,
    impossible,
    read_int,
    read_object,
    read_objects,
    read_properties,
    read_str,
    read_strings,
)
from headgate.tables.schemas import check_schema
from headgate.tables.snapshots import Effect
from headgate.tables.updates import State

_FORMAT_VERSION = 1
# In an update, the id of what this same commit added last.
_LAST_ADDED = -1
_DROP_DIALECT_ALLOWED = "replace.drop-dialect.allowed"
_HISTORY_SIZE = "version.history.num-entries"
_HISTORY_SIZE_DEFAULT = 10
# The newest format version of tables: a view may return columns of any type that a table may have.
_ANY_TYPE = updates.NEWEST_FORMAT_VERSION


def _assign_uuid(state: State, update: Json) -> State:
    uuid, held = read_str(update, "uuid").lower(), state.metadata["view-uuid"]
    if uuid != held:
        raise impossible("assign-uuid", f"the view has the UUID {held}")
    return state


def _upgrade_format_version(state: State, update: Json) -> State:
    if read_int(update, "format-version") != _FORMAT_VERSION:
        reason = f"views have format version {_FORMAT_VERSION}"
        raise impossible(f"format version {update['format-version']}", reason)
    return state


def _set_properties(state: State, update: Json) -> State:
    held = state.metadata.get("properties") or {}
    return state.put(properties={**held, **read_properties(update, "updates")})


def _add_schema(state: State, update: Json) -> State:
    """Add a schema under the next id, or find the equal one that exists."""
    schema = read_object(update, "schema")
    check_schema(schema, _ANY_TYPE)
    return updates.put_schema(state, schema)


def _add_view_version(state: State, update: Json) -> State:
    """Add a version under the next id, or find one that behaves the same."""
    sent = read_object(update, "view-version")
    version = {**sent, "schema-id": _schema_id(state, sent)}
    _check_version(version)
    known = state.metadata["versions"]
    for one in known:
        if _behaviour(one) == _behaviour(version):
            return replace(state, last_version_id=one["version-id"])
    id = max([read_int(version, "version-id"), *(one["version-id"] + 1 for one in known)])
    added = state.put(versions=[*known, {**version, "version-id": id}])
    return replace(added, last_version_id=id, added_ids=state.added_ids | {id})


def _schema_id(state: State, version: Json) -> int:
    id = read_int(version, "schema-id")
    if id == _LAST_ADDED:
        if state.last_schema_id is None:
            raise impossible("add-view-version", "this commit has added no schema")
        return state.last_schema_id
    if id not in {schema["schema-id"] for schema in state.metadata["schemas"]}:
        raise impossible("add-view-version", f"there is no schema {id}")
    return id


def _check_version(version: Json) -> None:
    read_int(version, "timestamp-ms")
    read_strings(version, "default-namespace")
    if version.get("default-catalog") is not None:
        read_str(version, "default-catalog")
    read_properties(version, "summary")
    representations = read_objects(version, "representations")
    if not representations:
        raise InvalidViewVersion(reason="it has no query")
    seen: set[str] = set()
    for one in representations:
        if (kind := read_str(one, "type")) != "sql":
            raise InvalidViewVersion(reason=f"representations of type {kind!r} are not known")
        read_str(one, "sql")
        dialect = read_str(one, "dialect").lower()
        if dialect in seen:
            raise InvalidViewVersion(reason=f"Cannot add multiple queries for dialect {dialect}")
        seen.add(dialect)


def _behaviour(version: Json) -> tuple[object, ...]:
    """Return what makes two versions the same, whatever their ids and times."""
    names = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")
    return tuple(version.get(name) for name in names)


def _set_current_view_version(state: State, update: Json) -> State:
    id = read_int(update, "view-version-id")
    if id == _LAST_ADDED:
        if state.last_version_id is None:
            raise impossible("set-current-view-version -1", "this commit has added no version")
        id = state.last_version_id
    if id == state.metadata.get("current-version-id"):
        return state
    named = next((one for one in state.metadata["versions"] if one["version-id"] == id), None)
    if named is None:
        raise impossible("set-current-view-version", f"there is no version {id}")
    at = named["timestamp-ms"] if id in state.added_ids else state.now_ms
    entry = {"version-id": id, "timestamp-ms": at}
    log = state.metadata.get("version-log") or []
    return state.put(current_version_id=id, version_log=[*log, entry])


_UPDATES: Mapping[str, Callable[[State, Json], State]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "set-location": updates.set_location,
    "set-properties": _set_properties,
    "remove-properties": updates.remove_properties,
    "add-schema": _add_schema,
    "add-view-version": _add_view_version,
    "set-current-view-version": _set_current_view_version,
}


def find_unmet(metadata: Metadata, requirements: Iterable[Json]) -> RequirementFailed | None:
    """Return the error of the first requirement that does not hold; raise on an unknown kind."""
    for requirement in requirements:
        if (kind := read_str(requirement, "type")) != "assert-view-uuid":
            raise MalformedRequest(what=f"requirement {kind!r}", reason="this kind is not known")
        expected, actual = read_str(requirement, "uuid").lower(), metadata["view-uuid"]
        if expected != actual:
            return RequirementFailed(requirement=kind, expected=expected, actual=actual)
    return None


def create_view(request: Mapping[str, Any], *, location: str, now_ms: int) -> Metadata:
    """Return the metadata of a new view, from the protocol's request."""
    empty: Metadata = {
        "view-uuid": str(uuid4()),
        "format-version": _FORMAT_VERSION,
        "location": location,
        "schemas": [],
        "versions": [],
        "version-log": [],
        "properties": read_properties(request, "properties"),
    }
    version = {**read_object(request, "view-version"), "schema-id": _LAST_ADDED, "version-id": 1}
    return apply_updates(
        empty,
        [
            {"action": "add-schema", "schema": read_object(request, "schema")},
            {"action": "add-view-version", "view-version": version},
            {"action": "set-current-view-version", "view-version-id": _LAST_ADDED},
        ],
        now_ms=now_ms,
    )


def apply_updates(base: Metadata, changes: Sequence[Json], *, now_ms: int) -> Metadata:
    """Return the view's next metadata, or the same `base` object if no update changes anything."""
    steps = [partial(_find_update(change), update=change) for change in changes]
    state = State(metadata=base, now_ms=now_ms)
    for step in steps:
        state = step(state)
    if state.metadata == base:
        return base
    properties = state.metadata.get("properties") or {}
    if base["versions"] and properties.get(_DROP_DIALECT_ALLOWED, "").lower() != "true":
        before, after = (set(queries(one)) for one in (base, state.metadata))
        if lost := sorted(before - after):
            raise ViewDialectLost(lost=lost, before=sorted(before), after=sorted(after))
    return _expire(state, properties.get(_HISTORY_SIZE, str(_HISTORY_SIZE_DEFAULT)))


def _find_update(change: Json) -> Callable[..., State]:
    action = read_str(change, "action")
    if action not in _UPDATES:
        raise MalformedRequest(
            what=f"update {action!r}", reason="views have no update of this kind"
        )
    return _UPDATES[action]


def _expire(state: State, size: str) -> Metadata:
    """Keep the newest versions, the current one and those of this commit; and the log since."""
    if not size.isdecimal() or int(size) < 1:
        raise impossible(f"{_HISTORY_SIZE}={size}", "it must be a positive integer")
    metadata = state.metadata
    always = state.added_ids | {metadata["current-version-id"]}
    newest = sorted((one["version-id"] for one in metadata["versions"]), reverse=True)
    others = [id for id in newest if id not in always]
    kept = always | set(others[: max(0, int(size) - len(always))])
    log: list[Json] = []
    for entry in metadata["version-log"]:
        # History before a gap would claim that its last version stayed current through the gap.
        log = [*log, entry] if entry["version-id"] in kept else []
    versions = [one for one in metadata["versions"] if one["version-id"] in kept]
    return {**metadata, "versions": versions, "version-log": log}


def current_version(metadata: Metadata) -> Json:
    """Return the version that readers use."""
    id = metadata["current-version-id"]
    return next(one for one in metadata["versions"] if one["version-id"] == id)


def queries(metadata: Metadata) -> dict[str, str]:
    """Return the current query in each dialect."""
    return {
        one["dialect"].lower(): one["sql"] for one in current_version(metadata)["representations"]
    }


def as_table(metadata: Metadata) -> Metadata:
    """Return the metadata with the current schema named as in a table's, whose readers it suits."""
    return {**metadata, "current-schema-id": current_version(metadata)["schema-id"]}


def definition(metadata: Metadata) -> Json:
    """Return all that determines what a view shows; two views with the same are alike."""
    version = current_version(metadata)
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == version["schema-id"])
    return {
        "queries": queries(metadata),
        "fields": schema["fields"],
        "default-catalog": version.get("default-catalog"),
        "default-namespace": version["default-namespace"],
    }


def effect_between(base: Metadata | None, new: Metadata) -> Effect:
    """Return the effect of moving from `base`, or from no view, to `new`."""
    changes = base is None or definition(base) != definition(new)
    return Effect(
        inferred_type=TransactionType.SNAPSHOT if changes else TransactionType.UPDATE,
        changes_content=changes,
        replaces=changes,
    )
