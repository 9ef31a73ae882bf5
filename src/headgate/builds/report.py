"""Reports of plans and builds: the state of each job, the JSON documents and the graph."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from headgate.catalog.builds import JobRecord
from headgate.catalog.database import Connection
from headgate.catalog.jobspecs import datasets_with_jobspec
from headgate.catalog.records import find_datasets
from headgate.catalog.resolve import find_all_on_chain
from headgate.model.freshness import Decided, Decision, Reason
from headgate.model.graph import Graph, GraphFacts, make_graph
from headgate.model.ids import BuildId, PublicationNumber, TransactionId
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import BuildState, JobState

if TYPE_CHECKING:
    from headgate.builds.plan import Plan

_PLANNED_STATES = {
    Decided.FRESH: JobState.SKIPPED,
    Decided.HELD: JobState.SKIPPED,
    Decided.ADOPTED: JobState.ADOPTED,
    Decided.STALE: JobState.WAITING,
}
# Keys of a job's live document that its final document does not have.
_LIVE_KEYS = frozenset({"rows", "stages", "seconds", "ended", "phase"})


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Stages of the running Spark jobs, and the tasks of the active stages."""

    done: int
    all: int
    tasks_done: int
    tasks: int


class JobPhase(enum.StrEnum):
    """Phase of a job that waits; a running job has none."""

    STARTING_SPARK = "starting Spark"


@dataclass(kw_only=True)
class JobReport:
    """State of one job; `inputs` fill up as upstream transactions are committed."""

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
    phase: JobPhase | None = None
    # By the monotonic clock.
    began: float | None = None
    ended: float | None = None

    def enter(self, state: JobState) -> None:
        """Set the state, and start or stop the job's clock."""
        self.state, self.stages, self.phase = state, None, None
        if state is JobState.RUNNING:
            self.began = self.began or time.monotonic()
        elif self.began is not None:
            self.ended = time.monotonic()

    def update(self, event: Mapping[str, Any]) -> None:
        """Apply an event of the job's process."""
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
        """Run time so far, over all attempts."""
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
            "jobspec_commit": self.decision.job.spec.source.commit,
            "jobspec_clean": self.decision.job.spec.source.clean,
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
        if self.decision.held is not None:
            data["held"] = self.decision.held.to_json()
        if self.decision.differences:
            data["differences"] = [one.to_json() for one in self.decision.differences]
        if self.decision.incremental is not None:
            data["incremental"] = self.decision.incremental.to_json()
        if self.checks:
            data["checks"] = list(self.checks)
        if self.error is not None:
            data["error"] = dict(self.error)
            data["log"] = self.log
        return data

    def to_live_json(self) -> dict[str, Any]:
        """Return the document with progress and times."""
        return self.to_json() | {
            "rows": self.rows,
            "stages": asdict(self.stages) if self.stages else None,
            "seconds": self.seconds,
            "phase": self.phase,
            # Comparable only with other jobs of the same process: gives the order of their ends.
            "ended": self.ended,
        }

    def to_record(self, position: int) -> JobRecord:
        """Return the catalog row of this job; progress is in it for readers in other processes."""
        body = self.to_json()
        if self.phase is not None:
            body["phase"] = self.phase
        if self.seconds is not None:
            body["log"] = self.log
            body["progress"] = {
                "rows": self.rows,
                "seconds": round(self.seconds, 1),
                "stages": asdict(self.stages) if self.stages else None,
            }
        return JobRecord(
            ordinal=position,
            state=self.state.value,
            reason=self.reason.value,
            attempts=self.attempts,
            body=body,
        )


class RemoteJob:
    """State of a job of a server's build, from the last document that the server sent."""

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
        self.phase: str | None = document.get("phase")
        self.ended: float | None = document.get("ended")

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in self._document.items() if name not in _LIVE_KEYS}

    def to_live_json(self) -> dict[str, Any]:
        return self._document


# The same attributes, wherever the build runs; only the documents are costly to make.
JobStatus = JobReport | RemoteJob

# Progress callback of a build: receives all jobs whenever one of them changes.
Watch = Callable[[Sequence[JobStatus]], None]


def planned_reports(
    plan: Plan, adopted: Mapping[DatasetName, TransactionId] | None = None
) -> list[JobReport]:
    """Return every job as planned; `adopted` has the transactions that the build made for them."""
    made = adopted or {}
    return [
        JobReport(
            decision=decision,
            state=_PLANNED_STATES[decision.state],
            inputs=planned_inputs(decision, made),
            transactions={str(n): made[n] for n in decision.job.outputs if n in made},
        )
        for decision in plan.decisions
    ]


def planned_inputs(
    decision: Decision, made: Mapping[DatasetName, TransactionId]
) -> list[dict[str, Any]]:
    """Return what a job reads: the planned views, or transactions that the build itself made."""
    return [
        {
            "dataset": str(given.dataset),
            "branch": given.branch,
            "transaction": given.transaction or made.get(given.dataset),
        }
        for given in decision.inputs
    ]


