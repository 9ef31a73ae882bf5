"""Maintenance commands: cleanup, doctor, backup, restore, recover and migrate."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from headgate import connection
from headgate.catalog import migrate as migrations
from headgate.catalog import warehouse
from headgate.catalog.database import Database
from headgate.catalog.recovery import OWNER_ALIVE, Recovered, correct_times
from headgate.cli import output
from headgate.cli.format import size_text
from headgate.errors import Invalid
from headgate.files.transfer import Progress
from headgate.settings import Settings, load_settings, parse_duration_seconds
from headgate.storage.address import open_store
from headgate.store.documents import Json, recovery_json
from headgate.upkeep import backup as backups
from headgate.upkeep.cleanup import check_older_than
from headgate.upkeep.doctor import DoctorReport, examine, from_error, make_check


@output.command
def cleanup(
    older_than: Annotated[
        str,
        Option("--older-than", metavar="AGE", help="Minimum age of deleted data (at least 24h)."),
    ] = "7d",
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be done, and why.")] = False,
    confirm_warehouse: Annotated[
        bool, Option("--confirm-warehouse", help="This catalog alone uses the warehouse; go on.")
    ] = False,
    confirm_clock: Annotated[
        bool, Option("--confirm-clock", help="The clock is right; go on.")
    ] = False,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Delete data that no branch, tag, open transaction or intent needs, in two phases.

    The first cleanup condemns data, which can then no longer be read or published. A cleanup at
    least 24 hours later deletes it. Table snapshots that no branch has shown within the retention
    period are forgotten. Safe to run beside writers and other cleanups.

    Example: headgate cleanup --older-than 14d --dry-run
    """
    grace = check_older_than(parse_duration_seconds(older_than, what="--older-than"))
    # A dry run changes nothing, so recovery does not run first either.
    with connection.open(actor=actor, recover_first=not dry_run) as hg:
        cleaned = hg.clean_up(
            older_than_seconds=grace,
            dry_run=dry_run,
            confirm_warehouse=confirm_warehouse,
            confirm_clock=confirm_clock,
        )
    for branch in cleaned.get("staging", ()):
        output.note(f"staging branch {branch} {'would be ' if dry_run else ''}deleted in lakeFS")
    if json:
        output.show_json(cleaned)
    else:
        _show_cleaned(cleaned)


def _show_cleaned(cleaned: Json) -> None:
    if cleaned["items"]:
        output.show_table(
            ("STEP", "WHAT", "SIZE", "WHERE", "WHY"),
            (
                (item["step"], item["what"], size_text(item["bytes"]), item["where"], item["why"])
                for item in cleaned["items"]
            ),
            empty="",
        )
    for kept in cleaned["kept"]:
        size = f", {size_text(kept['bytes'])}" if kept["bytes"] else ""
        named = f" [{', '.join(kept['examples'])}]" if kept["examples"] else ""
        output.note(
            f"kept: {output.count_text(kept['count'], kept['what'])}{size} ({kept['why']}){named}"
        )
    would = "would be " if cleaned["dry_run"] else ""
    output.note(
        f"{would}condemned: {cleaned['condemned']}; {would}deleted: {cleaned['deleted']} "
        f"({size_text(cleaned['bytes'])}); {would}spared: {cleaned['spared']}"
    )


