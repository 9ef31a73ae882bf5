"""Imports a project's modules in a process of its own and prints the transforms it finds.

`python -m headgate.builds.extract DIR MODULE…` prints one JSON document on stdout:
`{"transforms": […]}`, or `{"error": …}` in the shape of `ExtractionError`. What the modules
print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from headgate.errors import InvalidDefinition
from headgate.transforms.definition import Transform
from headgate.transforms.discovery import describe, import_roots, transforms_of
from headgate.transforms.invocation import users_line


class ForeignModule(Exception):
    """A module's name led to a file outside the project."""


def extract(tree: Path, names: Sequence[str]) -> dict[str, Any]:
    """The declarations of all transforms in the named modules, or the first error."""
    sys.path[:0] = [str(root) for root in import_roots(tree)]
    modules: list[ModuleType] = []
    for name in names:
        try:
            modules.append(_imported(name, tree))
        except InvalidDefinition as error:
            return {"error": _definition(error, name, tree)}
        # SystemExit too: a module that calls sys.exit() must not end this process silently.
        except (Exception, SystemExit) as error:
            return {"error": _failure(error, name, tree)}
    return {"transforms": [_described(*found, tree) for found in _unique(modules)]}


def _imported(name: str, tree: Path) -> ModuleType:
    module = importlib.import_module(name)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(tree.resolve()):
        raise ForeignModule(
            f"the name {name!r} leads to {file or 'a built-in module'}, not into the project; "
            "rename the project's module"
        )
    return module


def _unique(modules: Sequence[ModuleType]) -> list[tuple[Transform, ModuleType]]:
    """Each transform once, in the module that defines it, else in the first that has it."""
    found: dict[int, tuple[Transform, ModuleType]] = {}
    for module in modules:
        for transform in transforms_of(module):
            if id(transform) not in found or transform.module == module.__name__:
                found[id(transform)] = (transform, module)
    return list(found.values())


def _described(transform: Transform, module: ModuleType, tree: Path) -> dict[str, Any]:
    file = _relative(transform.place.file, tree)
    return describe(transform, module=module.__name__, file=file).to_json()


def _definition(error: InvalidDefinition, name: str, tree: Path) -> dict[str, Any]:
    return {
        "kind": "definition",
        "module": name,
        "file": _relative(error.facts["file"], tree),
        "line": error.facts["line"],
        "reason": error.facts["reason"],
        "traceback": traceback.format_exc(),
    }


def _failure(error: BaseException, name: str, tree: Path) -> dict[str, Any]:
    file, line = users_line(error.__traceback__) or (_file_of(name, tree), 1)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        file, line = error.filename, error.lineno
    text = str(error).strip().splitlines()
    return {
        "kind": "import",
        "module": name,
        "file": _relative(file, tree),
        "line": line,
        "reason": f"{type(error).__name__}: {text[0] if text else ''}".rstrip(": ").rstrip("."),
        "traceback": traceback.format_exc(),
    }


def _file_of(name: str, tree: Path) -> str:
    inner = name.replace(".", "/")
    candidates = (
        root / ending
        for root in import_roots(tree)
        for ending in (f"{inner}.py", f"{inner}/__init__.py")
    )
    return str(next((path for path in candidates if path.is_file()), name))


def _relative(file: str, tree: Path) -> str:
    path = Path(file)
    return path.relative_to(tree).as_posix() if path.is_relative_to(tree) else file


def main(arguments: Sequence[str]) -> None:
    # The modules may print; only the answer may reach the pipe that the parent reads.
    answers = os.dup(1)
    os.dup2(2, 1)
    tree = Path(arguments[0]).resolve()
    # Only now: a relative PYTHONPATH was meant for the directory that the parent stands in.
    os.chdir(tree)
    document = extract(tree, arguments[1:])
    with os.fdopen(answers, "w", encoding="utf-8") as pipe:
        json.dump(document, pipe)
    # A thread or an atexit hook that a module started must not keep this process.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
