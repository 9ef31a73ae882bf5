"""`headgate plan`: what a build would do, and why each job is stale, fresh or adopted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate import store
from headgate.builds.report import planned_reports, to_json
from headgate.cli.choosing import choose_chain
from headgate.cli.jobs_view import job_tree
from headgate.cli.output import BranchOption, JsonOption, console, show_json

app = typer.Typer()

Targets = Annotated[list[str], typer.Argument(help="Datasets to build.")]
Fallback = Annotated[
    str | None, typer.Option("--fallback", help="Branches to read from, in order: a,b.")
]
Upstream = Annotated[
    bool, typer.Option("--upstream", help="Also all that the targets are made of.")
]
Force = Annotated[bool, typer.Option("--force", help="Run every job, fresh or not.")]


@app.command()
def plan(
    targets: Targets,
    branch: BranchOption = None,
    fallback: Fallback = None,
    upstream: Upstream = False,
    force: Force = False,
    json: JsonOption = False,
) -> None:
    """What a build would do, and why; nothing is changed.

    Example: headgate plan sales.daily -b feature --fallback master --upstream
    """
    with store.open() as hg:
        chosen, names = choose_chain(hg.settings, branch, fallback, Path.cwd())
        made = hg.plan(targets, branch=chosen, fallback=names, upstream=upstream, force=force)
    reports = planned_reports(made)
    if json:
        show_json(to_json(made, reports))
        return
    console().print(job_tree(" > ".join((chosen, *names)), reports))
