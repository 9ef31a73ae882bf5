"""Records of builds and their jobs, and candidates for adoption."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, bindparam, func, insert, or_, select, update

from headgate.catalog import records
from headgate.catalog.attempts import end_attempt_in
from headgate.catalog.database import Database, as_unit_of_work, now
from headgate.catalog.schema import builds, holds, jobs, moves, publications, transactions
from headgate.errors import NotFound
from headgate.model.access import ReadPolicy
from headgate.model.freshness import Hold
from headgate.model.ids import BranchId, BuildId, Instant, PublicationNumber, TransactionId
from headgate.model.names import DatasetName
from headgate.model.nouns import AttemptRef, AttemptState, Transaction, TransactionState

RUNNING = "running"
# Results with the same build key are equal, so only the newest are read.
_CANDIDATES = 200


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    ordinal: int
    state: str
    reason: str
    attempts: int
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    id: BuildId
    branch: str
    state: str
    actor: str
    started_at: Instant
    ended_at: Instant | None
    body: Mapping[str, Any]
    jobs: tuple[JobRecord, ...]


def record_build_in(
    connection: Connection,
    *,
    id: BuildId,
    branch: str,
    actor: str,
    attempt: AttemptRef,
    body: Mapping[str, Any],
    planned: Sequence[JobRecord],
) -> None:
    """Record a build with its jobs, in the database transaction that opens it."""
    connection.execute(
        insert(builds).values(
            id=id,
            branch=branch,
            state=RUNNING,
            actor=actor,
            started_at=now(connection),
            attempt_key=attempt.key,
            attempt_epoch=attempt.epoch,
            body=records.dump(dict(body)),
        )
    )
    if planned:
        connection.execute(insert(jobs), [_job_row(id, job) for job in planned])


def record_jobs(database: Database, build: BuildId, found: Sequence[JobRecord]) -> None:
    """Update the recorded state of jobs of a build."""

    def work(connection: Connection) -> None:
        for job in found:
            row = _job_row(build, job)
            connection.execute(
                update(jobs)
                .where(jobs.c.build_id == build, jobs.c.ordinal == job.ordinal)
                .values({name: row[name] for name in ("state", "reason", "attempts", "body")})
            )

    if found:
        database.write(work)


def end_build_in(connection: Connection, build: BuildId, state: str) -> bool:
    """Close a running build; return False if it was closed before, for example as canceled."""
    changed = connection.execute(
        update(builds)
        .where(builds.c.id == build, builds.c.state == RUNNING)
        .values(state=state, ended_at=now(connection))
    )
    return changed.rowcount == 1


def load_build(connection: Connection, id: str) -> BuildRecord:
    row = connection.execute(select(builds).where(builds.c.id == id)).mappings().one_or_none()
    if row is None:
        raise NotFound(
            f"build {id!r} does not exist. `headgate builds list` shows all builds.", build=id
        )
    query = select(jobs).where(jobs.c.build_id == id).order_by(jobs.c.ordinal)
    policy = records.policy_of(connection)
    found = [
        records.noun_of(JobRecord, row, body=records.load(row["body"]))
        for row in connection.execute(query).mappings()
    ]
    if policy is not None:
        found = [shown for job in found for shown in _shown_job(policy, job)]
    return _to_build(row, tuple(found), policy)


def _shown_job(policy: ReadPolicy, job: JobRecord) -> list[JobRecord]:
    """Return a job as a limited reader sees it; nothing if it writes a hidden dataset."""
    outputs, inputs = job.body["outputs"], job.body["inputs"]
    if not all(map(policy.shows_dataset, outputs)):
        return []
    body = policy.shown_part(job.body)
    if body["inputs"] != inputs:
        # Its log and its error may name or quote an input whose dataset or branch is hidden.
        body = {key: value for key, value in body.items() if key not in ("log", "error")}
    return [replace(job, body=body)]


def list_builds(
    connection: Connection, *, limit: int = 50, after: str | None = None, search: str = ""
) -> list[BuildRecord]:
    """Return builds, newest first; with `after`, only builds that come after it in this order.

    :param search: words that the id, branch, actor and state of a build contain together.
    """
    query = select(builds).order_by(builds.c.started_at.desc(), builds.c.id.desc()).limit(limit)
    parts = (builds.c.id, builds.c.branch, builds.c.actor, builds.c.state)
    for word in search.lower().split():
        query = query.where(or_(*(func.lower(p).contains(word, autoescape=True) for p in parts)))
    if after is not None:
        last = load_build(connection, after)
        earlier = builds.c.started_at < last.started_at
        tied = and_(builds.c.started_at == last.started_at, builds.c.id < last.id)
        query = query.where(or_(earlier, tied))
    policy = records.policy_of(connection)
    return [_to_build(row, (), policy) for row in connection.execute(query).mappings()]


def find_adoptable_by_key(connection: Connection, build_key: str) -> list[Transaction]:
    """Return adoptable transactions with this build key, newest first."""
    query = (
        select(transactions.c.id)
        .where(
            transactions.c.build_key == build_key,
            transactions.c.adoptable == 1,
            transactions.c.state == TransactionState.COMMITTED,
        )
        .order_by(transactions.c.closed_at.desc())
        .limit(_CANDIDATES)
    )
    ids = [TransactionId(id) for id in connection.execute(query).scalars()]
    loaded = records.load_transactions(connection, ids)
    return [loaded[id] for id in ids if not loaded[id].condemned]


# Built once: a plan executes it for each output that is not fresh.
_HOLD = (
    select(moves.c.branch_name, publications.c.number, publications.c.actor, publications.c.at)
    .join(holds, holds.c.publication == publications.c.number)
    .join(moves, moves.c.publication == publications.c.number)
    .where(
        holds.c.branch_id == bindparam("the_branch"),
        holds.c.inputs_key == bindparam("the_key"),
        moves.c.branch_id == holds.c.branch_id,
    )
)


def find_hold(
    connection: Connection, dataset: DatasetName, branch: BranchId, inputs_key: str
) -> Hold | None:
    """Return the reset that removed the result with this inputs key from a branch."""
    row = connection.execute(_HOLD, {"the_branch": branch, "the_key": inputs_key}).one_or_none()
    if row is None:
        return None
    return Hold(
        dataset=dataset,
        branch=row.branch_name,
        publication=PublicationNumber(row.number),
        actor=row.actor,
        at=Instant(row.at),
    )


def _job_row(build: BuildId, job: JobRecord) -> dict[str, Any]:
    return {**vars(job), "build_id": build, "body": records.dump(dict(job.body))}


def _to_build(
    row: RowMapping, found: tuple[JobRecord, ...], policy: ReadPolicy | None
) -> BuildRecord:
    body = records.load(row["body"])
    shown = body if policy is None else policy.shown_part(body)
    return records.noun_of(BuildRecord, row, body=shown, jobs=found)


@as_unit_of_work
def close_build(connection: Connection, id: BuildId, attempt: AttemptRef, state: str) -> None:
    """End the attempt and the record of a build together, as its own last step."""
    ended = AttemptState.SUCCEEDED if state == "succeeded" else AttemptState.FAILED
    end_attempt_in(connection, attempt, ended)
    end_build_in(connection, id, state)
