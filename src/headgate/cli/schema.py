"""`headgate schema`: what tables are, from a file that is reviewed like code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import ActorOption, JsonOption, KeyOption, note, show_json

app = typer.Typer(
    no_args_is_help=True, help="What tables are and what must hold of their rows, from a file."
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A schema file in TOML.")]
OnBranch = Annotated[
    str, typer.Option("--branch", "-b", help="A branch, or one with fallbacks: `f>master`.")
]


@app.command()
def plan(file: FileArgument, branch: OnBranch, json: JsonOption = False) -> None:
    """Show what applying a schema file to a branch would do; nothing is changed.

    JSON: {"branch", "datasets": [{"dataset", "steps"}]}; a dataset without steps stays as it is.

    Example: headgate schema plan graph.toml -b master
    """
    with opening.open() as hg:
        planned = hg.rows.plan_schema(file, branch=branch)
    if json:
        show_json(planned.to_json())
        return
    _show(planned.steps)


@app.command()
def apply(
    file: FileArgument,
    branch: OnBranch,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Make a branch's tables what a schema file says, all at once; rows that are there must fit.

    Other branches keep their tables as they are. Columns that the file no longer has are dropped;
    `renamed_from` keeps a column or a dataset under a new name.

    JSON: {"branch", "publication", "datasets": [{"dataset", "steps"}]}.

    Example: headgate schema apply graph.toml -b master
    """
    with opening.open(actor=actor) as hg:
        applied = hg.rows.apply_schema(file, branch=branch, idempotency_key=key)
    if json:
        show_json(applied.to_json())
        return
    _show(applied.steps)
    if applied.publication is not None:
        note(f"publication {applied.publication}")


def _show(steps: Mapping[str, Sequence[str]]) -> None:
    if not any(steps.values()):
        note("the tables are as the file says.")
    for dataset, taken in steps.items():
        for step in taken:
            note(f"{dataset}: {step}")
