"""Timing, and what the times say: everything that is compared is measured in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Engine, event

from bench.cases import Bench, Case, Scale, Tell

S = TypeVar("S")

# Below this a ratio is called flat whatever the noise was: a deeper B-tree is allowed a little.
_FLAT = 1.25


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The times of one case on one subject."""

    times_ms: Sequence[float]
    # How many SQL statements one repetition sends; SQLite's BEGIN counts, COMMIT does not.
    statements: int = 0

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def p95_ms(self) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]

    @property
    def spread(self) -> float:
        """How far the medians of every other repetition lie apart, as a part of the whole: A/A."""
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

    @property
    def growth(self) -> float | None:
        """The last subject's median in times of the first one's."""
        medians = [sample.p50_ms for sample in self.samples.values()]
        return medians[-1] / medians[0] if len(medians) > 1 else None

    @property
    def noise(self) -> float:
        return max(sample.spread for sample in self.samples.values())

    def times_floor(self, subject: str) -> float | None:
        floor = self.floor.get(subject)
        return self.samples[subject].p50_ms / floor.p50_ms if floor else None

    @property
    def misses(self) -> list[str]:
        """Which targets were missed; none where there is none."""
        missed = []
        worst = max(sample.p50_ms for sample in self.samples.values())
        if self.target_ms is not None and worst > self.target_ms:
            missed.append("time")
        if self.flat and self.growth is not None and self.growth > max(_FLAT, 1 + 2 * self.noise):
            missed.append("growth")
        return missed


def run_bench(
    bench: Bench[S], scale: Scale, tell: Tell, *, only: str | None = None
) -> list[Result]:
    """Opens the subjects, times the chosen cases on them in turns, and says what came out."""
    cases = bench.chosen(only)
    if not cases:
        return []
    repetitions = scale.of(bench.repetitions, bench.quick_repetitions)
    with bench.subjects(scale, tell) as subjects:
        tell(f"{bench.name}: {len(cases)} cases, {repetitions} repetitions")
        # What the preparation left is nothing that a collection during a case should walk.
        gc.collect()
        gc.freeze()
        try:
            samples = _samples(cases, subjects, warm_ups=bench.warm_ups, repetitions=repetitions)
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
        )
        for case in cases
    ]


def _samples(
    cases: Sequence[Case[S]], subjects: Mapping[str, S], *, warm_ups: int, repetitions: int
) -> dict[str, dict[str, Sample]]:
    times: dict[tuple[str, str], list[float]] = {}
    for repetition in range(-warm_ups, repetitions):
        for case in cases:
            for name in _rotated(list(subjects), repetition):
                elapsed_ms = _time(case, subjects[name])
                if repetition >= 0:
                    times.setdefault((case.name, name), []).append(elapsed_ms)
    return {
        case.name: {
            name: Sample(
                times_ms=times[case.name, name], statements=count_statements(case, subject)
            )
            for name, subject in subjects.items()
        }
        for case in cases
    }


def _rotated(names: list[str], by: int) -> list[str]:
    """Another one first each time: whoever comes first finds the processor's caches cold."""
    at = by % len(names)
    return names[at:] + names[:at]


def _time(case: Case[S], subject: S) -> float:
    timed = case.prepare(subject)
    start = time.perf_counter_ns()
    timed()
    return (time.perf_counter_ns() - start) / 1_000_000


def count_statements(case: Case[S], subject: S) -> int:
    """How many SQL statements a repetition sends: a figure without noise."""
    timed = case.prepare(subject)
    with _counting() as counted:
        timed()
    return len(counted)


@contextmanager
def _counting() -> Iterator[list[str]]:
    """Every statement that any engine sends meanwhile."""
    seen: list[str] = []

    def note(_c: object, _k: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)
