"""Progress of a build: a live tree on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from headgate.builds.report import JobReport
from headgate.cli.build import BuildProgress, job_tree, live_tree
from headgate.model.freshness import Facts, decide
from headgate.model.ids import Instant
from headgate.model.jobspecs import compile_graph
from headgate.model.nouns import JobState
from tests.support.jobspecs import name, published, spec

_PROGRESS = {"event": "progress", "stages_done": 1, "stages": 3, "tasks_done": 13, "tasks": 40}


def _reports(count: int) -> list[JobReport]:
    names = [f"s.d{number:02d}" for number in range(count)]
    made = published(master=[spec(text) for text in names])
    jobs = compile_graph([name(t) for t in names], ("master",), made, upstream=False)
    decisions = decide(jobs, Facts(chain=("master",), views={}, now=Instant(1)))
    return [JobReport(decision=d, state=JobState.WAITING, inputs=[]) for d in decisions]


def test_tree_of_a_job_names_the_checks_that_only_warn() -> None:
    report = _reports(1)[0]
    told = {"name": "rows", "dataset": "s.d00", "reason": "0 rows", "stage": "post"}
    report.checks = [
        {**told, "on_error": "WARN", "passed": False},
        {**told, "on_error": "WARN", "passed": True, "name": "ids"},
    ]
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as captured:
        console.print(job_tree("master", [report.to_json()]))
    assert "WARN s.d00, check 'rows': 0 rows" in captured.get()
    assert "ids" not in captured.get()


def _drawn(reports: list[JobReport], *, room: int) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as captured:
        console.print(live_tree("master", reports, room=room))
    return captured.get().splitlines()


def test_live_tree_of_a_running_job_has_state_stage_tasks_and_time() -> None:
    reports = _reports(2)
    reports[0].enter(JobState.RUNNING)
    reports[0].update({"event": "written", "rows": 1200})
    reports[0].update(_PROGRESS)
    lines = _drawn(reports, room=10)
    assert lines[0] == "chain master"
    assert lines[1].startswith("├── ◐ s.d00  running (never-built), 1,200 rows, 0.")
    assert lines[2] == "│   └── stage 2/3  ━━━━━━━━━━  13/40 tasks"
    assert lines[3] == "└── ○ s.d01  waiting (never-built)"


def test_live_tree_with_little_room_shows_what_runs_and_counts_the_rest() -> None:
    reports = _reports(30)
    reports[20].enter(JobState.RUNNING)
    reports[20].update(_PROGRESS)
    reports[25].enter(JobState.FAILED)
    lines = _drawn(reports, room=3)
    assert [line[4:].split()[1] for line in lines[1:2] + lines[3:4]] == ["s.d20", "s.d25"]
    assert lines[-1] == "└── 28 waiting"
    assert len(lines) == 5


def test_live_tree_of_a_job_that_ended_has_no_stage_any_more() -> None:
    [report] = _reports(1)
    report.enter(JobState.RUNNING)
    report.update(_PROGRESS)
    report.enter(JobState.SUCCEEDED)
    assert _drawn([report], room=5)[1].startswith(
        "└── ● s.d00  succeeded (never-built), 0 rows, 0 Spark jobs, 0."
    )


def test_progress_off_a_terminal_is_one_line_for_each_change() -> None:
    said, reports = io.StringIO(), _reports(2)
    with BuildProgress("master", Console(file=said, force_terminal=False)) as progress:
        reports[0].attempts = 1
        for state in (JobState.RUNNING, JobState.RUNNING, JobState.SUCCEEDED):
            reports[0].enter(state)
            progress.show(reports)
    lines = said.getvalue().splitlines()
    assert lines[0] == "2 jobs to do, 0 adopted, 0 fresh"
    assert [line.split(",")[0] for line in lines[1:]] == [
        "◐ s.d00  running (never-built)",
        "● s.d00  succeeded (never-built)",
    ]


def test_progress_of_a_retry_off_a_terminal_names_the_attempt() -> None:
    said, [report] = io.StringIO(), _reports(1)
    with BuildProgress("master", Console(file=said, force_terminal=False)) as progress:
        for attempt in (1, 2):
            report.attempts = attempt
            report.enter(JobState.RUNNING)
            progress.show([report])
    assert "attempt 2" in said.getvalue().splitlines()[-1]


def test_progress_on_a_terminal_draws_and_leaves_nothing_behind() -> None:
    said, reports = io.StringIO(), _reports(1)
    console = Console(file=said, force_terminal=True, width=100, height=20)
    with BuildProgress("master", console) as progress:
        reports[0].enter(JobState.RUNNING)
        progress.show(reports)
    assert "s.d00" in said.getvalue()
    # The cursor moves up and each line is erased at the end.
    assert said.getvalue().rstrip().endswith("\x1b[2K")
