"""Namespaces: global, nested, with properties."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.endpoint.ports import Namespace
from headgate.endpoint.replies import NO_CONTENT, Reply, json_reply, problem
from headgate.endpoint.requests import Request, page, parse_levels
from headgate.endpoint.service import Service
from headgate.errors import NamespaceNotFound
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
    namespace = tuple(read_strings(request.json, "namespace"))
    parse_levels("\x1f".join(namespace))
    for part in namespace:
        check_name_part(part, what="namespace", whole=".".join(namespace))
    properties = read_properties(request.json, "properties")
    service.catalog.create_namespace(request.principal, namespace, properties, request.idempotency)
    return json_reply({"namespace": namespace, "properties": properties})


def replay_create_namespace(service: Service, request: Request) -> Reply:
    """What creating it answered."""
    namespace = tuple(read_strings(request.json, "namespace"))
    return json_reply({"namespace": namespace, "properties": load_properties(service, namespace)})


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
    load_properties(service, request.namespace)
    service.catalog.drop_namespace(request.principal, request.namespace, request.idempotency)
    return NO_CONTENT


def update_properties(service: Service, request: Request) -> Reply:
    """Removes and sets properties; a key in both lists is 422, as the protocol asks."""
    removals, updates = _property_changes(request)
    if both := sorted(set(removals) & set(updates)):
        return problem(
            422,
            "UnprocessableEntityException",
            f"properties {both} are to be removed and set at once. Name each only once.",
        )
    held = load_properties(service, request.namespace)
    service.catalog.update_namespace(
        request.principal, request.namespace, removals, updates, request.idempotency
    )
    return json_reply(
        {
            "updated": sorted(updates),
            "removed": sorted(set(removals) & set(held)),
            "missing": sorted(set(removals) - set(held)),
        }
    )


def replay_update_properties(_service: Service, request: Request) -> Reply:
    """What the update answered, as far as the request tells it."""
    removals, updates = _property_changes(request)
    return json_reply({"updated": sorted(updates), "removed": sorted(removals), "missing": []})


def load_properties(service: Service, namespace: Namespace) -> Mapping[str, str]:
    """A namespace's properties; one that exists only as a parent of others has none."""
    properties = service.catalog.find_namespace(namespace)
    if properties is not None:
        return properties
    depth = len(namespace)
    if any(known[:depth] == namespace for known in service.catalog.list_namespaces()):
        return {}
    raise NamespaceNotFound(namespace=".".join(namespace))


def _property_changes(request: Request) -> tuple[list[str], dict[str, str]]:
    body = request.json
    removals = read_strings(body, "removals") if body.get("removals") else []
    return removals, read_properties(body, "updates")
