"""One job of a build, through its attempts, to its commit or its failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.attempts.committing import CommitOptions, commit_transactions
from headgate.builds.job import JobAttempt, JobResult, JobWork, Pinned
from headgate.builds.ledger import Ledger
from headgate.builds.opening import provenance_of
from headgate.builds.report import JobState
from headgate.catalog.attempts import end_attempt
from headgate.catalog.find import find_datasets, load_transactions
from headgate.errors import HeadgateError
from headgate.model.freshness import fingerprint
from headgate.model.nouns import AttemptState
from headgate.spark.workplace import Workplace


def run_job(ledger: Ledger, workplace: Workplace, position: int, *, retries: int) -> None:
    """Runs a job until it succeeded or has no retry left; never raises for user code."""
    report = ledger.reports[position]
    failure: Mapping[str, Any] = {}
    work = prepare_work(ledger, position)
    for number in range(1, retries + 2):
        report.attempts = number
        try:
            if number > 1:
                work = replace(work, attempt=ledger.next_attempt(position))
            attempt = JobAttempt(ledger.parts, workplace, work)
            ledger.started(position, attempt)
            result = attempt.run(lambda event: ledger.noticed(position, event))
            report.spark_jobs += result.spark_jobs
            report.log = str(attempt.log_path)
            if result.succeeded:
                _succeed(ledger, position, work, result)
                return
            failure = result.error or {}
        except HeadgateError as refused:
            failure = {"message": refused.message, "code": refused.code}
            if refused.code == "attempt_superseded":
                break
        finally:
            ledger.ended(position)
    report.error = failure
    ledger.abort(position, JobState.FAILED)


def prepare_work(ledger: Ledger, position: int) -> JobWork:
    """Pins every input: what was planned, or what this build committed meanwhile."""
    decision, request = ledger.opened.plan.decisions[position], ledger.opened.plan.request
    datasets = ledger.parts.database.read(
        lambda c: find_datasets(c, [given.dataset for given in decision.inputs])
    )
    pins: dict[str, Pinned] = {}
    contents = {}
    for given in decision.inputs:
        id, branch, content = given.transaction, given.branch, given.content
        if given.made_by is not None:
            made = ledger.committed(given.dataset)
            id, branch = made.id, request.branch
            content = made.version.content_id if made.version else None
        assert id is not None and content is not None, f"{given.dataset} has nothing to read"
        contents[given.name] = content
        pins[given.name] = Pinned(
            dataset=given.dataset, branch=branch, transaction=id, kind=datasets[given.dataset].kind
        )
    ledger.reports[position].inputs = [
        {"dataset": str(p.dataset), "branch": p.branch, "transaction": p.transaction}
        for p in pins.values()
    ]
    made_from = decision.made_from or fingerprint(
        decision.job.spec,
        parameters=request.parameters,
        environment=request.environment,
        inputs=contents,
        base={},
    )
    return JobWork(
        decision=replace(decision, made_from=made_from),
        attempt=ledger.attempt(position),
        inputs=pins,
        outputs=ledger.opened.transactions[position],
        branch=request.branch,
        fallback=request.fallback,
        parameters=request.parameters,
    )


def _succeed(ledger: Ledger, position: int, work: JobWork, result: JobResult) -> None:
    """All outputs of a job become visible together, through the door."""
    report = ledger.reports[position]
    report.rows = result.rows
    if result.aborted:
        ledger.abort(position, JobState.SUCCEEDED)
        return
    ids = list(work.outputs.values())
    made = provenance_of(ledger.opened.id, work.decision, report.inputs)
    receipt = commit_transactions(
        ledger.parts.database,
        ledger.parts.contents,
        ids,
        CommitOptions(
            actor=ledger.actor,
            attempt=work.attempt,
            may_write_protected=work.decision.job.spec.source.clean,
            provenance=dict.fromkeys(ids, made),
        ),
    )
    end_attempt(ledger.parts.database, work.attempt, AttemptState.SUCCEEDED)
    committed = ledger.parts.database.read(lambda c: load_transactions(c, ids))
    ledger.note_commit({t.dataset: t for t in committed.values()}, receipt.publication)
    report.transactions = {str(name): id for name, id in work.outputs.items()}
    ledger.set(position, JobState.SUCCEEDED)
