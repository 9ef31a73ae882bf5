"""Handlers for views: documents with a query in each engine's dialect, versioned like tables."""

from collections.abc import Sequence

from headgate import errors
from headgate.catalog.database import repeat_overtaken
from headgate.iceberg.service import (
    Reply,
    Request,
    Service,
    checked_name,
    json_reply,
    load_properties,
    read_applied,
    resolve_in_path,
)
from headgate.iceberg.table_catalog import ServedTable, TableChange
from headgate.model.contexts import BranchContext
from headgate.model.ids import DatasetId, mint_content, mint_dataset
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind
from headgate.tables import views
from headgate.tables.metadata import Json, Metadata, read_objects, read_str
from headgate.tables.versions import StoredVersion

# Replacements of one view do not contradict each other: the later one is applied to the newer
# version, as in Iceberg's reference implementation, and both versions stay in the view.
_TRIES = 10


def load_view(service: Service, request: Request) -> Reply:
    """Return the version that the name means in this context."""
    view = resolve_in_path(service, request, DatasetKind.VIEW)
    return _reply(service.versions.read(view.location))


def create_view(service: Service, request: Request) -> Reply:
    load_properties(service, request.context, request.namespace)
    name = checked_name(request.namespace, read_str(request.json, "name"))
    try:
        return _create(service, request, name)
    except errors.RequirementFailed:
        # A write on another branch created the dataset meanwhile.
        return _create(service, request, name)


def _create(service: Service, request: Request, name: DatasetName) -> Reply:
    exists = errors.ViewExists(view=str(name), context=str(request.context))
    if service.catalog.resolve(request.context, name, DatasetKind.VIEW):
        raise exists
    dataset = service.catalog.find_dataset_id(name, DatasetKind.VIEW) or mint_dataset()
    # A record for clients: Headgate writes nothing there.
    location = request.json.get("location") or service.versions.table_location(dataset)
    metadata = views.create_view(
        request.json, location=str(location).rstrip("/"), now_ms=service.now_ms()
    )
    try:
        return _reply(read_applied(service, _commit(service, request, name, dataset, metadata)))
    except errors.ViewConflict as error:
        if service.catalog.resolve(request.context, name, DatasetKind.VIEW) is None:
            raise
        # Another client created the view first.
        raise exists from error


def replace_view(service: Service, request: Request) -> Reply:
    """Apply updates to a view, such as another version of its query."""
    tries = _TRIES if isinstance(request.context, BranchContext) else 1
    return repeat_overtaken(
        lambda: _reply(read_applied(service, _replace(service, request))), tries
    )


def _replace(service: Service, request: Request) -> ServedTable:
    base = resolve_in_path(service, request, DatasetKind.VIEW)
    held = service.versions.read(base.location).metadata
    requirements: list[Json] = []
    if request.json.get("requirements") is not None:
        requirements = read_objects(request.json, "requirements")
    if unmet := views.find_unmet(held, requirements):
        raise unmet
    updates = read_objects(request.json, "updates")
    metadata = views.apply_updates(held, updates, now_ms=service.now_ms())
    if metadata is held:
        return base
    return _commit(service, request, base.name, base.dataset_id, metadata, base)


def _commit(
    service: Service,
    request: Request,
    name: DatasetName,
    dataset: DatasetId,
    metadata: Metadata,
    base: ServedTable | None = None,
) -> ServedTable:
    held = service.versions.read(base.location).metadata if base else None
    effect = views.effect_between(held, metadata)
    version = service.versions.write(dataset, metadata, base=held)
    change = TableChange(
        name=name,
        dataset_id=dataset,
        base=base,
        location=version.location,
        content_id=base.content_id if base and not effect.changes_content else mint_content(),
        type=effect.inferred_type,
        kind=DatasetKind.VIEW,
    )
    (made,) = service.catalog.commit(request, [change])
    return made


def replay_made(service: Service, _request: Request, made: Sequence[ServedTable]) -> Reply:
    """Return the reply to the write of a view, whatever was written to the view since."""
    (view,) = made
    return _reply(read_applied(service, view))


def _reply(version: StoredVersion) -> Reply:
    return json_reply(
        {"metadata-location": version.location, "metadata": version.metadata, "config": {}}
    )
