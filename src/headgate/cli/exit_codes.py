"""Exit codes of the command line, and error output on stderr or as JSON on stdout."""

import json
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import typer

from headgate import errors

EXIT_CODES: dict[type[errors.HeadgateError], int] = {
    errors.WorkFailed: 1,
    errors.Invalid: 2,
    errors.NotFound: 3,
    errors.Conflict: 4,
    errors.Exists: 4,
    errors.Denied: 5,
    errors.Unavailable: 6,
}


def exit_code(error: errors.HeadgateError) -> int:
    """Return the exit code of an error's family."""
    for family, code in EXIT_CODES.items():
        if isinstance(error, family):
            return code
    return 1


def report_error(error: errors.HeadgateError, *, as_json: bool) -> int:
    """Write an error to stderr, or as one JSON document to stdout; return the exit code."""
    if as_json:
        _write(error.to_json())
    else:
        sys.stderr.write(f"headgate: {error.message}\n")
    return exit_code(error)


def report_unexpected(error: Exception, *, as_json: bool) -> int:
    """Write an exception that no command handles: a failure of the machine, or a defect."""
    found = errors.find_known_error(error)
    if found is None:
        return report_defect(error, as_json=as_json)
    return report_error(found, as_json=as_json)


def report_usage_error(error: typer.TyperException, *, as_json: bool) -> int:
    """Write a command-line syntax error, with the usage unless as JSON; return the exit code."""
    if as_json:
        _write({"error": error.format_message(), "code": "usage"})
    elif show := getattr(error, "show", None):
        show()
    else:
        sys.stderr.write(f"headgate: {error.format_message()}\n")
    return error.exit_code


def report_defect(error: Exception, *, as_json: bool) -> int:
    """Write an unexpected exception with its traceback, which a bug report needs."""
    traceback.print_exception(error)
    if as_json:
        text = f"this is a defect of Headgate: {type(error).__name__}: {error}"
        _write({"error": text, "code": "defect"})
    else:
        sys.stderr.write("headgate: this is a defect of Headgate; report it with the traceback\n")
    return 1


def _write(document: Mapping[str, Any]) -> None:
    # Not orjson: a name that is not valid Unicode must not make its own error unprintable.
    text = json.dumps(document, default=str) + "\n"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        # The disk of the output is full, which may be the very error.
        sys.stderr.write(text)
