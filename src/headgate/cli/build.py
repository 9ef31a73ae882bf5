"""`headgate plan`, `headgate build` and `headgate builds`: plan and run JobSpecs, list builds."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text
from rich.tree import Tree
from typer import Argument, Exit, Option, Typer

from headgate import connection
from headgate.builds.plan import PlanOptions
from headgate.builds.project import find_repository, find_unpublished
from headgate.builds.report import BuildInterrupted, JobStatus, RemoteJob, explain_job, hold_text
from headgate.cli import output
from headgate.cli.format import checks_text, note_report, report_json
from headgate.errors import BranchNowhere, GitUnusable, HeadgateError, Invalid
from headgate.model.freshness import Reason
from headgate.model.graph import Mark
from headgate.model.graph_render import MARK_SIGNS, GraphFormat
from headgate.model.incrementality import extent_text
from headgate.model.names import split_names
from headgate.model.nouns import BuildState, JobState
from headgate.settings import Settings
from headgate.store.documents import Json, logic_text
from headgate.store.embedded import Store


def choose_chain(
    settings: Settings,
    branch: str | None,
    fallback: Sequence[str] | None,
    directory: Path,
    *,
    create: bool,
) -> tuple[str, tuple[str, ...], bool | None]:
    """Return the branch and fallback of the options, with defaults, and the option `create`.

    The default branch is the one checked out in Git, else the primary branch. The default
    fallback is the configured one, else the primary branch unless that is being built. The branch
    that is checked out in Git may be new.
    """
    named, *rest = branch.split(">") if branch else (None,)
    chosen = named or _checked_out(directory) or settings.builds.branch
    written = split_names(",".join((*rest, *(fallback or ()))))
    if written:
        return chosen, written, create or None
    may_be_new = create or named is None or named == _find_checked_out(directory)
    return chosen, settings.builds.fallback_of(chosen), may_be_new


def choose_targets(given: Sequence[str] | None, *, all: bool) -> list[str]:
    """Return the targets of the arguments, or the pattern that matches every dataset."""
    if all and given:
        raise Invalid("--all builds every dataset: give it or targets, not both.")
    if not all and not given:
        raise Invalid("name the datasets to build, or give --all.")
    return ["*"] if all else list(given or ())


def choose_parameters(given: Sequence[str] | None) -> dict[str, str]:
    """Return the parameters of `NAME=VALUE` options."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Invalid(f"invalid parameter {text!r}: write NAME=VALUE.", given=text)
        if name.strip() in found:
            raise Invalid(f"parameter {name.strip()!r} is given twice: give it once.", given=text)
        found[name.strip()] = value
    return found


def _checked_out(directory: Path) -> str | None:
    """Return the Git branch of the directory; None outside of a repository.

    Raise for a detached HEAD, as in CI: it does not imply the primary branch.
    """
    try:
        repository = find_repository(directory)
    except GitUnusable:
        return None
    return repository.branch()


def _note_unpublished(hg: Store, branch: str) -> Json:
    """Warn on stderr of code in this directory that is not published; return it for --json."""
    found = find_unpublished(Path.cwd(), branch, hg.jobspecs)
    if found is None:
        return {}
    output.note(f"warning: {found.text}")
    return {"unpublished": found.to_json()}


def _check_branch(hg: Store, targets: Sequence[str], **asked: Unpack[PlanOptions]) -> None:
    """Raise for a misspelled branch, before code is published under its name."""
    try:
        hg.plan(targets, **asked)
    except BranchNowhere:
        raise
    except HeadgateError:
        # The code that it needs may only be published now.
        return


def _publish(
    hg: Store, branch: str, fallback: Sequence[str], *, publish: bool, allow_dirty: bool
) -> Json:
    """Publish the code of this directory before a build; else warn if it is not published."""
    if publish:
        done = hg.publish_jobspecs(
            Path.cwd(), branch=branch, allow_dirty=allow_dirty, fallback=fallback
        )
        note_report(done)
        return {"jobspecs": report_json(done)}
    if allow_dirty:
        raise Invalid("--allow-dirty is given without --publish: give both, or neither.")
    return _note_unpublished(hg, branch)


def _find_checked_out(directory: Path) -> str | None:
    try:
        return _checked_out(directory)
    except HeadgateError:
        return None


# Lines of the terminal for the tree's title and summary, and the prompt.
_RESERVED_LINES = 5
_NOT_LOGGED = {JobState.WAITING, JobState.SKIPPED, JobState.ADOPTED}


