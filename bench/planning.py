"""Builds without Spark: plan a large graph, find it fresh, adopt existing results."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.cases import Bench, Scale, Tell, Timed
from bench.filling import ACTOR
from bench.pipelines import (
    MASTER,
    Pipeline,
    create_datasets,
    fill_views,
    open_store,
    publish_specs,
)
from headgate.catalog.branches import create_branch
from headgate.model.changes import Caller
from headgate.model.freshness import Decided
from headgate.store.embedded import Store

_FEATURE = "feature"
_PROMOTED = 100
_HEADGATE = "import sys; from headgate.cli.main import main; sys.exit(main())"


@dataclass(frozen=True, kw_only=True)
class Grown:
    """A store whose large pipeline is fresh on master, and a small pipeline to promote."""

    store: Store
    large: Pipeline
    small: Pipeline
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(2))


@contextmanager
def _grown(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Grown]]:
    large = Pipeline(prefix="large", count=scale.of(5000, 1000))
    small = Pipeline(prefix="small", count=_PROMOTED)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as home,
        open_store(Path(home)) as store,
    ):
        publish_specs(store, MASTER, [*large.specs("1"), *small.specs("1")])
        for pipeline in (large, small):
            create_datasets(store, pipeline, branch=MASTER)
            fill_views(store, pipeline, MASTER, logic="1")
        for name in small.names:
            dataset = store.dataset(str(name)).load()
            create_branch(
                store.database, dataset, _FEATURE, parent=MASTER, caller=Caller(actor=ACTOR)
            )
        tell(f"builds: {large.count:,} datasets in {time.monotonic() - began:.1f} s")
        yield {f"{large.count:,} datasets": Grown(store=store, large=large, small=small)}


PLANNING: Bench[Grown] = Bench(
    "builds without Spark", _grown, repetitions=10, quick_repetitions=3, warm_ups=1
)


@PLANNING.case("plan everything", target_ms=2000)
def _plan(grown: Grown) -> Timed:
    store, targets = grown.store, grown.large.targets
    return lambda: _all_fresh(store, targets, grown.large.count)


@PLANNING.case("`headgate plan`, a process of its own")
def _plan_process(grown: Grown) -> Timed:
    return lambda: _headgate(grown, "plan", *grown.large.targets, "--upstream", "--json")


@PLANNING.case("build everything, all of it fresh", target_ms=3000)
def _fresh(grown: Grown) -> Timed:
    store, targets = grown.store, grown.large.targets

    def work() -> None:
        outcome = store.build(targets, branch=MASTER, upstream=True)
        assert {job.state.value for job in outcome.jobs} == {"skipped"}, "not all was fresh"

    return work


@PLANNING.case("`headgate build`, all of it fresh, a process of its own")
def _fresh_process(grown: Grown) -> Timed:
    return lambda: _headgate(grown, "build", *grown.large.targets, "--upstream", "--json")


@PLANNING.case(f"promote {_PROMOTED} datasets", target_ms=1000)
def _promote(grown: Grown) -> Timed:
    """Publish logic on master that was built on feature; the build adopts every result."""
    store, small, logic = grown.store, grown.small, str(next(grown.numbers))
    publish_specs(store, MASTER, [*grown.large.specs("1"), *small.specs(logic)])
    fill_views(store, small, _FEATURE, logic=logic)

    def work() -> None:
        outcome = store.build(small.targets, branch=MASTER, upstream=True)
        assert [job.state.value for job in outcome.jobs] == ["adopted"] * small.count
        assert sum(job.spark_jobs for job in outcome.jobs) == 0

    return work


def _all_fresh(store: Store, targets: list[str], count: int) -> None:
    plan = store.decide(targets, branch=MASTER, upstream=True)
    assert [d.state for d in plan.decisions] == [Decided.FRESH] * count, "not all was fresh"


def _headgate(grown: Grown, *words: str) -> None:
    command = [sys.executable, "-c", _HEADGATE, *words, "-b", MASTER]
    root = grown.store.settings.root
    subprocess.run(command, cwd=root, check=True, capture_output=True)
