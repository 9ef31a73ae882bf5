"""`headgate build`: run JobSpecs on a branch."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from headgate import store
from headgate.builds.report import BuildState, JobReport
from headgate.builds.run import BuildInterrupted, BuildOutcome
from headgate.cli.choosing import choose_chain
from headgate.cli.jobs_view import job_tree
from headgate.cli.output import ActorOption, BranchOption, JsonOption, say, show_json
from headgate.cli.plan import Fallback, Force, Targets, Upstream

app = typer.Typer()


@app.command()
def build(
    targets: Targets,
    branch: BranchOption = None,
    fallback: Fallback = None,
    upstream: Upstream = False,
    force: Force = False,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="Show nothing until the whole build has passed.")
    ] = False,
    retries: Annotated[int, typer.Option("--retries", min=0, help="N retries: N+1 tries.")] = 0,
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
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Build datasets on a branch, reading what is missing through the fallback chain.

    Example: headgate build sales.daily -b feature --fallback master
    """
    with store.open(actor=actor) as hg:
        chosen, names = choose_chain(hg.settings, branch, fallback, Path.cwd())
        chain = " > ".join((chosen, *names))
        say(f"chain [bold]{chain}[/]")
        with _Progress(chain, quiet=json) as progress, _ending_on_terminate() as received:
            try:
                outcome = hg.build(
                    targets,
                    branch=chosen,
                    fallback=names,
                    upstream=upstream,
                    force=force,
                    atomic=atomic,
                    retries=retries,
                    abort_on_failure=abort_on_failure,
                    wait_seconds=wait,
                    task_key=task_key,
                    watch=progress.show,
                )
                code = 0 if outcome.state is BuildState.SUCCEEDED else 1
            except BuildInterrupted as interrupted:
                outcome = interrupted.outcome
                # As shells count it: 128 and the number of the signal.
                code = 128 + (received[0] if received else signal.SIGINT)
    _tell(outcome, json=json)
    if code:
        raise typer.Exit(code)


def _tell(outcome: BuildOutcome, *, json: bool) -> None:
    if json:
        show_json(outcome.to_json())
        return
    chain = " > ".join((outcome.plan.request.branch, *outcome.plan.request.fallback))
    Console(highlight=False).print(job_tree(chain, outcome.jobs))
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


class _Progress:
    """A live tree on a terminal; nothing where nobody watches."""

    def __init__(self, chain: str, *, quiet: bool) -> None:
        self._chain = chain
        console = Console(stderr=True, highlight=False)
        self._live = (
            Live(console=console, refresh_per_second=8, transient=True)
            if console.is_terminal and not quiet and sys.stderr.isatty()
            else None
        )

    def show(self, reports: list[JobReport]) -> None:
        if self._live is not None:
            self._live.update(job_tree(self._chain, reports))

    def __enter__(self) -> _Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
