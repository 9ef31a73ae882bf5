"""`headgate mutate`: change rows of many tables by SQL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headgate import opening
from headgate.cli.output import ActorOption, JsonOption, KeyOption
from headgate.cli.rows_view import IfHeadOption, TimeoutOption, read_heads, show_outcome
from headgate.errors import Invalid

app = typer.Typer()


@app.command()
def mutate(
    branch: Annotated[
        str, typer.Option("--branch", "-b", help="A branch, or one with fallbacks: `f>master`.")
    ],
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="Statements, with `;` between them.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file of statements; `-` is stdin.")
    ] = None,
    if_head: IfHeadOption = None,
    timeout: TimeoutOption = 60.0,
    actor: ActorOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Run INSERT, UPDATE, DELETE, UPSERT and MERGE statements over many tables, as one publication.

    Each statement sees those before it; readers see all of them at once, or none. Keys,
    references, unique values, cardinality and enums are checked over the outcome. Updates and
    deletes whose rows somebody else changed meanwhile are a conflict; all else is tried again.

    JSON: {"publication", "counts": {DATASET: {"inserted", "updated", "deleted"}}}; publication is
    null where nothing changed.

    Example: headgate mutate -b master "update graph.person set age = 31 where id = 'ana'"
    """
    text = _read(sql, file)
    with opening.open(actor=actor) as hg:
        outcome = hg.mutate(
            branch,
            text,
            idempotency_key=key,
            if_head=read_heads(if_head),
            timeout_seconds=timeout,
        )
    show_outcome(outcome, json=json)


def _read(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise Invalid("give the statements as an argument, or with --file; `--file -` is stdin.")
    if sql is not None:
        return sql
    assert file is not None
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.", file=str(file)) from error
    except UnicodeDecodeError as error:
        raise Invalid(
            f"{file} is not UTF-8 at byte {error.start}: save it as UTF-8.", file=str(file)
        ) from error
