"""Tables: list, create, load, drop, rename and register."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.errors import (
    ClientCleanupRefused,
    Denied,
    InvalidName,
    MalformedRequest,
    NamespaceNotFound,
    OutcomeUnknown,
    RequirementFailed,
    TableExists,
    TableNotFound,
    TablePlaceRefused,
    Unavailable,
    ViewConflict,
)
from headgate.iceberg.service import (
    NO_CONTENT,
    OVERLAY,
    Idempotency,
    Namespace,
    Principal,
    Reply,
    Request,
    ServedTable,
    Service,
    TableCatalog,
    TableChange,
    checked_name,
    json_reply,
    page,
    parse_levels,
    problem,
    read_identifier,
    table_result,
)
from headgate.model.contexts import Context, JobContext
from headgate.model.ids import DatasetId, mint_content, mint_dataset
from headgate.model.names import DatasetName, check_name_part
from headgate.model.nouns import TransactionType
from headgate.storage.keys import canonical
from headgate.tables.register import check_places, read_foreign, taken_in
from headgate.tables.shape import Metadata, read_properties, read_str, read_strings
from headgate.tables.updates import create_metadata
from headgate.tables.versions import TableVersions

# Namespaces: global, nested, with properties.


def list_namespaces(service: Service, request: Request) -> Reply:
    """The namespaces right below a parent, or at the top."""
    text = request.query.get("parent")
    parent = parse_levels(text) if text else ()
    if parent:
        load_properties(service, parent)
    depth = len(parent) + 1
    below = {
        namespace[:depth]
        for namespace in service.catalog.list_namespaces()
        if len(namespace) >= depth and namespace[: len(parent)] == parent
    }
    by_text = {"\x1f".join(namespace): list(namespace) for namespace in below}
    shown, token = page(request, list(by_text))
    return json_reply({"namespaces": [by_text[text] for text in shown], "next-page-token": token})


def create_namespace(service: Service, request: Request) -> Reply:
    """Makes a namespace with its properties."""
    _check_outside_jobs(request)
    namespace = tuple(read_strings(request.json, "namespace"))
    parse_levels("\x1f".join(namespace))
    for part in namespace:
        check_name_part(part, what="namespace", whole=".".join(namespace))
    properties = read_properties(request.json, "properties")
    service.catalog.create_namespace(request.principal, namespace, properties, request.idempotency)
    return json_reply({"namespace": namespace, "properties": properties})


def replay_create_namespace(
    _service: Service, request: Request, _made: Sequence[ServedTable]
) -> Reply:
    """What creating it answered."""
    namespace = tuple(read_strings(request.json, "namespace"))
    properties = read_properties(request.json, "properties")
    return json_reply({"namespace": namespace, "properties": properties})


def load_namespace(service: Service, request: Request) -> Reply:
    """A namespace with its properties."""
    namespace = request.namespace
    return json_reply({"namespace": namespace, "properties": load_properties(service, namespace)})


def namespace_exists(service: Service, request: Request) -> Reply:
    """204 where there is such a namespace."""
    load_properties(service, request.namespace)
    return NO_CONTENT


def drop_namespace(service: Service, request: Request) -> Reply:
    """Removes an empty namespace."""
    _check_outside_jobs(request)
    service.catalog.drop_namespace(request.principal, request.namespace, request.idempotency)
    return NO_CONTENT


def update_properties(service: Service, request: Request) -> Reply:
    """Removes and sets properties; a key in both lists is 422, as the protocol asks."""
    _check_outside_jobs(request)
    body = request.json
    removals = read_strings(body, "removals") if body.get("removals") else []
    updates = read_properties(body, "updates")
    if both := sorted(set(removals) & set(updates)):
        return problem(
            422,
            "UnprocessableEntityException",
            f"properties {both} are to be removed and set at once. Name each only once.",
        )
    removed = service.catalog.update_namespace(
        request.principal, request.namespace, removals, updates, request.idempotency
    )
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
    """What the update answered: the catalog has that on record with its key."""
    return update_properties(service, request)


def load_properties(service: Service, namespace: Namespace) -> Mapping[str, str]:
    """A namespace's properties, or 404."""
    properties = service.catalog.find_namespace(namespace)
    if properties is None:
        raise NamespaceNotFound(namespace=".".join(namespace))
    return properties


