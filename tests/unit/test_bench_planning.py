"""The pipelines of the benchmark are fresh, and ready to be promoted."""

from __future__ import annotations

from pathlib import Path

from bench.pipelines import (
    MASTER,
    Pipeline,
    create_datasets,
    fill_views,
    open_store,
    publish_specs,
)
from headgate.model.freshness import Decided, Decision
from headgate.store.embedded import Store


def _decided(store: Store, pipeline: Pipeline, branch: str) -> tuple[Decision, ...]:
    return store.decide(pipeline.targets, branch=branch, upstream=True).decisions


def test_bench_pipeline_as_filled_is_fresh_from_end_to_end(tmp_path: Path) -> None:
    pipeline = Pipeline(prefix="p", count=120)
    with open_store(tmp_path) as store:
        publish_specs(store, MASTER, pipeline.specs("1"))
        create_datasets(store, pipeline, branch=MASTER)
        fill_views(store, pipeline, MASTER, logic="1")
        decisions = _decided(store, pipeline, MASTER)
    assert [d.state for d in decisions] == [Decided.FRESH] * 120


def test_bench_pipeline_with_new_logic_on_another_branch_is_adopted(tmp_path: Path) -> None:
    pipeline = Pipeline(prefix="p", count=60)
    with open_store(tmp_path) as store:
        create_datasets(store, pipeline, branch="feature")
        fill_views(store, pipeline, "feature", logic="2")
        publish_specs(store, MASTER, pipeline.specs("2"))
        decisions = _decided(store, pipeline, MASTER)
    assert [d.state for d in decisions] == [Decided.ADOPTED] * 60
