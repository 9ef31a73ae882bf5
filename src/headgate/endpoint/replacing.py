"""Replacing commits: those that take rows away which their author may never have seen.

Stock clients lose updates here. REPLACE TABLE asserts nothing about the rows it replaces, and a
static INSERT OVERWRITE refreshes its base just before it commits. So what counts is the version
that the client was given when its statement began.
"""

from __future__ import annotations

from headgate.endpoint.ports import ServedTable
from headgate.endpoint.requests import Request
from headgate.endpoint.service import Service
from headgate.errors import NotFound, StaleReplacement
from headgate.model.contexts import JobContext
from headgate.tables.classify import effect_between
from headgate.tables.places import unseen
from headgate.tables.shape import Json, Metadata
from headgate.tables.versions import StoredVersion


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
