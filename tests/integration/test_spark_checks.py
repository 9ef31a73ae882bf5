"""Checks on real Spark: results, messages, costs, and their effect on a job."""

from __future__ import annotations

import os
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headgate.spark
from headgate.model.checks import CheckResult, CheckStage
from headgate.model.jobspecs import CheckSpec
from headgate.spark.checks import evaluate_checks
from headgate.spark.java import ensure_jars, find_java_home
from headgate.spark.job_processes import ProcessPool
from headgate.spark.job_protocol import InputOrder, JobDocument, JobOrder, OutputOrder
from headgate.spark.jvm import Launch
from headgate.spark.session import LocalSpark, bind_catalog, iceberg_catalog_conf, jvm_conf, start
from headgate.transforms import expectations as E  # noqa: N812  (as users write it)
from headgate.transforms.expectation_tree import Expectation
from tests.support.check_examples import FAILING, PASSING, SIX_ORDERS
from tests.support.expectations import passes_in_python, random_expectation

pytestmark = pytest.mark.xdist_group("spark")

_CACHE = Path(os.environ.get("HEADGATE_CACHE", "~/.cache/headgate")).expanduser()
# Processes find the same Headgate as this one, in any directory.
_ENVIRON = {**os.environ, "PYTHONPATH": str(Path(headgate.spark.__path__[0]).parents[1])}
_ENVIRON.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSpark]:
    java_home = find_java_home(_ENVIRON, _CACHE)
    jars = ensure_jars(_CACHE, java_home=java_home, environ=_ENVIRON)
    directory = tmp_path_factory.mktemp("spark")
    extra = {
        "spark.sql.warehouse.dir": (directory / "spark-warehouse").as_uri(),
        # Without adaptive planning, one action is one Spark job.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        # For a few rows, compilation takes longer than interpretation.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    started = start(
        Launch(
            java_home=java_home,
            conf=jvm_conf(jars=jars, master="local[2]", extra=extra),
            environ=_ENVIRON,
            log_path=directory / "jvm.log",
        )
    )
    yield started
    started.stop()


@pytest.fixture(scope="module")
def orders(local: LocalSpark) -> Any:
    return local.session.sql(SIX_ORDERS).cache()


def checks_of(expectations: Sequence[Expectation], on_error: str = "FAIL") -> list[CheckSpec]:
    return [
        CheckSpec(name=f"c{number}", on_error=on_error, expectation=expectation.to_json())
        for number, expectation in enumerate(expectations)
    ]


def evaluated(frame: Any, *expectations: Expectation) -> list[CheckResult]:
    specs = checks_of(expectations)
    return list(evaluate_checks(frame, specs, dataset="s.orders", stage=CheckStage.POST))


@pytest.fixture(scope="module")
def results(orders: Any) -> list[CheckResult]:
    """Results of all expectations in one evaluation: none may affect another."""
    return evaluated(orders, *PASSING, *(expectation for expectation, _ in FAILING))


@pytest.mark.parametrize("number", range(len(PASSING)), ids=lambda number: str(PASSING[number]))
def test_check_that_holds_passes_without_samples(results: list[CheckResult], number: int) -> None:
    assert results[number].passed, results[number].reason
    assert results[number].samples == ()


@pytest.mark.parametrize("number", range(len(FAILING)), ids=lambda number: str(FAILING[number][0]))
def test_check_that_does_not_hold_fails_with_numbers(
    results: list[CheckResult], number: int
) -> None:
    result = results[len(PASSING) + number]
    assert not result.passed
    assert FAILING[number][1] in result.reason


def test_samples_are_the_extreme_values_that_failed(orders: Any) -> None:
    results = evaluated(
        orders,
        E.col("amount").lt_col("id"),
        E.primary_key("id"),
        E.group_by("customer").count().lt(2),
        E.col("customer").is_in("ann", "bob", "eve"),
        E.group_by("extra").is_unique(),
        E.count().gt(6),
    )
    assert [list(map(dict, result.samples)) for result in results] == [
        [{"amount": "20.00", "id": "2"}, {"amount": "7.25", "id": "5"}],
        [{"count(*)": "2", "id": "5"}],
        [{"count(*)": "2", "customer": "eve"}, {"count(*)": "2", "customer": "bob"}],
        [{"customer": None}],
        [{"count(*)": "2", "extra": "{n -> 5}"}],
        [],
    ]


def test_samples_of_long_texts_are_cut(local: LocalSpark) -> None:
    frame = local.session.sql("select repeat('x', 5000) as text")
    (result,) = evaluated(frame, E.col("text").equals("y"))
    assert result.samples == ({"text": "x" * 100 + "…"},)


