"""`headgate cleanup`: condemn what nothing needs, and sweep what was condemned before."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import store
from headgate.cli.formatting import count_text, size_text
from headgate.cli.output import ActorOption, JsonOption, note, show_json, show_table
from headgate.settings import load_settings, parse_duration_seconds, with_actor
from headgate.store import Store
from headgate.upkeep.cleaned import Cleaned, Kept
from headgate.upkeep.cleanup import clean_up
from headgate.upkeep.terms import Terms, check_older_than

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
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Condemn what no branch, tag, open transaction or intent needs; sweep it a day later.

    What is condemned can no longer be read or published; its bytes are deleted by a cleanup that
    comes at least 24 hours after. Safe beside writers and beside a second cleanup.

    Example: headgate cleanup --older-than 14d --dry-run
    """
    grace = check_older_than(parse_duration_seconds(older_than, what="--older-than"))
    with _opened(actor, dry_run=dry_run) as hg:
        cleaned = clean_up(
            hg.database,
            hg.objects,
            Terms(retain_seconds=hg.settings.retain_seconds, older_than_seconds=grace),
            actor=hg.settings.actor,
            dry_run=dry_run,
        )
    if json:
        show_json(cleaned.to_json())
    else:
        _show(cleaned)


def _opened(actor: str | None, *, dry_run: bool) -> Store:
    """A dry one changes nothing: then recovery does not come first either."""
    if dry_run:
        return Store(with_actor(load_settings(), actor), recover_first=False)
    return store.open(actor=actor)


def _show(cleaned: Cleaned) -> None:
    if cleaned.items:
        show_table(
            ("STEP", "WHAT", "SIZE", "WHERE", "WHY"),
            ((i.step, i.what, size_text(i.bytes), i.where, i.why) for i in cleaned.items),
            empty="",
        )
    for kept in cleaned.kept:
        note(f"left alone: {kept_text(kept)}")
    would = "would be " if cleaned.dry_run else ""
    note(
        f"{would}condemned: {cleaned.condemned}; {would}deleted: {cleaned.deleted} "
        f"({size_text(cleaned.bytes)}); {would}spared: {cleaned.spared}"
    )


def kept_text(kept: Kept) -> str:
    """`3 objects (2.0 KiB): it is younger than the grace`, with some names where there are any."""
    size = f" ({size_text(kept.bytes)})" if kept.bytes else ""
    named = f" [{', '.join(kept.examples)}]" if kept.examples else ""
    return f"{count_text(kept.count, kept.what)}{size}: {kept.why}{named}"
