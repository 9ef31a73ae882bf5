"""Times and their evaluation: all cases that are compared are measured in turns."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Engine, event

from bench.cases import Bench, Case, Scale, Tell

S = TypeVar("S")

# A ratio below this counts as flat at any noise: a deeper B-tree may cost a little more.
_FLAT = 1.25
# Cases that take longer than this report their progress.
_LONG_MS = 2_000


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The times of one case on one subject."""

    times_ms: Sequence[float]
    # Number of SQL statements of one repetition; SQLite's BEGIN counts, COMMIT does not.
    statements: int = 0
    # CPU time of this process and its children, which load on the machine affects less than time.
    cpu_ms: Sequence[float] = ()

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def p95_ms(self) -> float:
        return self._part(0.95)

    @property
    def p99_ms(self) -> float:
        return self._part(0.99)

    def _part(self, part: float) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

    @property
    def spread(self) -> float:
        """Return the relative difference between the medians of odd and even repetitions: A/A."""
        odd, even = self.times_ms[1::2], self.times_ms[0::2]
        if not odd:
            return 0.0
        return abs(statistics.median(odd) / statistics.median(even) - 1)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One case on all subjects of its bench, from the smallest to the largest."""

    bench: str
    case: str
    samples: Mapping[str, Sample]
    target_ms: float | None
    flat: bool
    floor: Mapping[str, Sample] = field(default_factory=dict)
    target_ratio: float | None = None
    target_extra_ms: float | None = None
    target_floor: float | None = None

    @property
    def extra_ms(self) -> float | None:
        """Difference between the medians of the last and the first subject."""
        medians = [sample.p50_ms for sample in self.samples.values()]
        return medians[-1] - medians[0] if len(medians) > 1 else None

    @property
    def growth(self) -> float | None:
        """Ratio of the medians of the last and the first subject."""
        medians = [sample.p50_ms for sample in self.samples.values()]
        return medians[-1] / medians[0] if len(medians) > 1 else None

    @property
    def noise(self) -> float:
        return max(sample.spread for sample in self.samples.values())

    def times_floor(self, subject: str) -> float | None:
        floor = self.floor.get(subject)
        return self.samples[subject].p50_ms / floor.p50_ms if floor else None

    def times_floor_cpu(self, subject: str) -> float | None:
        """Return the same ratio as `times_floor`, for CPU time."""
        floor = self.floor.get(subject)
        if floor is None or not floor.cpu_ms:
            return None
        least = statistics.median(floor.cpu_ms)
        return statistics.median(self.samples[subject].cpu_ms) / least if least else None

    @property
    def misses(self) -> list[str]:
        """Missed targets; empty if none was missed or none is set."""
        missed = []
        worst = max(sample.p50_ms for sample in self.samples.values())
        if self.target_ms is not None and worst > self.target_ms:
            missed.append("time")
        if self.flat and self.growth is not None and self.growth > max(_FLAT, 1 + 2 * self.noise):
            missed.append("growth")
        if self.target_ratio is not None and (self.growth or 0) > self.target_ratio:
            missed.append("ratio")
        if self.target_extra_ms is not None and (self.extra_ms or 0) > self.target_extra_ms:
            missed.append("extra")
        floors = [self.times_floor(subject) or 0 for subject in self.samples]
        if self.target_floor is not None and max(floors) > self.target_floor:
            missed.append("floor")
        return missed


def run_bench(
    bench: Bench[S], scale: Scale, tell: Tell, *, only: str | None = None
) -> list[Result]:
    """Open the subjects, time the chosen cases on them in turns, and return the results."""
    cases = bench.chosen(only)
    if not cases:
        return []
    repetitions = scale.of(bench.repetitions, bench.quick_repetitions)
    with bench.subjects(scale, tell) as subjects:
        tell(f"{bench.name}: {len(cases)} cases, {repetitions} repetitions")
        # A garbage collection during a case should not traverse the objects of the preparation.
        gc.collect()
        gc.freeze()
        try:
            samples = _samples(bench, cases, subjects, repetitions, tell)
        finally:
            gc.unfreeze()
    floor = samples.get(bench.floor or "", {})
    return [
        Result(
            bench=bench.name,
            case=case.name,
            samples=samples[case.name],
            target_ms=case.target_ms,
            flat=case.flat,
            floor={} if case.name == bench.floor else floor,
            target_ratio=case.target_ratio,
            target_extra_ms=case.target_extra_ms,
            target_floor=case.target_floor,
        )
        for case in cases
    ]


def _samples(
    bench: Bench[S],
    cases: Sequence[Case[S]],
    subjects: Mapping[str, S],
    repetitions: int,
    tell: Tell,
) -> dict[str, dict[str, Sample]]:
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for repetition in range(-bench.warm_ups, repetitions):
        for case in cases:
            for name in _rotated(list(subjects), repetition):
                taken = _time(case, subjects[name])
                if repetition >= 0:
                    times.setdefault((case.name, name), []).append(taken)
                if taken[0] > _LONG_MS:
                    turn = f"{repetition + 1} of {repetitions}" if repetition >= 0 else "warm-up"
                    tell(f"  {case.name}, {name}, {turn}: {taken[0] / 1000:.1f} s")
    return {
        case.name: {
            name: Sample(
                times_ms=[elapsed_ms for elapsed_ms, _ in times[case.name, name]],
                cpu_ms=[cpu_ms for _, cpu_ms in times[case.name, name]],
                statements=count_statements(case, subject) if bench.counts_sql else 0,
            )
            for name, subject in subjects.items()
        }
        for case in cases
    }


def _rotated(names: list[str], by: int) -> list[str]:
    """Rotate the order of the subjects: the first one finds cold CPU caches."""
    at = by % len(names)
    return names[at:] + names[:at]


def _time(case: Case[S], subject: S) -> tuple[float, float]:
    """Return elapsed milliseconds and CPU milliseconds."""
    timed = case.prepare(subject)
    used, start = _cpu_ms(), time.perf_counter_ns()
    timed()
    return (time.perf_counter_ns() - start) / 1_000_000, _cpu_ms() - used


def _cpu_ms() -> float:
    spent = os.times()
    return 1000 * (spent.user + spent.system + spent.children_user + spent.children_system)


def count_statements(case: Case[S], subject: S) -> int:
    """Return the number of SQL statements of a repetition: a figure without noise."""
    timed = case.prepare(subject)
    with _counting() as counted:
        timed()
    return len(counted)


@contextmanager
def _counting() -> Iterator[list[str]]:
    """Record every statement that any engine sends during the block."""
    seen: list[str] = []

    def note(_c: object, _k: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)
