"""One job of a build, through its attempts, to its commit or its failure."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from headgate.attempts import CommitOptions, commit_transactions, complete_transactions
from headgate.builds.attempt import Happened, JobResult, Jobs, JobWork, Pinned, log_in, tell
from headgate.builds.ledger import Ledger
from headgate.builds.open import opening_type
from headgate.builds.plan import CatalogPast, answer, first_view, provenance_of
from headgate.catalog.attempts import check_newest, end_attempt, hand_over
from headgate.catalog.database import Connection, Database
from headgate.catalog.merge_base import retype_transactions
from headgate.catalog.records import find_datasets, load_transactions
from headgate.errors import AttemptSuperseded, HeadgateError, InputNotFound, NotIncremental
from headgate.model.changes import Provenance
from headgate.model.failpoints import Failpoint, reach
from headgate.model.freshness import Decision, PlannedInput, fingerprint, on_top_of
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
from headgate.tables.classify import tip_of

# How much a job reads, once every input is pinned: what its plan had to leave open.


def settle_extent(
    ledger: Ledger, position: int, decision: Decision, pins: Mapping[str, Pinned]
) -> tuple[Decision, dict[str, int]]:
    """The decision with its extent settled, and the snapshots of the tables that it reads.

    Raises where a transform would have to be built in full and says that it must not be.
    """
    if decision.job.spec.declaration.incremental is None:
        return decision, {}
    extent = decision.incremental
    if extent is None or extent.extent is Extent.UNDECIDED:
        decision = _decided_now(ledger, position, decision, pins)
        extent = decision.incremental
    assert extent is not None, "a job that runs was judged"
    if extent.refused:
        raise NotIncremental(
            transform=decision.job.spec.title, reason=extent.reason, broken_by=extent.broken_by
        )
    tips = _tips(ledger, pins)
    reads = tuple(_from_its_tip(span, tips) for span in extent.reads)
    snapshots = {str(p.dataset): tip for n, p in pins.items() if (tip := tips.get(n)) is not None}
    return replace(decision, incremental=replace(extent, reads=reads)), snapshots


def _decided_now(
    ledger: Ledger, position: int, decision: Decision, pins: Mapping[str, Pinned]
) -> Decision:
    """As planning decides it, from what this build has made meanwhile."""
    outputs = ledger.opened.transactions[position]
    answers: dict[Question, Answer] = {}
    while True:
        extent, bases = ledger.parts.database.read(
            partial(_judge, decision=decision, pins=pins, outputs=outputs, answers=answers)
        )
        if not extent.questions:
            break
        answers |= answer(ledger.parts.database, ledger.parts.contents, extent.questions)
    made_from = decision.made_from
    if made_from is not None and extent.extent is Extent.INCREMENTAL:
        made_from = on_top_of(made_from, bases)
    decided = replace(decision, incremental=extent, made_from=made_from)
    type = opening_type(decided)
    if type is not TransactionType.SNAPSHOT:
        # They were opened as if for a full one.
        retype_transactions(
            ledger.parts.database, list(outputs.values()), type, attempt=ledger.attempt(position)
        )
    return decided


def _judge(
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


def _tips(ledger: Ledger, pins: Mapping[str, Pinned]) -> dict[str, int | None]:
    """By input, the newest snapshot of each table."""
    tables = {n: p.transaction for n, p in pins.items() if p.kind is DatasetKind.TABLE}
    found = ledger.parts.database.read(lambda c: load_transactions(c, tables.values()))
    tips: dict[str, int | None] = {}
    for name, id in tables.items():
        version = found[id].version
        if version is not None:
            tips[name] = tip_of(ledger.parts.contents.tables.read(version.location).metadata)
    return tips


def _from_its_tip(span: Span, tips: Mapping[str, int | None]) -> Span:
    """Where no row came, nothing lies after what there is, whichever snapshots lead to it."""
    if span.since is None or span.has_new:
        return span
    return replace(span, since_snapshot=tips.get(span.name))


# What a job reads: every input pinned to one transaction before its first attempt.


def prepare_work(ledger: Ledger, position: int) -> JobWork:
    """Pins every input: what was planned, or what this build has made meanwhile."""
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
    settled, snapshots = settle_extent(
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
    """Branch, transaction and content of an input."""
    if given.made_by is None:
        return given.branch, given.transaction, given.content
    made = ledger.find_made(given.dataset)
    if made is not None:
        branch = ledger.opened.plan.request.branch
        return branch, made.id, made.version.content_id if made.version else None
    # The job that should have made it asked to publish nothing: what was there still counts.
    chain = ledger.opened.plan.request.chain
    view = ledger.parts.database.read(lambda c: first_view(c, given.dataset, chain))
    if view is None:
        return " > ".join(chain), None, None
    return view.branch, view.transaction, view.content


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
