"""Jobs as a tree for a person: state, reason, where inputs come from, what came out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from headgate.builds.report import JobReport, JobState

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


def job_tree(title: str, reports: Sequence[JobReport]) -> Tree:
    """The chain on top, then a line per job with its inputs below."""
    tree = Tree(Text.assemble("chain ", (title, "bold")))
    for report in reports:
        node = tree.add(_line(report))
        for given in report.inputs:
            where = given["transaction"] or "(this build)"
            node.add(Text(f"reads {given['dataset']} @ {given['branch']}  {where}", style="dim"))
        if report.error is not None:
            node.add(Text(_error(report), style="red"))
    if not reports:
        tree.add("nothing to do")
    return tree


def _line(report: JobReport) -> Text:
    style = _STYLES[report.state]
    line = Text.assemble((f"{_MARKS[report.state]} ", style), (report.title, "bold"), "  ")
    line.append(f"{report.state.value} ({report.decision.reason.value})", style=style)
    if report.decision.candidate is not None:
        line.append(f", from {report.decision.candidate.branch}", style=style)
    if report.attempts > 1:
        line.append(f", attempt {report.attempts}")
    if report.tasks is not None:
        line.append(f", {report.tasks[0]}/{report.tasks[1]} tasks", style="dim")
    if report.state is JobState.RUNNING and report.rows:
        line.append(f", {report.rows} rows", style="dim")
    if report.state is JobState.SUCCEEDED:
        line.append(f", {report.rows} rows, {report.spark_jobs} Spark jobs", style="dim")
    if report.seconds is not None:
        line.append(f", {report.seconds:.1f} s", style="dim")
    return line


def _error(report: JobReport) -> str:
    error = dict(report.error or {})
    where = f"{error['file']}:{error['line']}: " if error.get("file") else ""
    text = f"{where}{error.get('message', 'failed')}"
    return f"{text}\nlog: {report.log}" if report.log else text
