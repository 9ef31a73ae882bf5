"""A task as Conductor knows it: its TaskDef, with the schemas of input and output."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel

from headgate.errors import HeadgateError, Invalid, NotFound, UserCodeFailed
from headgate.tasks.declare import DEFINITION, PARAMS, WORKSPACE, TaskDefinition, TimeoutPolicy

# From `package.module:task` to the task that it names.

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A module by its dotted name, and one of its tasks where one was named."""

    module: str
    task: str | None = None

    def __str__(self) -> str:
        return self.module if self.task is None else f"{self.module}:{self.task}"


def parse_target(text: str) -> Target:
    """`package.module` or `package.module:task name`."""
    module, colon, name = text.partition(":")
    is_file = module.endswith(".py")
    if is_file or not _MODULE.match(module) or (colon and not name.strip()):
        hint = _dotted_hint(module) if is_file else ""
        raise Invalid(
            f"{text!r} names no task module: write package.module or package.module:task.{hint}",
            target=text,
        )
    return Target(module=module, task=name or None)


def _dotted_hint(file: str) -> str:
    parts = [part for part in file.removesuffix(".py").split("/") if part not in ("", ".")]
    dotted = ".".join(parts)
    meant = f", here {dotted}" if _MODULE.match(dotted) and not file.startswith("/") else ""
    return f" It names a file; give the module's dotted name{meant}."


def load_tasks(target: Target, directory: Path) -> tuple[TaskDefinition, ...]:
    """The task that was named, or all of its module, which is imported from this directory."""
    found = tasks_of(_import(target.module, directory))
    if not found:
        raise NotFound(
            f"module {target.module} has no task: decorate a function with @task.",
            module=target.module,
        )
    if target.task is None:
        return found
    chosen = tuple(task for task in found if task.name == target.task)
    if not chosen:
        known = ", ".join(task.name for task in found)
        raise NotFound(
            f"module {target.module} has no task {target.task!r}; it has {known}.",
            module=target.module,
            task=target.task,
        )
    return chosen


def load_task(target: Target, directory: Path) -> TaskDefinition:
    """The one task that is meant."""
    found = load_tasks(target, directory)
    if len(found) > 1:
        known = ", ".join(f"{target.module}:{task.name}" for task in found)
        raise Invalid(f"module {target.module} has several tasks; name one of {known}.")
    return found[0]


def tasks_of(module: ModuleType) -> tuple[TaskDefinition, ...]:
    """The tasks among a module's names, in the order of their lines; no two have one name."""
    found: dict[str, TaskDefinition] = {}
    for value in vars(module).values():
        definition = getattr(value, "__dict__", {}).get(DEFINITION)
        if not isinstance(definition, TaskDefinition):
            continue
        known = found.setdefault(definition.name, definition)
        if known is not definition:
            raise definition.place.refuse(
                f"there are two tasks named {definition.name!r} in {module.__name__}"
            )
    return tuple(sorted(found.values(), key=lambda task: (task.place.file, task.place.line)))


