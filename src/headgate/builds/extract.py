"""Program that imports a project's modules and prints their transforms.

`python -m headgate.builds.extract DIR MODULE…` prints one JSON document on stdout:
`{"transforms": […]}`, or `{"error": {"kind", "module", "file", "line", "reason", "traceback"}}`.
Output of the modules goes to stderr.
"""

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
    """A module of the project has the name of a module outside of it."""


def extract(tree: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the declarations of all transforms in the modules, or the first error."""
    sys.path[:0] = [str(root) for root in import_roots(tree)]
    modules: list[ModuleType] = []
    for name in names:
        try:
            modules.append(_import(name, tree))
        # SystemExit too: a module that calls sys.exit() must not end this process silently.
        except (Exception, SystemExit) as error:
            return {"error": _error(error, name, tree)}
    return {
        "transforms": [
            describe(
                transform, module=module.__name__, file=_relative(transform.location.file, tree)
            ).to_json()
            for transform, module in _unique(modules)
        ]
    }


def _import(name: str, tree: Path) -> ModuleType:
    module = importlib.import_module(name)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(tree.resolve()):
        raise ForeignModule(
            f"{name!r} imports {file or 'a built-in module'}, which is outside the project; "
            "rename the project's module"
        )
    return module


def _unique(modules: Sequence[ModuleType]) -> list[tuple[Transform, ModuleType]]:
    """Return each transform once, with the module that defines it, else the first that has it."""
    found: dict[int, tuple[Transform, ModuleType]] = {}
    for module in modules:
        for transform in transforms_of(module):
            if id(transform) not in found or transform.module == module.__name__:
                found[id(transform)] = (transform, module)
    return list(found.values())


def _error(error: BaseException, name: str, tree: Path) -> dict[str, Any]:
    """Return the error document; must be called while the error is handled."""
    if isinstance(error, InvalidDefinition):
        kind, reason = "definition", error.facts["reason"]
        file, line = error.facts["file"], error.facts["line"]
    else:
        kind, text = "import", str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {text[0] if text else ''}".rstrip(": ").rstrip(".")
        file, line = users_line(error.__traceback__) or (_file_of(name, tree), 1)
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            file, line = error.filename, error.lineno
    return {
        "kind": kind,
        "module": name,
        "file": _relative(file, tree),
        "line": line,
        "reason": reason,
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
    # Modules may print; only the document may reach the pipe that the parent reads.
    stdout = os.dup(1)
    os.dup2(2, 1)
    tree = Path(arguments[0]).resolve()
    # After the imports above: a relative PYTHONPATH is relative to the parent's directory.
    os.chdir(tree)
    document = extract(tree, arguments[1:])
    with os.fdopen(stdout, "w", encoding="utf-8") as pipe:
        json.dump(document, pipe)
    # Threads and atexit hooks of the modules must not keep this process alive.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
