"""`headgate builds`: what was built."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate import store
from headgate.catalog.builds import BuildRecord, list_builds, load_build
from headgate.catalog.leftovers import cancel_build
from headgate.cli.output import ActorOption, JsonOption, note, show_json, show_table
from headgate.model.instants import instant_text

app = typer.Typer(no_args_is_help=True, help="List, show and cancel builds.")


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 50,
    json: JsonOption = False,
) -> None:
    """Builds, newest first.

    Example: headgate builds list --limit 10
    """
    with store.open() as hg:
        found = hg.database.read(lambda c: list_builds(c, limit=limit))
    if json:
        show_json([_to_json(build) for build in found])
        return
    show_table(
        ("BUILD", "BRANCH", "STATE", "TARGETS", "ACTOR", "STARTED"),
        (
            (
                build.id,
                build.branch,
                build.state,
                ", ".join(build.body["targets"]),
                build.actor,
                instant_text(build.started_at),
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
    with store.open() as hg:
        found = hg.database.read(lambda c: load_build(c, build))
    if json:
        show_json(_to_json(found) | {"jobs": [dict(job.body) for job in found.jobs]})
        return
    show_table(
        ("OUTPUTS", "STATE", "REASON", "ATTEMPTS", "SPARK JOBS"),
        (
            (
                ", ".join(job.body["outputs"]),
                job.state,
                job.reason,
                job.attempts,
                job.body["spark_jobs"],
            )
            for job in found.jobs
        ),
        empty="this build had no jobs.",
    )


@app.command()
def cancel(build: str, actor: ActorOption = None, json: JsonOption = False) -> None:
    """End a build that runs, wherever it runs: what it has not committed is aborted.

    Example: headgate builds cancel build-01m7f8gggmxzttp51zc67s
    """
    with store.open(actor=actor) as hg:
        found = cancel_build(hg.database, build, actor=hg.settings.actor)
    if json:
        show_json(_to_json(found))
        return
    note(f"build {found.id} is {found.state}")


def _to_json(build: BuildRecord) -> dict[str, Any]:
    return {
        "build": build.id,
        "branch": build.branch,
        "fallback": build.body["fallback"],
        "targets": build.body["targets"],
        "state": build.state,
        "actor": build.actor,
        "started_at": instant_text(build.started_at),
        "ended_at": instant_text(build.ended_at) if build.ended_at is not None else None,
    }
