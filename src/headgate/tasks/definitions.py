"""Loads tasks by `package.module:task`, and makes the TaskDefs that Conductor registers."""

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
from headgate.transforms.invocation import users_line

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A module by its dotted name, and optionally one of its tasks."""

    module: str
    task: str | None = None

    def __str__(self) -> str:
        return self.module if self.task is None else f"{self.module}:{self.task}"


def parse_target(text: str) -> Target:
    """Parse `package.module` or `package.module:task name`."""
    module, colon, name = text.partition(":")
    is_file = module.endswith(".py")
    if is_file or not _MODULE.match(module) or (colon and not name.strip()):
        hint = _dotted_hint(module) if is_file else ""
        raise Invalid(
            f"{text!r} is not a task module: write package.module or package.module:task.{hint}",
            target=text,
        )
    return Target(module=module, task=name or None)


def _dotted_hint(file: str) -> str:
    parts = [part for part in file.removesuffix(".py").split("/") if part not in ("", ".")]
    dotted = ".".join(parts)
    meant = f", here {dotted}" if _MODULE.match(dotted) and not file.startswith("/") else ""
    return f" This is a file; give the dotted name of the module{meant}."


def load_tasks(target: Target, directory: Path) -> tuple[TaskDefinition, ...]:
    """Import a module from this directory; return the named task, or all of its tasks."""
    found = _tasks_of(_import(target.module, directory))
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
    """Return the named task, or the only task of the module."""
    found = load_tasks(target, directory)
    if len(found) > 1:
        known = ", ".join(f"{target.module}:{task.name}" for task in found)
        raise Invalid(f"module {target.module} has several tasks; choose one of {known}.")
    return found[0]


def _tasks_of(module: ModuleType) -> tuple[TaskDefinition, ...]:
    """Return the tasks of a module in source order; raise if two have the same name."""
    found: dict[str, TaskDefinition] = {}
    for value in vars(module).values():
        definition = getattr(value, "__dict__", {}).get(DEFINITION)
        if not isinstance(definition, TaskDefinition):
            continue
        if found.setdefault(definition.name, definition) is not definition:
            raise definition.location.error(f"{module.__name__} has two tasks {definition.name!r}")
    return tuple(sorted(found.values(), key=lambda task: (task.location.file, task.location.line)))


def _import(name: str, directory: Path) -> ModuleType:
    """Import a module as `python -m` does in that directory; errors name their line."""
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
                f"no module named {name} in {directory} or on Python's path.", module=name
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> UserCodeFailed:
    file, line = users_line(error.__traceback__) or (name, 0)
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

# Keywords that only the Python model needs.
_OMITTED = {"title", "discriminator"}
# Keywords whose values are data, not schemas.
_DATA = {"default", "const", "enum", "examples"}


def make_taskdef(definition: TaskDefinition) -> dict[str, Any]:
    """Return the TaskDef of a task; it does not depend on the machine."""
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
        "inputSchema": _side_schema(definition, "input"),
        "outputSchema": _side_schema(definition, "output"),
    }
    return {key: value for key, value in fields.items() if value is not None}


def response_seconds(definition: TaskDefinition) -> int:
    """Return the response timeout: at least the reserve, and less than the timeout.

    Conductor rejects a definition whose response timeout is not less than its timeout.
    """
    timeout = definition.controls.timeout
    needed = max(timeout.response_seconds, _reserve(definition))
    return min(needed, max(timeout.seconds - 1, 1)) if timeout.seconds else needed


def warnings_of(definition: TaskDefinition) -> list[str]:
    """Return warnings about settings that have no effect or are overridden."""
    warnings = []
    budget, timeout = definition.controls.publish_budget, definition.controls.timeout
    declared, reserve = timeout.response_seconds, _reserve(definition)
    used = response_seconds(definition)
    if definition.workspace and definition.workspace.read_only and budget:
        warnings.append("publish_budget has no effect on a read-only workspace")
    elif used < reserve:
        warnings.append(
            f"the publish budget needs {reserve} s, more than seconds ({timeout.seconds}) allows; "
            f"response_seconds is {used}"
        )
    elif declared < reserve:
        warnings.append(
            f"response_seconds is {declared}, less than the publish budget needs "
            f"({reserve}); {used} is used"
        )
    # No warning where response_seconds was left at its default.
    elif used < declared != TimeoutPolicy().response_seconds:
        warnings.append(
            f"response_seconds is {declared}, not less than seconds ({timeout.seconds}); "
            f"{used} is used"
        )
    if definition.strict_params and definition.params_model.model_config.get("extra"):
        warnings.append("strict_params overrides the extra setting of the params model")
    return warnings


def _reserve(definition: TaskDefinition) -> int:
    budget = definition.controls.publish_budget
    writable = definition.workspace is not None and not definition.workspace.read_only
    return budget.reserve_seconds if budget and writable else 0


def _side_schema(definition: TaskDefinition, side: Literal["input", "output"]) -> dict[str, Any]:
    if side == "input":
        name, closed = PARAMS, definition.strict_input
        model, shared = _schema(
            definition.params_model, "validation", closed=definition.strict_params
        )
    else:
        name, closed = "result", True
        model, shared = _schema(definition.result_model, "serialization", closed=True)
    properties = {name: model}
    if definition.workspace is not None:
        properties = {WORKSPACE: _REF, **properties}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    if closed:
        schema["additionalProperties"] = False
    data = {**schema, "$defs": shared} if shared else schema
    return {"name": f"{definition.name}.{side}", "version": 1, "type": "JSON", "data": data}


def _schema(
    model: type[BaseModel], mode: Literal["validation", "serialization"], *, closed: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model's schema with definitions inlined, and its recursive definitions."""
    whole = model.model_json_schema(mode=mode, by_alias=True)
    parts: dict[str, Any] = whole.pop("$defs", {})
    recursive = {name for name in parts if _refers_to(parts[name], name, parts)}

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = _target(node)
        if name is not None and name not in recursive:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return inlined({**parts[name], **siblings})
        found = {key: inlined_value(key, node[key]) for key in node if key not in _OMITTED}
        if closed and found.get("type") == "object" and "properties" in found:
            found.setdefault("additionalProperties", False)
        return found

    def inlined_value(key: str, value: Any) -> Any:
        if key in _DATA:
            return value
        if key == "properties":
            # Keys are field names here: a field may be named `title`.
            return {name: inlined(field) for name, field in value.items()}
        return inlined(value)

    return inlined(whole), {name: inlined(parts[name]) for name in sorted(recursive)}


def _target(node: Mapping[str, Any]) -> str | None:
    reference = node.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else None


def _refers_to(
    node: Any, wanted: str, parts: Mapping[str, Any], seen: frozenset[str] = frozenset()
) -> bool:
    """True if a schema refers to a definition, directly or through others."""
    if isinstance(node, list):
        return any(_refers_to(item, wanted, parts, seen) for item in node)
    if not isinstance(node, dict):
        return False
    name = _target(node)
    if name == wanted:
        return True
    if (
        name is not None
        and name not in seen
        and _refers_to(parts[name], wanted, parts, seen | {name})
    ):
        return True
    return any(_refers_to(value, wanted, parts, seen) for value in node.values())
