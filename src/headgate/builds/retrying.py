"""One job of a build, through its attempts, to its commit or its failure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from headgate.attempts.committing import (
    CommitOptions,
    commit_transactions,
    complete_transactions,
)
from headgate.builds.attempting import JobResult, Jobs, JobWork, log_of
from headgate.builds.ledger import Ledger
from headgate.builds.pinning import prepare_work
from headgate.builds.provenance import provenance_of
from headgate.builds.report import JobState
from headgate.catalog.attempts import end_attempt
from headgate.catalog.endings import hand_over
from headgate.catalog.find import load_transactions
from headgate.errors import HeadgateError
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import PublicationNumber, TransactionId
from headgate.model.nouns import AttemptState


def run_job(ledger: Ledger, jobs: Jobs, position: int, *, retries: int, atomic: bool) -> None:
    """Runs a job until it succeeded or has no retry left; never raises for user code."""
    report = ledger.reports[position]
    work: JobWork | None = None
    for number in range(1, retries + 2):
        if ledger.stopped is not None:
            break
        try:
            if work is None:
                work = prepare_work(ledger, position)
            else:
                attempt = ledger.next_attempt(position)
                work = replace(work, attempt=attempt, directory=ledger.directory_of(attempt))
            report.attempts, report.log = number, str(log_of(work))
            result = _run_once(ledger, jobs, position, work)
            if result.succeeded:
                _succeed(ledger, position, work, result, atomic=atomic)
                return
            report.error = result.error or {}
        except HeadgateError as refused:
            report.error = {"message": refused.message, "code": refused.code}
        # Whatever was said, the reason may be that somebody has ended this build.
        with contextlib.suppress(HeadgateError):
            ledger.look_outside()
    if ledger.stopped is not None:
        report.error = {"message": ledger.stopped}
        ledger.abort(position, JobState.ABORTED)
    else:
        ledger.abort(position, JobState.FAILED)


def _run_once(ledger: Ledger, jobs: Jobs, position: int, work: JobWork) -> JobResult:
    attempt = jobs.start(work)
    ledger.started(position, attempt)
    try:
        result = attempt.run(partial(ledger.noticed, position))
    finally:
        ledger.ended(position)
    report = ledger.reports[position]
    report.spark_jobs += result.spark_jobs
    report.rows, report.checks = result.rows, result.checks
    return result


def _succeed(
    ledger: Ledger, position: int, work: JobWork, result: JobResult, *, atomic: bool
) -> None:
    """All outputs of a job become visible together or, in an atomic build, the build's to show."""
    report = ledger.reports[position]
    report.error = None
    if result.aborted:
        ledger.abort(position, JobState.SUCCEEDED)
        return
    reach(Failpoint.BUILD_JOB_ENDED)
    ids = list(work.outputs.values())
    about = provenance_of(ledger.opened.id, work.decision, report.inputs, checks=result.checks)
    made = dict.fromkeys(ids, about)
    publication = None
    if atomic:
        complete_transactions(ledger.parts.database, ids, work.attempt)
        hand_over(ledger.parts.database, work.attempt, ids)
        ledger.note_staged(made)
    else:
        publication = _commit(ledger, work, ids, made)
    found = ledger.parts.database.read(lambda c: load_transactions(c, ids))
    ledger.note_made({t.dataset: t for t in found.values()}, publication)
    report.transactions = {str(name): id for name, id in work.outputs.items()}
    ledger.set(position, JobState.SUCCEEDED)


def _commit(
    ledger: Ledger, work: JobWork, ids: list[TransactionId], made: Mapping[TransactionId, Any]
) -> PublicationNumber | None:
    receipt = commit_transactions(
        ledger.parts.database,
        ledger.parts.contents,
        ids,
        CommitOptions(
            actor=ledger.actor,
            attempt=work.attempt,
            may_write_protected=work.decision.job.spec.source.clean,
            provenance=made,
        ),
    )
    end_attempt(ledger.parts.database, work.attempt, AttemptState.SUCCEEDED)
    return receipt.publication
