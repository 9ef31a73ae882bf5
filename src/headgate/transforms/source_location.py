"""Source locations of declarations in user code, for error messages."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headgate.errors import InvalidDefinition

_OWN_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class SourceLocation:
    """A file and a line."""

    file: str
    line: int

    def error(self, reason: str) -> InvalidDefinition:
        """Return the error to raise for an invalid declaration at this location."""
        return InvalidDefinition(file=self.file, line=self.line, reason=reason)


def calling_location() -> SourceLocation:
    """Return the innermost line on the call stack that is outside Headgate."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return SourceLocation(file=frame.f_code.co_filename, line=frame.f_lineno)


def location_of(function: Callable[..., Any]) -> SourceLocation:
    """Return the first line of a function, its decorators included."""
    code = inspect.unwrap(function).__code__
    return SourceLocation(file=code.co_filename, line=code.co_firstlineno)


def _is_own(module: str) -> bool:
    # The generated __init__ of a dataclass runs with the globals of the module that defines it.
    return module == _OWN_PACKAGE or module.startswith(f"{_OWN_PACKAGE}.")
