"""`headgate build`: run JobSpecs on a branch."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from headgate import connection
from headgate.builds.project import find_repository
from headgate.builds.report import BuildInterrupted, BuildOutcome, ShownJob, ToldJob
from headgate.cli.format import (
    checks_text,
    count_text,
    extent_text,
    job_tree,
    live_tree,
    plain_line,
)
from headgate.cli.output import (
    MOST,
    ActorOption,
    BranchOption,
    JsonOption,
    console,
    note,
    say,
    show_json,
    show_line,
    show_table,
)
from headgate.errors import GitUnusable, Invalid
from headgate.model.graph import Mark
from headgate.model.graph_render import MARK_SIGNS, GraphFormat
from headgate.model.names import listed
from headgate.model.nouns import BuildState, JobState
from headgate.settings import Settings
from headgate.store.documents import Json
from headgate.store.embedded import Store

# Which branch and fallback a command means when nobody said.


def choose_chain(
    settings: Settings, branch: str | None, fallback: Sequence[str] | None, directory: Path
) -> tuple[str, tuple[str, ...]]:
    """The branch given, else the one checked out; the fallback given, else configured.

    Without either the fallback is the primary branch, unless that is being built.
    """
    chosen = branch or _checked_out(directory) or settings.builds.branch
    if fallback:
        return chosen, listed(",".join(fallback))
    return chosen, settings.builds.fallback_of(chosen)


def choose_parameters(given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE`, as often as there are parameters to set."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Invalid(f"{text!r} sets no parameter: write NAME=VALUE.", given=text)
        if name.strip() in found:
            raise Invalid(f"parameter {name.strip()!r} is set twice.", given=text)
        found[name.strip()] = value
    return found


def _checked_out(directory: Path) -> str | None:
    """The branch of the repository here; none outside of one.

    With a commit checked out and no branch, as in CI, nobody said that the primary one is meant.
    """
    try:
        repository = find_repository(directory)
    except GitUnusable:
        return None
    return repository.branch()


# How a build goes: a live tree where a person watches, a line for each change elsewhere.

# Lines of the terminal that the tree leaves alone: its own title and summary, and the prompt's.
_LEFT_ALONE = 5
_PER_SECOND = 8
_QUIET = {JobState.WAITING, JobState.SKIPPED, JobState.ADOPTED}


class BuildProgress:
    """Shows a build's jobs on stderr for the length of a `with` block; stdout is for results."""

    def __init__(self, chain: str, console: Console | None = None) -> None:
        self._chain = chain
        self._console = console or Console(stderr=True, highlight=False)
        self._jobs: Sequence[ShownJob] = ()
        self._told: dict[int, tuple[JobState, int]] = {}
        # Jobs report from threads of their own.
        self._lock = threading.Lock()
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._draw,
                refresh_per_second=_PER_SECOND,
                transient=True,
            )

    def show(self, jobs: Sequence[ShownJob]) -> None:
        """Takes in how the jobs are doing now."""
        with self._lock:
            if self._live is None:
                self._tell(jobs)
            self._jobs = jobs

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _draw(self) -> RenderableType:
        """Called by the clock too, so that times go on while nothing else changes."""
        if not self._jobs:
            return Text("planning", style="dim")
        room = max(self._console.height - _LEFT_ALONE, 1)
        return live_tree(self._chain, self._jobs, room=room)

    def _tell(self, jobs: Sequence[ShownJob]) -> None:
        if not self._told:
            counted = Counter(job.state for job in jobs)
            adopted, fresh = counted[JobState.ADOPTED], counted[JobState.SKIPPED]
            todo = len(jobs) - adopted - fresh
            self._write(f"{count_text(todo, 'job')} to do, {adopted} adopted, {fresh} fresh")
        for position, job in enumerate(jobs):
            now = (job.state, job.attempts)
            if self._told.get(position) != now and job.state not in _QUIET:
                self._write(plain_line(job.to_live_json()))
            self._told[position] = now

    def _write(self, line: str) -> None:
        self._console.file.write(f"{line}\n")
        self._console.file.flush()


# `headgate plan`: what a build would do, and why each job is stale, fresh or adopted.

plan_app = typer.Typer()

Targets = Annotated[list[str], typer.Argument(help="Datasets to build.")]
Fallback = Annotated[
    list[str] | None,
    typer.Option("--fallback", metavar="A,B", help="Branches to read from, in order."),
]
Upstream = Annotated[
    bool, typer.Option("--upstream", help="Also all that the targets are made of.")
]
Force = Annotated[bool, typer.Option("--force", help="Run every job, fresh or not.")]
Full = Annotated[bool, typer.Option("--full", help="Incremental jobs run and read everything.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Set a parameter; as often as needed."),
]


@plan_app.command()
def plan(
    targets: Targets,
    branch: BranchOption = None,
    fallback: Fallback = None,
    upstream: Upstream = False,
    force: Force = False,
    full: Full = False,
    param: Parameters = None,
    graph: Annotated[
        GraphFormat | None, typer.Option("--graph", help="Draw what is made of what.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """What a build would do, and why; nothing is changed.

    A graph shows each dataset on the branch it is read from or written to, with a mark: blue if
    the primary branch has a JobSpec that makes it, gray if not. With --json it is the key "graph":
    {"format", "text", "chain", "primary", "nodes", "edges"}.

    Example: headgate plan sales.daily -b feature --fallback master --upstream

    Example: headgate plan sales.daily --upstream --graph svg > plan.svg
    """
    with connection.open() as hg:
        chosen, names = choose_chain(hg.settings, branch, fallback, Path.cwd())
        made = hg.plan(
            targets,
            branch=chosen,
            fallback=names,
            upstream=upstream,
            force=force,
            full=full,
            parameters=choose_parameters(param),
            graph=graph,
        )
    if json:
        show_json(made.to_json())
    elif graph and made.graph:
        _show_graph(graph, made.graph["text"].rstrip("\n"))
    else:
        jobs = [job.to_json() for job in made.jobs]
        console().print(job_tree(" > ".join((chosen, *names)), jobs))


def _show_graph(format: GraphFormat, drawn: str) -> None:
    if format is not GraphFormat.TREE:
        show_line(drawn)
        return
    text = Text(drawn)
    text.highlight_words([MARK_SIGNS[Mark.BLUE]], "bold blue")
    text.highlight_words([MARK_SIGNS[Mark.GRAY]], "bright_black")
    console().print(text, soft_wrap=True)


build_app = typer.Typer()


@build_app.command()
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
    with connection.open(actor=actor) as hg:
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


# `headgate builds`: what was built.

builds_app = typer.Typer(no_args_is_help=True, help="List, show and cancel builds.")


@builds_app.command("list")
def list_(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MOST, help="How many, newest first.")
    ] = 50,
    json: JsonOption = False,
) -> None:
    """Builds, newest first.

    Example: headgate builds list --limit 10
    """
    with connection.open() as hg:
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


@builds_app.command()
def show(build: str, json: JsonOption = False) -> None:
    """One build with its jobs.

    Example: headgate builds show build-01m7f8gggmxzttp51zc67s
    """
    with connection.open() as hg:
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


@builds_app.command()
def cancel(build: str, actor: ActorOption = None, json: JsonOption = False) -> None:
    """End a build that runs, wherever it runs: what it has not committed is aborted.

    Example: headgate builds cancel build-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        found = hg.cancel_build(build)
    if json:
        show_json(found)
        return
    note(f"build {found['build']} is {found['state']}")
