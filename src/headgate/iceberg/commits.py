"""Commits: requirements, updates, and the one write that makes their result visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.errors import (
    AttemptSuperseded,
    ClientCleanupRefused,
    Conflict,
    Exists,
    ImpossibleTableChange,
    MalformedRequest,
    NotFound,
    RequirementFailed,
    StaleReplacement,
    TableExists,
    TableNotFound,
    TablePlaceRefused,
    TransactionNotOpen,
)
from headgate.iceberg.service import (
    NO_CONTENT,
    OVERLAY,
    Reply,
    Request,
    ServedTable,
    Service,
    TableChange,
    read_identifier,
)
from headgate.iceberg.tables import reply_applied
from headgate.model.contexts import JobContext
from headgate.model.ids import DatasetId, mint_content
from headgate.model.names import DatasetName
from headgate.tables.classify import effect_between
from headgate.tables.register import check_places, unseen
from headgate.tables.shape import Json, Metadata, read_int, read_object, read_objects
from headgate.tables.updates import apply_create, apply_updates, check_known, find_unmet
from headgate.tables.versions import StoredVersion

# Replacing commits: those that take rows away which their author may never have seen.
#
# Stock clients lose updates here. REPLACE TABLE asserts nothing about the rows it replaces, and a
# static INSERT OVERWRITE refreshes its base just before it commits. So what counts is the version
# that the client was given when its statement began.


def refuse_stale_replacement(
    service: Service,
    request: Request,
    base: ServedTable,
    held: StoredVersion,
    metadata: Metadata,
) -> None:
    """Raises where `metadata` replaces rows of `base` that came after what the client read."""
    if isinstance(request.context, JobContext):
        # A job's outputs are its own: nobody else can have added anything.
        return
    if not is_replacing(held.metadata, metadata):
        return
    added = frozenset(item["snapshot-id"] for item in unseen(held.metadata, metadata))
    read = service.served.find(request.prefix, base.name)
    if read is None:
        return
    stale = read.location != base.location and _rows_differ(service, read.location, held)
    if stale or added & read.refused:
        service.served.note_refusal(request.prefix, base.name, base.location, added)
        raise StaleReplacement(
            table=str(base.name),
            context=str(request.context),
            read=read.location,
            current=base.location,
        )


def is_replacing(base: Metadata, new: Metadata) -> bool:
    """Whether rows of the base are gone in the new version for another reason than a DELETE."""
    effect = effect_between(base, new)
    if effect.replaces:
        return True
    return any(_overwrites(snapshot) for snapshot in unseen(base, new))


def _overwrites(snapshot: Json) -> bool:
    """An overwrite that removed whole data files; row-level deletes check conflicts themselves."""
    summary = snapshot.get("summary") or {}
    removed = str(summary.get("deleted-data-files", "0"))
    return summary.get("operation") == "overwrite" and removed.isdecimal() and int(removed) > 0


def _rows_differ(service: Service, read_location: str, held: StoredVersion) -> bool:
    try:
        read = service.versions.read(read_location)
    except NotFound:
        # Cleanup took it: it cannot be what the branch shows now.
        return True
    return effect_between(read.metadata, held.metadata).changes_content


@dataclass(frozen=True, kw_only=True)
class TableCommit:
    """What one request asks of one table."""

    name: DatasetName
    requirements: Sequence[Json]
    updates: Sequence[Json]

    @property
    def creates(self) -> bool:
        return any(item.get("type") == "assert-create" for item in self.requirements)

    @property
    def snapshots(self) -> frozenset[int]:
        """Ids of the snapshots that the request adds."""
        return frozenset(
            read_int(read_object(update, "snapshot"), "snapshot-id")
            for update in self.updates
            if update["action"] == "add-snapshot"
        )


def commit_table(service: Service, request: Request) -> Reply:
    """Commits to one table and answers with its new version."""
    commit = _read_commit(request.table, request.json)
    (table,) = _commit(service, request, [commit])
    return reply_applied(service, table)


def commit_transaction(service: Service, request: Request) -> Reply:
    """Commits to several tables, all together or not at all."""
    commits = [
        _read_commit(read_identifier(item, "identifier"), item)
        for item in read_objects(request.json, "table-changes")
    ]
    if len({commit.name for commit in commits}) != len(commits):
        raise MalformedRequest(what="the transaction", reason="it names a table twice")
    _commit(service, request, commits)
    return NO_CONTENT


def _read_commit(name: DatasetName, body: Json) -> TableCommit:
    requirements = read_objects(body, "requirements")
    updates = read_objects(body, "updates")
    check_known(updates)
    for update in updates:
        if update["action"] == "remove-snapshots":
            raise ClientCleanupRefused(what=f"removing snapshots of {name}")
    return TableCommit(
        name=name,
        requirements=requirements,
        updates=[_without_overlay(update) for update in updates],
    )


def _without_overlay(update: Json) -> Json:
    """The server's own settings come back from clients that copy what they were served."""
    updates, removals = update.get("updates"), update.get("removals")
    if update["action"] == "set-properties" and isinstance(updates, dict):
        kept = {key: value for key, value in updates.items() if key not in OVERLAY}
        return {**update, "updates": kept}
    if update["action"] == "remove-properties" and isinstance(removals, list):
        kept_keys = [key for key in removals if not (isinstance(key, str) and key in OVERLAY)]
        return {**update, "removals": kept_keys}
    return update