def _import(name: str, directory: Path) -> ModuleType:
    """Imports as `python -m` would from that directory; its own errors say where they are."""
    here = str(directory)
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except HeadgateError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(
                f"there is no module {name} below {directory} or on Python's path.", module=name
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> UserCodeFailed:
    frames = traceback.extract_tb(error.__traceback__)
    last = next(
        (f for f in reversed(frames) if "importlib" not in f.filename and f.lineno), frames[-1]
    )
    file, line = last.filename, last.lineno or 0
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno or 0
    return UserCodeFailed(
        doing=f"importing {name}",
        file=file,
        line=line,
        reason=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )


_REF = {
    "type": "object",
    "properties": {
        "repository": {"type": "string", "minLength": 1},
        "branch": {"type": "string", "minLength": 1},
        "ref_type": {"const": "commit", "type": "string"},
        "refType": {"const": "commit", "type": "string"},
        "ref": {"type": "string", "minLength": 1},
    },
    "required": ["repository", "branch", "ref"],
    "oneOf": [{"required": ["ref_type"]}, {"required": ["refType"]}],
    "additionalProperties": False,
}

# A model's own title and mapping of references say nothing to somebody who has no model.
_LEFT_OUT = {"title", "discriminator"}
# What is data, not a schema.
_DATA = {"default", "const", "enum", "examples"}


def make_taskdef(definition: TaskDefinition) -> dict[str, Any]:
    """The TaskDef, in the order that people read; nothing in it depends on where it is made."""
    retry, timeout = definition.controls.retry, definition.controls.timeout
    limits = definition.controls.limits
    has_workspace = definition.workspace is not None
    fields: dict[str, Any] = {
        "name": definition.name,
        "ownerEmail": definition.owner_email,
        "description": definition.description,
        "retryCount": retry.count,
        "retryLogic": str(retry.logic),
        "retryDelaySeconds": retry.delay_seconds,
        "maxRetryDelaySeconds": retry.max_delay_seconds,
        "backoffJitterMs": retry.jitter_ms,
        "totalTimeoutSeconds": timeout.total_seconds,
        "timeoutPolicy": str(timeout.policy),
        "timeoutSeconds": timeout.seconds,
        "responseTimeoutSeconds": response_seconds(definition),
        "pollTimeoutSeconds": timeout.poll_seconds,
        "concurrentExecLimit": limits.concurrent_exec_limit,
        "rateLimitFrequencyInSeconds": limits.rate_limit_frequency_in_seconds,
        "rateLimitPerFrequency": limits.rate_limit_per_frequency,
        "inputKeys": [WORKSPACE, PARAMS] if has_workspace else [PARAMS],
        "outputKeys": [WORKSPACE, "result"] if has_workspace else ["result"],
        "inputSchema": _wrapped(definition, "input", _input_schema(definition)),
        "outputSchema": _wrapped(definition, "output", _output_schema(definition)),
    }
    return {key: value for key, value in fields.items() if value is not None}


def response_seconds(definition: TaskDefinition) -> int:
    """The response timeout: at least the budget's reserve, and less than the whole timeout.

    Conductor refuses a definition whose response timeout is not the shorter one.
    """
    timeout = definition.controls.timeout
    wanted = max(timeout.response_seconds, _reserve(definition))
    return min(wanted, max(timeout.seconds - 1, 1)) if timeout.seconds else wanted


def warnings_of(definition: TaskDefinition) -> list[str]:
    """What an author should know before the task is used."""
    told = []
    budget, timeout = definition.controls.publish_budget, definition.controls.timeout
    declared, reserve = timeout.response_seconds, _reserve(definition)
    used = response_seconds(definition)
    if definition.workspace and definition.workspace.read_only and budget:
        told.append("publish_budget has no meaning for a read-only workspace")
    elif used < reserve:
        told.append(
            f"the publish budget needs {reserve} s, which seconds ({timeout.seconds}) does not "
            f"leave; response_seconds is {used}"
        )
    elif declared < reserve:
        told.append(
            f"response_seconds is {declared}, less than the publish budget needs "
            f"({reserve}); {used} is used"
        )
    # Who names only the whole timeout means nothing by the default of the other.
    elif used < declared != TimeoutPolicy().response_seconds:
        told.append(
            f"response_seconds is {declared}, not less than seconds ({timeout.seconds}); "
            f"{used} is used"
        )
    if definition.strict_params and definition.params_model.model_config.get("extra"):
        told.append("strict_params overrules the extra setting of the params model")
    return told


def _reserve(definition: TaskDefinition) -> int:
    budget = definition.controls.publish_budget
    writable = definition.workspace is not None and not definition.workspace.read_only
    return budget.reserve_seconds if budget and writable else 0


def _wrapped(definition: TaskDefinition, side: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"{definition.name}.{side}", "version": 1, "type": "JSON", "data": data}


def _input_schema(definition: TaskDefinition) -> dict[str, Any]:
    params, shared = _schema(definition.params_model, "validation", closed=definition.strict_params)
    properties = {PARAMS: params}
    if definition.workspace is not None:
        properties = {WORKSPACE: _REF, **properties}
    return _object(properties, shared, closed=definition.strict_input)


def _output_schema(definition: TaskDefinition) -> dict[str, Any]:
    result, shared = _schema(definition.result_model, "serialization", closed=True)
    properties = {"result": result}
    if definition.workspace is not None:
        properties = {WORKSPACE: _REF, **properties}
    return _object(properties, shared, closed=True)


def _object(
    properties: dict[str, Any], shared: Mapping[str, Any], *, closed: bool
) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    if closed:
        schema["additionalProperties"] = False
    return {**schema, "$defs": dict(shared)} if shared else schema


def _schema(
    model: type[BaseModel], mode: Literal["validation", "serialization"], *, closed: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's schema with its parts in place, and those that refer to themselves beside it."""
    whole = model.model_json_schema(mode=mode, by_alias=True)
    parts: dict[str, Any] = whole.pop("$defs", {})
    recursive = {name for name in parts if _reaches(parts[name], name, parts)}
    root: dict[str, Any] = _placed(whole, parts, recursive, closed=closed)
    shared = {
        name: _placed(parts[name], parts, recursive, closed=closed) for name in sorted(recursive)
    }
    return root, shared


def _placed(node: Any, parts: Mapping[str, Any], recursive: set[str], *, closed: bool) -> Any:
    if isinstance(node, list):
        return [_placed(item, parts, recursive, closed=closed) for item in node]
    if not isinstance(node, dict):
        return node
    name = _target(node)
    if name is not None and name not in recursive:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _placed({**parts[name], **beside}, parts, recursive, closed=closed)
    placed = {
        key: _placed_value(key, value, parts, recursive, closed=closed)
        for key, value in node.items()
        if key not in _LEFT_OUT
    }
    if closed and placed.get("type") == "object" and "properties" in placed:
        placed.setdefault("additionalProperties", False)
    return placed


def _placed_value(
    key: str, value: Any, parts: Mapping[str, Any], recursive: set[str], *, closed: bool
) -> Any:
    if key in _DATA:
        return value
    if key == "properties":
        # What is called a title here is somebody's field.
        return {name: _placed(v, parts, recursive, closed=closed) for name, v in value.items()}
    return _placed(value, parts, recursive, closed=closed)


def _target(node: Mapping[str, Any]) -> str | None:
    reference = node.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def _reaches(
    node: Any, wanted: str, parts: Mapping[str, Any], seen: frozenset[str] = frozenset()
) -> bool:
    """Whether a schema refers, over however many others, to a part."""
    if isinstance(node, list):
        return any(_reaches(item, wanted, parts, seen) for item in node)
    if not isinstance(node, dict):
        return False
    name = _target(node)
    if name == wanted:
        return True
    if (
        name is not None
        and name not in seen
        and _reaches(parts[name], wanted, parts, seen | {name})
    ):
        return True
    return any(_reaches(value, wanted, parts, seen) for value in node.values())