class BuildProgress:
    """Context manager that shows a build's jobs on stderr.

    On a terminal it draws a live tree, elsewhere it writes a line for each change of state.
    """

    def __init__(self, chain: str, console: Console | None = None) -> None:
        self._chain = chain
        self._console = console or Console(stderr=True, highlight=False)
        self._jobs: Sequence[JobStatus] = ()
        self._written: dict[int, tuple[JobState, int, str | None]] = {}
        # Each job reports from its own thread.
        self._lock = threading.Lock()
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._draw,
                refresh_per_second=8,
                transient=True,
            )

    def show(self, jobs: Sequence[JobStatus]) -> None:
        """Show the current state of the jobs."""
        with self._lock:
            if self._live is None:
                self._write_changes(jobs)
            self._jobs = jobs

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _draw(self) -> RenderableType:
        """Return the tree; the refresh timer calls this too, which updates durations."""
        if not self._jobs:
            return Text("planning", style="dim")
        room = max(self._console.height - _RESERVED_LINES, 1)
        return live_tree(self._chain, self._jobs, room=room)

    def _write_changes(self, jobs: Sequence[JobStatus]) -> None:
        if not self._written:
            counted = Counter(job.state for job in jobs)
            adopted, skipped = counted[JobState.ADOPTED], counted[JobState.SKIPPED]
            held = sum(job.reason is Reason.HELD for job in jobs)
            todo = output.count_text(len(jobs) - adopted - skipped, "job")
            kept = f"{skipped - held} fresh" + (f", {held} held" if held else "")
            self._write(f"{todo} to do, {adopted} adopted, {kept}")
        for position, job in enumerate(jobs):
            now = (job.state, job.attempts, job.phase)
            is_shown = job.state not in _NOT_LOGGED or job.phase is not None
            if self._written.get(position) != now and is_shown:
                self._write(job_line(job.to_live_json()).plain)
            self._written[position] = now

    def _write(self, line: str) -> None:
        self._console.file.write(f"{line}\n")
        self._console.file.flush()


Targets = Annotated[
    list[str] | None, Argument(help="Datasets to build, or patterns such as 'gold.*'.")
]
All = Annotated[bool, Option("--all", help="Build every dataset that has a JobSpec.")]
Upstream = Annotated[bool, Option("--upstream", help="Also build all upstream datasets.")]
Force = Annotated[bool, Option("--force", help="Run fresh jobs too.")]
Full = Annotated[bool, Option("--full", help="Rerun incremental jobs and read all input.")]
Parameters = Annotated[
    list[str] | None, Option("--param", metavar="NAME=VALUE", help="Set a parameter; repeatable.")
]


