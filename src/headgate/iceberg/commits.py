"""Commits: requirements and updates of one or many tables, made visible by one write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate import errors
from headgate.iceberg.service import (
    NO_CONTENT,
    OVERLAY,
    Reply,
    Request,
    Service,
    read_identifier,
    reply_applied,
    without_overlay,
)
from headgate.iceberg.table_catalog import ServedTable, TableChange
from headgate.model.contexts import JobContext
from headgate.model.ids import DatasetId, mint_content
from headgate.model.names import DatasetName
from headgate.tables.metadata import Json, Metadata, read_int, read_object, read_objects
from headgate.tables.referenced_files import added_items, check_location_settings
from headgate.tables.snapshots import effect_between
from headgate.tables.updates import apply_create, apply_updates, check_update_kinds, find_unmet
from headgate.tables.versions import StoredVersion


@dataclass(frozen=True, kw_only=True)
class TableCommit:
    """One table's part of a commit request."""

    name: DatasetName
    requirements: Sequence[Json]
    updates: Sequence[Json]

    @property
    def creates(self) -> bool:
        return any(item.get("type") == "assert-create" for item in self.requirements)

    @property
    def snapshots(self) -> frozenset[int]:
        """Return the ids of the snapshots that the request adds."""
        return frozenset(
            read_int(read_object(update, "snapshot"), "snapshot-id")
            for update in self.updates
            if update["action"] == "add-snapshot"
        )


def commit_table(service: Service, request: Request) -> Reply:
    """Commit to one table and return its new version."""
    commit = _read_commit(request.table, request.json)
    (table,) = _commit(service, request, [commit])
    return reply_applied(service, table)


def commit_transaction(service: Service, request: Request) -> Reply:
    """Commit to several tables, all or none."""
    commits = [
        _read_commit(read_identifier(item, "identifier"), item)
        for item in read_objects(request.json, "table-changes")
    ]
    if len({commit.name for commit in commits}) != len(commits):
        raise errors.MalformedRequest(what="the transaction", reason="it names a table twice")
    _commit(service, request, commits)
    return NO_CONTENT


def _read_commit(name: DatasetName, body: Json) -> TableCommit:
    requirements = read_objects(body, "requirements")
    updates = read_objects(body, "updates")
    check_update_kinds(updates)
    for update in updates:
        if update["action"] == "remove-snapshots":
            raise errors.ClientCleanupRefused(what=f"removing snapshots of {name}")
    return TableCommit(
        name=name,
        requirements=requirements,
        updates=[_without_overlay(update) for update in updates],
    )


def _without_overlay(update: Json) -> Json:
    updates, removals = update.get("updates"), update.get("removals")
    if update["action"] == "set-properties" and isinstance(updates, dict):
        return {**update, "updates": without_overlay(updates)}
    if update["action"] == "remove-properties" and isinstance(removals, list):
        kept_keys = [key for key in removals if not (isinstance(key, str) and key in OVERLAY)]
        return {**update, "removals": kept_keys}
    return update


def _commit(
    service: Service, request: Request, commits: Sequence[TableCommit]
) -> Sequence[ServedTable]:
    """Apply the commits, all or none, and return the tables as they are then."""
    try:
        prepared = [_prepare(service, request, commit) for commit in commits]
        changes = [item for item in prepared if isinstance(item, TableChange)]
        made: Iterator[ServedTable] = iter(())
        if changes:
            key = request.idempotency
            made = iter(service.catalog.commit(request.caller, request.context, changes, key))
        tables = [next(made) if isinstance(item, TableChange) else item for item in prepared]
    except (errors.AttemptSuperseded, errors.TransactionNotOpen):
        # An ended attempt or transaction accepts no more writes: the client must stop.
        raise
    except (errors.Conflict, errors.Exists):
        # A client that lost the reply sends its commit again: one that landed is not a conflict.
        landed = [_find_landed(service, request, commit) for commit in commits]
        tables = [table for table in landed if table is not None]
        if len(tables) != len(commits):
            raise
    for table in tables:
        service.served.note_commit(request.prefix, table.name, table.location)
    return tables


def _find_landed(service: Service, request: Request, commit: TableCommit) -> ServedTable | None:
    table = service.catalog.resolve(request.context, commit.name)
    if table is None or not commit.snapshots:
        return None
    metadata = service.versions.read(table.location).metadata
    present = {item["snapshot-id"] for item in metadata.get("snapshots") or []}
    return table if commit.snapshots <= present else None