def _commit(
    service: Service, request: Request, commits: Sequence[TableCommit]
) -> Sequence[ServedTable]:
    """The tables as they are after the commits, all of which have happened, or none."""
    try:
        prepared = [_prepare(service, request, commit) for commit in commits]
        changes = [item for item in prepared if isinstance(item, TableChange)]
        if changes:
            served = iter(
                service.catalog.commit(
                    request.principal, request.context, changes, request.idempotency
                )
            )
            tables = [next(served) if isinstance(item, TableChange) else item for item in prepared]
        else:
            tables = [item for item in prepared if isinstance(item, ServedTable)]
    except (AttemptSuperseded, TransactionNotOpen):
        # Whatever landed before, landed nowhere: its author must stop.
        raise
    except (Conflict, Exists):
        # A client whose reply got lost sends its commit again: it has landed, so it is no conflict.
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
    """The change that a commit amounts to, its version stored, or the table where it is none."""
    base = service.catalog.resolve(request.context, commit.name)
    if base is None:
        return _prepare_create(service, request, commit)
    held = service.versions.read(base.location)
    if commit.creates:
        raise TableExists(table=str(commit.name), context=str(request.context))
    if unmet := find_unmet(held.metadata, commit.requirements):
        raise unmet.to_error()
    metadata = apply_updates(
        held.metadata, commit.updates, now_ms=service.now_ms(), base_location=base.location
    )
    if metadata is held.metadata:
        return base
    place = held.metadata["location"]
    if metadata["location"] != place:
        raise TablePlaceRefused(setting="LOCATION", value=metadata["location"], location=place)
    check_places(metadata, held.metadata)
    refuse_stale_replacement(service, request, base, held, metadata)
    return _change(service, base.dataset_id, base, held, metadata, commit.name)


def _prepare_create(service: Service, request: Request, commit: TableCommit) -> TableChange:
    if not commit.creates:
        find_unmet(None, commit.requirements)
        raise TableNotFound(table=str(commit.name), context=str(request.context))
    if unmet := find_unmet(None, commit.requirements):
        raise unmet.to_error()
    metadata = apply_create(commit.updates, now_ms=service.now_ms())
    dataset = service.versions.find_dataset(metadata["location"])
    if dataset is None:
        raise ImpossibleTableChange(
            change=f"location {metadata['location']!r}",
            reason="tables lie below the warehouse, by dataset; leave LOCATION out",
        )
    check_places(metadata)
    known = service.catalog.find_dataset_id(commit.name)
    if known is not None and known != dataset:
        # Somebody made a dataset of that name on another branch after this one was staged.
        raise RequirementFailed(requirement="dataset", expected=dataset, actual=known)
    return _change(service, dataset, None, None, metadata, commit.name)


def _change(
    service: Service,
    dataset: DatasetId,
    base: ServedTable | None,
    held: StoredVersion | None,
    metadata: Metadata,
    name: DatasetName,
) -> TableChange:
    effect = effect_between(held.metadata if held else None, metadata)
    version = service.versions.write(dataset, metadata)
    copied = base is not None and not effect.changes_content
    return TableChange(
        name=name,
        dataset_id=dataset,
        base=base,
        location=version.location,
        content_id=base.content_id if base is not None and copied else mint_content(),
        type=effect.natural,
    )
