"""`headgate builds`: what was built."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate import opening
from headgate.cli.built import checks_text, extent_text
from headgate.cli.output import MOST, ActorOption, JsonOption, note, show_json, show_table

app = typer.Typer(no_args_is_help=True, help="List, show and cancel builds.")


@app.command("list")
def list_(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MOST, help="How many, newest first.")
    ] = 50,
    json: JsonOption = False,
) -> None:
    """Builds, newest first.

    Example: headgate builds list --limit 10
    """
    with opening.open() as hg:
        found = hg.builds(limit=limit)
    if json:
        show_json(found)
        return
    show_table(
        ("BUILD", "BRANCH", "STATE", "TARGETS", "ACTOR", "STARTED"),
        (
            (
                build["build"],
                build["branch"],
                build["state"],
                ", ".join(build["targets"]),
                build["actor"],
                build["started_at"],
            )
            for build in found
        ),
        empty="no build yet; `headgate build` runs one.",
    )


@app.command()
def show(build: str, json: JsonOption = False) -> None:
    """One build with its jobs.

    Example: headgate builds show build-01m7f8gggmxzttp51zc67s
    """
    with opening.open() as hg:
        found = hg.build_record(build)
    if json:
        show_json(found)
        return
    show_table(
        ("OUTPUTS", "STATE", "REASON", "ATTEMPTS", "SPARK JOBS", "READ", "CHECKS"),
        (
            (
                ", ".join(job["outputs"]),
                job["state"],
                job["reason"],
                job["attempts"],
                job["spark_jobs"],
                extent_text(job.get("incremental")),
                checks_text(job.get("checks") or ()),
            )
            for job in found["jobs"]
        ),
        empty="this build had no jobs.",
    )


@app.command()
def cancel(build: str, actor: ActorOption = None, json: JsonOption = False) -> None:
    """End a build that runs, wherever it runs: what it has not committed is aborted.

    Example: headgate builds cancel build-01m7f8gggmxzttp51zc67s
    """
    with opening.open(actor=actor) as hg:
        found = hg.cancel_build(build)
    if json:
        show_json(found)
        return
    note(f"build {found['build']} is {found['state']}")