@output.command
def plan(
    targets: Targets = None,
    all: All = False,
    branch: output.BranchOption = None,
    fallback: output.FallbackOption = None,
    upstream: Upstream = False,
    force: Force = False,
    full: Full = False,
    create: output.CreateOption = False,
    param: Parameters = None,
    graph: Annotated[
        GraphFormat | None, Option("--graph", help="Print the graph of datasets.")
    ] = None,
    explain: Annotated[
        bool, Option("--explain", help="Show what differs from the last build.")
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """Show what a build would run, and why, without changing anything.

    A graph shows each dataset on the branch it is read from or written to, with a mark: blue if
    the primary branch has a JobSpec that makes it, gray if not. With --json it is the key "graph":
    {"format", "text", "chain", "primary", "nodes", "edges"}.

    Example: headgate plan sales.daily -b feature --fallback master --upstream

    Example: headgate plan 'sales.*' -b feature --explain

    Example: headgate plan sales.daily --upstream --graph svg > plan.svg
    """
    with connection.open() as hg:
        chosen, names, may_be_new = choose_chain(
            hg.settings, branch, fallback, Path.cwd(), create=create
        )
        more = _note_unpublished(hg, chosen)
        made = hg.plan(
            choose_targets(targets, all=all),
            branch=chosen,
            fallback=names,
            create=may_be_new,
            upstream=upstream,
            force=force,
            full=full,
            parameters=choose_parameters(param),
            graph=graph,
        )
    if json:
        output.show_json(made.to_json() | more)
    elif graph and made.graph:
        _show_graph(graph, made.graph["text"].rstrip("\n"))
    else:
        jobs = [job.to_json() for job in made.jobs]
        output.console().print(job_tree(" > ".join((chosen, *names)), jobs, explain=explain))


def _show_graph(format: GraphFormat, drawn: str) -> None:
    if format is not GraphFormat.TREE:
        output.show_line(drawn)
        return
    text = Text(drawn)
    text.highlight_words([MARK_SIGNS[Mark.BLUE]], "bold blue")
    text.highlight_words([MARK_SIGNS[Mark.GRAY]], "bright_black")
    output.console().print(text, soft_wrap=True)


@output.command
def build(
    targets: Targets = None,
    all: All = False,
    branch: output.BranchOption = None,
    fallback: output.FallbackOption = None,
    upstream: Upstream = False,
    force: Force = False,
    full: Full = False,
    create: output.CreateOption = False,
    param: Parameters = None,
    atomic: Annotated[
        bool, Option("--atomic", help="Publish all outputs together, after the last job.")
    ] = False,
    retries: Annotated[
        int, Option("--retries", min=0, max=output.MAX_COUNT, help="Retries of a failed job.")
    ] = 0,
    abort_on_failure: Annotated[
        bool, Option("--abort-on-failure", help="End the build at the first failure.")
    ] = False,
    wait: Annotated[
        float, Option("--wait", min=0, help="Seconds to wait for OPEN transactions.")
    ] = 0,
    task_key: Annotated[
        str | None,
        Option(
            "--task-key",
            help="Scheduler key; a newer build with the same key cancels the older one.",
        ),
    ] = None,
    on_server: Annotated[
        bool, Option("--on-server", help="Run the jobs on the workers of the server.")
    ] = False,
    publish: Annotated[
        bool, Option("--publish", help="Publish the checked-out commit's JobSpecs first.")
    ] = False,
    allow_dirty: output.AllowDirty = False,
    cold: output.ColdOption = False,
    actor: output.ActorOption = None,
    json: output.JsonOption = False,
) -> None:
    """Build datasets on a branch; missing inputs are read through the fallback chain.

    A build runs published JobSpecs, and warns if the code here is not published on the branch;
    --publish publishes it first, as `jobspecs publish` does.

    With a server, the server plans and publishes. The jobs run on Spark on this machine, or with
    --on-server on the server's workers.

    Example: headgate build sales.daily -b feature --fallback master

    Example: headgate build sales.daily --publish

    Example: headgate build --all
    """
    wanted = choose_targets(targets, all=all)
    options: dict[str, Any] = {
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
    with connection.open(actor=actor, cold=cold) as hg:
        chosen, names, options["create"] = choose_chain(
            hg.settings, branch, fallback, Path.cwd(), create=create
        )
        chain = " > ".join((chosen, *names))
        output.note(f"chain {chain}")
        if publish and options["create"] is False:
            _check_branch(hg, wanted, branch=chosen, fallback=names, create=False)
        more = _publish(hg, chosen, names, publish=publish, allow_dirty=allow_dirty)
        if on_server:
            _build_on_server(hg, wanted, chosen, names, options, more, json=json)
            return
        with BuildProgress(chain) as progress, _ending_on_terminate() as received:
            try:
                outcome = hg.build(
                    wanted, branch=chosen, fallback=names, watch=progress.show, **options
                )
                code = 0 if outcome.state is BuildState.SUCCEEDED else 1
            except BuildInterrupted as interrupted:
                outcome = interrupted.outcome
                # The convention of shells: 128 plus the signal number.
                code = 128 + (received[0] if received else signal.SIGINT)
    if json:
        output.show_json(outcome.to_json() | more)
    else:
        _show_build(chain, outcome.live_jobs(), id=outcome.id, state=outcome.state)
    if code:
        raise Exit(code)


def _build_on_server(
    hg: Store,
    targets: Sequence[str],
    branch: str,
    fallback: Sequence[str],
    options: Mapping[str, Any],
    more: Json,
    *,
    json: bool,
) -> None:
    """Run a build on the server and show it until it ends; Ctrl-C leaves it running."""
    chain, seen = " > ".join((branch, *fallback)), ""

    with BuildProgress(chain) as progress:

        def watch(build: Json) -> None:
            nonlocal seen
            seen = build["build"]
            progress.show([RemoteJob(job) for job in build["jobs"]])

        try:
            done = hg.build_on_server(
                targets, branch=branch, fallback=fallback, watch=watch, **options
            )
        except KeyboardInterrupt:
            if seen:
                output.note(
                    f"build {seen} runs on; cancel it with `headgate builds cancel {seen}`."
                )
            raise
    if json:
        names = ("build", "branch", "fallback", "state", "jobs", "publications")
        output.show_json({name: done[name] for name in names} | more)
    else:
        _show_build(chain, done["jobs"], id=done["build"], state=done["state"])
    if done["state"] != BuildState.SUCCEEDED:
        raise Exit(1)


def _show_build(chain: str, jobs: Sequence[Json], *, id: str, state: str) -> None:
    output.console().print(job_tree(chain, jobs))
    output.note(f"build {id} {state}")


@contextmanager
def _ending_on_terminate() -> Iterator[list[int]]:
    """Handle SIGTERM, which schedulers send, as Ctrl-C; yield the received signals."""
    received: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


builds_app = Typer(no_args_is_help=True, help="List, show and cancel builds, and print their logs.")


@builds_app.command("list")
def list_(limit: output.LimitOption = 50, json: output.JsonOption = False) -> None:
    """List builds, newest first.

    Example: headgate builds list --limit 10
    """
    with connection.open() as hg:
        found = hg.builds(limit=limit)
    columns = {name.upper(): name for name in ("build", "branch", "state", "targets", "actor")}
    columns["STARTED"] = "started_at"
    empty = "no builds; run one with `headgate build`."
    output.show_list(found, columns, empty=empty, json=json)


@builds_app.command()
def show(build: str, json: output.JsonOption = False) -> None:
    """Show a build and its jobs.

    Example: headgate builds show build-01m7f8gggmxzttp51zc67s
    """
    with connection.open() as hg:
        found = hg.build_record(build)
    columns: output.Columns = {
        "OUTPUTS": "outputs",
        "STATE": "state",
        "REASON": _reason,
        "LOGIC": logic_text,
        "ATTEMPTS": "attempts",
        "SPARK JOBS": "spark_jobs",
        "READ": lambda job: extent_text(job.get("incremental")),
        "CHECKS": lambda job: checks_text(job.get("checks") or ()),
    }
    output.show_list(found["jobs"], columns, empty="no jobs.", json=json, document=found)


def _reason(job: Json) -> str:
    held = job.get("held")
    return f"held (reset {held['publication']})" if held else str(job["reason"])


@builds_app.command()
def logs(
    build: str,
    job: Annotated[
        str | None, Argument(metavar="JOB", help="An output of the job, or its number.")
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Print the logs of a build's jobs: what their code printed, and its tracebacks.

    Logs of the newest 200 builds are kept, also of those that succeeded, and older ones for a week.
    Of a long log, the last megabyte is printed. JSON: {"build", "jobs": [{"job", "outputs",
    "state", "log", "cut"}]}; log is null where the job did not run or its log is not kept.

    Example: headgate builds logs build-01m7f8gggmxzttp51zc67s sales.daily
    """
    with connection.open() as hg:
        found = hg.build_logs(build, job)
    if json:
        output.show_json(found)
        return
    for one in found["jobs"]:
        output.note(f"job {one['job']}, {', '.join(one['outputs'])}: {one['state']}")
        if one["cut"]:
            output.note("(the beginning is cut off)")
        if one["log"] is None:
            output.note("(no log is kept here)")
        elif one["log"]:
            output.show_line(one["log"].rstrip("\n"))


@builds_app.command()
def cancel(build: str, actor: output.ActorOption = None, json: output.JsonOption = False) -> None:
    """Cancel a running build and abort its open transactions.

    Example: headgate builds cancel build-01m7f8gggmxzttp51zc67s
    """
    with connection.open(actor=actor) as hg:
        found = hg.cancel_build(build)
    output.show_result(found, f"build {found['build']} is {found['state']}", json=json)


# Text of jobs, for a plan and for a build.

# state → (mark, style)
_JOB_STYLES = {
    JobState.WAITING: ("○", "dim"),
    JobState.RUNNING: ("◐", "cyan"),
    JobState.SUCCEEDED: ("●", "green"),
    JobState.FAILED: ("✗", "bold red"),
    JobState.ABORTED: ("✗", "red"),
    JobState.SKIPPED: ("–", "dim"),
    JobState.ADOPTED: ("◆", "blue"),
}
_BAR_WIDTH = 10
# Shown first when the terminal has no room for all jobs.
_SHOWN_FIRST = (JobState.RUNNING, JobState.FAILED, JobState.ABORTED)


def job_tree(title: str, jobs: Sequence[Json], *, explain: bool = False) -> Tree:
    """Return a tree with the chain on top, a line per job, and its reasons and inputs below it."""
    tree = _chain(title)
    for job in jobs:
        node = tree.add(job_line(job))
        node.add(Text(f"logic {logic_text(job)}", style="dim"))
        for sentence in explain_job(job) if explain else ():
            node.add(Text(sentence))
        for given in job["inputs"]:
            where = given["transaction"] or "(this build)"
            node.add(Text(f"reads {given['dataset']} @ {given['branch']}  {where}", style="dim"))
        if job.get("incremental") is not None:
            node.add(Text(extent_text(job["incremental"]), style="dim"))
        for check in job.get("checks") or ():
            if not check["passed"] and check["on_error"] == "WARN":
                where = f"{check['dataset']}, check {check['name']!r}"
                node.add(Text(f"WARN {where}: {check['reason']}", style="yellow"))
        if job.get("error") is not None:
            node.add(Text(_error(job), style="red"))
    if not jobs:
        tree.add("nothing to do")
    return tree


def live_tree(title: str, jobs: Sequence[JobStatus], *, room: int) -> Tree:
    """Return a tree of the jobs that fit in `room` lines, and the counts of the others."""
    tree = _chain(title)
    shown = _chosen(jobs, room)
    for position in sorted(shown):
        job = jobs[position].to_live_json()
        node = tree.add(job_line(job))
        if (stages := _stages(job)) is not None:
            node.add(stages)
    rest = Counter(job.state for at, job in enumerate(jobs) if at not in shown)
    if rest:
        counted = ", ".join(f"{rest[state]} {state.value}" for state in JobState if rest[state])
        tree.add(Text(counted, style="dim"))
    return tree


def _stages(job: Json) -> Text | None:
    """Return the progress of the Spark stages of a running job."""
    found = job.get("stages")
    if job["state"] != JobState.RUNNING or found is None:
        return None
    full = _BAR_WIDTH * found["tasks_done"] // max(found["tasks"], 1)
    stage = min(found["done"] + 1, found["all"])
    return Text.assemble(
        (f"stage {stage}/{found['all']}  ", "dim"),
        ("━" * full, "cyan"),
        ("━" * (_BAR_WIDTH - full), "bright_black"),
        (f"  {found['tasks_done']}/{found['tasks']} tasks", "dim"),
    )


def _chosen(jobs: Sequence[JobStatus], room: int) -> set[int]:
    """Return the positions of the jobs to show: running or failed, then the last ended."""
    order = {state: at for at, state in enumerate(_SHOWN_FIRST)}

    def rank(position: int) -> tuple[int, float]:
        job = jobs[position]
        return order.get(job.state, len(order)), -(job.ended or 0.0)

    chosen: set[int] = set()
    for position in sorted(range(len(jobs)), key=rank):
        # A running job has a second line for its stages.
        room -= 2 if jobs[position].state is JobState.RUNNING else 1
        if room < 0:
            break
        chosen.add(position)
    return chosen


def _chain(title: str) -> Tree:
    return Tree(Text.assemble("chain ", (title, "bold")))


def job_line(job: Json) -> Text:
    """Return the state, reason, rows and duration of a job in one line."""
    state = JobState(job["state"])
    mark, style = _JOB_STYLES[state]
    line = Text.assemble((f"{mark} ", style), (", ".join(job["outputs"]), "bold"), "  ")
    line.append(f"{job.get('phase') or state.value} ({job['reason']})", style=style)
    if job.get("adopted_from") is not None:
        line.append(f", from {job['adopted_from']['branch']}", style=style)
    if job.get("held") is not None:
        line.append(f": {hold_text(job['held'])}", style=style)
    if job["attempts"] > 1:
        line.append(f", attempt {job['attempts']}")
    if state is JobState.RUNNING and job.get("rows"):
        line.append(f", {output.count_text(job['rows'], 'row')}", style="dim")
    if state is JobState.SUCCEEDED:
        rows = f"{output.count_text(job['rows'], 'row')}, " if job.get("rows") is not None else ""
        jobs = output.count_text(job["spark_jobs"], "Spark job")
        line.append(f", {rows}{jobs}", style="dim")
    if job.get("seconds") is not None:
        line.append(f", {job['seconds']:.1f} s", style="dim")
    return line


def _error(job: Json) -> str:
    error = dict(job["error"] or {})
    where = f"{error['file']}:{error['line']}: " if error.get("file") else ""
    text = f"{where}{error.get('message', 'failed')}"
    return f"{text}\nlog: {job['log']}" if job.get("log") else text
