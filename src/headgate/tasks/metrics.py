"""Numbers that a task's body tells: kept with the attempt's log, under `app.` names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headgate.errors import Invalid

# They would make one series per attempt of what is one series per task.
_RESERVED = frozenset({"task_id", "workflow_instance_id", "execution_id", "worker_id", "task_name"})

Emit = Callable[[Mapping[str, Any]], None]
# Labels are given as one mapping, as keywords, or both.
Labels = Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """Which of the runtime's own numbers are kept beside those of the body."""

    attempts: bool = True
    workspace_io: bool = True
    worker_capacity: bool = True


class MetricRecorder:
    """What a body gets as `metrics`; each call is one line of the attempt's log."""

    def __init__(self, emit: Emit, labels: Mapping[str, str]) -> None:
        self._emit = emit
        self._labels = dict(labels)

    def histogram(self, name: str, value: float, labels: Labels = None, **more: str) -> None:
        """One observation of many."""
        self._record("histogram", name, value, {**(labels or {}), **more})

    def gauge(self, name: str, value: float, labels: Labels = None, **more: str) -> None:
        """What the number is now."""
        self._record("gauge", name, value, {**(labels or {}), **more})

    @contextmanager
    def timer(self, name: str, labels: Labels = None, **more: str) -> Iterator[None]:
        """How many seconds the block took, also where it raised."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.histogram(name, time.perf_counter() - began, labels, **more)

    def _record(self, kind: str, name: str, value: float, labels: Mapping[str, str]) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Invalid(f"metric {name!r} is a number, not {value!r}.")
        kept = {key: str(text) for key, text in labels.items() if key not in _RESERVED}
        self._emit(
            {
                "metric": f"app.{name}",
                "kind": kind,
                "value": value,
                "labels": {**kept, **self._labels},
            }
        )
