"""Job processes on one JVM: separate code, session and end."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import headgate.spark
from headgate.spark.engines import SharedJvm
from headgate.spark.java import ensure_jars, find_java_home
from headgate.spark.job_processes import JobProcess, ProcessPool
from headgate.spark.job_protocol import InputOrder, JobDocument, JobOrder, OutputOrder
from headgate.spark.jvm import Launch
from headgate.spark.session import iceberg_catalog_conf, jvm_conf

pytestmark = pytest.mark.xdist_group("spark")

_CACHE = Path(os.environ.get("HEADGATE_CACHE", "~/.cache/headgate")).expanduser()
# Processes find the same Headgate as this one, in any directory.
_ENVIRON = {**os.environ, "PYTHONPATH": str(Path(headgate.spark.__path__[0]).parents[1])}
# A process without a bytecode cache compiles all of pandas at every start.
_ENVIRON.pop("PYTHONDONTWRITEBYTECODE", None)

_MAKE_NUMBERS = """
    from headgate.transforms import Output, transform

    @transform(numbers=Output("raw.numbers", partition_cols=["half"]))
    def make(ctx, numbers):
        print("making numbers")
        rows = ctx.spark_session.range(10)
        numbers.write_dataframe(rows.withColumn("half", rows.id % 2))
"""

_APPLY_RULES = """
    from pyspark.sql import functions as F
    from headgate.transforms import Output, transform
    from lib import rules

    @F.pandas_udf("long")
    def by_pandas(ids):
        from lib.rules import RATE
        return ids * RATE

    @transform(out=Output("out.{name}"))
    def apply(ctx, out):
        by_row = F.udf(rules.scaled, "long")
        by_rdd = ctx.spark_session.sparkContext.parallelize([1]).map(rules.scaled).first()
        out.write_dataframe(ctx.spark_session.range(1, 2).select(
            F.lit(rules.RATE).alias("plain"),
            F.lit(by_rdd).alias("by_rdd"),
            by_row("id").alias("by_row"),
            by_pandas("id").alias("by_pandas"),
        ))
"""

_RULES = """
    RATE = {rate}

    def scaled(number):
        return number * RATE
"""

_SLEEP_IN_A_THREAD = """
    import threading
    import time
    from headgate.transforms import Output, transform

    @transform(out=Output("out.slow"))
    def sleep(ctx, out):
        def nap(rows):
            time.sleep(600)
            return rows
        frame = ctx.spark_session.range(2).mapInPandas(nap, "id long")
        time.sleep(1)
        thread = threading.Thread(target=frame.collect)
        thread.start()
        thread.join()
        raise RuntimeError("its thread came to an end")
"""

_SLEEP = """
    import time
    from pyspark.sql import functions as F
    from headgate.transforms import Output, transform

    @transform(out=Output("out.slow"))
    def sleep(ctx, out):
        slow = F.udf(lambda _: time.sleep(300), "long")
        rows = ctx.spark_session.range(4).select(slow("id").alias("n"))
        rows.collect()
"""

_FAIL = """
    from pyspark.sql import functions as F
    from headgate.transforms import Output, transform

    def broken(number):
        return 1 // (number - number)

    @transform(out=Output("out.broken"))
    def fail(ctx, out):
        rows = ctx.spark_session.range(4)
        out.write_dataframe(rows.select(F.udf(broken, "long")("id").alias("n")))
