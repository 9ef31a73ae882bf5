"""Namespaces: global, nested, with properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.errors import Denied, NamespaceNotFound
from headgate.iceberg.requests import Request, page, parse_levels
from headgate.iceberg.service import (
    NO_CONTENT,
    Namespace,
    Reply,
    ServedTable,
    Service,
    json_reply,
    problem,
)
from headgate.model.contexts import JobContext
from headgate.model.names import check_name_part
from headgate.tables.shape import read_properties, read_strings


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
