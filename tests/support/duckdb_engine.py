"""DuckDB with its Iceberg extension, in a process of its own, set up as the documentation says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.engine_packages import blocks_of_page

_TRUNK = "trial>master"
_DELEGATION, _MODE = "ACCESS_DELEGATION_MODE '{}'", "none"
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


@contextmanager
def attached(
    packages: Path, *, url: str, token: str, context: str = _TRUNK, mode: str = _MODE
) -> Iterator[DuckDb]:
    """Start DuckDB as the page does, on this context and with this access instead of the page's."""
    setup = "\n".join(blocks_of_page("duckdb", "python"))
    assert setup.count(_TRUNK) == setup.count(_DELEGATION.format(_MODE)) == 1
    setup = setup.replace(_DELEGATION.format(_MODE), _DELEGATION.format(mode))
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
