"""`headgate cleanup`: condemn what nothing needs, and sweep what was condemned before."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.formatting import count_text, size_text
from headgate.cli.output import ActorOption, JsonOption, note, show_json, show_table
from headgate.handles.nouns import Json
from headgate.settings import parse_duration_seconds
from headgate.upkeep.marking import Marking
from headgate.upkeep.terms import check_older_than

app = typer.Typer()


@app.command()
def cleanup(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="AGE", help="Condemn only what is older: 24h at least."
        ),
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done, and why.")
    ] = False,
    engine: Annotated[
        Marking,
        typer.Option(
            "--engine",
            help="Who reads the manifests of tables: this process, or Spark. auto: Spark where "
            "there are more than 512 MiB of them.",
        ),
    ] = Marking.AUTO,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Condemn what no branch, tag, open transaction or intent needs; sweep it a day later.

    What is condemned can no longer be read or published; its bytes are deleted by a cleanup that
    comes at least 24 hours after. Snapshots of tables that no branch has shown within the time to
    retain are forgotten. Safe beside writers and beside a second cleanup.

    Example: headgate cleanup --older-than 14d --dry-run
    """
    grace = check_older_than(parse_duration_seconds(older_than, what="--older-than"))
    # A dry one changes nothing: then recovery does not come first either.
    with opening.open(actor=actor, recover_first=not dry_run) as hg:
        cleaned = hg.clean_up(older_than_seconds=grace, dry_run=dry_run, engine=engine)
    for branch in cleaned.get("staging", ()):
        note(f"staging branch {branch} {'would be ' if dry_run else ''}deleted in lakeFS")
    if json:
        show_json(cleaned)
    else:
        _show(cleaned)


def _show(cleaned: Json) -> None:
    if cleaned["items"]:
        show_table(
            ("STEP", "WHAT", "SIZE", "WHERE", "WHY"),
            (
                (item["step"], item["what"], size_text(item["bytes"]), item["where"], item["why"])
                for item in cleaned["items"]
            ),
            empty="",
        )
    for kept in cleaned["kept"]:
        note(f"left alone: {kept_text(kept)}")
    would = "would be " if cleaned["dry_run"] else ""
    note(
        f"{would}condemned: {cleaned['condemned']}; {would}deleted: {cleaned['deleted']} "
        f"({size_text(cleaned['bytes'])}); {would}spared: {cleaned['spared']}"
    )


def kept_text(kept: Json) -> str:
    """`3 objects (2.0 KiB): it is younger than the grace`, with some names where there are any."""
    size = f" ({size_text(kept['bytes'])})" if kept["bytes"] else ""
    named = f" [{', '.join(kept['examples'])}]" if kept["examples"] else ""
    return f"{count_text(kept['count'], kept['what'])}{size}: {kept['why']}{named}"