def _check_outside_jobs(request: Request) -> None:
    """All branches share namespaces, and a job changes nothing but its outputs."""
    if isinstance(request.context, JobContext):
        raise Denied(
            f"{request.context} may not change namespaces: a build changes only the outputs that "
            "its JobSpecs declare. Make the namespace before, on a branch.",
            context=str(request.context),
        )


# Tables of other catalogs become datasets, for clients and for the command line alike.


def register(
    catalog: TableCatalog,
    versions: TableVersions,
    read_outside: Callable[[str], bytes],
    *,
    principal: Principal,
    context: Context,
    name: DatasetName,
    metadata_location: str,
    now_ms: int,
    idempotency: Idempotency | None,
) -> ServedTable:
    """Shows a table that lies elsewhere under a name of ours; none of its files are touched.

    What is added to it, metadata included, is written below the warehouse.
    """
    if catalog.resolve(context, name):
        raise TableExists(table=str(name), context=str(context))
    found = read_foreign(read_outside, metadata_location)
    dataset = catalog.find_dataset_id(name) or mint_dataset()
    metadata = taken_in(
        found,
        outside=metadata_location,
        location=versions.table_location(dataset),
        now_ms=now_ms,
    )
    change = TableChange(
        name=name,
        dataset_id=dataset,
        base=None,
        location=versions.write(dataset, metadata).location,
        content_id=mint_content(),
        type=TransactionType.SNAPSHOT,
        owned=False,
    )
    try:
        (table,) = catalog.commit(principal, context, [change], idempotency)
    except ViewConflict as error:
        if catalog.resolve(context, name) is None:
            raise
        # Whoever was first has the name.
        raise TableExists(table=str(name), context=str(context)) from error
    return table


def list_tables(service: Service, request: Request) -> Reply:
    """The tables that the context shows in a namespace."""
    namespace = request.namespace
    load_properties(service, namespace)
    names, token = page(request, service.catalog.list_tables(request.context, namespace))
    identifiers = [{"namespace": namespace, "name": name} for name in names]
    return json_reply({"identifiers": identifiers, "next-page-token": token})


def load_table(service: Service, request: Request) -> Reply:
    """The version that the name means in this context, or 304 where the client has it."""
    snapshots = request.query.get("snapshots", "all").lower()
    if snapshots not in {"all", "refs"}:
        raise MalformedRequest(what="the parameter 'snapshots'", reason="it is 'all' or 'refs'")
    table = resolve(service, request, _asked_for(request))
    service.served.note_load(
        request.prefix, table.name, table.location, marked="snapshots" in request.query
    )
    return service.rendered.reply(
        service.versions.read(table.location),
        snapshots=snapshots,
        known_etag=request.headers.get("if-none-match"),
    )


def table_exists(service: Service, request: Request) -> Reply:
    """204 where the context shows such a table."""
    resolve(service, request, _asked_for(request))
    return NO_CONTENT


def _asked_for(request: Request) -> DatasetName:
    """The table in the path; a name that none can have is that of none.

    Spark asks so for the path in "select … from parquet.`/some/files`", and reads the files then.
    """
    try:
        return request.table
    except InvalidName as error:
        raise TableNotFound(table=error.facts["name"], context=str(request.context)) from error


def create_table(service: Service, request: Request) -> Reply:
    """Makes a table, or with `stage-create` only its first metadata."""
    load_properties(service, request.namespace)
    name = checked_name(request.namespace, read_str(request.json, "name"))
    try:
        return _create(service, request, name)
    except RequirementFailed:
        # Another branch gave the name a dataset meanwhile: now it is there to be read.
        return _create(service, request, name)


def _create(service: Service, request: Request, name: DatasetName) -> Reply:
    body = request.json
    if service.catalog.resolve(request.context, name):
        raise TableExists(table=str(name), context=str(request.context))
    dataset = service.catalog.find_dataset_id(name) or mint_dataset()
    location = service.versions.table_location(dataset)
    _check_location(body.get("location"), location)
    metadata = create_metadata(_without_overlay(body), location=location, now_ms=service.now_ms())
    check_places(metadata)
    if body.get("stage-create") is True:
        return json_reply(table_result(metadata, None))
    return _publish_new(service, request, name, dataset, metadata)


