"""`headgate build`: run JobSpecs on a branch."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate import opening
from headgate.builds.outcome import BuildInterrupted, BuildOutcome, ToldJob
from headgate.builds.report import BuildState
from headgate.cli.build_progress import BuildProgress
from headgate.cli.choosing import choose_chain, choose_parameters
from headgate.cli.jobs_view import job_tree
from headgate.cli.output import (
    MOST,
    ActorOption,
    BranchOption,
    JsonOption,
    console,
    note,
    say,
    show_json,
)
from headgate.cli.plan import Fallback, Force, Full, Parameters, Targets, Upstream
from headgate.handles.nouns import Json
from headgate.store import Store

app = typer.Typer()


@app.command()
def build(
    targets: Targets,
    branch: BranchOption = None,
    fallback: Fallback = None,
    upstream: Upstream = False,
    force: Force = False,
    full: Full = False,
    param: Parameters = None,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="Show nothing until the whole build has passed.")
    ] = False,
    retries: Annotated[
        int, typer.Option("--retries", min=0, max=MOST, help="N retries: N+1 tries.")
    ] = 0,
    abort_on_failure: Annotated[
        bool, typer.Option("--abort-on-failure", help="The first failure ends the build.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for branches others hold.")
    ] = 0,
    task_key: Annotated[
        str | None,
        typer.Option("--task-key", help="A scheduler's key: a newer build of it ends an older."),
    ] = None,
    on_server: Annotated[
        bool,
        typer.Option("--on-server", help="By the workers of the server, watched from here."),
    ] = False,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Build datasets on a branch, reading what is missing through the fallback chain.

    Of a served store the server plans and publishes; the jobs are done by Spark on this machine,
    or with --on-server by the server's workers.

    Example: headgate build sales.daily -b feature --fallback master
    """
    asked: dict[str, Any] = {
        "upstream": upstream,
        "force": force,
        "full": full,
        "parameters": choose_parameters(param),
        "atomic": atomic,
        "retries": retries,
        "abort_on_failure": abort_on_failure,
        "wait_seconds": wait,
        "task_key": task_key,
    }
    with opening.open(actor=actor) as hg:
        chosen, names = choose_chain(hg.settings, branch, fallback, Path.cwd())
        chain = " > ".join((chosen, *names))
        say(f"chain [bold]{chain}[/]")
        if on_server:
            _build_on_server(hg, targets, chosen, names, asked, json=json)
            return
        with BuildProgress(chain) as progress, _ending_on_terminate() as received:
            try:
                outcome = hg.build(
                    targets,
                    branch=chosen,
                    fallback=names,
                    watch=progress.show,
                    **asked,
                )
                code = 0 if outcome.state is BuildState.SUCCEEDED else 1
            except BuildInterrupted as interrupted:
                outcome = interrupted.outcome
                # As shells count it: 128 and the number of the signal.
                code = 128 + (received[0] if received else signal.SIGINT)
    _tell(outcome, json=json)
    if code:
        raise typer.Exit(code)


def _build_on_server(
    hg: Store,
    targets: Sequence[str],
    branch: str,
    fallback: Sequence[str],
    asked: Mapping[str, Any],
    *,
    json: bool,
) -> None:
    """Watches it to its end; whoever looks away with Ctrl-C leaves it running."""
    chain, seen = " > ".join((branch, *fallback)), ""

    with BuildProgress(chain) as progress:

        def watch(build: Json) -> None:
            nonlocal seen
            seen = build["build"]
            progress.show([ToldJob(job) for job in build["jobs"]])

        try:
            done = hg.build_on_server(
                targets, branch=branch, fallback=fallback, watch=watch, **asked
            )
        except KeyboardInterrupt:
            if seen:
                note(f"build {seen} goes on; `headgate builds cancel {seen}` ends it.")
            raise
    if json:
        names = ("build", "branch", "fallback", "state", "jobs", "publications")
        show_json({name: done[name] for name in names})
    else:
        console().print(job_tree(chain, done["jobs"]))
        say(f"build {done['build']} {done['state']}")
    if done["state"] != BuildState.SUCCEEDED:
        raise typer.Exit(1)


def _tell(outcome: BuildOutcome, *, json: bool) -> None:
    if json:
        show_json(outcome.to_json())
        return
    chain = " > ".join((outcome.branch, *outcome.fallback))
    console().print(job_tree(chain, outcome.live_jobs()))
    say(f"build {outcome.id} {outcome.state.value}")


@contextmanager
def _ending_on_terminate() -> Iterator[list[int]]:
    """A scheduler's SIGTERM ends a build as Ctrl-C does; gives the signals that came."""
    received: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)
