"""Task modules as authors write them, put on disk for a test to import."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

_COUNT = itertools.count(1)

# Written for the declaration API that the design compares itself with: only its import differs.
FAMILIAR = """
from pathlib import Path

from pydantic import BaseModel, Field

from {package} import (
    ExecutionLimits, MetricRecorder, MetricSpec, PublishBudget, RetryPolicy, TaskControls,
    TaskFailed, TaskTerminalError, TimeoutPolicy, WorkspaceSpec, forbid_glob, require_dir,
    require_file, require_glob, task,
)


class Params(BaseModel):
    word: str = Field(min_length=1)
    times: int = 1


class Result(BaseModel):
    row_count: int
    status: str = "DONE"


@task(
    name="render_words",
    owner_email="words@example.com",
    description="Writes a word into every text.",
    workspace=WorkspaceSpec(
        prefix="render/in",
        pre=[require_file("song.txt"), require_dir("stems"), forbid_glob("**/*.tmp")],
        post=[require_glob("out/*.txt", min_count=1, max_count=10)],
    ),
    metrics=MetricSpec(workspace_io=False),
    controls=TaskControls(
        retry=RetryPolicy(count=2, logic="EXPONENTIAL_BACKOFF", delay_seconds=5),
        timeout=TimeoutPolicy(policy="RETRY", seconds=1200, response_seconds=300),
        limits=ExecutionLimits(concurrent_exec_limit=4),
        publish_budget=PublishBudget(
            observed_merge_p99_seconds=20, safety_margin_seconds=10,
            lakefs_merge_timeout_seconds=45, conductor_completion_timeout_seconds=15,
            worker_shutdown_grace_seconds=30, heartbeat_interval_seconds=10,
        ),
    ),
    strict_params=True,
)
def render(workspace: Path, params: Params, metrics: MetricRecorder) -> Result:
    if params.word == "stop":
        raise TaskTerminalError("nobody sings that")
    if params.word == "later":
        raise TaskFailed("not today")
    (workspace / "out").mkdir(exist_ok=True)
    with metrics.timer("render_seconds", voice="alto"):
        for number in range(params.times):
            (workspace / "out" / f"{{number}}.txt").write_text(params.word)
    metrics.gauge("words", params.times)
    return Result(row_count=params.times)
"""


def write_module(directory: Path, source: str, **words: str) -> str:
    """Write a module's source below the directory; return its unique name."""
    name = f"task_module_{next(_COUNT)}"
    text = textwrap.dedent(source)
    (directory / f"{name}.py").write_text(text.format(**words) if words else text)
    return name


# The nth attempt executes the nth step, and waits where the step requires it.
STEPS = """
import os
import time
from pathlib import Path

from pydantic import BaseModel

from headgate.tasks import RetryPolicy, TaskControls, TimeoutPolicy, WorkspaceSpec, task


class Params(BaseModel):
    counter: Path
    steps: list[dict[str, str]]
    wait_for: Path | None = None


class Result(BaseModel):
    attempt: int


@task(
    name="{name}",
    owner_email="a@b.c",
    workspace=WorkspaceSpec(),
    controls=TaskControls(
        retry=RetryPolicy(count={retries}, delay_seconds=0),
        timeout=TimeoutPolicy(policy="RETRY", seconds={seconds}, response_seconds={response}),
    ),
)
def steps(workspace: Path, params: Params) -> Result:
    number = len(params.counter.read_text()) + 1 if params.counter.exists() else 1
    params.counter.write_text("x" * number)
    for name, text in params.steps[min(number, len(params.steps)) - 1].items():
        if name == "!kill":
            os.kill(os.getpid(), 9)
        elif name == "!hang":
            time.sleep(600)
        else:
            (workspace / name).write_text(text)
    if params.wait_for is not None:
        params.counter.with_suffix(".pid").write_text(str(os.getpid()))
        while not params.wait_for.exists():
            time.sleep(0.01)
    return Result(attempt=number)
"""
