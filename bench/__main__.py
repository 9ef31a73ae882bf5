"""`python -m bench`: runs all benchmarks, prints a table for each, writes JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from bench import (
    appends,
    catalog,
    crowd,
    endpoint,
    files,
    jobs,
    lineage,
    merging,
    pipeline,
    planning,
    reads,
    rows,
    rules,
    served,
    startup,
    tasks,
)
from bench.cases import Bench, Scale, Unavailable
from bench.crowd import run_served_crowd
from bench.measuring import Result, run_bench
from bench.peer_rows import run_peers
from bench.report import document, table_of

BENCHES: tuple[Bench[Any], ...] = (
    startup.START,
    files.FILES,
    tasks.TASKS,
    tasks.LARGE,
    served.SERVED,
    planning.PLANNING,
    rows.ROWS,
    rules.RULES,
    catalog.ON_SQLITE,
    catalog.ON_POSTGRES,
    lineage.LINEAGE,
    endpoint.ENDPOINT,
    reads.READS,
    endpoint.BRANCHES,
    appends.APPENDS,
    pipeline.PIPELINE,
    jobs.JOBS,
    jobs.TPCH_JOBS,
    merging.MERGING,
)
_RESULTS = Path(__file__).with_name("results")
_WIDTH = 140


def main(
    only: Annotated[str | None, typer.Option(help="Cases with this text in their name.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small stores, few repetitions.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The JSON on stdout, no tables.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on a missed target.")] = False,
    tpch_factor: Annotated[
        float | None, typer.Option(help="TPC-H's scale factor: 1, or 0.01 with --quick.")
    ] = None,
    merged_rows: Annotated[
        int | None, typer.Option(help="Rows to merge by Spark: ten million, or 200,000.")
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Headgate beside other systems, in one run.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="With --peers: write docs/benchmarks.md too.")
    ] = False,
) -> None:
    """Time Headgate on this machine. Example: python -m bench --quick --only sqlite"""
    # Commands are measured as they run after their first start: with the bytecode of all modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    progress = Console(stderr=True, highlight=False)
    # For a file or a pipe Rich assumes 80 columns, too few for these tables.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    results: list[Result] = []
    scale = Scale(quick=quick, tpch_factor=tpch_factor, merged_rows=merged_rows)

    def tell(line: str) -> None:
        progress.print(line, style="dim")

    if peers:
        report = run_peers(only, scale, tell)
        _save(report.document(), "peers.json", stdout=json)
        if not json:
            console.print(report.table())
        if write:
            report.write()
        raise typer.Exit(int(strict and report.missed))
    runs: list[tuple[str, Callable[..., list[Result]]]]
    runs = [(bench.name, partial(run_bench, bench)) for bench in BENCHES]
    for name, run in (*runs, (crowd.NAME, run_served_crowd)):
        try:
            found = run(scale, tell, only=only)
        except Unavailable as missing:
            progress.print(f"{name}: skipped. {missing}", style="yellow")
            continue
        results += found
        if found and not json:
            console.print(table_of(found))
    if not results:
        raise typer.BadParameter(f"no case has {only!r} in its name.", param_hint="--only")
    _save(document(results), "latest.json", stdout=json)
    if strict and any(result.misses for result in results):
        raise typer.Exit(1)


def _save(found: dict[str, Any], name: str, *, stdout: bool) -> None:
    encoded = orjson.dumps(found, option=orjson.OPT_INDENT_2)
    _RESULTS.mkdir(exist_ok=True)
    (_RESULTS / name).write_bytes(encoded)
    if stdout:
        print(encoded.decode())


if __name__ == "__main__":
    typer.run(main)
