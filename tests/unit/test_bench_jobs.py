"""Declarations of the benchmarked pipeline, without Spark."""

from __future__ import annotations

from bench.jobs import pipeline_source
from bench.pipeline import STEPS
from headgate.model.jobspecs import compile_graph
from headgate.transforms import Transform
from tests.support.jobspecs import name, published, spec


def test_bench_pipeline_declares_what_each_query_reads_and_no_circle() -> None:
    found: dict[str, object] = {}
    exec(compile(pipeline_source(), "pipeline.py", "exec"), found)
    made = [value for value in found.values() if isinstance(value, Transform)]
    assert len(made) == 10 + len(STEPS)
    specs = [
        spec(
            str(next(iter(one.outputs.values())).dataset),
            *(str(given.dataset) for given in one.inputs.values()),
        )
        for one in made
    ]
    targets = [name(f"made.{step}") for step in STEPS]
    jobs = compile_graph(targets, ("master",), published(master=list(specs)), upstream=True)
    assert len(jobs) == len(STEPS)
    read = {str(given.dataset) for job in jobs for given in job.spec.inputs}
    assert {text for text in read if text.startswith("source.")} >= {"source.lineitem"}
