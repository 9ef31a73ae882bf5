"""Headgate beside other systems and floors: each row measures its sides in turn, in one run."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.report import machine

OURS = "Headgate"
DOCS = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- newest run: begin -->", "<!-- newest run: end -->"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A limit of one figure."""

    text: str
    value: float
    limit: float
    # True: the value must not be below the limit.
    least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.least else "≤"
        verdict = "met" if self.met else "**missed**"
        return f"{sign} {self.limit:g} {self.text}: {self.value:.3g}, {verdict}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Medians of Headgate and of what stands beside it, in one unit."""

    what: str
    unit: str
    figures: Mapping[str, float]
    targets: Sequence[Target] = ()
    # Reasons for a side that is missing, and facts that a reader needs beside the figures.
    note: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        beside = [f"{name} {_short(v)}" for name, v in self.figures.items() if name != OURS]
        return (
            self.what,
            self.unit,
            _short(self.figures[OURS]),
            "; ".join([*beside, *([self.note] if self.note else [])]),
            "; ".join(map(str, self.targets)),
        )


HEADINGS = ("what", "unit", OURS, "beside", "target")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All rows of one run, and the machine on which it ran."""

    quick: bool
    seconds: float
    rows: Sequence[Row]
    versions: Mapping[str, str]
    load: tuple[float, float]
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def missed(self) -> bool:
        return any(not target.met for row in self.rows for target in row.targets)

    def table(self) -> Table:
        table = Table(title="Headgate beside other systems", title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, overflow="fold")
        for row in self.rows:
            table.add_row(*(cell.replace("**", "") for cell in row.cells))
        return table

    def document(self) -> dict[str, Any]:
        rows = [asdict(row) | {"met": [target.met for target in row.targets]} for row in self.rows]
        about = {"at": self.at.isoformat(), "quick": self.quick, "seconds": self.seconds}
        versions = dict(self.versions)
        return about | {"machine": _machine(), "versions": versions, "rows": rows}

    def markdown(self) -> str:
        """Return the generated part of docs/benchmarks.md."""
        found, quick = _machine(), " --quick" if self.quick else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        about = (
            f'`make bench ARGS="--peers --write{quick}"` of {self.at:%Y-%m-%d %H:%M} UTC, '
            f"{self.seconds / 60:.0f} minutes, on {found['cores']} cores and "
            f"{found['memory_gib']} GiB, Linux {found['kernel']}. "
            f"Load average before the run {self.load[0]:.1f}, after it {self.load[1]:.1f}."
        )
        heads = [f"| {' | '.join(HEADINGS)} |", "| --- | --- | ---: | --- | --- |"]
        lines = [about, "", f"{versions}.", "", *heads]
        lines += [f"| {' | '.join(row.cells)} |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        """Replace the part between the markers."""
        text = DOCS.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOCS.write_text(f"{before}{BEGIN}\n{self.markdown()}{END}{after}")


def _machine() -> dict[str, Any]:
    return machine() | {"kernel": platform.release()}


Side = Callable[[], Sequence[float]]


def in_turns(
    sides: Mapping[str, Side], rounds: int, *, warm_ups: int = 1
) -> dict[str, list[float]]:
    """Take values of each side, a round of all sides at a time."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(-warm_ups, rounds):
        # The order rotates: the first side of a round finds cold CPU caches.
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            values = sides[name]()
            if turn >= 0:
                found[name] += values
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items()}


def timed(work: Callable[[], object]) -> list[float]:
    """Return the milliseconds of one call."""
    began = time.perf_counter()
    work()
    return [(time.perf_counter() - began) * 1000]


def per_second(count: int, work: Callable[[], object]) -> list[float]:
    """Return how many of so many operations one second has, as a list of one value."""
    return [count * 1000 / timed(work)[0]]
