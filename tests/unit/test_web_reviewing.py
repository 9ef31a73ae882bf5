"""What a review and a build's page work out by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headgate.catalog.builds import JobRecord
from headgate.catalog.jobspecs import PublishedJobSpec
from headgate.model.ids import Instant, JobSpecId
from headgate.server.web.build_page import progress, read_log_tail
from headgate.server.web.review_page import compare_logic


def _published(logic: str | None) -> PublishedJobSpec:
    declared = {"module": "m", "function": "f"}
    body: dict[str, Any] = {"jobspec": {"logic_hash": logic, "declaration": declared}}
    return PublishedJobSpec(
        id=JobSpecId("js"),
        branch="b",
        repository="r",
        commit="c",
        clean=True,
        removed=logic is None,
        actor="ana",
        published_at=Instant(0),
        body=body,
    )


def test_compare_logic_tells_added_changed_and_removed_and_leaves_out_the_same() -> None:
    base = {"n.changed": _published("1"), "n.same": _published("2"), "n.removed": _published("3")}
    branch = {
        "n.added": _published("9"),
        "n.changed": _published("8"),
        "n.same": _published("2"),
        "n.removed": _published(None),
    }
    lines = {line.dataset: line.change.value for line in compare_logic(base, branch)}
    assert lines == {"n.added": "added", "n.changed": "changed", "n.removed": "removed"}
    assert compare_logic(base, {}) == []


def test_progress_tells_stages_while_spark_works_and_rows_afterwards() -> None:
    stages = {"done": 1, "all": 3, "tasks_done": 4, "tasks": 8}
    working = _job({"progress": {"stages": stages, "rows": 0, "seconds": 1.5}})
    assert "stage 1/3, 4/8 tasks" in str(progress(working))
    done = _job({"progress": {"stages": None, "rows": 1200, "seconds": 2}, "spark_jobs": 2})
    assert "1,200 rows" in str(progress(done)) and "2 Spark jobs" in str(progress(done))
    assert progress(_job({})) == ""


def _job(body: dict[str, Any]) -> JobRecord:
    return JobRecord(ordinal=0, state="running", reason="never-built", attempts=1, body=body)


def test_read_log_tail_reads_only_the_logs_of_that_build(tmp_path: Path) -> None:
    home = tmp_path / ".headgate" / "work" / "builds" / "build-1"
    home.mkdir(parents=True)
    (home / "job.log").write_text("x" * 20_000 + "\nlast line\n")
    (tmp_path / "secret").write_text("s")
    tail = read_log_tail(tmp_path, "build-1", str(home / "job.log"))
    assert tail is not None and tail.endswith("last line") and len(tail) < 20_000
    assert read_log_tail(tmp_path, "build-1", str(tmp_path / "secret")) is None
    assert read_log_tail(tmp_path, "build-1", str(home / ".." / ".." / "secret")) is None
    assert read_log_tail(tmp_path, "build-2", str(home / "job.log")) is None
    assert read_log_tail(tmp_path, "build-1", None) is None
