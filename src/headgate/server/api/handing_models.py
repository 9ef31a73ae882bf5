"""What a client that does the jobs of its build says and hears."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from headgate.builds.attempting import JobResult
from headgate.builds.handed import Said
from headgate.model.checks import CheckStage
from headgate.server.api.models import JobModel, PlanModel, shown
from headgate.server.api.requests import Sha256, asked

_BUILD = "build-01m7f8gggmxzttp51zc67s"
_ATTEMPT = f"{_BUILD}/0:1"
_SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_T = "t-01m7f8gggmxzttp51zc67s"

_INPUT = {
    "dataset": "sales.orders",
    "branch": "master",
    "transaction": _T,
    "since_snapshot": None,
    "root": None,
    "since_root": None,
}
_OUTPUT = {"dataset": "sales.daily", "is_files": False, "base_snapshot": None, "base_root": None}
_ORDER = {
    "key": f"{_BUILD}/0",
    "epoch": 1,
    "token": "of this attempt alone",
    "module": "sales.daily",
    "bundle": _SHA,
    "inputs": {"orders": _INPUT},
    "outputs": {"daily": _OUTPUT},
    "branch": "feature",
    "fallback": ["master"],
    "incremental": False,
    "extent": None,
    "parameters": {},
    "allowed_run_seconds": None,
}

# As many as a job of any size has, and as much of its log as anybody reads.
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Attempt = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Output = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Log = Annotated[str, StringConstraints(max_length=1024 * 1024)]


class _Said(BaseModel):
    attempt: Attempt
    number: int = Field(ge=1, le=2**63 - 1, description="Of this attempt, from 1 on.")


class ProgressSaid(_Said):
    model_config = asked(
        attempt=_ATTEMPT,
        number=1,
        event="progress",
        stages_done=1,
        stages=3,
        tasks_done=5,
        tasks=8,
    )
    event: Literal["progress"]
    stages_done: Count
    stages: Count
    tasks_done: Count
    tasks: Count


class WrittenSaid(_Said):
    model_config = asked(attempt=_ATTEMPT, number=2, event="written", rows=1200)
    event: Literal["written"]
    rows: Count


class CheckSaid(BaseModel):
    """What a check found, in the form that is kept with a transaction."""

    model_config = asked(
        name="one row an order",
        stage="post",
        dataset="sales.daily",
        on_error="FAIL",
        passed=True,
        expectation="id is a key",
        reason="1200 rows, 0 repeated",
        samples=[],
    )
    name: str
    stage: CheckStage
    dataset: str
    on_error: str
    passed: bool
    expectation: str
    reason: str
    samples: list[dict[str, str | None]] = Field(default_factory=list, max_length=1000)


class EndedSaid(_Said):
    model_config = asked(
        attempt=_ATTEMPT,
        number=3,
        event="ended",
        succeeded=True,
        written=["report"],
        files={"report": _SHA},
        rows=1200,
        spark_jobs=4,
    )
    event: Literal["ended"]
    succeeded: bool
    aborted: bool = Field(False, description="It asked to publish nothing.")
    written: list[Output] = Field(default_factory=list, max_length=1000)
    replaced: list[Output] = Field(default_factory=list, max_length=1000)
    files: dict[str, Sha256] = Field(
        default_factory=dict,
        description="By output of files: the root of the tree that was stored as contents.",
    )
    rows: Count = 0
    spark_jobs: Count = 0
    checks: list[CheckSaid] = Field(default_factory=list, max_length=10_000)
    error: dict[str, Any] | None = None
    log: Log | None = Field(None, description="The end of what it printed.")

    def result(self) -> JobResult:
        failure = self.error or {"message": "the client did not say why it failed"}
        return JobResult(
            succeeded=self.succeeded,
            written=tuple(self.written),
            replaced=tuple(self.replaced),
            aborted=self.aborted,
            rows=self.rows,
            spark_jobs=self.spark_jobs,
            checks=tuple(check.model_dump(mode="json") for check in self.checks),
            error=None if self.succeeded else failure,
        )


class Working(BaseModel):
    model_config = asked(running=[_ATTEMPT], seen=4, expected=1, said=[], wait_seconds=10)
    running: list[Attempt] = Field(
        default_factory=list, max_length=1000, description="Attempts that are under way there."
    )
    seen: int = Field(
        0, ge=0, le=2**63 - 1, description="The number that came with the last answer."
    )
    expected: int = Field(0, ge=0, le=2**31, description="As the last answer had it.")
    said: list[Annotated[ProgressSaid | WrittenSaid | EndedSaid, Field(discriminator="event")]] = (
        Field(default_factory=list, max_length=1000)
    )
    ready: bool = Field(True, description="False while what jobs need is still being started.")
    wait_seconds: float = Field(
        0, ge=0, le=10, description="How long to wait for something that is new."
    )

    def heard(self) -> list[Said]:
        return [_heard(one) for one in self.said]


class ShownJobModel(BaseModel):
    model_config = shown(
        position=0,
        job={"outputs": ["sales.daily"], "state": "running", "reason": "stale-input"},
    )
    position: int
    job: JobModel


class InputOrderModel(BaseModel):
    model_config = shown(**_INPUT)
    dataset: str
    branch: str
    transaction: str
    since_snapshot: int | None = Field(description="Only what is newer in the table is read.")
    root: str | None = Field(description="Of files: the tree, a content by this digest.")
    since_root: str | None = Field(description="Of files: the tree that was read last.")


class OutputOrderModel(BaseModel):
    model_config = shown(**_OUTPUT)
    dataset: str
    is_files: bool
    base_snapshot: int | None = Field(description="What the table held, where it is added to.")
    base_root: str | None = Field(description="Of files: the tree that it held.")


class OrderModel(BaseModel):
    model_config = shown(**_ORDER)
    key: str
    epoch: int
    token: str = Field(description="Opens `job:<key>:<epoch>` of the Iceberg endpoint alone.")
    module: str
    bundle: str = Field(description="The code: `GET /bundles/{digest}`.")
    inputs: dict[str, InputOrderModel]
    outputs: dict[str, OutputOrderModel]
    branch: str
    fallback: list[str]
    incremental: bool
    extent: str | None = Field(description="How much is read, and why; for the log.")
    parameters: dict[str, Any]
    allowed_run_seconds: float | None


class WorkModel(BaseModel):
    model_config = shown(expected=1, start=[_ORDER], stop=[], seen=4, jobs=[], outcome=None)
    expected: int = Field(description="How many jobs are still to come.")
    start: list[OrderModel] = Field(description="Attempts to begin.")
    stop: list[str] = Field(description="Attempts to end: they are not wanted any more.")
    seen: int = Field(description="To be sent with the next request.")
    jobs: list[ShownJobModel] = Field(description="Those that changed since.")
    outcome: PlanModel | None = Field(description="The document of the build, at its end.")


def _heard(one: ProgressSaid | WrittenSaid | EndedSaid) -> Said:
    if isinstance(one, EndedSaid):
        return Said(
            attempt=one.attempt,
            number=one.number,
            event={"event": one.event},
            result=one.result(),
            roots=one.files,
            log=one.log,
        )
    event = one.model_dump(exclude={"attempt", "number"})
    return Said(attempt=one.attempt, number=one.number, event=event)