# Text of a reason without differences.
_REASONS = {
    Reason.FORCED: "it is forced",
    Reason.NEVER_BUILT: "it has no version on the chain",
    Reason.NEVER_FRESH: 'it is declared with fresh="never"',
    Reason.FRESH: "logic, parameters and inputs are those of the view",
}
_SHORT = 12


def explain_job(job: Mapping[str, Any]) -> list[str]:
    """Return the reasons for a job's state as sentences, from its document."""
    found = [_REASONS[job["reason"]]] if job["reason"] in _REASONS else []
    if (adopted := job.get("adopted_from")) is not None:
        results = ", ".join(f"{name} {id}" for name, id in adopted["transactions"].items())
        found.append(f"adopted from {adopted['branch']}: {results}")
    if (held := job.get("held")) is not None:
        found.append(f"held: {hold_text(held)}")
        found.append("changed logic, inputs or parameters, --force or a reset forward end this")
    return found + [_difference_text(one) for one in job.get("differences", ())]


def hold_text(held: Mapping[str, Any]) -> str:
    """Return `reset 12 by ana at 2026-11-18 09:30:12 removed this result from master`."""
    at = held["at"][:19].replace("T", " ")
    reset = f"reset {held['publication']} by {held['actor']} at {at}"
    return f"{reset} removed this result of {held['dataset']} from {held['branch']}"


def _difference_text(difference: Mapping[str, Any]) -> str:
    name, before, after = difference["dataset"], difference["from"], difference["to"]
    match difference["part"]:
        case "input":
            before = before or "(not read)"
            return f"input {name} moved: {before} → {after or '(made by this build)'}"
        case "output":
            return f"{before} of {name} was not made by a build"
        case "age":
            return f"{before} of {name} is older than its job allows"
        case part:
            return f"{part} changed: {before[:_SHORT]} → {after[:_SHORT]}"


@dataclass(frozen=True, kw_only=True)
class PlannedBuild:
    """A plan, job by job in the order of dependency."""

    branch: str
    fallback: tuple[str, ...]
    jobs: Sequence[JobStatus]
    # Nodes and edges, and a drawing, where the caller requested a graph.
    graph: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document of `headgate plan`: a build's document without id and state."""
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
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            branch=document["branch"],
            fallback=tuple(document["fallback"]),
            jobs=[RemoteJob(job) for job in document["jobs"]],
            graph=document.get("graph"),
        )


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    """A build that has ended."""

    id: BuildId
    branch: str
    fallback: tuple[str, ...]
    state: BuildState
    jobs: Sequence[JobStatus]
    publications: tuple[PublicationNumber, ...]

    def to_json(self) -> dict[str, Any]:
        return self._document([job.to_json() for job in self.jobs])

    def to_live_json(self) -> dict[str, Any]:
        """Return the document with times and row counts of each job."""
        return self._document(self.live_jobs())

    def live_jobs(self) -> list[dict[str, Any]]:
        return [job.to_live_json() for job in self.jobs]

    @classmethod
    def from_live_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            id=BuildId(document["build"]),
            branch=document["branch"],
            fallback=tuple(document["fallback"]),
            state=BuildState(document["state"]),
            jobs=[RemoteJob(job) for job in document["jobs"]],
            publications=tuple(PublicationNumber(n) for n in document["publications"]),
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
    """Ctrl-C during a build; raised after everything uncommitted was aborted."""

    def __init__(self, outcome: BuildOutcome) -> None:
        super().__init__(f"build {outcome.id} was interrupted")
        self.outcome = outcome


def graph_of(connection: Connection, plan: Plan, *, primary: str) -> Graph:
    """Return the datasets and jobs of a plan as a graph."""
    planned = [_PLANNED_STATES[decision.state] for decision in plan.decisions]
    kept = [name for d in plan.decisions if d.is_skipped for name in d.job.outputs]
    read = {given.dataset for decision in plan.decisions for given in decision.inputs}
    chain = plan.request.chain
    facts = GraphFacts(
        chain=chain,
        primary=primary,
        kinds={n: d.kind for n, d in find_datasets(connection, read).items()},
        shown_on=_shown_on(connection, chain, kept),
        blue={parse_dataset_name(text) for text in datasets_with_jobspec(connection, primary)},
    )
    return make_graph(plan.decisions, planned, facts)


def _shown_on(
    connection: Connection, chain: Sequence[str], names: Sequence[DatasetName]
) -> dict[DatasetName, str]:
    """Return the first branch of the chain that has a view, by dataset."""
    ids = [dataset.id for dataset in find_datasets(connection, names).values()]
    sources = (on.source for on in find_all_on_chain(connection, chain, ids).values())
    return {source.dataset: source.name for source in sources if source is not None}