"""


def write_bundle(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


def launch_request(directory: Path) -> Launch:
    java_home = find_java_home(_ENVIRON, _CACHE)
    jars = ensure_jars(_CACHE, java_home=java_home, environ=_ENVIRON)
    own_catalog = {"spark.sql.warehouse.dir": (directory / "spark-warehouse").as_uri()}
    return Launch(
        java_home=java_home,
        conf=jvm_conf(jars=jars, master="local[2]", extra=own_catalog),
        environ=_ENVIRON,
        log_path=directory / "jvm.log",
    )


def active_jobs(jvm: SharedJvm) -> int:
    return len(jvm._context.statusTracker().getActiveJobIds())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def jvm(place: Path) -> Iterator[SharedJvm]:
    # The JVM's working directory has other rules, which no worker may import.
    decoy = write_bundle(place / "decoy", lib__rules=_RULES.format(rate=99))
    with contextlib.chdir(decoy):
        started = SharedJvm.start(launch_request(place))
    with started as shared:
        yield shared


Start = Callable[..., JobProcess]


@pytest.fixture(scope="module")
def pool(place: Path) -> Iterator[ProcessPool]:
    processes = ProcessPool(place, _ENVIRON)
    yield processes
    processes.close()


@pytest.fixture
def start(jvm: SharedJvm, pool: ProcessPool, place: Path) -> Iterator[Start]:
    started: list[JobProcess] = []

    def start_job(bundle: Path, output: str, **inputs: InputOrder) -> JobProcess:
        argument, _, dataset = output.partition("=")
        order = JobOrder(
            key=bundle.name,
            epoch=1,
            token="",
            module="pipeline",
            bundle="",
            inputs=inputs,
            outputs={argument: OutputOrder(dataset=dataset, is_files=False)},
            branch="master",
            incremental=any(given.since_snapshot for given in inputs.values()),
        )
        document = JobDocument(
            order=order,
            bundle=str(bundle),
            conf=iceberg_catalog_conf({"type": "hadoop", "warehouse": str(place / "tables")}),
            tag=f"job-{bundle.name}",
            directory=str(place / "decoy"),
            log=str(place / f"{bundle.name}.log"),
        )
        job = pool.take(jvm.address)
        started.append(job)
        job.begin(document)
        return job

    yield start_job
    for job in started:
        job.kill()
        job.close()


def finished(job: JobProcess) -> dict[str, dict[str, Any]]:
    events = {event["event"]: event for event in job.events()}
    events["exit"] = {"code": job.wait(60)}
    return events


def rows_of(place: Path, table: str) -> list[dict[str, Any]]:
    files = list((place / "tables" / table / "data").rglob("*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def test_job_that_writes_partitioned_table_reports_rows_and_spark_jobs(
    start: Start, place: Path
) -> None:
    bundle = write_bundle(place / "numbers", pipeline=_MAKE_NUMBERS)
    events = finished(start(bundle, "numbers=raw.numbers"))
    assert events["exit"]["code"] == 0
    assert (events["written"]["output"], events["written"]["rows"]) == ("numbers", 10)
    assert events["done"]["written"] == ["numbers"]
    assert events["done"]["spark_jobs"] > 0
    assert (place / "tables/raw/numbers/data/half=1").is_dir()
    assert "making numbers" in (place / "numbers.log").read_text()


def test_jobs_of_two_bundles_in_one_jvm_each_use_their_own_code(start: Start, place: Path) -> None:
    jobs = {}
    for name, rate in (("b", 2), ("c", 3)):
        bundle = write_bundle(
            place / f"bundle-{name}",
            lib__rules=_RULES.format(rate=rate),
            pipeline=_APPLY_RULES.format(name=name),
        )
        jobs[name] = start(bundle, f"out=out.{name}")
    for job in jobs.values():
        assert "failed" not in finished(job)
    assert rows_of(place, "out/b") == [{"plain": 2, "by_rdd": 2, "by_row": 2, "by_pandas": 2}]
    assert rows_of(place, "out/c") == [{"plain": 3, "by_rdd": 3, "by_row": 3, "by_pandas": 3}]


_ADD_AND_COPY = """
    from headgate.transforms import Input, Output, transform, transform_df

    @transform(log=Output("raw.log"))
    def add(ctx, log):
        log.set_mode("append")
        log.write_dataframe(ctx.spark_session.range(3))

    @transform_df(Output("out.copy"), log=Input("raw.log"))
    def copy(log):
        return log
