"""Commits: requirements and updates of one or many tables, made visible by one write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headgate import errors
from headgate.catalog.database import repeat_overtaken
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
from headgate.model.contexts import BranchContext, JobContext
from headgate.model.ids import DatasetId, mint_content, mint_dataset
from headgate.model.names import DatasetName
from headgate.model.rules import ChangedTable, Verdict
from headgate.tables.constraints import RULE_PROPERTIES
from headgate.tables.metadata import Json, Metadata, read_int, read_object, read_objects
from headgate.tables.referenced_files import added_items, check_location, check_location_settings
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
    return reply_applied(service, request, table)


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
        tables = _apply(service, request, commits)
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


def _apply(
    service: Service, request: Request, commits: Sequence[TableCommit]
) -> Sequence[ServedTable]:
    try:
        return _apply_once(service, request, commits)
    except (errors.RequirementFailed, errors.ViewConflict) as error:
        first = error
    rebase = _Rebase.find(service, request, commits)
    if rebase is None:
        raise first
    with service.appends.slot((request.context, *(commit.name for commit in commits))):
        # Writers of one process take turns, so only those of other processes are in the way, and
        # an OPEN transaction of the branch.
        return repeat_overtaken(lambda: _apply_once(service, request, commits, rebase))


def _apply_once(
    service: Service,
    request: Request,
    commits: Sequence[TableCommit],
    rebase: _Rebase | None = None,
) -> Sequence[ServedTable]:
    prepared = [_prepare(service, request, commit, rebase) for commit in commits]
    changes = [item for item in prepared if isinstance(item, TableChange)]
    made: Iterator[ServedTable] = iter(())
    if changes:
        verdict = _validate(service, request, changes)
        made = iter(service.catalog.commit(request, changes, verdict))
    return [next(made) if isinstance(item, TableChange) else item for item in prepared]


def _validate(service: Service, request: Request, changes: Sequence[TableChange]) -> Verdict | None:
    """Validate the rows of a publication; in a unit or a job, its commit validates them."""
    context = request.context
    if not isinstance(context, BranchContext) or not any(one.is_ruled for one in changes):
        return None
    changed = [
        ChangedTable(
            name=one.name, before=one.base.location if one.base else None, after=one.location
        )
        for one in changes
    ]
    return service.rules(context, changed, request.caller.policy)


def _find_landed(service: Service, request: Request, commit: TableCommit) -> ServedTable | None:
    table = service.catalog.resolve(request.context, commit.name)
    if table is None or not commit.snapshots:
        return None
    metadata = service.versions.read(table.location).metadata
    present = {item["snapshot-id"] for item in metadata.get("snapshots") or []}
    return table if commit.snapshots <= present else None


def _prepare(
    service: Service, request: Request, commit: TableCommit, rebase: _Rebase | None
) -> TableChange | ServedTable:
    """Store the version that a commit makes; return the table where it changes nothing."""
    base = service.catalog.resolve(request.context, commit.name)
    if base is None:
        return _prepare_create(service, request, commit)
    held = service.versions.read(base.location)
    if commit.creates:
        raise errors.TableExists(
            table=str(commit.name), context=str(request.context), required=True
        )
    updates = commit.updates
    if unmet := find_unmet(held.metadata, commit.requirements):
        if rebase is None:
            raise unmet
        updates = rebase.move(commit, base.dataset_id, held.metadata, unmet)
    metadata = apply_updates(
        held.metadata, updates, now_ms=service.now_ms(), base_location=base.location
    )
    if metadata is held.metadata:
        return base
    roots = service.versions.roots(base.dataset_id)
    if metadata["location"] != held.metadata["location"]:
        check_location(metadata["location"], roots)
    check_location_settings(metadata, roots)
    _check_replacement(service, request, base, held, metadata)
    return _change(service, base.dataset_id, base, held, metadata, commit.name)


def _prepare_create(service: Service, request: Request, commit: TableCommit) -> TableChange:
    unmet = find_unmet(None, commit.requirements)
    if not commit.creates:
        raise errors.TableNotFound(table=str(commit.name), context=str(request.context))
    if unmet:
        raise unmet
    metadata = apply_create(commit.updates, now_ms=service.now_ms())
    known = service.catalog.find_dataset_id(commit.name)
    dataset = service.versions.find_dataset(metadata["location"]) or known or mint_dataset()
    roots = service.versions.roots(dataset)
    check_location(metadata["location"], roots)
    check_location_settings(metadata, roots)
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
        is_ruled=not RULE_PROPERTIES.isdisjoint(metadata.get("properties") or {}),
    )


# Appends that were prepared on an older version
#
# Two appends never contradict each other, so the later one is moved onto the version that the
# earlier one made, instead of a conflict that its client would have to repeat. See
# docs/adr/0059-appends-are-rebased.md.


@dataclass(frozen=True, kw_only=True)
class _Rebase:
    """Moves the appends of a request onto the newest versions of their tables."""

    service: Service
    appends: Mapping[DatasetName, Sequence[Json]]

    @classmethod
    def find(
        cls, service: Service, request: Request, commits: Sequence[TableCommit]
    ) -> _Rebase | None:
        """Return None unless all commits of the request only append, on a branch."""
        if not isinstance(request.context, BranchContext):
            return None
        from headgate.tables.rebase import find_appends  # noqa: PLC0415 - slow, and rarely needed

        found = {commit.name: find_appends(commit.updates) for commit in commits}
        return cls(service=service, appends=found) if all(found.values()) else None

    def move(
        self,
        commit: TableCommit,
        dataset: DatasetId,
        metadata: Metadata,
        unmet: errors.RequirementFailed,
    ) -> Sequence[Json]:
        """Return the updates of a commit for the present version, or raise what is unmet."""
        from headgate.tables.rebase import rebase_appends, without_parent  # noqa: PLC0415 - as above

        snapshots = self.appends[commit.name]
        if find_unmet(metadata, without_parent(commit.requirements, snapshots)):
            raise unmet
        versions = self.service.versions
        moved = rebase_appends(
            metadata, snapshots, get=versions.fetch, put=partial(versions.put_manifest, dataset)
        )
        if moved is None:
            raise unmet
        by_id = {snapshot["snapshot-id"]: snapshot for snapshot in moved}
        return [
            {**update, "snapshot": by_id[update["snapshot"]["snapshot-id"]]}
            if update["action"] == "add-snapshot"
            else update
            for update in commit.updates
        ]


# Replacing commits
#
# A replacing commit removes rows that the client may never have read, and stock clients do not
# notice. REPLACE TABLE asserts nothing about the rows it replaces, and a static INSERT OVERWRITE
# refreshes its base just before it commits. So the version that the client's statement started
# from decides. A server that does not know it refuses the commit: the client loaded the table from
# another server of the store, or before a restart.


def is_replacing(base: Metadata, new: Metadata) -> bool:
    """Return whether rows of the base are gone in the new version, other than by a DELETE."""
    if effect_between(base, new).replaces:
        return True
    return any(_overwrites(snapshot) for snapshot in added_items(base, new))


def _check_replacement(
    service: Service, request: Request, base: ServedTable, held: StoredVersion, metadata: Metadata
) -> None:
    """Raise if `metadata` replaces rows of `base` that are newer than what the client read."""
    if isinstance(request.context, JobContext):
        # Only the job itself writes its outputs.
        return
    if not is_replacing(held.metadata, metadata):
        return
    added = frozenset(item["snapshot-id"] for item in added_items(held.metadata, metadata))
    read = service.served.find(request.prefix, base.name)
    if (
        read is None
        or added & read.refused
        or (read.location != base.location and _rows_differ(service, read.location, held))
    ):
        service.served.note_refusal(request.prefix, base.name, base.location, added)
        raise errors.StaleReplacement(
            table=str(base.name),
            context=str(request.context),
            read=read.location if read is not None else None,
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
