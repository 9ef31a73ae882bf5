"""The public surface equals the files in `tests/goldens`: HTTP API, errors, options, `--json`.

`HEADGATE_WRITE_GOLDENS=1 .venv/bin/python -m pytest -n0 tests/integration/test_goldens.py` writes
them again; their difference in Git is then a change of the interface: review it as such.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import typer

from headgate import errors
from headgate import open as open_store
from headgate.cli.main import app, exit_code
from headgate.errors import HeadgateError, Mismatch, OpenTransactionAlreadyExists
from headgate.server.api.conventions import status_of
from tests.support.api import Api, served_to_the_command_line
from tests.support.cli import Cli, new_cli
from tests.support.iceberg import Front
from tests.support.pipelines import FileJobs, build, files_spec, publish
from tests.support.repositories import new_repository
from tests.support.task_modules import write_module
from tests.support.upkeep import let_days_pass

GOLDENS = Path(__file__).parents[1] / "goldens"
WRITE = os.environ.get("HEADGATE_WRITE_GOLDENS") == "1"


def differences(golden: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield one line for each value that is not the golden one."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in golden | found:
            inner = f"{where} / {key}"
            if key not in found:
                yield f"{inner}: missing, was {json.dumps(golden[key])}"
            elif key not in golden:
                yield f"{inner}: new, is {json.dumps(found[key])}"
            else:
                yield from differences(golden[key], found[key], inner)
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for number, (old, new) in enumerate(zip(golden, found, strict=True)):
            yield from differences(old, new, f"{where} / {number}")
    elif golden != found or type(golden) is not type(found):
        yield f"{where}: was {json.dumps(golden)}, is {json.dumps(found)}"


def compare(documents: dict[str, Any], *, write: bool = WRITE) -> None:
    """Compare documents with their golden files, or write these files."""
    lines: list[str] = []
    for name, found in documents.items():
        path = GOLDENS / name
        if write:
            path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        lines += differences(json.loads(path.read_text()), found, name)
    assert not lines, f"{len(lines)} differences from the goldens:\n" + "\n".join(lines[:60])


# HTTP

_TEXTS = {"description", "summary", "title", "example", "examples"}
_SETS = {"anyOf", "enum", "oneOf", "parameters", "required"}


def without_texts(node: Any, key: str = "") -> Any:
    """Return an OpenAPI document without its texts; keys and unordered lists are sorted."""
    if isinstance(node, dict):
        # Below `properties` the keys are names, one of which may be "title".
        return {
            name: without_texts(value, "" if key == "properties" else name)
            for name, value in sorted(node.items())
            if key == "properties" or name not in _TEXTS
        }
    if isinstance(node, list):
        items = [without_texts(item) for item in node]
        return sorted(items, key=json.dumps) if key in _SETS else items
    return node


def test_openapi_document_is_the_golden_one(small_api: Api) -> None:
    document = without_texts(json.loads(json.dumps(small_api.app.openapi())))
    document["info"]["version"] = "<version>"
    compare({"openapi.json": document})


# Errors

_SAMPLES: dict[str, Any] = {
    "str": "text",
    "int": 1,
    "float": 1.0,
    "bool": True,
    "Any": "text",
    "tuple[str, str]": ["one", "two"],
    "Sequence[str]": ["text"],
    "Sequence[tuple[str, str, str]]": [["one", "two", "three"]],
    "dict[str, Any]": {"table_key": "text"},
    "Sequence[dict[str, Any]]": [{"file": "text", "line": 1, "reason": "text"}],
}
_OPEN = {"dataset": "a.b", "branch": "b", "transaction": "t", "holder": "h"}
# Arguments that JSON cannot represent.
_GIVEN: dict[str, dict[str, Any]] = {
    "ViewConflict": {
        "mismatches": [Mismatch(dataset="a.b", branch="b", field="f", expected="e", actual="a")]
    },
    "HolderExpired": {
        "refusal": OpenTransactionAlreadyExists(**_OPEN, lease_left_seconds=1),
        "wanted_by": "text",
    },
}


def error_codes() -> dict[str, Any]:
    """Return every error by its class, with the names and types of its facts.

    An error is created from the arguments in its golden, so that the facts are compared and not
    the way in which a class declares its arguments.
    """
    path = GOLDENS / "error_codes.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    found = {}
    for name, kind in sorted(vars(errors).items()):
        if not (isinstance(kind, type) and issubclass(kind, HeadgateError)):
            continue
        arguments = known.get(name, {}).get("arguments") or sample_arguments(kind)
        error = kind(**_GIVEN.get(name, arguments))
        family = next(k for k in kind.__mro__ if k.__base__ in (HeadgateError, Exception))
        found[name] = {
            "code": error.code,
            "family": family.__name__,
            "exit": exit_code(error),
            "status": status_of(error),
            "retryable": error.retryable,
            "facts": shape(error.facts),
            "arguments": arguments,
        }
    return found


def sample_arguments(kind: type[HeadgateError]) -> dict[str, Any]:
    """Return JSON values for the parameters of an error's class, by their annotations."""
    parameters = inspect.signature(kind).parameters.values()
    return {
        p.name: _SAMPLES.get(str(p.annotation).removesuffix(" | None"))
        for p in parameters
        if p.kind is not p.VAR_KEYWORD
    }


