"""What a build says of itself: the JSON of `plan` and `build`, from one place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from headgate.builds.plan import Plan
from headgate.catalog.builds import JobRecord
from headgate.catalog.database import Connection
from headgate.catalog.jobspecs import datasets_with_jobspec
from headgate.catalog.records import branches_named, find_datasets
from headgate.model.freshness import Decided, Decision, Reason
from headgate.model.graph import Graph, GraphFacts, make_graph
from headgate.model.ids import BuildId, PublicationNumber, TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import BuildState, JobState

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


# What a build would do and what came of it, wherever its book is kept.

# Of a job that is shown live: what its document does not say.
LIVE_FACTS = frozenset({"rows", "stages", "seconds", "ended"})


class ShownJob(Protocol):
    """A job as planned, as it goes along and as it ended; only its documents are costly."""

    @property
    def title(self) -> str: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    @property
    def reason(self) -> Reason: ...

    @property
    def inputs(self) -> Sequence[Mapping[str, Any]]:
        """What it reads: `{"dataset", "branch", "transaction"}` each."""
        ...

    @property
    def state(self) -> JobState: ...

    @property
    def attempts(self) -> int: ...

    @property
    def spark_jobs(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def transactions(self) -> Mapping[str, str]: ...

    @property
    def checks(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def error(self) -> Mapping[str, Any] | None: ...

    @property
    def log(self) -> str | None: ...

    @property
    def stages(self) -> object:
        """What of Spark is at work now; None where nothing is."""
        ...

    @property
    def ended(self) -> float | None: ...

    def to_json(self) -> dict[str, Any]: ...

    def to_live_json(self) -> dict[str, Any]: ...


class ToldJob:
    """A job whose book is kept elsewhere, as it was last told of."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = dict(document)
        self.title = ", ".join(document["outputs"])
        self.outputs: Sequence[str] = document["outputs"]
        self.reason = Reason(document["reason"])
        self.inputs: Sequence[Mapping[str, Any]] = document["inputs"]
        self.state = JobState(document["state"])
        self.attempts = int(document["attempts"])
        self.spark_jobs = int(document["spark_jobs"])
        self.rows = int(document.get("rows") or 0)
        self.transactions: Mapping[str, str] = document["transactions"]
        self.checks: Sequence[Mapping[str, Any]] = document.get("checks", ())
        self.error: Mapping[str, Any] | None = document.get("error")
        self.log: str | None = document.get("log")
        self.stages: object = document.get("stages")
        self.ended: float | None = document.get("ended")

    def to_json(self) -> dict[str, Any]:
        return {name: fact for name, fact in self._document.items() if name not in LIVE_FACTS}

    def to_live_json(self) -> dict[str, Any]:
        return self._document


@dataclass(frozen=True, kw_only=True)
class PlannedBuild:
    """What a build would do, job by job in the order of dependency."""

    branch: str
    fallback: tuple[str, ...]
    jobs: Sequence[ShownJob]
    # Where it was asked for: what is made of what, as data and drawn.
    graph: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The document of `headgate plan`: as that of a build, before there is one."""
        document = {
            "build": None,
            "branch": self.branch,
            "fallback": list(self.fallback),
            "state": None,
            "jobs": [job.to_json() for job in self.jobs],
            "publications": [],
        }
        return document if self.graph is None else {**document, "graph": dict(self.graph)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        return cls(
            branch=told["branch"],
            fallback=tuple(told["fallback"]),
            jobs=[ToldJob(job) for job in told["jobs"]],
            graph=told.get("graph"),
        )


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    id: BuildId
    branch: str
    fallback: tuple[str, ...]
    state: BuildState
    jobs: Sequence[ShownJob]
    publications: tuple[PublicationNumber, ...]

    def to_json(self) -> dict[str, Any]:
        return self._document([job.to_json() for job in self.jobs])

    def to_live_json(self) -> dict[str, Any]:
        """The same, each job with how long it took and how many rows it wrote."""
        return self._document(self.live_jobs())

    def live_jobs(self) -> list[dict[str, Any]]:
        return [job.to_live_json() for job in self.jobs]

    @classmethod
    def from_live_json(cls, told: Mapping[str, Any]) -> Self:
        return cls(
            id=BuildId(told["build"]),
            branch=told["branch"],
            fallback=tuple(told["fallback"]),
            state=BuildState(told["state"]),
            jobs=[ToldJob(job) for job in told["jobs"]],
            publications=tuple(PublicationNumber(n) for n in told["publications"]),
        )

    def _document(self, jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "build": self.id,
            "branch": self.branch,
            "fallback": list(self.fallback),
            "state": self.state.value,
            "jobs": list(jobs),
            "publications": list(self.publications),
        }


class BuildInterrupted(KeyboardInterrupt):
    """Ctrl-C came while a build ran: all that it had not committed is aborted by now."""

    def __init__(self, outcome: BuildOutcome) -> None:
        super().__init__(f"build {outcome.id} was interrupted")
        self.outcome = outcome


# The graph of a plan, with what the catalog knows of its datasets.


def graph_of(
    connection: Connection, plan: Plan, *, primary: str, states: Sequence[JobState] | None = None
) -> Graph:
    """As the plan has it, or with the states that a build of it has reached."""
    planned = [PLANNED_STATES[decision.state] for decision in plan.decisions]
    fresh = [d for d in plan.decisions if d.state is Decided.FRESH]
    kept = [name for decision in fresh for name in decision.job.outputs]
    read = {given.dataset for decision in plan.decisions for given in decision.inputs}
    chain = plan.request.chain
    facts = GraphFacts(
        chain=chain,
        primary=primary,
        kinds={n: d.kind for n, d in find_datasets(connection, read).items()},
        shown_on=_shown_on(connection, chain, kept),
        blue={parse_dataset_name(text) for text in datasets_with_jobspec(connection, primary)},
    )
    return make_graph(plan.decisions, states or planned, facts)


def _shown_on(
    connection: Connection, chain: Sequence[str], names: Sequence[DatasetName]
) -> dict[DatasetName, str]:
    """Of each dataset, the first branch of the chain with a COMMITTED transaction."""
    ids = [dataset.id for dataset in find_datasets(connection, names).values()]
    seen = {(b.dataset, b.name) for b in branches_named(connection, chain, ids) if b.view}
    # Later branches first, so that the first of the chain has the last word.
    return {name: b for b in reversed(chain) for name in names if (name, b) in seen}
