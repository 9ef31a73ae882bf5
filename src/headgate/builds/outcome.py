"""What a build would do and what came of it, wherever its book is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from headgate.model.freshness import Reason
from headgate.model.ids import BuildId, PublicationNumber
from headgate.model.job_states import BuildState, JobState

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
