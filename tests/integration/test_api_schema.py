"""OpenAPI document: complete, and consistent with the server's response to any request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from jsonschema_rs import Draft202012Validator
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.generation import GenerationMode

from headgate.model.access import RULES
from headgate.server.api.conventions import MEANINGS
from headgate.server.api.openapi import find_example
from headgate.store.embedded import Store
from tests.support.api import Api
from tests.support.iceberg import Front
from tests.support.s3 import running_s3
from tests.support.stores import new_settings

OPERATIONS = sorted(set(RULES) - {"iceberg_read", "iceberg_write"})
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# Few examples of each of the two kinds, since they run over every route.
EXAMPLES = 6


@dataclass(frozen=True)
class Described:
    """One server and its document for all routes; requests only add objects to it."""

    api: Api
    schema: Any
    session: requests.Session


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, front: Front) -> Iterator[Described]:
    root = tmp_path_factory.mktemp("described")
    made = new_settings(f"sqlite:///{root / 'catalog.db'}", root)
    with (
        # Addresses in S3 lead to this server, and not to the machine's own configuration.
        running_s3(root) as s3,
        Store(replace(made, environ=s3.options)) as store,
        requests.Session() as session,
    ):
        api = Api(store, front)
        api.admin.make_files()
        api.admin.put("a.txt")
        yield Described(api, schemathesis.openapi.from_dict(api.app.openapi()), session)
        api.close()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_route_on_any_request_answers_as_documented(
    described: Described, front: Front, operation: str, mode: GenerationMode
) -> None:
    front.app = described.api.app
    found = described.schema.find_operation_by_id(operation)
    headers = {"authorization": described.api.admin.http.headers["authorization"]}

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=found.as_strategy(mode))
    def answer(case: Any) -> None:
        response = case.call(described.api.url, described.session, headers=headers)
        # The HTTP parser rejects a request line that is too long, before any route.
        assume(response.content != b"Invalid HTTP request received.")
        case.validate_response(response, checks=CHECKS)

    answer()


def test_document_has_every_route_and_every_error(small_api: Api) -> None:
    document = small_api.app.openapi()
    routes = list(_routes(document))
    assert {route["operationId"] for route in routes} == set(OPERATIONS)
    for route in routes:
        assert {str(status) for status in MEANINGS} <= set(route["responses"]), route
        assert route["summary"] and route["description"] and route["security"]


def test_document_says_what_every_parameter_is_with_an_example_that_fits(small_api: Api) -> None:
    document = small_api.app.openapi()
    for route in _routes(document):
        for parameter in route.get("parameters", ()):
            where = (route["operationId"], parameter["name"])
            assert parameter.get("description"), where
            examples = [parameter[key] for key in ("example",) if key in parameter]
            examples += parameter["schema"].get("examples", [])
            assert examples, where
            for example in examples:
                _check(document, parameter["schema"], example, where)


def test_document_has_an_example_that_fits_of_every_document_sent(small_api: Api) -> None:
    document = small_api.app.openapi()
    for route in _routes(document):
        name = route["operationId"]
        bodies = [("request", route["requestBody"])] if "requestBody" in route else []
        for what, body in [*bodies, *route["responses"].items()]:
            if content := body.get("content", {}).get("application/json"):
                schema = content["schema"]
                example = content.get("example", find_example(schema, _schemas(document)))
                assert example is not None, (name, what)
                _check(document, schema, example, (name, what))


def test_document_names_no_schema_without_an_example_of_its_own(small_api: Api) -> None:
    """Exceptions are schemas that only occur as a part of others."""
    parts = {"MoveModel", "JobModel", "FileToPut", "CountsModel"}
    for name, schema in _schemas(small_api.app.openapi()).items():
        assert name in parts or schema.get("examples") or schema.get("enum"), name


def _routes(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from path.values()


def _schemas(document: dict[str, Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = document["components"]["schemas"]
    return schemas


def _check(document: dict[str, Any], schema: dict[str, Any], example: Any, where: Any) -> None:
    whole = {**schema, "components": document["components"]}
    errors = [error.message for error in Draft202012Validator(whole).iter_errors(example)]
    assert not errors, (where, errors)


def test_document_is_served_to_anybody_and_pages_of_others_are_not(small_api: Api) -> None:
    nobody = small_api.bearing(None)
    assert nobody.call("GET", f"{small_api.url}/api/openapi.json").status_code == 200
    for path in ("/docs", "/redoc"):
        assert nobody.call("GET", f"{small_api.url}{path}").status_code == 404
