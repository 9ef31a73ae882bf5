"""What a build says of itself: the JSON of `plan` and `build`, from one place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.builds.plan import Plan
from headgate.catalog.builds import JobRecord
from headgate.model.freshness import Decided, Decision, Reason
from headgate.model.ids import TransactionId
from headgate.model.job_states import BuildState as BuildState
from headgate.model.job_states import JobState as JobState
from headgate.model.names import DatasetName

# What a job is before anything ran.
PLANNED_STATES = {
    Decided.FRESH: JobState.SKIPPED,
    Decided.ADOPTED: JobState.ADOPTED,
    Decided.STALE: JobState.WAITING,
}


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Of the Spark jobs that run now: their stages, and the tasks of the stages at work."""

    done: int
    all: int
    tasks_done: int
    tasks: int


@dataclass(kw_only=True)
class JobReport:
    """One job as it goes along; `inputs` fill up as upstream transactions are committed."""

    decision: Decision
    state: JobState
    inputs: list[dict[str, Any]]
    attempts: int = 0
    spark_jobs: int = 0
    rows: int = 0
    transactions: dict[str, str] = field(default_factory=dict)
    checks: Sequence[Mapping[str, Any]] = ()
    error: Mapping[str, Any] | None = None
    log: str | None = None
    stages: Stages | None = None
    # By the monotonic clock, for those who watch.
    began: float | None = None
    ended: float | None = None

    def enter(self, state: JobState) -> None:
        """The job is in this state from now on."""
        self.state, self.stages = state, None
        if state is JobState.RUNNING:
            self.began = self.began or time.monotonic()
        elif self.began is not None:
            self.ended = time.monotonic()

    def notice(self, event: Mapping[str, Any]) -> None:
        """Takes in what the job's process reported."""
        if event["event"] == "written":
            self.rows += int(event.get("rows") or 0)
        elif event["event"] == "progress":
            self.stages = Stages(
                done=int(event["stages_done"]),
                all=int(event["stages"]),
                tasks_done=int(event["tasks_done"]),
                tasks=int(event["tasks"]),
            )

    @property
    def seconds(self) -> float | None:
        """How long it has been running, or ran, over all its attempts."""
        if self.began is None:
            return None
        return (self.ended or time.monotonic()) - self.began

    @property
    def title(self) -> str:
        return ", ".join(self.outputs)

    @property
    def outputs(self) -> list[str]:
        return [str(name) for name in self.decision.job.outputs]

    @property
    def reason(self) -> Reason:
        return self.decision.reason

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "outputs": self.outputs,
            "state": self.state.value,
            "reason": self.reason.value,
            "jobspec_branch": self.decision.job.jobspec_branch,
            "inputs": self.inputs,
            "attempts": self.attempts,
            "spark_jobs": self.spark_jobs,
            "transactions": self.transactions,
        }
        if self.decision.candidate is not None:
            data["adopted_from"] = {
                "branch": self.decision.candidate.branch,
                "transactions": {
                    str(name): id for name, id in self.decision.candidate.transactions.items()
                },
            }
        if self.decision.incremental is not None:
            data["incremental"] = self.decision.incremental.to_json()
        if self.checks:
            data["checks"] = list(self.checks)
        if self.error is not None:
            data["error"] = dict(self.error)
            data["log"] = self.log
        return data

    def to_live_json(self) -> dict[str, Any]:
        """The same with what only those who watch want to know."""
        return self.to_json() | {
            "rows": self.rows,
            "stages": asdict(self.stages) if self.stages else None,
            "seconds": self.seconds,
            # Of use only to tell which of two ended first.
            "ended": self.ended,
        }


def planned_reports(
    plan: Plan, adopted: Mapping[DatasetName, TransactionId] | None = None
) -> list[JobReport]:
    """Every job as the plan has it; `adopted` are the transactions that a build made of them."""
    made = adopted or {}
    return [
        JobReport(
            decision=decision,
            state=PLANNED_STATES[decision.state],
            inputs=[
                {
                    "dataset": str(given.dataset),
                    "branch": given.branch,
                    "transaction": given.transaction or made.get(given.dataset),
                }
                for given in decision.inputs
            ],
            transactions={str(n): made[n] for n in decision.job.outputs if n in made},
        )
        for decision in plan.decisions
    ]


def job_record(position: int, report: JobReport) -> JobRecord:
    """What is kept of a job."""
    return JobRecord(
        ordinal=position,
        state=report.state.value,
        reason=report.decision.reason.value,
        attempts=report.attempts,
        body=report.to_json() | _progress(report),
    )


def _progress(report: JobReport) -> dict[str, Any]:
    """For those who look from elsewhere: rows and time so far, and the stages at work."""
    if report.seconds is None:
        return {}
    stages = asdict(report.stages) if report.stages else None
    told = {"rows": report.rows, "seconds": round(report.seconds, 1), "stages": stages}
    return {"progress": told, "log": report.log}
