"""Results as tables and as JSON."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench.measuring import Result


def table_of(results: Sequence[Result]) -> Table:
    """Return the table of one bench: a row for each case, a column for each subject's median."""
    subjects = list(results[0].samples)
    table = Table(title=results[0].bench, title_justify="left")
    table.add_column("case", no_wrap=True)
    for subject in subjects:
        table.add_column(f"{subject}\np50 ms".strip(), justify="right")
    for heading in ("p95 ms", "p99 ms", "SQL", "× floor", "growth", "A/A", "target ms", ""):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(*_cells(result, subjects))
    return table


def _cells(result: Result, subjects: Sequence[str]) -> list[str]:
    last = result.samples[subjects[-1]]
    growth = result.growth
    return [
        result.case,
        *(f"{result.samples[subject].p50_ms:.2f}" for subject in subjects),
        f"{last.p95_ms:.2f}",
        f"{last.p99_ms:.2f}",
        str(last.statements or "-"),
        _floors(result),
        f"{growth:.2f}" if growth else "-",
        f"±{result.noise:.0%}",
        _target(result),
        _verdict(result),
    ]


def _floors(result: Result) -> str:
    """Return multiples of the floor for each subject; below them, the same for CPU time."""
    if not result.floor:
        return "-"
    lines = (
        (result.times_floor(subject) for subject in result.samples),
        (result.times_floor_cpu(subject) for subject in result.samples),
    )
    told = [" ".join(f"{times:.2f}" if times else "-" for times in line) for line in lines]
    return told[0] if set(told[1]) <= set("- ") else f"{told[0]}\nCPU {told[1]}"


def _verdict(result: Result) -> str:
    if result.misses:
        return f"[red]miss: {', '.join(result.misses)}[/red]"
    targets = (
        *(result.target_ms, result.target_ratio),
        *(result.target_extra_ms, result.target_floor),
    )
    judged = result.flat or any(target is not None for target in targets)
    return "[green]pass[/green]" if judged else ""


def _target(result: Result) -> str:
    if result.target_ratio is not None:
        return f"× {result.target_ratio:g}"
    if result.target_extra_ms is not None:
        return f"+ {result.target_extra_ms:g}"
    if result.target_floor is not None:
        return f"{result.target_floor:g} × floor"
    return f"{result.target_ms:g}" if result.target_ms else "-"


def document(results: Sequence[Result]) -> dict[str, Any]:
    """Return all results as the document `bench/results/latest.json`."""
    return {"machine": machine(), "results": [_entry(result) for result in results]}


def _entry(result: Result) -> dict[str, Any]:
    return {
        "bench": result.bench,
        "case": result.case,
        "target_ms": result.target_ms,
        "target_ratio": result.target_ratio,
        "target_extra_ms": result.target_extra_ms,
        "target_floor": result.target_floor,
        "extra_ms": result.extra_ms,
        "flat": result.flat,
        "growth": result.growth,
        "noise": result.noise,
        "misses": result.misses,
        "subjects": {
            name: {
                "p50_ms": sample.p50_ms,
                "p95_ms": sample.p95_ms,
                "p99_ms": sample.p99_ms,
                "repetitions": len(sample.times_ms),
                "statements": sample.statements,
                "times_floor": result.times_floor(name),
                "times_floor_cpu": result.times_floor_cpu(name),
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
