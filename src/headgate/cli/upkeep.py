"""`headgate migrate`: bring the catalog's schema to this release."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import connection
from headgate.catalog import migrate as migrations
from headgate.catalog.database import Database
from headgate.catalog.recovery import OWNER_ALIVE, Recovered
from headgate.cli.format import count_text, size_text
from headgate.cli.output import ActorOption, JsonOption, note, show_json, show_line, show_table
from headgate.errors import Invalid
from headgate.settings import load_settings, parse_duration_seconds
from headgate.store.documents import Json, recovery_json
from headgate.upkeep.cleanup import check_older_than
from headgate.upkeep.doctor import Examined, examine, from_error, make_check
from headgate.upkeep.reachability import Marking

# `headgate cleanup`: condemn what nothing needs, and sweep what was condemned before.

cleanup_app = typer.Typer()


@cleanup_app.command()
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
    with connection.open(actor=actor, recover_first=not dry_run) as hg:
        cleaned = hg.clean_up(older_than_seconds=grace, dry_run=dry_run, engine=engine)
    for branch in cleaned.get("staging", ()):
        note(f"staging branch {branch} {'would be ' if dry_run else ''}deleted in lakeFS")
    if json:
        show_json(cleaned)
    else:
        _show_cleaned(cleaned)


def _show_cleaned(cleaned: Json) -> None:
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


# `headgate doctor`: look at a store from end to end, and say what is wrong.

doctor_app = typer.Typer()


@doctor_app.command()
def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Every row and every byte, which may take long.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check a store: catalog, log, branches, histories, stored objects; nothing is changed.

    Ends with 1 if anything is wrong. Each finding says what to do.

    Example: headgate doctor --deep
    """
    examined = _examine(deep=deep)
    if json:
        show_json(examined)
    else:
        _show_examined(examined)
    if not examined["ok"]:
        raise typer.Exit(1)


def _examine(*, deep: bool) -> Json:
    try:
        settings = load_settings()
    except Invalid as error:
        bad = make_check("settings", [from_error(error, where="settings")])
        return Examined(checks=[bad]).to_json()
    if settings.server_url:
        with connection.open() as hg:
            return hg.examine(deep=deep)
    # Without opening it: what is wrong may be that it cannot be opened.
    return examine(settings, deep=deep).to_json()


def _show_examined(examined: Json) -> None:
    for check in examined["checks"]:
        show_line(f"{'ok  ' if check['ok'] else 'BAD '} {check['check']}")
        for line in details(check):
            show_line(f"       {line}")
    bad = sum(len(check["findings"]) for check in examined["checks"])
    note("nothing is wrong." if examined["ok"] else f"findings: {bad}")


def details(check: Json) -> list[str]:
    """Each finding with where it is and what to do about it, then what is good to know."""
    told = [
        line
        for finding in check["findings"]
        for line in (f"{finding['where']}: {finding['what']}", f"  → {finding['remedy']}")
    ]
    return [*told, *(f"({remark})" for remark in check["notes"])]


# `headgate recover`: settle what crashed owners left behind.

recover_app = typer.Typer()


@recover_app.command()
def recover(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Settle unfinished operations and abort transactions whose owners are long gone.

    Every other command does this first; a second recovery changes nothing. Leaves with 4 where
    an operation is kept that only a person can settle.

    Example: headgate recover --dry-run
    """
    with connection.open(recover_first=False) as hg:
        done = hg.recover(dry_run=dry_run)
    if json:
        show_json(recovery_json(done))
    else:
        _tell(done, dry_run=dry_run)
    if any(kept["why"] != OWNER_ALIVE for kept in done.kept):
        raise typer.Exit(4)


def _tell(done: Recovered, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for operation in done.rolled_forward:
        note(f"operation {operation} {would}rolled forward")
    for operation in done.rolled_back:
        note(f"operation {operation} {would}rolled back")
    for transaction in done.aborted_transactions:
        note(f"transaction {transaction} {would}aborted")
    for kept in done.kept:
        note(f"operation {kept['operation']} is kept: {kept['why']}")
    settled = len(done.rolled_forward) + len(done.rolled_back) + len(done.aborted_transactions)
    note(f"{would}settled: {count_text(settled, 'thing')}" if settled else "nothing to settle.")


migrate_app = typer.Typer()


@migrate_app.command()
def migrate(json: JsonOption = False) -> None:
    """Bring the catalog's schema to this release; make a backup of PostgreSQL first.

    A SQLite catalog is copied beside itself first, and also migrates when it is opened.

    Example: headgate migrate
    """
    database = Database(load_settings().catalog)
    try:
        before, after = migrations.migrate(database)
    finally:
        database.close()
    if json:
        show_json({"catalog": database.where, "from": before, "to": after})
    elif before == after:
        note(f"the catalog has schema version {after} already.")
    else:
        note(f"the catalog went from schema version {before} to {after}.")
