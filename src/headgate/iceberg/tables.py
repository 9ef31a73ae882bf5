"""Handlers for namespaces, and for tables but for their commits."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from headgate import errors
from headgate.iceberg.service import (
    NO_CONTENT,
    Reply,
    Request,
    Service,
    checked_name,
    checked_namespace,
    json_reply,
    load_properties,
    page,
    parse_levels,
    problem,
    reply_applied,
    resolve_in_path,
    table_result,
    without_overlay,
)
from headgate.iceberg.table_catalog import ServedTable, publish_new_table, register
from headgate.model.contexts import JobContext
from headgate.model.ids import mint_dataset
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind
from headgate.tables.creation import create_metadata
from headgate.tables.metadata import read_properties, read_str, read_strings
from headgate.tables.referenced_files import check_location, check_location_settings

_log = logging.getLogger("headgate.endpoint")

# Namespaces: the same on every branch


def list_namespaces(service: Service, request: Request) -> Reply:
    """Return the namespaces right below a parent, or at the top."""
    text = request.query.get("parent")
    parent = parse_levels(text) if text else ()
    if parent:
        load_properties(service, request.context, parent)
    depth = len(parent) + 1
    below = {
        namespace[:depth]
        for namespace in service.catalog.list_namespaces(request.context)
        if len(namespace) >= depth and namespace[: len(parent)] == parent
    }
    by_text = {"\x1f".join(namespace): list(namespace) for namespace in below}
    shown, token = page(request, list(by_text))
    return json_reply({"namespaces": [by_text[text] for text in shown], "next-page-token": token})


def create_namespace(service: Service, request: Request) -> Reply:
    _check_outside_jobs(request)
    namespace = checked_namespace(read_strings(request.json, "namespace"))
    properties = read_properties(request.json, "properties")
    service.catalog.create_namespace(request, namespace, properties)
    return json_reply({"namespace": namespace, "properties": properties})


def replay_create_namespace(
    _service: Service, request: Request, _made: Sequence[ServedTable]
) -> Reply:
    """Return the reply to its creation."""
    namespace = read_strings(request.json, "namespace")
    properties = read_properties(request.json, "properties")
    return json_reply({"namespace": namespace, "properties": properties})


def load_namespace(service: Service, request: Request) -> Reply:
    namespace = request.namespace
    return json_reply(
        {"namespace": namespace, "properties": load_properties(service, request.context, namespace)}
    )


def namespace_exists(service: Service, request: Request) -> Reply:
    """Return 204 if the namespace exists."""
    load_properties(service, request.context, request.namespace)
    return NO_CONTENT


def drop_namespace(service: Service, request: Request) -> Reply:
    """Remove an empty namespace."""
    _check_outside_jobs(request)
    service.catalog.drop_namespace(request, request.namespace)
    return NO_CONTENT


def update_properties(service: Service, request: Request) -> Reply:
    """Remove and set properties; a key in both lists is 422, as the protocol requires."""
    _check_outside_jobs(request)
    body = request.json
    removals = read_strings(body, "removals") if body.get("removals") else []
    updates = read_properties(body, "updates")
    if both := sorted(set(removals) & set(updates)):
        return problem(
            422,
            "UnprocessableEntityException",
            f"properties {both} are both removed and set. Name each in one list only.",
        )
    removed = service.catalog.update_namespace(request, request.namespace, removals, updates)
    return json_reply(
        {
            "updated": sorted(updates),
            "removed": sorted(removed),
            "missing": sorted(set(removals) - removed),
        }
    )


def replay_update_properties(
    service: Service, request: Request, _made: Sequence[ServedTable]
) -> Reply:
    """Return the reply to the update, which the catalog has on record with its key."""
    return update_properties(service, request)


def _check_outside_jobs(request: Request) -> None:
    # All branches share namespaces, and a job changes only its outputs.
    if isinstance(request.context, JobContext):
        raise errors.Denied(
            f"{request.context} may not change namespaces: a build changes only the outputs that "
            "its JobSpecs declare. Create the namespace before, on a branch.",
            context=str(request.context),
        )


def load_table(service: Service, request: Request) -> Reply:
    """Return the version that the name means in this context, or 304 where the client has it."""
    snapshots = request.query.get("snapshots", "all").lower()
    if snapshots not in {"all", "refs"}:
        raise errors.MalformedRequest(
            what="the parameter 'snapshots'", reason="it is 'all' or 'refs'"
        )
    table = resolve_in_path(service, request, DatasetKind.TABLE)
    service.served.note_load(
        request.prefix, table.name, table.location, marked="snapshots" in request.query
    )
    version = service.versions.read(table.location)
    return service.rendered.reply(
        version,
        snapshots=snapshots,
        known_etag=request.headers.get("if-none-match"),
        access=service.find_access(request, table.name, table.dataset_id, version.metadata),
    )


def create_table(service: Service, request: Request) -> Reply:
    """Create a table, or with `stage-create` only its first metadata."""
    load_properties(service, request.context, request.namespace)
    name = checked_name(request.namespace, read_str(request.json, "name"))
    try:
        reply = _create(service, request, name)
    except errors.RequirementFailed:
        # A write on another branch created the dataset meanwhile.
        reply = _create(service, request, name)
    if read_properties(request.json, "properties").get("format-version") != "1":
        return reply
    _log.warning("table %s was requested with format version 1 and has version 2", name)
    told = '299 headgate "format version 1 was requested; the table has version 2"'
    return replace(reply, headers={**reply.headers, "warning": told})


def _create(service: Service, request: Request, name: DatasetName) -> Reply:
    body = request.json
    if service.catalog.resolve(request.context, name):
        raise errors.TableExists(table=str(name), context=str(request.context))
    dataset = service.catalog.find_dataset_id(name) or mint_dataset()
    location = body.get("location")
    if location is None:
        location = service.versions.new_location(dataset)
    roots = service.versions.roots(dataset)
    check_location(location := str(location).rstrip("/"), roots)
    if isinstance(properties := body.get("properties"), dict):
        body = {**body, "properties": without_overlay(properties)}
    metadata = create_metadata(body, location=location, now_ms=service.now_ms())
    check_location_settings(metadata, roots)
    service.versions.prepare_directories(location)
    if body.get("stage-create") is True:
        access = service.find_access(request, name, dataset, metadata, staged=True)
        return json_reply(table_result(metadata, None, access))
    table = publish_new_table(
        service.catalog, service.versions, request, metadata, name=name, dataset=dataset
    )
    service.served.note_commit(request.prefix, name, table.location)
    return reply_applied(service, request, table)


def replay_made(service: Service, request: Request, made: Sequence[ServedTable]) -> Reply:
    """Return the reply to the write of one table, whatever was written to the table since."""
    (table,) = made
    service.served.note_commit(request.prefix, table.name, table.location)
    return reply_applied(service, request, table)


def register_table(service: Service, request: Request) -> Reply:
    """Show a table of another catalog under a name of this one."""
    if service.read_outside is None:
        raise errors.Denied(
            "this server reads no metadata files for clients; nothing was registered. An admin "
            "registers the table: headgate dataset register NAME --metadata-location …"
        )
    load_properties(service, request.context, request.namespace)
    table = register(
        service.catalog,
        service.versions,
        service.read_outside,
        request,
        name=checked_name(request.namespace, read_str(request.json, "name")),
        metadata_location=read_str(request.json, "metadata-location"),
        now_ms=service.now_ms(),
    )
    service.served.note_commit(request.prefix, table.name, table.location)
    return reply_applied(service, request, table)


def report_metrics(_service: Service, _request: Request) -> Reply:
    """Accept a client's scan report; it is not kept."""
    return NO_CONTENT


def replay_nothing(_service: Service, _request: Request, _made: Sequence[ServedTable]) -> Reply:
    """Return the reply to a write without a result."""
    return NO_CONTENT
