"""`headgate sql`: Spark SQL on a branch context."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import ActorOption, JsonOption, say, show_json, show_table
from headgate.spark.sql import run_sql

app = typer.Typer()


@app.command()
def sql(
    text: Annotated[str, typer.Argument(help="One SQL statement.")],
    context: Annotated[
        str | None,
        typer.Option("--branch", "-b", help="A branch, a chain `a>b`, or a moment `a@12`."),
    ] = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Run one SQL statement; a write on a branch is a transaction and a publication.

    Example: headgate sql -b "feature>master" "select * from sales.daily limit 5"
    """
    with opening.open(actor=actor) as hg:
        result = run_sql(hg.spark(context or hg.settings.builds.branch), text)
    if json:
        show_json(result.rows)
    elif result.columns:
        rows = ([row[name] for name in result.columns] for row in result.rows)
        show_table(result.columns, rows, empty="no rows")
    else:
        say("done")