def shape(value: Any) -> Any:
    """Return the names and types in a value."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [shape(inner) for inner in value]
    return type(value).__name__


def test_error_codes_are_the_golden_ones() -> None:
    compare({"error_codes.json": error_codes()})


# Options


def described(parameter: Any) -> dict[str, Any]:
    """Return the accepted values of an option or an argument."""
    annotation = parameter.type_descriptor.annotation
    facts = {
        "required": parameter.required,
        "many": parameter.multiple or parameter.nargs != 1,
        "default": getattr(parameter.default, "value", parameter.default),
        "type": getattr(annotation, "__name__", str(annotation)),
        "min": parameter.min,
        "max": parameter.max,
    }
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        facts["type"] = sorted(str(member.value) for member in annotation)
    return {key: value for key, value in facts.items() if value is not None and value is not False}


def commands(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, Any]]:
    """Yield a command and its subcommands; arguments are ordered, options are not."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    arguments, options = [], {}
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            arguments.append({"name": parameter.metavar or parameter.name, **described(parameter)})
        else:
            spellings = sorted([*parameter.opts, *parameter.secondary_opts])
            options[" ".join(spellings)] = described(parameter)
    yield context.command_path, {"arguments": arguments, "options": dict(sorted(options.items()))}
    for inner in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(context, inner), inner, context)


def test_options_of_every_command_are_the_golden_ones() -> None:
    found = dict(sorted(commands(typer.main.get_command(app), "headgate")))
    compare({"help.json": json.loads(json.dumps(found, default=str))})


# Output of --json

# Sections that need the store itself: other actors, no admin, time that passes.
_EMBEDDED = ("local", "later")
_IDS = ("transaction", "unit", "id", "build", "to")
_PLACEHOLDERS = (
    (re.compile(r"\b([a-z]+)-[0-9a-hjkmnp-tv-z]{22}\b"), r"<\1 id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)"), "<time>"),
    (re.compile(r"\bhg_[\w-]{40,}"), "<secret>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\bsnap-\d+"), "snap-<snapshot>"),
    (re.compile(r"\b([0-9a-f]{2}/?[0-9a-f]{62}|[0-9a-f]{40}|[0-9a-f]{16})\b"), "<digest>"),
)
# Texts, and values that depend on the machine.
_SENTENCES = {"reason", "remedy", "message", "what", "where", "why", "text", "details", "traceback"}
_UNORDERED = {"rows", "kept", "items"}
_MEASURED = {"notes", "seconds", "lease_left_seconds"}


def _sorted(items: list[Any]) -> list[Any]:
    return [json.loads(text) for text in sorted({json.dumps(item) for item in items})]


def normal(node: Any, names: dict[str, str], key: str = "") -> Any:
    """Return a document with placeholders for values that differ in every run, keys sorted."""
    if key in _MEASURED:
        return f"<{key}>"
    if isinstance(node, dict):
        # Sums of cleanup depend on the number of objects in a store.
        sums = {name: f"<{name}>" for name in ("bytes", "count") if "why" in node and name in node}
        return {name: normal(value, names, name) for name, value in sorted((node | sums).items())}
    if isinstance(node, list):
        items = [normal(item, names) for item in node]
        return _sorted(items) if key in _UNORDERED else items
    if not isinstance(node, str):
        return node
    if key in _SENTENCES and node.count(" ") > 1:
        return "<text>"
    for name, value in names.items():
        node = node.replace(value, f"<{name}>")
    for pattern, placeholder in _PLACEHOLDERS:
        node = pattern.sub(placeholder, node)
    return node


