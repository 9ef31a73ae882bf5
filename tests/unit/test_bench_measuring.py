"""Evaluation of times: percentiles, growth, noise, and missed targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bench.cases import Bench, Scale, Tell, Timed
from bench.measuring import Result, Sample, run_bench
from bench.report import document, table_of


def _result(*medians: float, target_ms: float | None = None, noise: float = 0.0) -> Result:
    samples = {
        str(at): Sample(times_ms=[median, median * (1 + noise)] * 5)
        for at, median in enumerate(medians)
    }
    return Result(bench="b", case="c", samples=samples, target_ms=target_ms, flat=True)


def test_sample_of_twenty_times_has_median_and_percentile() -> None:
    sample = Sample(times_ms=[float(ms) for ms in range(20, 0, -1)])
    assert (sample.p50_ms, sample.p95_ms) == (10.5, 20.0)


def test_spread_of_a_sample_compares_every_other_repetition() -> None:
    assert Sample(times_ms=[10, 11] * 10).spread == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("result", "missed"),
    [
        (_result(4.0, target_ms=5), []),
        (_result(4.0, 4.5, target_ms=5), []),
        (_result(4.0, 5.5, target_ms=5, noise=0.3), ["time"]),
        (_result(4.0, 8.0), ["growth"]),
        (_result(4.0, 8.0, noise=0.6), []),
        (_result(4.0, 8.0, target_ms=5), ["time", "growth"]),
    ],
)
def test_targets_of_a_result_are_missed_only_beyond_the_noise(
    result: Result, missed: list[str]
) -> None:
    assert result.misses == missed


@pytest.mark.parametrize(("second", "missed"), [(4.1, []), (4.4, ["ratio"])])
def test_target_of_a_ratio_is_missed_by_the_median_whatever_the_noise(
    second: float, missed: list[str]
) -> None:
    result = replace(_result(4.0, second, noise=0.5), flat=False, target_ratio=1.05)
    assert result.misses == missed
    assert document([result])["results"][0]["target_ratio"] == 1.05


@pytest.mark.parametrize(("second", "missed"), [(6.0, []), (6.2, ["floor"])])
def test_target_in_times_of_the_floor_is_missed_where_one_subject_misses_it(
    second: float, missed: list[str]
) -> None:
    floor = {name: Sample(times_ms=[4.0], cpu_ms=[2.0]) for name in "01"}
    samples = {
        "0": Sample(times_ms=[4.0], cpu_ms=[2.0]),
        "1": Sample(times_ms=[second], cpu_ms=[3.0]),
    }
    result = replace(_result(4.0), flat=False, samples=samples, floor=floor, target_floor=1.5)
    assert result.misses == missed
    assert result.times_floor_cpu("0") == 1.0 and table_of([result]).row_count == 1


def test_bench_runs_only_chosen_cases_in_turns_beside_the_floor() -> None:
    seen: list[str] = []

    @contextmanager
    def subjects(scale: Scale, tell: Tell) -> Iterator[Mapping[str, str]]:
        yield {"small": "s", "large": "l"}

    bench = Bench("b", subjects, quick_repetitions=2, warm_ups=0, floor="floor")

    @bench.case("floor")
    @bench.case("wanted")
    @bench.case("other")
    def prepare(subject: str) -> Timed:
        return lambda: seen.append(subject)

    results = run_bench(bench, Scale(quick=True), lambda line: None, only="want")
    assert [result.case for result in results] == ["floor", "wanted"]
    assert seen == ["s", "l", "s", "l", "l", "s", "l", "s", "s", "l", "s", "l"]
    assert [len(sample.times_ms) for sample in results[1].samples.values()] == [2, 2]
    assert results[1].times_floor("small") is not None


def test_bench_that_counts_no_sql_runs_each_repetition_once() -> None:
    seen: list[str] = []

    @contextmanager
    def subjects(scale: Scale, tell: Tell) -> Iterator[Mapping[str, str]]:
        yield {"one": "o"}

    bench = Bench("b", subjects, quick_repetitions=2, warm_ups=1, counts_sql=False)
    bench.case("c")(lambda subject: lambda: seen.append(subject))
    [result] = run_bench(bench, Scale(quick=True), lambda line: None)
    assert (len(seen), result.samples["one"].statements) == (3, 0)


def test_report_of_a_result_has_its_figures() -> None:
    result = _result(4.0, 8.0, target_ms=5)
    table = table_of([result])
    assert [str(column.header) for column in table.columns][1] == "0\np50 ms"
    [entry] = document([result])["results"]
    assert (entry["growth"], entry["misses"]) == (2.0, ["time", "growth"])
    assert entry["subjects"]["1"]["p50_ms"] == 8.0
