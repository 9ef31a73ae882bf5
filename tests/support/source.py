"""The project's own Python files, parsed once, for tests that walk them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headgate"


@dataclass(frozen=True, kw_only=True)
class Module:
    """One module of the package; `path` is relative to it, as in `catalog/publish.py`."""

    path: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """Room of the module: the folder or file directly under the package."""
        return self.path.partition("/")[0].removesuffix(".py")


def parse(path: str, text: str) -> Module:
    return Module(path=path, text=text, tree=ast.parse(text, filename=path))


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of the package."""
    return tuple(
        parse(file.relative_to(PACKAGE).as_posix(), file.read_text())
        for file in sorted(PACKAGE.rglob("*.py"))
    )


def python_files() -> Iterator[Path]:
    """Return every Python file of the project: package, tests, tools, benchmarks, examples."""
    for folder in ("src", "tests", "tools", "bench", "examples"):
        yield from sorted((ROOT / folder).rglob("*.py"))
