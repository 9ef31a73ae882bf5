"""A failure of user code as its author wants to see it: the line, the message, the whole trace."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

# The line after a traceback's last frame: frames are indented, and the error itself is not.
_WORKER_TRACE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.M)

# How Java's errors come out of the gateway, before their own words.
_CALLED = re.compile(r"^An error occurred while calling \S+\n: ")


def describe(error: BaseException, bundle: Path) -> dict[str, Any]:
    """The facts of a `failed` event; the file is relative to the bundle, None if not in it."""
    text = "".join(traceback.format_exception(error))
    file, line = _where(error, text, bundle)
    return {
        "error": type(error).__name__,
        "message": _short(str(error)) or type(error).__name__,
        "file": file,
        "line": line,
        "traceback": text,
    }


def _where(error: BaseException, text: str, bundle: Path) -> tuple[str | None, int | None]:
    """The innermost line of the user's: in a Python worker if the text tells, else here."""
    # Spark evaluates late: what fails in a function of the user's fails in a worker, whose trace
    # comes as text, while the stack of this process shows only who asked for the rows.
    pattern = re.compile(rf'File "{re.escape(str(bundle))}/([^"\n]+)", line (\d+)')
    if in_worker := pattern.findall(str(error)):
        file, line = in_worker[-1]
        return file, int(line)
    if isinstance(error, SyntaxError) and error.filename:
        found = _inside(error.filename, bundle)
        return found, error.lineno if found else None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if found := _inside(frame.filename, bundle):
            return found, frame.lineno
    if at_all := pattern.findall(text):
        file, line = at_all[-1]
        return file, int(line)
    return None, None


def _short(text: str) -> str:
    """What went wrong, without Java's stack: a Python worker's last words, if it had any."""
    if traces := _WORKER_TRACE.findall(text):
        last: str = traces[-1]
        return last.strip()
    text = _CALLED.sub("", text)
    return text.partition("\n\tat ")[0].partition("\n\nJVM stacktrace:")[0].strip()


def _inside(filename: str, bundle: Path) -> str | None:
    path = Path(filename)
    return str(path.relative_to(bundle)) if path.is_relative_to(bundle) else None