def _prepare(service: Service, request: Request, commit: TableCommit) -> TableChange | ServedTable:
    """Store the version that a commit makes; return the table where it changes nothing."""
    base = service.catalog.resolve(request.context, commit.name)
    if base is None:
        return _prepare_create(service, request, commit)
    held = service.versions.read(base.location)
    if commit.creates:
        raise errors.TableExists(table=str(commit.name), context=str(request.context))
    if unmet := find_unmet(held.metadata, commit.requirements):
        raise unmet
    metadata = apply_updates(
        held.metadata, commit.updates, now_ms=service.now_ms(), base_location=base.location
    )
    if metadata is held.metadata:
        return base
    place = held.metadata["location"]
    if metadata["location"] != place:
        raise errors.TablePlaceRefused(
            setting="LOCATION", value=metadata["location"], location=place
        )
    check_location_settings(metadata)
    _check_replacement(service, request, base, held, metadata)
    return _change(service, base.dataset_id, base, held, metadata, commit.name)


def _prepare_create(service: Service, request: Request, commit: TableCommit) -> TableChange:
    unmet = find_unmet(None, commit.requirements)
    if not commit.creates:
        raise errors.TableNotFound(table=str(commit.name), context=str(request.context))
    if unmet:
        raise unmet
    metadata = apply_create(commit.updates, now_ms=service.now_ms())
    dataset = service.versions.find_dataset(metadata["location"])
    if dataset is None:
        raise errors.ImpossibleTableChange(
            change=f"location {metadata['location']!r}",
            reason="tables lie below the warehouse, by dataset; leave LOCATION out",
        )
    check_location_settings(metadata)
    known = service.catalog.find_dataset_id(commit.name)
    if known is not None and known != dataset:
        # A write on another branch created the dataset after this table was staged.
        raise errors.RequirementFailed(requirement="dataset", expected=dataset, actual=known)
    return _change(service, dataset, None, None, metadata, commit.name)


def _change(
    service: Service,
    dataset: DatasetId,
    base: ServedTable | None,
    held: StoredVersion | None,
    metadata: Metadata,
    name: DatasetName,
) -> TableChange:
    before = held.metadata if held else None
    effect = effect_between(before, metadata)
    version = service.versions.write(dataset, metadata, base=before)
    return TableChange(
        name=name,
        dataset_id=dataset,
        base=base,
        location=version.location,
        content_id=base.content_id if base and not effect.changes_content else mint_content(),
        type=effect.inferred_type,
    )


# Replacing commits
#
# A replacing commit removes rows that the client may never have read, and stock clients do not
# notice. REPLACE TABLE asserts nothing about the rows it replaces, and a static INSERT OVERWRITE
# refreshes its base just before it commits. So the version that the client's statement started
# from decides.


def is_replacing(base: Metadata, new: Metadata) -> bool:
    """Return whether rows of the base are gone in the new version, other than by a DELETE."""
    if effect_between(base, new).replaces:
        return True
    return any(_overwrites(snapshot) for snapshot in added_items(base, new))


def _check_replacement(
    service: Service,
    request: Request,
    base: ServedTable,
    held: StoredVersion,
    metadata: Metadata,
) -> None:
    """Raise if `metadata` replaces rows of `base` that are newer than what the client read."""
    if isinstance(request.context, JobContext):
        # Only the job itself writes its outputs.
        return
    if not is_replacing(held.metadata, metadata):
        return
    added = frozenset(item["snapshot-id"] for item in added_items(held.metadata, metadata))
    read = service.served.find(request.prefix, base.name)
    if read is None:
        return
    stale = read.location != base.location and _rows_differ(service, read.location, held)
    if stale or added & read.refused:
        service.served.note_refusal(request.prefix, base.name, base.location, added)
        raise errors.StaleReplacement(
            table=str(base.name),
            context=str(request.context),
            read=read.location,
            current=base.location,
        )


def _overwrites(snapshot: Json) -> bool:
    """Return whether whole data files were removed; row-level deletes check for conflicts."""
    summary = snapshot.get("summary") or {}
    removed = str(summary.get("deleted-data-files", "0"))
    return summary.get("operation") == "overwrite" and removed.isdecimal() and int(removed) > 0


def _rows_differ(service: Service, read_location: str, held: StoredVersion) -> bool:
    try:
        read = service.versions.read(read_location)
    except errors.NotFound:
        # Cleanup removed it, so the branch does not show it.
        return True
    return effect_between(read.metadata, held.metadata).changes_content
