"""Computations of the review page and of a build's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headgate.server.web.build_page import progress, read_log_tail
from headgate.server.web.review_page import compare_logic


def _published(dataset: str, logic: str | None) -> dict[str, Any]:
    made = {} if logic is None else {"logic_hash": logic, "entry": f"m.{dataset}"}
    return {"outputs": [dataset], "removed": logic is None, **made}


def test_compare_logic_tells_added_changed_and_removed_and_leaves_out_the_same() -> None:
    base = [_published("changed", "1"), _published("same", "2"), _published("removed", "3")]
    branch = [
        _published("added", "9"),
        _published("changed", "8"),
        _published("same", "2"),
        _published("removed", None),
        _published("removed before", None),
    ]
    found = compare_logic(base, branch)
    signs = {line.dataset: line.sign for line in found}
    assert signs == {"added": "+", "changed": "~", "removed": "-"}
    assert [line.title for line in found] == ["m.added", "m.changed", "m.removed"]
    assert compare_logic(base, []) == []


def test_progress_tells_stages_while_spark_works_and_rows_afterwards() -> None:
    stages = {"done": 1, "all": 3, "tasks_done": 4, "tasks": 8}
    working = {"progress": {"stages": stages, "rows": 0, "seconds": 1.5}}
    assert "stage 1/3, 4/8 tasks" in str(progress(working))
    done = {"progress": {"stages": None, "rows": 1200, "seconds": 2}, "spark_jobs": 2}
    assert "1,200 rows" in str(progress(done)) and "2 Spark jobs" in str(progress(done))
    assert progress({}) == ""


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
