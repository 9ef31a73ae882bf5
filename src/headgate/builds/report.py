"""What a build says of itself: the JSON of `plan` and `build`, from one place."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.builds.plan import Plan
from headgate.model.freshness import Decided, Decision


class JobState(enum.StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    SKIPPED = "skipped"
    ADOPTED = "adopted"


class BuildState(enum.StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


# What a job is before anything ran.
PLANNED_STATES = {
    Decided.FRESH: JobState.SKIPPED,
    Decided.ADOPTED: JobState.ADOPTED,
    Decided.STALE: JobState.WAITING,
}


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
    error: Mapping[str, Any] | None = None
    log: str | None = None

    @property
    def title(self) -> str:
        return ", ".join(str(name) for name in self.decision.job.outputs)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "outputs": [str(name) for name in self.decision.job.outputs],
            "state": self.state.value,
            "reason": self.decision.reason.value,
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
        if self.error is not None:
            data["error"] = dict(self.error)
            data["log"] = self.log
        return data


def planned_reports(plan: Plan) -> list[JobReport]:
    """Every job as the plan has it."""
    return [
        JobReport(
            decision=decision,
            state=PLANNED_STATES[decision.state],
            inputs=[
                {
                    "dataset": str(given.dataset),
                    "branch": given.branch,
                    "transaction": given.transaction,
                }
                for given in decision.inputs
            ],
        )
        for decision in plan.decisions
    ]


def to_json(
    plan: Plan,
    reports: Sequence[JobReport],
    *,
    build: str | None = None,
    state: BuildState | None = None,
    publications: Sequence[int] = (),
) -> dict[str, Any]:
    """The document of `headgate plan` (no build, no state) and of `headgate build`."""
    return {
        "build": build,
        "branch": plan.request.branch,
        "fallback": list(plan.request.fallback),
        "state": state.value if state else None,
        "jobs": [report.to_json() for report in reports],
        "publications": list(publications),
    }
