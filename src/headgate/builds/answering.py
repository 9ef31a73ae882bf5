"""Looks at content where the catalog alone cannot tell whether something was overwritten."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from headgate.attempts.committing import Contents
from headgate.builds.plan import Plan, PlanRequest, make_plan
from headgate.catalog.database import Connection, Database
from headgate.catalog.find import find_datasets, load_transactions
from headgate.errors import HeadgateError
from headgate.files.difference import ChangeKind
from headgate.files.writing import root_of
from headgate.model.ids import JobSpecId, TransactionId
from headgate.model.jobspecs import JobSpec
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind, Transaction, TransactionType
from headgate.model.past import Answer, Question
from headgate.tables.classify import snapshots_since, tip_of
from headgate.tables.shape import Json, Metadata

_ADDS = frozenset({"append", "replace"})
_REMOVES = frozenset({"delete"})


def plan_build(database: Database, contents: Contents, request: PlanRequest) -> Plan:
    """A plan with nothing left to ask: content is looked at outside of any SQL transaction."""
    answers: dict[Question, Answer] = {}
    jobspecs: Mapping[JobSpecId, JobSpec] = {}
    while True:
        plan = database.read(
            partial(make_plan, request=request, answers=answers, jobspecs=jobspecs)
        )
        jobspecs = plan.jobspecs
        if not plan.questions:
            return plan
        answers |= answer(database, contents, plan.questions)


def answer(
    database: Database, contents: Contents, questions: Collection[Question]
) -> dict[Question, Answer]:
    """Whether all that was read last is still there, unchanged, in what is read now."""
    found, kinds = database.read(partial(_gather, questions=questions))
    about = {DatasetKind.FILES: _about_files, DatasetKind.TABLE: _about_table}
    return {q: about[kinds[q.dataset]](contents, q, found) for q in questions}


def _gather(
    connection: Connection, questions: Collection[Question]
) -> tuple[dict[TransactionId, Transaction], dict[DatasetName, DatasetKind]]:
    """What all questions are about, in a handful of queries however many they are."""
    wanted = {id for q in questions for id in (q.last.transaction, q.now, *q.suspects)}
    found = load_transactions(connection, wanted)
    suspects = {id for question in questions for id in question.suspects}
    parents = [parent for id in suspects if (parent := found[id].parent) is not None]
    found |= load_transactions(connection, parents)
    datasets = find_datasets(connection, {question.dataset for question in questions})
    return found, {name: dataset.kind for name, dataset in datasets.items()}


def _about_files(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> Answer:
    if found[question.last.transaction].condemned:
        return _expired(question)
    for id in question.suspects:
        step, parent = found[id], found[id].parent
        before = root_of(found[parent].version) if parent is not None else None
        try:
            reason = contents.trees.find_violation(
                TransactionType.APPEND, before, root_of(step.version)
            )
        except HeadgateError:
            return _expired(question)
        if reason is not None:
            return _overwritten(question, id)
    if question.removals_allowed and _came_again(contents, question, found):
        return _overwritten(question, question.now)
    return Answer()


def _came_again(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> bool:
    """Whether a path was removed and put again with other content, step by step by the rules."""
    changes = contents.trees.difference(
        root_of(found[question.last.transaction].version), root_of(found[question.now].version)
    )
    return any(change.kind is ChangeKind.CHANGED for change in changes)


def _about_table(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> Answer:
    try:
        since = _since(contents, question, found)
    except HeadgateError:
        return _expired(question)
    now = _metadata(contents, found[question.now])
    added = snapshots_since(now, since)
    if added is None:
        why = f"the Iceberg history of {question.dataset} does not go on from what was read last"
        return Answer(why=why, broken_by=question.now)
    allowed = _ADDS | _REMOVES if question.removals_allowed else _ADDS
    # They come newest first, and what broke it first is what a person wants to know.
    for snapshot in reversed(added):
        if snapshot["summary"].get("operation") not in allowed:
            return _overwritten(question, _made_by(contents, question, found, snapshot))
    return Answer(since_snapshot=since)


def _since(
    contents: Contents, question: Question, found: Mapping[TransactionId, Transaction]
) -> int | None:
    """The snapshot that was read last; it is on record where the version itself is gone."""
    if question.last.snapshot is not None:
        return question.last.snapshot
    return tip_of(_metadata(contents, found[question.last.transaction]))


def _made_by(
    contents: Contents,
    question: Question,
    found: Mapping[TransactionId, Transaction],
    snapshot: Json,
) -> TransactionId:
    for id in question.suspects:
        try:
            known = _metadata(contents, found[id]).get("snapshots") or []
        except HeadgateError:
            continue
        if any(item["snapshot-id"] == snapshot["snapshot-id"] for item in known):
            return id
    return question.now


def _metadata(contents: Contents, transaction: Transaction) -> Metadata:
    assert transaction.version is not None, f"{transaction.id} is a tombstone"
    return contents.tables.read(transaction.version.location).metadata


def _overwritten(question: Question, by: TransactionId) -> Answer:
    return Answer(why=f"{by} overwrote part of {question.dataset}", broken_by=by)


def _expired(question: Question) -> Answer:
    last = question.last.transaction
    return Answer(why=f"{last}, read last of {question.dataset}, has expired", broken_by=last)
