"""DuckDB with its Iceberg extension, in a process of its own, set up as the documentation says.

Its release is another than the one that Headgate itself uses: the extension is published later.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.maven import cached, ensure, must
from tests.support.source import ROOT

VERSION = "1.5.5"
NOT_FETCHED = "no DuckDB with Iceberg: it could not be fetched (make test-engines says why)"
PAGE = ROOT / "docs" / "engines" / "duckdb.md"
_LOCK = ROOT / "tools" / "duckdb.lock"
_TRUNK = "trial>master"
# Executes each line of its input, a statement in JSON, and prints the rows or the error.
_LOOP = """
import json, sys
for line in sys.stdin:
    try:
        said = {"rows": connection.execute(json.loads(line)).fetchall()}
    except duckdb.Error as error:
        said = {"error": str(error)}
    print("\\nREPLY " + json.dumps(said, default=str), flush=True)
"""


class Refused(Exception):
    """DuckDB's own error."""


class DuckDb:
    """One connection, to which the catalog `lake` is attached."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, statement: str) -> list[list[Any]]:
        """Execute a statement and return its rows, or raise `Refused`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        lines = iter(self._process.stdout.readline, "")
        # DuckDB draws its progress bar on other lines.
        reply = next(line for line in lines if line.startswith("REPLY "))
        said = json.loads(reply.removeprefix("REPLY "))
        if "error" in said:
            raise Refused(said["error"])
        rows: list[list[Any]] = said["rows"]
        return rows


def find() -> Path | None:
    """Return the directory of the packages; None if they were never fetched."""
    place = cached(f"duckdb-{VERSION}")
    return place if place.is_dir() else None


def require() -> Path:
    """Return the directory of the packages; skip the test where they were never fetched."""
    place = find()
    if place is None:
        pytest.skip(NOT_FETCHED)
    return place


def ensure_fetched() -> Path:
    """Return the directory of the packages, and fetch them if necessary."""
    return ensure(cached(f"duckdb-{VERSION}"), _fetch)


def _fetch(scratch: Path) -> Path:
    place = scratch / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--require-hashes", "--target", str(place), "--requirement", str(_LOCK)]
    must([*pip, *options], scratch)
    return place


def blocks_of_page(language: str) -> list[str]:
    """Return the code of the page on DuckDB."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)
    return found


@contextmanager
def attached(packages: Path, *, url: str, token: str, context: str = _TRUNK) -> Iterator[DuckDb]:
    """Start DuckDB as the page does, on this context in place of the page's."""
    setup = "\n".join(blocks_of_page("python"))
    assert setup.count(_TRUNK) == 1
    given = {"PYTHONPATH": str(packages), "HEADGATE_URL": url, "HEADGATE_TOKEN": token}
    # The extension makes an empty directory `data` in the working directory on CREATE TABLE AS.
    with (
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(
            [sys.executable, "-c", setup.replace(_TRUNK, context) + _LOOP],
            cwd=scratch,
            env={**os.environ, **given},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            yield DuckDb(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)
