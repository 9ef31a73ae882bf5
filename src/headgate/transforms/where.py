"""Where in the user's code something is declared."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headgate.errors import InvalidDefinition

# Transforms and tasks are both declared from here on down.
_OWN_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A file and a line; they do not count when declarations are compared."""

    file: str
    line: int

    def refuse(self, reason: str) -> InvalidDefinition:
        return InvalidDefinition(file=self.file, line=self.line, reason=reason)


def calling_place() -> Place:
    """The innermost line that is being executed outside Headgate."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return Place(file=frame.f_code.co_filename, line=frame.f_lineno)


def place_of(function: Callable[..., Any]) -> Place:
    """The line on which a function (with its decorators) begins."""
    # What a wrapping decorator hides is what the user wrote.
    code = inspect.unwrap(function).__code__
    return Place(file=code.co_filename, line=code.co_firstlineno)


def _is_own(module: str) -> bool:
    # A frozen dataclass's generated __init__ runs with the globals of the module that has it.
    return module == _OWN_PACKAGE or module.startswith(f"{_OWN_PACKAGE}.")
