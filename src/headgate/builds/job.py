"""One job of a build: pins its inputs, runs its attempts, and commits or aborts its outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from headgate.attempts import CommitOptions, commit_transactions, complete_transactions
from headgate.builds.attempt import JobEventType, JobResult, Jobs, JobWork, Pinned, log_in
from headgate.builds.ledger import Ledger
from headgate.builds.open import opening_type
from headgate.builds.plan import CatalogPast, first_view, inspect_content, provenance_of
from headgate.catalog.attempts import check_newest, end_attempt, hand_over
from headgate.catalog.database import Connection, Database
from headgate.catalog.merge_base import retype_transactions
from headgate.catalog.records import find_datasets, load_transactions
from headgate.errors import AttemptSuperseded, HeadgateError, InputNotFound, NotIncremental
from headgate.model.changes import Provenance
from headgate.model.failpoints import Failpoint, reach
from headgate.model.freshness import Decision, PlannedInput, fingerprint, with_base
from headgate.model.ids import ContentId, PublicationNumber, TransactionId
from headgate.model.incrementality import (
    Answer,
    Base,
    Extent,
    Incrementality,
    Place,
    Question,
    Span,
    decide_incremental,
)
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, AttemptState, DatasetKind, JobState, TransactionType
from headgate.tables.snapshots import current_snapshot_id


def run_job(ledger: Ledger, jobs: Jobs, position: int, *, retries: int, atomic: bool) -> None:
    """Run a job until it succeeds or has no retry left; never raises for user code."""
    report = ledger.reports[position]
    work: JobWork | None = None
    for number in range(1, retries + 2):
        if ledger.stopped is not None:
            break
        try:
            if work is None:
                work = _prepare_work(ledger, position)
            else:
                attempt = ledger.next_attempt(position)
                work = replace(work, attempt=attempt, directory=ledger.directory_of(attempt))
            report.attempts, report.log = number, str(log_in(work.directory))
            result = _run_once(ledger, jobs, position, work)
            if result.succeeded:
                _succeed(ledger, position, work, result, atomic=atomic)
                return
            report.error = result.error or {}
        except HeadgateError as error:
            report.error = {"message": error.message, "code": error.code}
        # The cause of any error may be that the build was canceled or superseded.
        with contextlib.suppress(HeadgateError):
            ledger.check_attempt()
        if work is not None:
            failed = JobEventType.FAIL if ledger.stopped is None else JobEventType.ABORT
            ledger.emit(position, failed, work.attempt)
    if ledger.stopped is not None:
        report.error = {"message": ledger.stopped}
        ledger.abort(position, JobState.ABORTED)
    else:
        ledger.abort(position, JobState.FAILED)


def _run_once(ledger: Ledger, jobs: Jobs, position: int, work: JobWork) -> JobResult:
    attempt = jobs.start(work)
    ledger.start(position, attempt)
    ledger.emit(position, JobEventType.START, work.attempt)
    try:
        result = attempt.run(partial(ledger.update, position))
    finally:
        ledger.end(position)
    if not result.succeeded:
        result = explain_end(ledger.parts.database, work.attempt, result)
    report = ledger.reports[position]
    report.spark_jobs += result.spark_jobs
    report.rows, report.checks = result.rows, result.checks
    return result


def explain_end(database: Database, attempt: AttemptRef, result: JobResult) -> JobResult:
    """Add to a failure that the attempt was superseded: a rejected HEAD request has no reason."""
    try:
        database.read(partial(check_newest, ref=attempt))
    except AttemptSuperseded as superseded:
        own = (result.error or {}).get("message")
        message = f"{superseded.message} The job's own error: {own}" if own else superseded.message
        return replace(result, error={**(result.error or {}), "message": message})
    return result


def _succeed(
    ledger: Ledger, position: int, work: JobWork, result: JobResult, *, atomic: bool
) -> None:
    """Commit all outputs of a job at once or, in an atomic build, hand them to the build."""
    report = ledger.reports[position]
    report.error = None
    if result.aborted:
        ledger.abort(position, JobState.SUCCEEDED)
        ledger.emit(position, JobEventType.COMPLETE, work.attempt)
        return
    reach(Failpoint.BUILD_JOB_ENDED)
    ids = list(work.outputs.values())
    provenance = provenance_of(
        ledger.opened.id,
        work.decision,
        report.inputs,
        checks=result.checks,
        snapshots=work.snapshots,
        reported_by=ledger.opened.reported_by,
    )
    made = dict.fromkeys(ids, provenance)
    inferred = ids if opening_type(work.decision) is TransactionType.UPDATE else []
    publication = None
    if atomic:
        complete_transactions(ledger.parts.database, ids, work.attempt)
        hand_over(ledger.parts.database, work.attempt, ids)
        ledger.add_staged(made, inferred)
    else:
        publication = _commit(ledger, work, made, inferred)
    ledger.add_made(ids, publication)
    report.transactions = {str(name): id for name, id in work.outputs.items()}
    ledger.set(position, JobState.SUCCEEDED)
    if not atomic:
        ledger.emit(position, JobEventType.COMPLETE, work.attempt)


def _commit(
    ledger: Ledger,
    work: JobWork,
    made: Mapping[TransactionId, Provenance],
    inferred: Collection[TransactionId],
) -> PublicationNumber | None:
    receipt = commit_transactions(
        ledger.parts.database,
        ledger.parts.contents,
        list(made),
        CommitOptions(
            caller=replace(
                ledger.opened.caller,
                attempt=work.attempt,
                may_write_protected=work.decision.job.spec.source.clean
                and ledger.opened.reported_by is None,
            ),
            provenance=made,
            inferred=inferred,
        ),
    )
    end_attempt(ledger.parts.database, work.attempt, AttemptState.SUCCEEDED)
    return receipt.publication


# --- pinned inputs --------------------------------------------------------------------------


def _prepare_work(ledger: Ledger, position: int) -> JobWork:
    """Pin every input to one transaction: a planned one, or one that this build has made."""
    decision, request = ledger.opened.plan.decisions[position], ledger.opened.plan.request
    kinds = ledger.parts.database.read(
        lambda c: find_datasets(c, [given.dataset for given in decision.inputs])
    )
    pins: dict[str, Pinned] = {}
    contents: dict[str, ContentId] = {}
    for given in decision.inputs:
        branch, id, content = _read_at(ledger, given)
        if id is None or content is None:
            raise InputNotFound(
                dataset=str(given.dataset), where=branch, needed_by=decision.job.spec.title
            )
        contents[given.name] = content
        pins[given.name] = Pinned(
            dataset=given.dataset, branch=branch, transaction=id, kind=kinds[given.dataset].kind
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
    )
    settled, snapshots = _settle_extent(
        ledger, position, replace(decision, made_from=made_from), pins
    )
    ledger.reports[position].decision = settled
    attempt = ledger.attempt(position)
    return JobWork(
        decision=settled,
        attempt=attempt,
        inputs=pins,
        snapshots=snapshots,
        outputs=ledger.opened.transactions[position],
        branch=request.branch,
        fallback=request.fallback,
        parameters=request.parameters,
        directory=ledger.directory_of(attempt),
    )


def _read_at(
    ledger: Ledger, given: PlannedInput
) -> tuple[str, TransactionId | None, ContentId | None]:
    """Return branch, transaction and content of an input."""
    if given.made_by is None:
        return given.branch, given.transaction, given.content
    made = ledger.find_made(given.dataset)
    if made is not None:
        branch = ledger.opened.plan.request.branch
        return branch, made.id, made.version.content_id if made.version else None
    # The upstream job aborted its output, so the earlier view is still the input.
    chain = ledger.opened.plan.request.chain
    view = ledger.parts.database.read(lambda c: first_view(c, given.dataset, chain))
    if view is None:
        return " > ".join(chain), None, None
    return view.branch, view.transaction, view.content


# --- full or incremental --------------------------------------------------------------------


def _settle_extent(
    ledger: Ledger, position: int, decision: Decision, pins: Mapping[str, Pinned]
) -> tuple[Decision, dict[str, int]]:
    """Return the decision with its extent, and the snapshots of the tables that it reads.

    Raise `NotIncremental` where a transform that requires an incremental build cannot have one.
    """
    if decision.job.spec.declaration.incremental is None:
        return decision, {}
    extent = decision.incremental
    if extent is None or extent.extent is Extent.UNDECIDED:
        decision = _decide_extent(ledger, position, decision, pins)
        extent = decision.incremental
    assert extent is not None, "the extent of a job is decided before it runs"
    if extent.refused:
        raise NotIncremental(
            transform=decision.job.spec.title, reason=extent.reason, broken_by=extent.broken_by
        )
    current = _current_snapshots(ledger, pins)
    reads = tuple(_at_current_snapshot(span, current) for span in extent.reads)
    snapshots = {str(p.dataset): id for n, p in pins.items() if (id := current.get(n)) is not None}
    return replace(decision, incremental=replace(extent, reads=reads)), snapshots


def _decide_extent(
    ledger: Ledger, position: int, decision: Decision, pins: Mapping[str, Pinned]
) -> Decision:
    """Decide by the rules of planning, from the transactions that this build has made."""
    outputs = ledger.opened.transactions[position]
    answers: dict[Question, Answer] = {}
    while True:
        extent, bases = ledger.parts.database.read(
            partial(
                _read_and_decide, decision=decision, pins=pins, outputs=outputs, answers=answers
            )
        )
        if not extent.questions:
            break
        answers |= inspect_content(ledger.parts.database, ledger.parts.contents, extent.questions)
    made_from = decision.made_from
    if made_from is not None and extent.extent is Extent.INCREMENTAL:
        made_from = with_base(made_from, bases)
    decided = replace(decision, incremental=extent, made_from=made_from)
    type = opening_type(decided)
    if type is not TransactionType.SNAPSHOT:
        # They were opened for a full build.
        retype_transactions(
            ledger.parts.database, list(outputs.values()), type, attempt=ledger.attempt(position)
        )
    return decided


def _read_and_decide(
    connection: Connection,
    *,
    decision: Decision,
    pins: Mapping[str, Pinned],
    outputs: Mapping[DatasetName, TransactionId],
    answers: Mapping[Question, Answer],
) -> tuple[Incrementality, dict[DatasetName, Base]]:
    opened = load_transactions(connection, outputs.values())
    past = CatalogPast(connection, lambda name: opened[outputs[name]].parent)
    spec = decision.job.spec.declaration.incremental
    assert spec is not None
    bases = {name: past.base(name) for name in outputs}
    places = [
        Place(name=name, dataset=pin.dataset, head=pin.transaction) for name, pin in pins.items()
    ]
    return decide_incremental(spec, places, bases, past, answers), bases


def _current_snapshots(ledger: Ledger, pins: Mapping[str, Pinned]) -> dict[str, int | None]:
    """Return the current snapshot of each input that is a table."""
    tables = {n: p.transaction for n, p in pins.items() if p.kind is DatasetKind.TABLE}
    found = ledger.parts.database.read(lambda c: load_transactions(c, tables.values()))
    current: dict[str, int | None] = {}
    for name, id in tables.items():
        version = found[id].version
        if version is not None:
            metadata = ledger.parts.contents.tables.read(version.location).metadata
            current[name] = current_snapshot_id(metadata)
    return current


def _at_current_snapshot(span: Span, current: Mapping[str, int | None]) -> Span:
    """Start a span without new rows at the current snapshot: it is empty after any compaction."""
    if span.since is None or span.has_new:
        return span
    return replace(span, since_snapshot=current.get(span.name))
