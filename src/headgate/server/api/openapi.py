"""Completion of the OpenAPI document: descriptions of all parameters, examples of all bodies."""

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from headgate.server.api.models import Body

_T = "t-01m7f8gggmxzttp51zc67s"
_DIGEST = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
_SIDE = "A branch, a chain `a>b`, a moment `a@12`, or a transaction."
_JSON = "application/json"

Json = dict[str, Any]

# Description and example, by place and name; those that a route declares take precedence.
_PARAMETERS: Mapping[tuple[str, str], tuple[str, Any]] = {
    ("path", "dataset"): ("A dataset: `namespace.name`.", "raw.scans"),
    ("path", "name"): ("A branch name, on every dataset that has it.", "feature"),
    ("path", "unit"): ("A unit's id.", "u-01m7f8gggmxzttp51zc67s"),
    ("path", "id"): ("The id of a transaction or of a unit.", _T),
    ("path", "path"): ("A file's path in its dataset.", "2026/scan.tif"),
    ("path", "digest"): ("SHA-256 of the bytes.", _DIGEST),
    ("path", "build"): ("A build's id.", "build-01m7f8gggmxzttp51zc67s"),
    ("path", "number"): ("A publication's number.", 12),
    ("path", "key"): ("The idempotency key of the operation.", "nightly-2026-11-15"),
    ("query", "dataset"): ("Only of this dataset.", "raw.scans"),
    ("query", "branch"): ("Only on this branch.", "master"),
    ("query", "name"): ("A branch name.", "feature"),
    ("query", "actor"): ("Only by this actor.", "ana"),
    ("query", "kind"): ("Only of this kind.", "commit"),
    ("query", "context"): ("A branch, a chain, a moment or a unit.", "feature>master"),
    ("query", "txn"): ("An OPEN transaction or unit.", _T),
    ("query", "at"): ("As a transaction showed it.", _T),
    ("query", "path"): ("At or below it.", "2026"),
    ("query", "from"): (_SIDE, "master"),
    ("query", "to"): (_SIDE, "feature"),
    ("query", "key"): ("Columns that identify a row.", ["id"]),
    ("query", "rows"): ("Number of rows.", 5),
    ("query", "all"): ("Also aborted ones.", True),
    ("query", "deep"): ("Also the past, and files of registered tables.", True),
    ("query", "executable"): ("Whether it may be run when it is checked out.", False),
    ("query", "limit"): ("Maximum number.", 50),
    ("query", "cursor"): ("Start of the page.", "100"),
    ("header", "Idempotency-Key"): ("A repeated request is done once.", "nightly-2026-11-15"),
}
# Parameters that have another meaning in one operation.
_OF_OPERATIONS: Mapping[tuple[str, str], tuple[str, Any]] = {
    ("show_branch", "name"): ("The branch's name.", "feature"),
    ("delete_branch", "name"): ("The branch's name.", "feature"),
    ("delete_tag", "name"): ("The tag's name.", "2026-q3"),
    ("revoke_token", "id"): ("A token's id, as the list has it.", "tok-01m7f8gggmxzttp51zc67s"),
    ("list_history", "branch"): ("The primary unless named.", "master"),
    ("list_events", "kind"): ("Only of this kind.", "refused"),
    ("list_recoveries", "actor"): ("Only the work of this actor.", "ana"),
    ("list_recoveries", "kind"): ("Only of this kind.", "abort"),
    ("show_workspace", "branch"): ("The branch that the task will move.", "master"),
    ("show_workspace", "ref"): ("The input: a committed transaction of the dataset.", _T),
    ("status", "branch"): ("The branch that it was on, where a key was used on several.", "master"),
    ("status", "kind"): ("The command, where a key was used for several.", "files-put"),
}
# Examples of responses without a model.
_ANSWERS: Mapping[str, Any] = {
    "list_protected": [{"name": "master", "protected": True, "datasets": ["*"]}],
    "put_content": {"digest": _DIGEST, "size": 5},
    "put_bundle": {"digest": _DIGEST, "size": 5},
}
# Responses that are not JSON: media type and, for text, an example.
_STREAMS: Mapping[str, Json] = {
    "find_content": {},
    "get_bundle": {"application/octet-stream": {}},
    "get_content": {"application/octet-stream": {}},
    "get_contents": {"application/octet-stream": {"example": f"{_DIGEST} 5\nhello"}},
    "get_file": {"application/octet-stream": {}},
    "watch_build": {
        "text/event-stream": {"example": 'event: end\ndata: {"state": "succeeded"}\n\n'}
    },
}


class DescribedApp(FastAPI):
    """An application with a complete OpenAPI document."""

    def openapi(self) -> Json:
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            for name, example in _examples(Body):
                if "examples" in schemas.get(name, {}):
                    schemas[name]["examples"] = [example]
            for path in document["paths"].values():
                for operation in path.values():
                    _describe(operation, schemas)
        return super().openapi()


def _examples(model: type[Body]) -> Iterator[tuple[str, Any]]:
    """Yield the examples of the models; FastAPI drops null fields, and the rest is not valid."""
    for one in model.__subclasses__():
        yield one.__name__, one.example()
        yield from _examples(one)


def _describe(operation: Json, schemas: Mapping[str, Json]) -> None:
    name = operation["operationId"]
    for parameter in operation.get("parameters", ()):
        words = _OF_OPERATIONS.get((name, parameter["name"]))
        words = words or _PARAMETERS.get((parameter["in"], parameter["name"]))
        if words is not None:
            parameter.setdefault("description", words[0])
            parameter.setdefault("example", words[1])
    for status, answer in operation["responses"].items():
        if status.startswith("2") and name in _STREAMS:
            answer["content"] = _STREAMS[name]
        elif _JSON in answer.get("content", {}):
            content = answer["content"][_JSON]
            own = _ANSWERS.get(name) if status.startswith("2") else None
            content["example"] = find_example(content["schema"], schemas) if own is None else own


def find_example(schema: Json, schemas: Mapping[str, Json]) -> Any:
    """Return the example of a schema: of an array, one item; of a union, the first member."""
    if "$ref" in schema:
        return find_example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if schema.get("examples"):
        return schema["examples"][0]
    if schema.get("type") == "array":
        return [find_example(schema["items"], schemas)]
    return next((find_example(one, schemas) for one in schema.get("anyOf", ())), None)
