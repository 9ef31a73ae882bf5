"""Overhead of a build over the same code in a bare Spark session, on the same JVM.

The bare side writes to Iceberg's Hadoop catalog, one table after the other, as a script would.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.cases import Bench, Scale, Tell, Timed, Unavailable
from bench.pipeline import PLAIN, STEPS, fill, generate, open_empty_store, plain_catalog
from headgate.errors import SparkUnavailable
from headgate.model.nouns import BuildState
from headgate.spark.engines import SharedJvm
from headgate.spark.session import CATALOG, launch_request
from headgate.store.embedded import Store
from headgate.testing.project import commit, git

_MASTER = "master"
# Long enough that the start of the first job hardly contributes.
_CHAIN = 10
_OVERHEAD_MS = 500
_TABLE = re.compile(r"\{c\}\.(source|made)\.(\w+)")


class Way(Protocol):
    """One of the two ways to produce the same tables."""

    def make_chain(self) -> None: ...

    def make_tpch(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A session and its statements, nothing else."""

    session: Any

    def make_chain(self) -> None:
        for number in range(_CHAIN):
            before = f"{PLAIN}.chain.t{number - 1}"
            frame = self.session.table(before) if number else self.session.range(1000)
            frame.writeTo(f"{PLAIN}.chain.t{number}").using("iceberg").createOrReplace()

    def make_tpch(self) -> None:
        for name, query in STEPS.items():
            frame = self.session.sql(query.format(c=PLAIN))
            frame.writeTo(f"{PLAIN}.made.{name}").using("iceberg").createOrReplace()


@dataclass(frozen=True, kw_only=True)
class Built:
    """A build that runs every job, fresh or not; the JVM and the processes are warm."""

    store: Store

    def make_chain(self) -> None:
        self._build([f"chain.t{_CHAIN - 1}"], jobs=_CHAIN)

    def make_tpch(self) -> None:
        self._build([f"made.{name}" for name in STEPS], jobs=len(STEPS))

    def _build(self, targets: list[str], *, jobs: int) -> None:
        outcome = self.store.build(targets, branch=_MASTER, upstream=True, force=True)
        assert outcome.state is BuildState.SUCCEEDED, [job.error for job in outcome.jobs]
        assert len(outcome.jobs) == jobs


@contextmanager
def _ways(_scale: Scale, tell: Tell) -> Iterator[Mapping[str, Way]]:
    with _opened(tell) as (store, session):
        for name in (PLAIN, CATALOG):
            session.sql(f"create namespace {name}.chain")
        yield _both(store, session)


@contextmanager
def _filled_ways(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Way]]:
    factor = scale.tpch_factor or (0.01 if scale.quick else 1.0)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as home,
        _opened(tell) as (store, session),
    ):
        began = time.monotonic()
        generate(Path(home), factor)
        for name in (PLAIN, CATALOG):
            fill(session, name, Path(home))
        tell(f"builds: TPC-H by {factor:g}, twice, in {time.monotonic() - began:.1f} s")
        yield _both(store, session)


def _both(store: Store, session: Any) -> Mapping[str, Way]:
    return {"bare Spark": Bare(session=session), "headgate build": Built(store=store)}


@contextmanager
def _opened(tell: Tell) -> Iterator[tuple[Store, Any]]:
    """Create a store with the JobSpecs of both pipelines, and a session that has both catalogs."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        with _on_one_jvm(root) as store:
            session = store.spark(_MASTER)
            for option, value in plain_catalog(root / "plain").items():
                session.conf.set(option, value)
            _publish(store, root / "repository")
            tell(f"builds: Spark is there after {time.monotonic() - began:.1f} s")
            yield store, session


@contextmanager
def _on_one_jvm(root: Path) -> Iterator[Store]:
    with open_empty_store(root) as first:
        settings = first.settings
    try:
        jvm = SharedJvm.start(launch_request(settings, root / "spark.log"))
    except SparkUnavailable as error:
        raise Unavailable(error.message) from error
    with jvm, Store(settings, jvm=jvm) as store:
        try:
            yield store
        finally:
            from headgate.spark.job_session import leave  # noqa: PLC0415  (slow: PySpark)

            leave()


def _publish(store: Store, repository: Path) -> None:
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch", _MASTER)
    (repository / "pipeline.py").write_text(pipeline_source())
    commit(repository, "what is measured")
    store.publish_jobspecs(repository)


def pipeline_source() -> str:
    """Return both pipelines as one module of transforms."""
    return _chain_module() + _tpch_module()


def _chain_module() -> str:
    text = "from headgate.transforms import Input, Output, transform_df\n"
    for number in range(_CHAIN):
        given = f', before=Input("chain.t{number - 1}")' if number else ""
        body = "before" if number else "ctx.spark_session.range(1000)"
        text += (
            f'\n\n@transform_df(Output("chain.t{number}"){given})\n'
            f"def t{number}({'before' if number else 'ctx'}):\n    return {body}\n"
        )
    return text


def _tpch_module() -> str:
    text = ""
    for name, query in STEPS.items():
        inputs = ", ".join(
            f'{table}=Input("{space}.{table}")'
            for space, table in dict.fromkeys(_TABLE.findall(query))
        )
        text += (
            f'\n\n@transform_df(Output("made.{name}"), {inputs})\n'
            f"def {name}(ctx, **inputs):\n"
            f'    return ctx.spark_session.sql("""{query.format(c=CATALOG)}""")\n'
        )
    return text


JOBS: Bench[Way] = Bench(
    "builds on Spark", _ways, repetitions=7, quick_repetitions=3, warm_ups=2, counts_sql=False
)
TPCH_JOBS: Bench[Way] = Bench(
    "TPC-H builds on Spark",
    _filled_ways,
    repetitions=5,
    quick_repetitions=3,
    warm_ups=1,
    counts_sql=False,
)


@JOBS.case(
    f"a chain of {_CHAIN} small jobs, {_OVERHEAD_MS} ms each", target_extra_ms=_CHAIN * _OVERHEAD_MS
)
def _chain(way: Way) -> Timed:
    return way.make_chain


@TPCH_JOBS.case(f"{len(STEPS)} dependent tables", target_ratio=1.10)
def _tpch(way: Way) -> Timed:
    return way.make_tpch