@pytest.mark.parametrize("mode", ["NO_CODEGEN", "CODEGEN_ONLY"])
def test_expressions_that_spark_refuses_fail_alone_and_say_why(
    local: LocalSpark, orders: Any, mode: str, request: pytest.FixtureRequest
) -> None:
    # Compiled code rejects a pattern with another message and another error.
    conf, name = local.session.conf, "spark.sql.codegen.factoryMode"
    request.addfinalizer(partial(conf.set, name, conf.get(name)))
    conf.set(name, mode)
    pattern, overflow, unordered, fine, count = evaluated(
        orders,
        E.col("customer").rlike("("),
        E.col("big").sum().gt(0),
        E.col("extra").equals_col("extra"),
        E.col("id").gt(0),
        E.count().equals(6),
    )
    why = "rlike" if mode == "NO_CODEGEN" else "Unclosed group"
    assert not pattern.passed and why in pattern.reason
    assert not overflow.passed and "long overflow" in overflow.reason
    assert not unordered.passed and "DATATYPE_MISMATCH" in unordered.reason
    assert fine.passed and count.passed


def test_no_rows_pass_what_is_said_of_rows_and_have_no_sum(orders: Any) -> None:
    results = evaluated(
        orders.limit(0),
        E.col("id").gt(9),
        E.primary_key("id"),
        E.group_by("id").count().gt(9),
        E.col("id").sum().gt(9),
        E.col("id").null_percentage().gt(0.5),
        E.count().gt(0),
    )
    assert [result.passed for result in results] == [True, True, True, True, True, False]
    assert results[1].reason == "id differ in all 0 rows"


def test_random_expectations_agree_with_plain_python(local: LocalSpark) -> None:
    source = random.Random(20260102)
    rows = [
        {
            "a": source.choice([None, -1, 0, 1, 2, 3]),
            "b": source.choice([None, 0, 1, 2]),
            "s": source.choice([None, "x", "y"]),
            "k": source.choice([None, 1, 2]),
        }
        for _ in range(source.randint(2, 5))
    ]
    expectations = [random_expectation(source) for _ in range(60)]
    frame = local.session.createDataFrame(rows, "a int, b int, s string, k int")
    expected = [passes_in_python(expectation, rows) for expectation in expectations]
    assert {True, False} == set(expected)
    results = evaluated(frame, *expectations)
    for expectation, result, passes in zip(expectations, results, expected, strict=True):
        assert result.passed is passes, f"{expectation} on {rows}: {result.reason}"


@pytest.fixture
def count_jobs(local: LocalSpark) -> Callable[[Callable[[], object]], int]:
    context = local.session.sparkContext
    groups = iter(range(1000))

    def count(work: Callable[[], object]) -> int:
        group = f"counted-{next(groups)}-{id(groups)}"
        context.setJobGroup(group, group)
        work()
        return len(context.statusTracker().getJobIdsForGroup(group))

    return count


def test_checks_cost_a_job_for_rows_one_a_grouping_and_one_more_on_failure(
    orders: Any, count_jobs: Callable[[Callable[[], object]], int]
) -> None:
    orders.count()
    of_schema = [E.schema().contains({"id": "int"}), E.col("nope").exists(), E.true()]
    of_rows = [E.col("id").gt(0), E.col("amount").sum().gt(0), E.col("id").distinct_count().gt(1)]
    of_groups = [E.group_by("customer").count().lt(9), E.group_by("Customer").col("id").sum().gt(0)]
    wrong = [E.col("id").gt(4), E.col("id").lt(3), E.primary_key("customer"), E.primary_key("id")]

    def jobs(*expectations: Expectation) -> int:
        return count_jobs(lambda: evaluated(orders, *expectations))

    assert jobs() == 0
    assert jobs(*of_schema) == 0
    assert jobs(*of_schema, *of_rows) == 1
    assert jobs(*of_schema, *of_rows, *of_groups) == 2
    assert jobs(*of_rows, *of_groups, *wrong) == 4


_PIPELINE = """
    from headgate.transforms import Check, Input, Output, transform, transform_df
    from headgate.transforms import expectations as E

    @transform_df(Output("raw.numbers"))
    def make(ctx):
        return ctx.spark_session.range(10)

    @transform_df(
        Output("out.small", checks=[
            Check(E.count().equals(10), "all are there"),
            Check(E.col("id").lt(5), "small", on_error="WARN"),
        ]),
        numbers=Input("raw.numbers", checks=Check(E.primary_key("id"), "key")),
    )
    def warned(numbers):
        return numbers

    @transform_df(
        Output("out.big", checks=[
            Check(E.col("id").gt(5), "big"),
            Check(E.col("amount").gt(5), "amounts"),
        ]),
        numbers=Input("raw.numbers"),
    )
    def stopped_after(numbers):
        return numbers

    @transform_df(
        Output("out.never", checks=Check(E.count().gt(0), "some")),
        numbers=Input("raw.numbers", checks=[
            Check(E.count().gt(99), "many"), Check(E.count().gt(9), "few"),
        ]),
    )
    def stopped_before(numbers):
        print("here we are")
        return numbers

    @transform(
        out=Output("out.files", kind="files", checks=Check(E.count().gt(0), "some")),
        numbers=Input("raw.numbers"),
    )
    def writes_files(out, numbers):
        with out.filesystem().open("a.txt", "w") as file:
            file.write("x")

    @transform_df(
        Output("out.aborted", checks=Check(E.false(), "never")), numbers=Input("raw.numbers")
    )
    def aborted(ctx, numbers):
        ctx.abort_job()
"""