@output.command
def doctor(
    deep: Annotated[
        bool, Option("--deep", help="Check every row and byte; this may take long.")
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """Check the integrity of a store: catalog, log, branches, histories and stored objects.

    Changes nothing. Exits with 1 if it finds a problem; each finding has a remedy.

    Example: headgate doctor --deep
    """
    _show_report(_examine(deep=deep), json=json)


def _show_report(examined: Json, *, json: bool) -> None:
    """Print the report of doctor or restore-check; exit with 1 if it has a finding."""
    if json:
        output.show_json(examined)
    else:
        _show_examined(examined)
    if not examined["ok"]:
        raise Exit(1)


def _examine(*, deep: bool) -> Json:
    try:
        settings = load_settings()
    except Invalid as error:
        bad = make_check("settings", [from_error(error, where="settings")])
        return DoctorReport(checks=[bad]).to_json()
    if settings.server_url:
        with connection.open() as hg:
            return hg.examine(deep=deep)
    # Without opening the store: that may be what fails.
    return examine(settings, deep=deep).to_json()


def _show_examined(examined: Json) -> None:
    for check in examined["checks"]:
        output.show_line(f"{'ok  ' if check['ok'] else 'BAD '} {check['check']}")
        for finding in check["findings"]:
            output.show_line(f"       {finding['where']}: {finding['what']}")
            output.show_line(f"         → {finding['remedy']}")
        for remark in check["notes"]:
            output.show_line(f"       ({remark})")
    bad = sum(len(check["findings"]) for check in examined["checks"])
    output.note("no problems found." if examined["ok"] else f"findings: {bad}")


DirectoryArgument = Annotated[
    Path, Argument(metavar="DIR", help="Directory of the backup, on this machine.")
]


@output.command
def backup(directory: DirectoryArgument, json: output.JsonOption = False) -> None:
    """Copy the catalog, and every file that it names, to a directory.

    Run it beside writers, at the machine of the server. A repeated backup to the same directory
    copies only new files. Exits with 1 if the store has lost or damaged a file.

    Example: headgate backup /backups/headgate
    """
    _check_here("back up")
    with connection.open() as hg:
        made = backups.back_up(hg.database, hg.objects, directory, watch=_watch("backup"))
    if json:
        output.show_json(made)
    else:
        for finding in made["findings"]:
            output.show_line(f"{finding['where']}: {finding['what']}")
            output.show_line(f"  → {finding['remedy']}")
        output.note(
            f"backup of publication {made['publication']} in {directory}: "
            f"{output.count_text(made['objects'], 'file')} ({size_text(made['bytes'])}), "
            f"of which {made['copied']:,} ({size_text(made['copied_bytes'])}) are new."
        )
    if made["findings"]:
        raise Exit(1)


@output.command
def restore_check(directory: DirectoryArgument, json: output.JsonOption = False) -> None:
    """Try a backup: compare every file with its digest, and read the view of every branch.

    Uses only the directory and a temporary copy of its catalog, not the store. Exits with 1 if it
    finds a problem.

    Example: headgate restore-check /backups/headgate
    """
    _show_report(backups.check_backup(directory, watch=_watch("check")).to_json(), json=json)


@output.command
def restore(directory: DirectoryArgument, json: output.JsonOption = False) -> None:
    """Write a backup to the catalog and the warehouse of headgate.toml.

    The catalog must not exist. Files that the warehouse has are kept. If it has any, cleanup is
    held until `headgate cleanup --confirm-warehouse`.

    Example: headgate restore /backups/headgate
    """
    done = backups.restore(_check_here("restore"), directory, watch=_watch("restore"))
    held = " Cleanup is held until it is confirmed." if done["cleanup_held"] else ""
    text = (
        f"the store is at publication {done['publication']}; "
        f"{output.count_text(done['copied'], 'file')} written.{held} Next: headgate doctor"
    )
    output.show_result(done, text, json=json)


def _check_here(action: str) -> Settings:
    """Return the settings of an embedded store; raise if they name a server."""
    settings = load_settings()
    if settings.server_url:
        raise Invalid(
            f"cannot {action} a store through its server at {settings.server_url}. Run this at "
            "the server's machine, in the directory of its headgate.toml and without HEADGATE_URL.",
            url=settings.server_url,
        )
    return settings


def _watch(what: str) -> backups.Watch:
    def watch(files: int, total_bytes: int) -> AbstractContextManager[Progress | None]:
        return output.copy_progress(what, files=files, total_bytes=total_bytes)

    return watch


@output.command
def recover(
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be done.")] = False,
    clock_was_ahead: Annotated[
        bool,
        Option("--clock-was-ahead", help="The clock is right now: set times in the future to now."),
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """Settle unfinished operations and abort abandoned transactions.

    Every other command does this first; a second recovery changes nothing. Exits with 4 if an
    operation needs manual action.

    A publication is never earlier than the one before it. After a jump of the clock, new ones are
    therefore in the future, until --clock-was-ahead corrects them. Their order stays.

    Example: headgate recover --dry-run
    """
    if clock_was_ahead:
        _check_here("correct the times of")
    with connection.open(recover_first=False) as hg:
        if clock_was_ahead and not dry_run:
            count = correct_times(hg.database, actor=hg.settings.actor)
            output.note(f"corrected the times of {output.count_text(count, 'publication')}")
        done = hg.recover(dry_run=dry_run)
    if json:
        output.show_json(recovery_json(done))
    else:
        _show_recovered(done, dry_run=dry_run)
    if any(kept["why"] != OWNER_ALIVE for kept in done.kept):
        raise Exit(4)


def _show_recovered(done: Recovered, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for operation in done.rolled_forward:
        output.note(f"operation {operation} {would}recorded as landed in lakeFS")
    for operation in done.rolled_back:
        output.note(f"operation {operation} {would}recorded as not landed in lakeFS")
    for transaction in done.aborted_transactions:
        output.note(f"transaction {transaction} {would}aborted")
    for kept in done.kept:
        output.note(f"operation {kept['operation']}: {kept['why']}")
    settled = len(done.rolled_forward) + len(done.rolled_back) + len(done.aborted_transactions)
    output.note(
        f"{would}settled: {output.count_text(settled, 'item')}" if settled else "nothing to settle."
    )


@output.command
def migrate(json: output.JsonOption = False) -> None:
    """Upgrade the catalog schema to this release. Back up a PostgreSQL catalog first.

    A SQLite catalog is copied to the same directory first; it also migrates when it is opened.

    Example: headgate migrate
    """
    settings = load_settings()
    database = Database(settings.catalog)
    try:
        with database.raw() as connected:
            is_empty = migrations.find_version(connected) == 0
        if is_empty:
            warehouse.check_new_catalog(open_store(settings.warehouse, settings.environ))
        before, after = migrations.migrate(database)
    finally:
        database.close()
    text = f"the catalog is migrated from schema version {before} to {after}."
    if before == after:
        text = f"the catalog already has schema version {after}."
    output.show_result({"catalog": database.where, "from": before, "to": after}, text, json=json)
