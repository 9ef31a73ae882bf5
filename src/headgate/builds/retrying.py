"""One job of a build, through its attempts, to its commit or its failure."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from headgate.attempts.committing import (
    CommitOptions,
    commit_transactions,
    complete_transactions,
)
from headgate.builds.attempting import JobResult, Jobs, JobWork, log_in
from headgate.builds.happening import Happened, tell
from headgate.builds.ledger import Ledger
from headgate.builds.opening import opening_type
from headgate.builds.pinning import prepare_work
from headgate.builds.provenance import provenance_of
from headgate.builds.report import JobState
from headgate.catalog.attempts import check_newest, end_attempt
from headgate.catalog.database import Database
from headgate.catalog.endings import hand_over
from headgate.catalog.find import load_transactions
from headgate.errors import AttemptSuperseded, HeadgateError
from headgate.model.changes import Provenance
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import PublicationNumber, TransactionId
from headgate.model.nouns import AttemptRef, AttemptState, TransactionType


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
            report.attempts, report.log = number, str(log_in(work.directory))
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
        if work is not None:
            stopped = ledger.stopped is not None
            tell(ledger, position, Happened.ABORT if stopped else Happened.FAIL, work.attempt)
    if ledger.stopped is not None:
        report.error = {"message": ledger.stopped}
        ledger.abort(position, JobState.ABORTED)
    else:
        ledger.abort(position, JobState.FAILED)


def _run_once(ledger: Ledger, jobs: Jobs, position: int, work: JobWork) -> JobResult:
    attempt = jobs.start(work)
    ledger.started(position, attempt)
    tell(ledger, position, Happened.START, work.attempt)
    try:
        result = attempt.run(partial(ledger.noticed, position))
    finally:
        ledger.ended(position)
    if not result.succeeded:
        result = explain_end(ledger.parts.database, work.attempt, result)
    report = ledger.reports[position]
    report.spark_jobs += result.spark_jobs
    report.rows, report.checks = result.rows, result.checks
    return result


def explain_end(database: Database, attempt: AttemptRef, result: JobResult) -> JobResult:
    """What an attempt ended with, and that it was superseded, which a refused HEAD cannot say."""
    try:
        database.read(partial(check_newest, ref=attempt))
    except AttemptSuperseded as refusal:
        said = (result.error or {}).get("message")
        message = f"{refusal.message} What it ended with: {said}" if said else refusal.message
        return replace(result, error={**(result.error or {}), "message": message})
    return result


def _succeed(
    ledger: Ledger, position: int, work: JobWork, result: JobResult, *, atomic: bool
) -> None:
    """All outputs of a job become visible together or, in an atomic build, the build's to show."""
    report = ledger.reports[position]
    report.error = None
    if result.aborted:
        ledger.abort(position, JobState.SUCCEEDED)
        tell(ledger, position, Happened.COMPLETE, work.attempt)
        return
    reach(Failpoint.BUILD_JOB_ENDED)
    ids = list(work.outputs.values())
    about = provenance_of(
        ledger.opened.id,
        work.decision,
        report.inputs,
        checks=result.checks,
        snapshots=work.snapshots,
        on_word_of=ledger.opened.on_word_of,
    )
    made = dict.fromkeys(ids, about)
    natural = ids if opening_type(work.decision) is TransactionType.UPDATE else []
    publication = None
    if atomic:
        complete_transactions(ledger.parts.database, ids, work.attempt)
        hand_over(ledger.parts.database, work.attempt, ids)
        ledger.note_staged(made, natural)
    else:
        publication = _commit(ledger, work, made, natural)
    found = ledger.parts.database.read(lambda c: load_transactions(c, ids))
    ledger.note_made({t.dataset: t for t in found.values()}, publication)
    report.transactions = {str(name): id for name, id in work.outputs.items()}
    ledger.set(position, JobState.SUCCEEDED)
    if not atomic:
        tell(ledger, position, Happened.COMPLETE, work.attempt)


def _commit(
    ledger: Ledger,
    work: JobWork,
    made: Mapping[TransactionId, Provenance],
    natural: Collection[TransactionId],
) -> PublicationNumber | None:
    receipt = commit_transactions(
        ledger.parts.database,
        ledger.parts.contents,
        list(made),
        CommitOptions(
            actor=ledger.actor,
            attempt=work.attempt,
            may_write_protected=work.decision.job.spec.source.clean
            and ledger.opened.on_word_of is None,
            provenance=made,
            natural=natural,
        ),
    )
    end_attempt(ledger.parts.database, work.attempt, AttemptState.SUCCEEDED)
    return receipt.publication
