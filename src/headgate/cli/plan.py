"""`headgate plan`: what a build would do, and why each job is stale, fresh or adopted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from headgate import opening
from headgate.cli.choosing import choose_chain, choose_parameters
from headgate.cli.jobs_view import job_tree
from headgate.cli.output import BranchOption, JsonOption, console, show_json, show_line
from headgate.model.graph.drawing import GraphFormat
from headgate.model.graph.nodes import Mark
from headgate.model.graph.text import MARK_SIGNS

app = typer.Typer()

Targets = Annotated[list[str], typer.Argument(help="Datasets to build.")]
Fallback = Annotated[
    list[str] | None,
    typer.Option("--fallback", metavar="A,B", help="Branches to read from, in order."),
]
Upstream = Annotated[
    bool, typer.Option("--upstream", help="Also all that the targets are made of.")
]
Force = Annotated[bool, typer.Option("--force", help="Run every job, fresh or not.")]
Full = Annotated[bool, typer.Option("--full", help="Incremental jobs run and read everything.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Set a parameter; as often as needed."),
]


@app.command()
def plan(
    targets: Targets,
    branch: BranchOption = None,
    fallback: Fallback = None,
    upstream: Upstream = False,
    force: Force = False,
    full: Full = False,
    param: Parameters = None,
    graph: Annotated[
        GraphFormat | None, typer.Option("--graph", help="Draw what is made of what.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """What a build would do, and why; nothing is changed.

    A graph shows each dataset on the branch it is read from or written to, with a mark: blue if
    the primary branch has a JobSpec that makes it, gray if not. With --json it is the key "graph":
    {"format", "text", "chain", "primary", "nodes", "edges"}.

    Example: headgate plan sales.daily -b feature --fallback master --upstream

    Example: headgate plan sales.daily --upstream --graph svg > plan.svg
    """
    with opening.open() as hg:
        chosen, names = choose_chain(hg.settings, branch, fallback, Path.cwd())
        made = hg.plan(
            targets,
            branch=chosen,
            fallback=names,
            upstream=upstream,
            force=force,
            full=full,
            parameters=choose_parameters(param),
            graph=graph,
        )
    if json:
        show_json(made.to_json())
    elif graph and made.graph:
        _show_graph(graph, made.graph["text"].rstrip("\n"))
    else:
        jobs = [job.to_json() for job in made.jobs]
        console().print(job_tree(" > ".join((chosen, *names)), jobs))


def _show_graph(format: GraphFormat, drawn: str) -> None:
    if format is not GraphFormat.TREE:
        show_line(drawn)
        return
    text = Text(drawn)
    text.highlight_words([MARK_SIGNS[Mark.BLUE]], "bold blue")
    text.highlight_words([MARK_SIGNS[Mark.GRAY]], "bright_black")
    console().print(text, soft_wrap=True)