def replay_made(service: Service, request: Request, made: Sequence[ServedTable]) -> Reply:
    """What the write of one table answered, whatever has become of the table since."""
    (table,) = made
    service.served.note_commit(request.prefix, table.name, table.location)
    return reply_applied(service, table)


def drop_table(service: Service, request: Request) -> Reply:
    """Takes the table off the context's branch; its files stay for whoever shares them."""
    if request.query.get("purgeRequested", "").lower() == "true":
        raise ClientCleanupRefused(what=f"DROP TABLE {request.table} PURGE")
    table = resolve(service, request, request.table)
    service.catalog.drop(request.principal, request.context, table, request.idempotency)
    return NO_CONTENT


def rename_table(service: Service, request: Request) -> Reply:
    """Gives a table another name, on this context's branch only."""
    source = read_identifier(request.json, "source")
    target = read_identifier(request.json, "destination")
    table = resolve(service, request, source)
    load_properties(service, target.namespace)
    if service.catalog.resolve(request.context, target):
        raise TableExists(table=str(target), context=str(request.context))
    service.catalog.rename(request.principal, request.context, table, target, request.idempotency)
    return NO_CONTENT


def register_table(service: Service, request: Request) -> Reply:
    """Takes in a table that lies elsewhere; what is added to it is written under the warehouse."""
    load_properties(service, request.namespace)
    table = register(
        service.catalog,
        service.versions,
        service.read_outside,
        principal=request.principal,
        context=request.context,
        name=checked_name(request.namespace, read_str(request.json, "name")),
        metadata_location=read_str(request.json, "metadata-location"),
        now_ms=service.now_ms(),
        idempotency=request.idempotency,
    )
    service.served.note_commit(request.prefix, table.name, table.location)
    return reply_applied(service, table)


def report_metrics(_service: Service, _request: Request) -> Reply:
    """Clients may report what they scanned; nothing is kept of it."""
    return NO_CONTENT


def replay_nothing(_service: Service, _request: Request, _made: Sequence[ServedTable]) -> Reply:
    """The answer to a write that answers nothing."""
    return NO_CONTENT


def resolve(service: Service, request: Request, name: DatasetName) -> ServedTable:
    """The version that a name means, or 404."""
    table = service.catalog.resolve(request.context, name)
    if table is None:
        raise TableNotFound(table=str(name), context=str(request.context))
    return table


def _publish_new(
    service: Service,
    request: Request,
    name: DatasetName,
    dataset: DatasetId,
    metadata: Metadata,
) -> Reply:
    version = service.versions.write(dataset, metadata)
    change = TableChange(
        name=name,
        dataset_id=dataset,
        base=None,
        location=version.location,
        content_id=mint_content(),
        type=TransactionType.SNAPSHOT,
    )
    try:
        (table,) = service.catalog.commit(
            request.principal, request.context, [change], request.idempotency
        )
    except ViewConflict as error:
        if service.catalog.resolve(request.context, name) is None:
            raise
        # Whoever was first has the name; that is what a second CREATE TABLE is told.
        raise TableExists(table=str(name), context=str(request.context)) from error
    service.served.note_commit(request.prefix, name, table.location)
    return reply_applied(service, table)


def reply_applied(service: Service, table: ServedTable) -> Reply:
    """The answer to a write that has happened: from here on nothing may sound like it had not."""
    try:
        return service.rendered.reply(service.versions.read(table.location))
    except Unavailable as error:
        raise OutcomeUnknown(operation=f"the commit to {table.name}") from error


def _check_location(asked: Any, location: str) -> None:
    if asked is not None and canonical(str(asked).rstrip("/")) != canonical(location):
        raise TablePlaceRefused(setting="LOCATION", value=str(asked), location=location)


def _without_overlay(body: dict[str, Any]) -> dict[str, Any]:
    properties = body.get("properties")
    if not isinstance(properties, dict):
        return body
    kept = {key: value for key, value in properties.items() if key not in OVERLAY}
    return {**body, "properties": kept}
