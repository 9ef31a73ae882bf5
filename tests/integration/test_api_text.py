"""JSON documents with invalid text: an unpaired surrogate in any place for text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from headgate.server.api.openapi import find_example
from tests.support.api import Api

_HALF = "\ud800"
_WRONG = (_HALF, [_HALF], {_HALF: _HALF}, {"raw.scans": _HALF}, {"raw.scans": [{_HALF: 1}]})
# A local address, so that no request goes to a bucket.
_HERE = {"metadata_location": "file:///nowhere"}


def test_half_a_character_in_any_document_is_told_as_the_callers_mistake(small_api: Api) -> None:
    asked = 0
    headers = {"content-type": "application/json"}
    for method, path, body in _documents(small_api.app.openapi()):
        asked += 1
        reply = small_api.admin.call(method, path, content=json.dumps(body), headers=headers)
        assert reply.status_code < 500, (method, path, body)
        assert reply.json() is not None, (method, path, body)
    assert asked > 100


def _documents(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the example document of every route that takes one, with one invalid field."""
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            taken = route.get("requestBody", {}).get("content", {}).get("application/json")
            if taken is None:
                continue
            example = taken.get("example", find_example(taken["schema"], schemas))
            fields = schemas[taken["schema"]["$ref"].rpartition("/")[2]]["properties"]
            filled = path.removeprefix("/api/v1")
            for parameter in route.get("parameters", ()):
                filled = filled.replace(f"{{{parameter['name']}}}", _example(parameter))
            for field, wrong in itertools.product(fields, _WRONG):
                here = _HERE if "metadata_location" in example else {}
                yield method.upper(), filled, {**example, **here, field: wrong}


def _example(parameter: dict[str, Any]) -> str:
    return str(parameter.get("example", parameter["schema"].get("examples", [""])[0]))
