"""`python -m bench`: times everything, prints a table for each bench, writes JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from bench import catalog, files, startup
from bench.cases import Bench, Scale, Unavailable
from bench.measuring import Result, run_bench
from bench.report import document, table_of

BENCHES: tuple[Bench[Any], ...] = (
    startup.START,
    files.FILES,
    catalog.ON_SQLITE,
    catalog.ON_POSTGRES,
)
_RESULTS = Path(__file__).with_name("results") / "latest.json"
_WIDTH = 140


def main(
    only: Annotated[str | None, typer.Option(help="Cases with this text in their name.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small stores, few repetitions.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The JSON on stdout, no tables.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on a missed target.")] = False,
) -> None:
    """Time Headgate on this machine. Example: python -m bench --quick --only sqlite"""
    progress = Console(stderr=True, highlight=False)
    # Into a file or a pipe Rich would write 80 columns, too few for these tables.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    results: list[Result] = []
    for bench in BENCHES:
        try:
            found = run_bench(
                bench, Scale(quick=quick), lambda line: progress.print(line, style="dim"), only=only
            )
        except Unavailable as missing:
            progress.print(f"{bench.name}: skipped. {missing}", style="yellow")
            continue
        results += found
        if found and not json:
            console.print(table_of(found))
    if not results:
        raise typer.BadParameter(f"no case has {only!r} in its name.", param_hint="--only")
    encoded = orjson.dumps(document(results), option=orjson.OPT_INDENT_2)
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_bytes(encoded)
    if json:
        print(encoded.decode())
    if strict and any(result.misses for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