"""


def test_incremental_job_reads_only_what_was_added_since(start: Start, place: Path) -> None:
    bundle = write_bundle(place / "adding", pipeline=_ADD_AND_COPY)
    first = finished(start(bundle, "log=raw.log"))["written"]["snapshot"]
    second = finished(start(bundle, "log=raw.log"))["written"]["snapshot"]
    copied = []
    for since in (None, first, second):
        source = InputOrder(
            dataset="raw.log", branch="master", transaction="", since_snapshot=since
        )
        copied.append(finished(start(bundle, "output=out.copy", log=source))["written"]["rows"])
    assert copied == [6, 3, 0]


def test_job_whose_function_fails_in_a_worker_names_the_users_line(
    start: Start, place: Path
) -> None:
    bundle = write_bundle(place / "failing", pipeline=_FAIL)
    events = finished(start(bundle, "out=out.broken"))
    assert events["exit"]["code"] == 1
    assert (events["failed"]["file"], events["failed"]["line"]) == ("pipeline.py", 6)
    assert events["failed"]["message"].startswith("ZeroDivisionError: integer division")
    assert "ZeroDivisionError" in (place / "failing.log").read_text()


def test_killed_job_whose_tags_are_cancelled_leaves_the_jvm_usable(
    start: Start, jvm: SharedJvm, place: Path
) -> None:
    job = start(write_bundle(place / "sleeping", pipeline=_SLEEP), "out=out.slow")
    events = job.events()
    tags = next(event["tags"] for event in events if event["event"] == "started")
    wait_until(lambda: active_jobs(jvm) > 0)
    progress = next(event for event in events if event["event"] == "progress")
    assert (progress["stages_done"], progress["stages"]) == (0, 1)
    assert progress["tasks_done"] == 0 < progress["tasks"]
    job.kill()
    assert job.wait(0) == -signal.SIGKILL
    assert active_jobs(jvm) > 0
    jvm.cancel(tags)
    wait_until(lambda: active_jobs(jvm) == 0)
    # Both cores were asleep: this job ends only if they are free again.
    bundle = write_bundle(place / "after", pipeline=_MAKE_NUMBERS)
    assert finished(start(bundle, "numbers=raw.numbers"))["exit"]["code"] == 0


def test_spark_job_that_begins_after_its_tags_were_cancelled_is_ended_too(
    start: Start, jvm: SharedJvm, place: Path
) -> None:
    job = start(write_bundle(place / "late", pipeline=_SLEEP_IN_A_THREAD), "out=out.slow")
    tags = next(event["tags"] for event in job.events() if event["event"] == "started")
    jvm.cancel(tags)
    assert active_jobs(jvm) == 0
    assert "came to an end" in finished(job)["failed"]["message"]


_PARENT = """
    import pickle, sys, time
    from pathlib import Path
    from headgate.spark.engines import SharedJvm
    from headgate.spark.job_protocol import JobDocument, JobOrder, OutputOrder
    from headgate.spark.job_processes import ProcessPool

    request, bundle, log = pickle.loads(sys.stdin.buffer.read())
    jvm = SharedJvm.start(request)
    order = JobOrder(
        key="k", epoch=1, token="", module="pipeline", bundle="", inputs={}, branch="master",
        outputs={"out": OutputOrder(dataset="out.slow", is_files=False)},
    )
    document = JobDocument(order=order, bundle=str(bundle), conf={}, tag="t", log=str(log))
    job = ProcessPool(log.parent, request.environ).take(jvm.address)
    job.begin(document)
    while not jvm._context.statusTracker().getActiveJobIds():
        time.sleep(0.05)
    print(jvm.process._process.pid, job._pid, flush=True)
    time.sleep(300)
"""


def test_killed_build_process_takes_jvm_and_job_with_it(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", pipeline=_SLEEP)
    request = launch_request(tmp_path)
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_PARENT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_ENVIRON,
    )
    assert parent.stdin and parent.stdout
    with parent.stdin as stdin:
        stdin.write(pickle.dumps((request, bundle, tmp_path / "job.log")))
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(is_running(pid) for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
