"""Builds and their jobs, as they are recorded while they happen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, exists, insert, or_, select, update

from headgate.catalog.attempts import end_attempt_in, find_attempt_state, give_up_in
from headgate.catalog.branches import delete_branches
from headgate.catalog.database import Database, now
from headgate.catalog.records import (
    BRANCHES,
    abandonment,
    dump,
    in_chunks,
    load,
    load_transactions,
    to_branch,
)
from headgate.catalog.schema import attempts, branches, builds, jobs, transactions, units
from headgate.errors import BuildNotRunning, Conflict, NotFound
from headgate.model.ids import BranchId, BuildId, Epoch, Instant, TransactionId, UnitId
from headgate.model.nouns import AttemptRef, AttemptState, Branch, Transaction, TransactionState

RUNNING = "running"
# Of equal results the newest is as good as any: there is no need to look at all of them.
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
    """Notes a build with its jobs, in the unit of work that opens it."""
    connection.execute(
        insert(builds).values(
            id=id,
            branch=branch,
            state=RUNNING,
            actor=actor,
            started_at=now(connection),
            attempt_key=attempt.key,
            attempt_epoch=attempt.epoch,
            body=dump(dict(body)),
        )
    )
    if planned:
        connection.execute(insert(jobs), [_job_row(id, job) for job in planned])


def record_jobs(database: Database, build: BuildId, found: Sequence[JobRecord]) -> None:
    """How jobs of a build are doing now."""

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
    """Closes a build that runs; one that was closed meanwhile, as canceled, stays so."""
    changed = connection.execute(
        update(builds)
        .where(builds.c.id == build, builds.c.state == RUNNING)
        .values(state=state, ended_at=now(connection))
    )
    return changed.rowcount == 1


def load_build(connection: Connection, id: str) -> BuildRecord:
    row = connection.execute(select(builds).where(builds.c.id == id)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no build {id!r}. `headgate builds list` shows them.", build=id)
    query = select(jobs).where(jobs.c.build_id == id).order_by(jobs.c.ordinal)
    found = tuple(_to_job(job) for job in connection.execute(query).mappings())
    return _to_build(row, found)


def list_builds(
    connection: Connection, *, limit: int = 50, after: str | None = None
) -> list[BuildRecord]:
    """Newest first; those that began before another one, where that is given."""
    query = select(builds).order_by(builds.c.started_at.desc(), builds.c.id.desc()).limit(limit)
    if after is not None:
        last = load_build(connection, after)
        earlier = builds.c.started_at < last.started_at
        tied = and_(builds.c.started_at == last.started_at, builds.c.id < last.id)
        query = query.where(or_(earlier, tied))
    return [_to_build(row, ()) for row in connection.execute(query).mappings()]


def find_adoptable_by_key(connection: Connection, build_key: str) -> list[Transaction]:
    """Eligible transactions that carry a build key, newest first."""
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
    loaded = load_transactions(connection, ids)
    return [loaded[id] for id in ids if not loaded[id].condemned]


def _job_row(build: BuildId, job: JobRecord) -> dict[str, Any]:
    return {
        "build_id": build,
        "ordinal": job.ordinal,
        "state": job.state,
        "reason": job.reason,
        "attempts": job.attempts,
        "body": dump(dict(job.body)),
    }


def _to_job(row: RowMapping) -> JobRecord:
    return JobRecord(
        ordinal=row["ordinal"],
        state=row["state"],
        reason=row["reason"],
        attempts=row["attempts"],
        body=load(row["body"]),
    )


def _to_build(row: RowMapping, found: tuple[JobRecord, ...]) -> BuildRecord:
    return BuildRecord(
        id=BuildId(row["id"]),
        branch=row["branch"],
        state=row["state"],
        actor=row["actor"],
        started_at=Instant(row["started_at"]),
        ended_at=Instant(row["ended_at"]) if row["ended_at"] is not None else None,
        body=load(row["body"]),
        jobs=found,
    )


# What builds and units that ended left: closed in the books, their unused branches dropped.

_TRIES = 3
_ENDED: dict[AttemptState | None, str] = {
    AttemptState.SUCCEEDED: "succeeded",
    AttemptState.FAILED: "failed",
    AttemptState.SUPERSEDED: "canceled",
    AttemptState.CANCELED: "canceled",
}
_UNFINISHED = ("waiting", "running")


def cancel_build(database: Database, id: str, *, actor: str) -> BuildRecord:
    """Ends a build from outside: its work is aborted now, its process learns it and stops."""

    def work(connection: Connection) -> BuildId:
        found = load_build(connection, id)
        if found.state not in {RUNNING, "canceled"}:
            raise BuildNotRunning(build=id, state=found.state)
        ref = _attempt_of(connection, found.id)
        give_up_in(connection, ref, AttemptState.CANCELED, actor=actor, kind="canceled")
        return found.id

    _finish(database, database.write(work), actor=actor)
    return database.read(lambda c: load_build(c, id))


def close_build(database: Database, id: BuildId, attempt: AttemptRef, state: str) -> None:
    """What a build does last itself: its attempt and its record end together."""

    def work(connection: Connection) -> None:
        succeeded = state == "succeeded"
        end_attempt_in(
            connection, attempt, AttemptState.SUCCEEDED if succeeded else AttemptState.FAILED
        )
        end_build_in(connection, id, state)

    database.write(work)


def settle_builds(database: Database, *, actor: str, key: str | None = None) -> list[BuildId]:
    """Closes builds that nobody runs any more: superseded ones, and those abandoned for long."""
    dead = database.read(partial(_dead, key=key))
    for id in dead:
        database.write(partial(_give_up_dead, id=id, actor=actor))
        _finish(database, id, actor=actor)
    return dead


def drop_unused_branches(
    database: Database, candidates: Iterable[BranchId], *, actor: str
) -> list[Branch]:
    """Deletes those made for work that nobody committed: they would only hide others."""
    wanted = list(candidates)
    for _ in range(_TRIES):
        unused = database.read(partial(_unused, ids=wanted))
        if not unused:
            break
        try:
            delete_branches(database, unused, actor=actor, may_write_protected=True)
            return unused
        except Conflict:
            # Somebody began to use one of them: look again.
            continue
    return []


def settle_units(database: Database, *, actor: str, unit: UnitId | None = None) -> None:
    """Deletes the roots that units made before they were aborted, by themselves or by others."""
    drop_unused_branches(database, database.read(partial(_left_by_units, unit=unit)), actor=actor)


def _finish(database: Database, id: BuildId, *, actor: str) -> None:
    """The record is closed last: whoever dies before that leaves it to recovery."""
    drop_unused_branches(database, database.read(partial(_made_for, build=id)), actor=actor)
    database.write(partial(_close, id=id))


def _dead(
    connection: Connection, *, key: str | None = None, id: BuildId | None = None
) -> list[BuildId]:
    """Builds on record as running whose attempt is not, or has not been heard of for long."""
    expired = attempts.c.lease_until + abandonment(attempts.c.lease_seconds) < now(connection)
    query = (
        select(builds.c.id)
        .join(
            attempts,
            and_(
                attempts.c.key == builds.c.attempt_key, attempts.c.epoch == builds.c.attempt_epoch
            ),
        )
        .where(builds.c.state == RUNNING, (attempts.c.state != AttemptState.RUNNING) | expired)
    )
    if key is not None:
        query = query.where(builds.c.attempt_key == key)
    if id is not None:
        query = query.where(builds.c.id == id)
    return [BuildId(found) for found in connection.execute(query).scalars()]


def _give_up_dead(connection: Connection, id: BuildId, actor: str) -> None:
    # Its process may have come back to life since it was looked at.
    if _dead(connection, id=id):
        ref = _attempt_of(connection, id)
        give_up_in(connection, ref, AttemptState.FAILED, actor=actor, kind="abandoned")


def _close(connection: Connection, id: BuildId) -> None:
    """The record of a build says what became of its attempt."""
    state = find_attempt_state(connection, _attempt_of(connection, id))
    if state not in _ENDED or not end_build_in(connection, id, _ENDED[state]):
        return
    mine = (jobs.c.build_id == id, jobs.c.state.in_(_UNFINISHED))
    for row in connection.execute(select(jobs.c.ordinal, jobs.c.body).where(*mine)).all():
        connection.execute(
            update(jobs)
            .where(jobs.c.build_id == id, jobs.c.ordinal == row.ordinal)
            .values(state="aborted", body=dump({**load(row.body), "state": "aborted"}))
        )


def _attempt_of(connection: Connection, id: BuildId) -> AttemptRef:
    row = connection.execute(
        select(builds.c.attempt_key, builds.c.attempt_epoch).where(builds.c.id == id)
    ).one()
    return AttemptRef(key=row.attempt_key, epoch=Epoch(row.attempt_epoch))


def _made_for(connection: Connection, build: BuildId) -> list[BranchId]:
    query = select(branches.c.id).where(branches.c.made_for == build)
    return [BranchId(id) for id in connection.execute(query).scalars()]


def _left_by_units(connection: Connection, unit: UnitId | None) -> list[BranchId]:
    # A root that shows nothing has no head, by which the few of them are found quickly.
    query = (
        select(branches.c.id)
        .join(units, units.c.id == branches.c.made_for)
        .where(
            branches.c.head_id.is_(None),
            branches.c.made_for.is_not(None),
            units.c.state == TransactionState.ABORTED,
        )
    )
    if unit is not None:
        query = query.where(branches.c.made_for == unit)
    return [BranchId(id) for id in connection.execute(query).scalars()]


def _unused(connection: Connection, ids: Iterable[BranchId]) -> list[Branch]:
    committed = exists().where(
        transactions.c.branch_id == branches.c.id,
        transactions.c.state == TransactionState.COMMITTED,
    )
    found: list[Branch] = []
    for part in in_chunks(ids):
        query = BRANCHES.where(
            branches.c.id.in_(part),
            branches.c.made_for.is_not(None),
            branches.c.head_id.is_not_distinct_from(branches.c.view_id),
            ~committed,
        )
        found += [to_branch(row) for row in connection.execute(query).mappings()]
    return found
