"""Results for people and for programs."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench.measuring import Result


def table_of(results: Sequence[Result]) -> Table:
    """One bench: a row for each case, a column for each subject's median."""
    subjects = list(results[0].samples)
    table = Table(title=results[0].bench, title_justify="left")
    table.add_column("case", no_wrap=True)
    for subject in subjects:
        table.add_column(f"{subject}\np50 ms".strip(), justify="right")
    for heading in ("p95 ms", "SQL", "× floor", "growth", "A/A", "target ms", ""):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(*_cells(result, subjects))
    return table


def _cells(result: Result, subjects: Sequence[str]) -> list[str]:
    last = result.samples[subjects[-1]]
    growth = result.growth
    times_floor = result.times_floor(subjects[-1])
    return [
        result.case,
        *(f"{result.samples[subject].p50_ms:.2f}" for subject in subjects),
        f"{last.p95_ms:.2f}",
        str(last.statements or "-"),
        f"{times_floor:.1f}" if times_floor else "-",
        f"{growth:.2f}" if growth else "-",
        f"±{result.noise:.0%}",
        f"{result.target_ms:g}" if result.target_ms else "-",
        _verdict(result),
    ]


def _verdict(result: Result) -> str:
    if result.misses:
        return f"[red]miss: {', '.join(result.misses)}[/red]"
    return "[green]pass[/green]" if result.target_ms or result.flat else ""


def document(results: Sequence[Result]) -> dict[str, Any]:
    """Everything that was measured, for `bench/results/latest.json`."""
    return {"machine": machine(), "results": [_entry(result) for result in results]}


def _entry(result: Result) -> dict[str, Any]:
    return {
        "bench": result.bench,
        "case": result.case,
        "target_ms": result.target_ms,
        "flat": result.flat,
        "growth": result.growth,
        "noise": result.noise,
        "misses": result.misses,
        "subjects": {
            name: {
                "p50_ms": sample.p50_ms,
                "p95_ms": sample.p95_ms,
                "repetitions": len(sample.times_ms),
                "statements": sample.statements,
                "times_floor": result.times_floor(name),
            }
            for name, sample in result.samples.items()
        },
    }


def machine() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
