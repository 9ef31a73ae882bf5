"""From `package.module:task` to the task that it names."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from headgate.errors import HeadgateError, Invalid, NotFound, UserCodeFailed
from headgate.tasks.declaring import DEFINITION, TaskDefinition

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
