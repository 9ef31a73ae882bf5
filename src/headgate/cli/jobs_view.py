"""Jobs as a tree for a person: state, reason, where inputs come from, what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from headgate.builds.outcome import ShownJob
from headgate.builds.report import JobState
from headgate.cli.built import extent_text
from headgate.cli.formatting import count_text
from headgate.handles.nouns import Json

_STYLES = {
    JobState.WAITING: "dim",
    JobState.RUNNING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "bold red",
    JobState.ABORTED: "red",
    JobState.SKIPPED: "dim",
    JobState.ADOPTED: "blue",
}
_MARKS = {
    JobState.WAITING: "○",
    JobState.RUNNING: "◐",
    JobState.SUCCEEDED: "●",
    JobState.FAILED: "✗",
    JobState.ABORTED: "✗",
    JobState.SKIPPED: "–",
    JobState.ADOPTED: "◆",
}
_BAR = 10
# Those that a watcher wants to see first, when not all jobs have room.
_WATCHED = (JobState.RUNNING, JobState.FAILED, JobState.ABORTED)


def job_tree(title: str, jobs: Sequence[Json]) -> Tree:
    """The chain on top, then a line per job with its inputs below."""
    tree = _chain(title)
    for job in jobs:
        node = tree.add(_line(job))
        for given in job["inputs"]:
            where = given["transaction"] or "(this build)"
            node.add(Text(f"reads {given['dataset']} @ {given['branch']}  {where}", style="dim"))
        if job.get("incremental") is not None:
            node.add(Text(extent_text(job["incremental"]), style="dim"))
        if job.get("error") is not None:
            node.add(Text(_error(job), style="red"))
    if not jobs:
        tree.add("nothing to do")
    return tree


def live_tree(title: str, jobs: Sequence[ShownJob], *, room: int) -> Tree:
    """As many jobs as the lines allow, those that run first of all; the others are counted."""
    tree = _chain(title)
    shown = _chosen(jobs, room)
    for position in sorted(shown):
        job = jobs[position].to_live_json()
        node = tree.add(_line(job))
        if (stages := _stages(job)) is not None:
            node.add(stages)
    rest = Counter(job.state for at, job in enumerate(jobs) if at not in shown)
    if rest:
        counted = ", ".join(f"{rest[state]} {state.value}" for state in JobState if rest[state])
        tree.add(Text(counted, style="dim"))
    return tree


def plain_line(job: Json) -> str:
    """A job in one line, without colours."""
    return _line(job).plain


def _stages(job: Json) -> Text | None:
    """How far Spark is with a running job."""
    found = job.get("stages")
    if job["state"] != JobState.RUNNING or found is None:
        return None
    full = _BAR * found["tasks_done"] // max(found["tasks"], 1)
    stage = min(found["done"] + 1, found["all"])
    return Text.assemble(
        (f"stage {stage}/{found['all']}  ", "dim"),
        ("━" * full, "cyan"),
        ("━" * (_BAR - full), "bright_black"),
        (f"  {found['tasks_done']}/{found['tasks']} tasks", "dim"),
    )


def _chosen(jobs: Sequence[ShownJob], room: int) -> set[int]:
    """Positions of the jobs to show: at work or failed, then those that ended last."""
    order = {state: at for at, state in enumerate(_WATCHED)}

    def rank(position: int) -> tuple[int, float]:
        job = jobs[position]
        return order.get(job.state, len(order)), -(job.ended or 0.0)

    chosen: set[int] = set()
    for position in sorted(range(len(jobs)), key=rank):
        # One that runs has a line of its own for its stages.
        room -= 2 if jobs[position].state is JobState.RUNNING else 1
        if room < 0:
            break
        chosen.add(position)
    return chosen


def _chain(title: str) -> Tree:
    return Tree(Text.assemble("chain ", (title, "bold")))


def _line(job: Json) -> Text:
    state = JobState(job["state"])
    style = _STYLES[state]
    line = Text.assemble((f"{_MARKS[state]} ", style), (", ".join(job["outputs"]), "bold"), "  ")
    line.append(f"{state.value} ({job['reason']})", style=style)
    if job.get("adopted_from") is not None:
        line.append(f", from {job['adopted_from']['branch']}", style=style)
    if job["attempts"] > 1:
        line.append(f", attempt {job['attempts']}")
    if state is JobState.RUNNING and job.get("rows"):
        line.append(f", {count_text(job['rows'], 'row')}", style="dim")
    if state is JobState.SUCCEEDED:
        rows = f"{count_text(job['rows'], 'row')}, " if job.get("rows") is not None else ""
        jobs = count_text(job["spark_jobs"], "Spark job")
        line.append(f", {rows}{jobs}", style="dim")
    if job.get("seconds") is not None:
        line.append(f", {job['seconds']:.1f} s", style="dim")
    return line


def _error(job: Json) -> str:
    error = dict(job["error"] or {})
    where = f"{error['file']}:{error['line']}: " if error.get("file") else ""
    text = f"{where}{error.get('message', 'failed')}"
    return f"{text}\nlog: {job['log']}" if job.get("log") else text
