"""Metrics that a task body reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.tasks import MetricRecorder


def test_metric_labels_are_a_mapping_or_keywords_and_never_an_attempts_own() -> None:
    lines: list[Mapping[str, Any]] = []
    metrics = MetricRecorder(lines.append, {"task_name": "render"})
    metrics.histogram("rows", 3, labels={"voice": "alto", "task_id": "1"})
    metrics.gauge("depth", 2.5, voice="alto")
    with metrics.timer("took", {"voice": "alto"}):
        pass
    assert [line["metric"] for line in lines] == ["app.rows", "app.depth", "app.took"]
    assert {tuple(line["labels"].items()) for line in lines} == {
        (("voice", "alto"), ("task_name", "render"))
    }