RunJob = Callable[..., tuple[list[dict[str, Any]], str]]


@pytest.fixture(scope="module")
def run_job(local: LocalSpark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunJob]:
    place = tmp_path_factory.mktemp("jobs")
    pool = ProcessPool(place, _ENVIRON)
    (place / "pipeline.py").write_text(textwrap.dedent(_PIPELINE))
    conf = iceberg_catalog_conf({"type": "hadoop", "warehouse": str(place / "tables")})
    bind_catalog(local.session, conf)

    def run(dataset: str, argument: str = "output", files: str | None = None) -> Any:
        log = place / f"{dataset}.log"
        numbers = InputOrder(dataset="raw.numbers", branch="master", transaction="")
        order = JobOrder(
            key=dataset,
            epoch=1,
            token="",
            module="pipeline",
            bundle="",
            inputs={} if dataset == "raw.numbers" else {"numbers": numbers},
            outputs={argument: OutputOrder(dataset=dataset, is_files=files is not None)},
            branch="master",
        )
        document = JobDocument(
            order=order,
            bundle=str(place),
            files={argument: {"current": files}} if files else {},
            conf=conf,
            tag=f"job-{dataset}",
            directory=str(place),
            log=str(log),
        )
        job = pool.take(local._jvm.address)
        job.begin(document)
        try:
            events = list(job.events())
            job.wait(60)
        finally:
            job.kill()
            job.close()
        return events, log.read_text()

    events, log = run("raw.numbers")
    assert events[-1]["event"] == "done", log
    assert events[-1]["checks"] == []
    yield run
    pool.close()


def test_job_whose_checks_only_warn_is_done_and_reports_them(run_job: RunJob) -> None:
    events, _ = run_job("out.small")
    assert events[-1]["event"] == "done"
    key, count, small = events[-1]["checks"]
    assert (key["stage"], key["dataset"], key["passed"]) == ("pre", "raw.numbers", True)
    assert (count["stage"], count["dataset"], count["passed"]) == ("post", "out.small", True)
    assert small == {
        "name": "small",
        "stage": "post",
        "dataset": "out.small",
        "on_error": "WARN",
        "passed": False,
        "expectation": "id lt 5",
        "reason": "5 of 10 rows have id >= 5",
        "samples": [{"id": "9"}, {"id": "5"}],
    }


def test_job_whose_output_fails_checks_has_failed_and_names_them_all(run_job: RunJob) -> None:
    events, log = run_job("out.big")
    failed = events[-1]
    assert (failed["event"], failed["error"]) == ("failed", "ChecksFailed")
    assert "2 checks failed on what the transform wrote" in failed["message"]
    assert "'big' on out.big: 6 of 10 rows have id <= 5" in failed["message"]
    assert "there is no column 'amount'; the columns are id" in failed["message"]
    assert [check["passed"] for check in failed["checks"]] == [False, False]
    # Line of the first failed check, which its author looks for.
    assert (failed["file"], failed["line"]) == ("pipeline.py", 21)
    assert "ChecksFailed" in log


def test_job_whose_input_fails_a_check_does_not_call_its_transform(run_job: RunJob) -> None:
    events, log = run_job("out.never")
    assert events[-1]["event"] == "failed"
    assert "'many' on raw.numbers: count(*) is 10, expected > 99" in events[-1]["message"]
    assert [(c["name"], c["passed"]) for c in events[-1]["checks"]] == [
        ("many", False),
        ("few", True),
    ]
    assert "written" not in [event["event"] for event in events]
    assert "here we are" not in log


def test_check_on_files_fails_and_says_that_it_looks_at_tables(
    run_job: RunJob, tmp_path: Path
) -> None:
    events, _ = run_job("out.files", "out", str(tmp_path))
    assert events[-1]["event"] == "failed"
    assert "out.files is a tree of files" in events[-1]["checks"][0]["reason"]


def test_job_that_aborts_itself_is_not_checked_after(run_job: RunJob) -> None:
    events, _ = run_job("out.aborted")
    assert (events[-1]["event"], events[-1]["aborted"]) == ("done", True)
    assert events[-1]["checks"] == []
