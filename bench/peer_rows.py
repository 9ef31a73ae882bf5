"""The rows of `make bench ARGS=--peers`, and the versions of what they compare."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Callable, Mapping

import duckdb

from bench.cases import Scale, Tell
from bench.peer_http import crowd_rows, http_rows
from bench.peer_local import command_rows, lineage_rows, postgres_rows, rows_rows, task_rows
from bench.peer_systems import DUCKLAKE, NESSIE_VERSION
from bench.peers import Report, Row
from headgate import __version__

_PARTS: Mapping[str, Callable[[Scale, Tell], list[Row]]] = {
    "http": http_rows,
    "clients of one branch": crowd_rows,
    "publish on postgres": postgres_rows,
    "rows": rows_rows,
    "tasks": task_rows,
    "commands": command_rows,
    "lineage": lineage_rows,
}
_VERSIONS = {
    "Headgate": __version__,
    "Python": platform.python_version(),
    "SQLite": sqlite3.sqlite_version,
    "DuckDB": duckdb.__version__,
    "Nessie": NESSIE_VERSION,
    "DuckLake of DuckDB": DUCKLAKE.version,
}


def run_peers(only: str | None, scale: Scale, tell: Tell) -> Report:
    """Measure the parts with this text in their name, one after the other."""
    began, load = time.monotonic(), os.getloadavg()[0]
    rows: list[Row] = []
    for name, part in _PARTS.items():
        if only is not None and only.lower() not in name:
            continue
        tell(f"beside others: {name}")
        for row in part(scale, tell):
            tell("  " + " | ".join(row.cells))
            rows.append(row)
    return Report(
        quick=scale.quick,
        seconds=time.monotonic() - began,
        rows=rows,
        versions=_VERSIONS,
        load=(load, os.getloadavg()[0]),
    )
