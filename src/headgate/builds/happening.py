"""What happened to a job, for those who listen: told only after the catalog has it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headgate.model.freshness import Decision
from headgate.model.ids import BuildId
from headgate.model.nouns import AttemptRef

if TYPE_CHECKING:
    # Only its type: a ledger tells with what is defined here.
    from headgate.builds.ledger import Ledger


class Happened(enum.StrEnum):
    """The four words that OpenLineage has for it too."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, kw_only=True)
class JobHappening:
    """One step of one attempt of a job; of an adopted job, which has no attempt, of the job."""

    what: Happened
    at: datetime
    actor: str
    build: BuildId
    build_attempt: AttemptRef
    branch: str
    fallback: tuple[str, ...]
    position: int
    decision: Decision
    attempt: AttemptRef | None
    # As in the JSON of a build: dataset, branch, transaction.
    inputs: tuple[Mapping[str, Any], ...]
    # Transactions by dataset: committed ones where it is complete, else those that were open.
    outputs: Mapping[str, str]
    rows: int = 0
    spark_jobs: int = 0
    error: Mapping[str, Any] | None = None


Listen = Callable[[JobHappening], None]


def nobody(_: JobHappening) -> None:
    """Where nobody listens."""


def tell(ledger: Ledger, position: int, what: Happened, attempt: AttemptRef | None) -> None:
    """Tells whoever listens; the listener sees to it that it neither fails nor waits."""
    report, opened = ledger.reports[position], ledger.opened
    outputs = report.transactions or {
        str(name): id for name, id in opened.transactions.get(position, {}).items()
    }
    published = what is not Happened.COMPLETE or bool(report.transactions)
    ledger.parts.listen(
        JobHappening(
            what=what,
            at=datetime.now(UTC),
            actor=ledger.actor,
            build=opened.id,
            build_attempt=opened.attempt,
            branch=opened.plan.request.branch,
            fallback=opened.plan.request.fallback,
            position=position,
            decision=report.decision,
            attempt=attempt,
            inputs=tuple(dict(given) for given in report.inputs),
            outputs=outputs if published else {},
            rows=report.rows,
            spark_jobs=report.spark_jobs,
            error=dict(report.error) if report.error else None,
        )
    )


def tell_adopted(ledger: Ledger) -> None:
    """What was adopted has happened by the time a build is open, or at the end of an atomic one."""
    for position, report in enumerate(ledger.reports):
        if report.decision.candidate is not None:
            tell(ledger, position, Happened.START, None)
            tell(ledger, position, Happened.COMPLETE, None)


def tell_staged(ledger: Ledger, what: Happened) -> None:
    """The jobs of an atomic build, whose one publication was made, or never will be."""
    for position, report in enumerate(ledger.reports):
        if report.transactions and report.decision.candidate is None:
            tell(ledger, position, what, ledger.attempt(position))