def sections() -> list[tuple[str, str]]:
    """Return the sections of the session, each with its commands."""
    session = (GOLDENS / "session.txt").read_text()
    return re.findall(r"^\[(\w+)\]\n(.+?)(?:\n\n|\Z)", session, re.MULTILINE | re.DOTALL)


def play(cli: Cli, lines: str, names: dict[str, str]) -> dict[str, Any]:
    """Run the commands of a section; return the output of each, by its words."""
    steps: dict[str, Any] = {}
    for line in lines.splitlines():
        *kept, command = re.split(r"^(\w+) = ", line)
        said = cli(*shlex.split(command.format(**names)), "--json")
        document = json.loads(said.out)
        if kept:
            made = document[0] if isinstance(document, list) else document
            made = made | made.get("moves", [{}])[0]
            names[kept[1]] = next(made[key] for key in _IDS if key in made)
        if isinstance(document, dict) and "code" in document:
            document.pop("error", None)
        while command in steps:
            command += " (again)"
        steps[command] = {"exit": said.code, "prints": normal(document, names)}
    return steps


@pytest.mark.parametrize("place", ["embedded", "served"])
def test_json_of_the_session_is_the_golden_one(
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    front: Front,
) -> None:
    cli = new_cli(tmp_path, monkeypatch, capsys)
    shutil.copytree(GOLDENS / "project", tmp_path, dirs_exist_ok=True)
    new_repository(tmp_path / "pipeline").commit()
    task = write_module(tmp_path, (tmp_path / "words.py").read_text())
    names = {"dir": str(tmp_path), "module": task}
    found = {}
    with ExitStack() as stack:
        for section, lines in sections():
            if section in _EMBEDDED and place == "served":
                continue
            if section == "builds":
                with open_store(tmp_path) as store:
                    specs = files_spec("made.a", "raw.scans"), files_spec("made.b", "made.a")
                    publish(store, "master", *specs)
                    build(store, "made.b", jobs=FileJobs(store=store, failing={"made.b": 1}))
            if section == "later":
                with open_store(tmp_path) as store:
                    let_days_pass(store, 40)
            found[f"json/{section}.json"] = play(cli, lines, names)
            if section == "init":
                # For both places, so that both have its token.
                stack.enter_context(served_to_the_command_line(tmp_path, front, monkeypatch))
                if place == "embedded":
                    monkeypatch.delenv("HEADGATE_URL")
    compare(found, write=WRITE and place == "embedded")


# The goldens themselves


def test_goldens_of_the_session_are_those_of_its_sections() -> None:
    names = [section for section, _ in sections()]
    assert sorted(names) == sorted(path.stem for path in (GOLDENS / "json").iterdir())


def test_planted_change_of_an_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = error_codes()
    monkeypatch.setattr(errors.BranchExists, "code", "branch_taken")
    assert list(differences(golden, error_codes())) == [
        ' / BranchExists / code: was "branch_exists", is "branch_taken"'
    ]


@pytest.mark.parametrize(
    ("golden", "found", "line"),
    [
        ({"a": {"b": 1}}, {"a": {}}, " / a / b: missing, was 1"),
        ({"a": {}}, {"a": {"b": None}}, " / a / b: new, is null"),
        ({"a": [{"b": 0}]}, {"a": [{"b": False}]}, " / a / 0 / b: was 0, is false"),
        ({"a": ["b"]}, {"a": ["b", "c"]}, ' / a: was ["b"], is ["b", "c"]'),
        ({"a": {"b": 1}}, {"a": [1]}, ' / a: was {"b": 1}, is [1]'),
    ],
)
def test_planted_difference_is_one_line(golden: Any, found: Any, line: str) -> None:
    assert list(differences(golden, found)) == [line]
    assert not list(differences(golden, golden))
