"""A failure of user code as its author wants to see it: the line, the message, the whole trace."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from headgate.errors import HeadgateError, UserCodeFailed
from headgate.transforms.finding import import_roots

# The line after a traceback's last frame: frames are indented, and the error itself is not.
_WORKER_TRACE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.M)

# What Java's S3 client says deep in a stack whose top may be about a file that cannot be closed.
_OF_S3 = {
    "Unable to load credentials from any of the providers": (
        "Spark has no credentials for the bucket of this store: set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY where the job runs. A server tells its clients where S3 is, but no "
        "secret."
    ),
    "Unable to load region from any of the providers": (
        "Spark was not told the region of this store's bucket: set AWS_REGION where the job runs, "
        "or where the store is served."
    ),
}
_REFUSED_BY_S3 = re.compile(r"S3Exception: (.*Status Code: 403.*)")

# How Java's errors come out of the gateway, before their own words; what Iceberg's client puts
# before those of the catalog is its class and a word for the status.
_CALLED = re.compile(r"^An error occurred while calling \S+\n: ")
_PASSED_ON = re.compile(r"^org\.apache\.iceberg\.exceptions\.\w+: (?:Forbidden: )?")


def describe(error: BaseException, bundle: Path) -> dict[str, Any]:
    """The facts of a `failed` event; the file is relative to the bundle, None if not in it."""
    # What user code raised is told as itself; the boundary around it knows where it is declared.
    shown = error.__cause__ if isinstance(error, UserCodeFailed) and error.__cause__ else error
    text = "".join(traceback.format_exception(shown))
    file, line = _where(shown, text, bundle)
    if file is None and shown is not error:
        file, line = _where(error, text, bundle)
    return {
        "error": type(shown).__name__,
        "message": _short(str(shown)) or type(shown).__name__,
        "file": file,
        "line": line,
        "traceback": text,
    }


def _where(error: BaseException, text: str, bundle: Path) -> tuple[str | None, int | None]:
    """The innermost line of the user's: in a Python worker if the text tells, else here."""
    if isinstance(error, HeadgateError) and error.facts.get("file") is not None:
        # It says itself where the user declared what failed.
        found = _inside(error.facts["file"], bundle)
        return found, error.facts["line"] if found else None
    # Spark evaluates late: what fails in a function of the user's fails in a worker, whose trace
    # comes as text, while the stack of this process shows only who asked for the rows.
    if in_worker := _last_in(str(error), bundle):
        return in_worker
    if isinstance(error, SyntaxError) and error.filename:
        found = _inside(error.filename, bundle)
        return found, error.lineno if found else None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if found := _inside(frame.filename, bundle):
            return found, frame.lineno
    return _last_in(text, bundle) or (None, None)


def _last_in(text: str, bundle: Path) -> tuple[str, int] | None:
    """The last line of the bundle's that a trace names: from here, or from where it was shipped."""
    here, name = re.escape(str(bundle)), re.escape(bundle.name)
    shipped = rf'[^"\n]*/{name}(?:\.zip)?'
    pattern = re.compile(rf'File "(?:{here}|{shipped})/([^"\n]+)", line (\d+)')
    if not (found := pattern.findall(text)):
        return None
    file, line = found[-1]
    # What is shipped begins where modules are imported, which may be the `src` directory.
    roots = [root for root in (bundle, *import_roots(bundle)) if (root / file).is_file()]
    return str((roots[0] / file).relative_to(bundle)) if roots else file, int(line)


def _short(text: str) -> str:
    """What went wrong, without Java's stack: a Python worker's last words, if it had any."""
    if traces := _WORKER_TRACE.findall(text):
        last: str = traces[-1]
        return last.strip()
    if found := next((told for said, told in _OF_S3.items() if said in text), None):
        return found
    if refused := _REFUSED_BY_S3.search(text):
        return f"S3 refuses the credentials that Spark has where the job runs: {refused[1]}"
    text = _PASSED_ON.sub("", _CALLED.sub("", text))
    return text.partition("\n\tat ")[0].partition("\n\nJVM stacktrace:")[0].strip()


def _inside(filename: str, bundle: Path) -> str | None:
    path = Path(filename)
    return str(path.relative_to(bundle)) if path.is_relative_to(bundle) else None
