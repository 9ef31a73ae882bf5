"""Errors at the shell: one table from family to exit code."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from headgate.errors import (
    Conflict,
    Denied,
    Exists,
    HeadgateError,
    Invalid,
    NotFound,
    StorageUnavailable,
    Unavailable,
    WorkFailed,
)

EXIT_CODES: dict[type[HeadgateError], int] = {
    WorkFailed: 1,
    Invalid: 2,
    NotFound: 3,
    Conflict: 4,
    Exists: 4,
    Denied: 5,
    Unavailable: 6,
}


def exit_code(error: HeadgateError) -> int:
    """The exit code of an error's family."""
    for family, code in EXIT_CODES.items():
        if isinstance(error, family):
            return code
    return 1


@contextmanager
def told_of(local: Path) -> Iterator[None]:
    """Around the use of a file or directory of this machine: what fails there names it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(local), reason=reason) from error


def tell(error: HeadgateError, *, as_json: bool) -> int:
    """Says it on stderr or, for a program, as one document on stdout; returns the exit code."""
    if as_json:
        _write(error.to_json())
    else:
        sys.stderr.write(f"headgate: {error.message}\n")
    return exit_code(error)


def tell_usage(error: typer.TyperException, *, as_json: bool) -> int:
    """A command line that cannot be read: the same, with the usage for a person."""
    if as_json:
        _write({"error": error.format_message(), "code": "usage"})
    elif show := getattr(error, "show", None):
        show()
    else:
        sys.stderr.write(f"headgate: {error.format_message()}\n")
    return error.exit_code


def tell_bug(error: Exception, *, as_json: bool) -> int:
    """What nobody foresaw: its traceback is what a report of it needs."""
    traceback.print_exception(error)
    said = f"{type(error).__name__}: {error}"
    if as_json:
        _write({"error": f"this is a defect of Headgate: {said}", "code": "defect"})
    else:
        sys.stderr.write(
            "headgate: this is a defect of Headgate; please report it with the above\n"
        )
    return 1


def _write(document: Mapping[str, Any]) -> None:
    # Not orjson: a name that is not valid Unicode must not make its own error unprintable.
    sys.stdout.write(json.dumps(document, default=str) + "\n")
