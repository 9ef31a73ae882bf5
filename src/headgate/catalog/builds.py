"""Records of builds and their jobs, candidates for adoption, and the end of builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, insert, or_, select, update

from headgate.catalog import records
from headgate.catalog.attempts import end_attempt_in, find_attempt_state, give_up_in
from headgate.catalog.branches import drop_unused_branches
from headgate.catalog.database import Database, now
from headgate.catalog.schema import attempts, branches, builds, jobs, transactions
from headgate.errors import BuildNotRunning, NotFound
from headgate.model.ids import BranchId, BuildId, Epoch, Instant, TransactionId
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
        raise NotFound(f"there is no build {id!r}. `headgate builds list` shows them.", build=id)
    query = select(jobs).where(jobs.c.build_id == id).order_by(jobs.c.ordinal)
    found = tuple(_to_job(job) for job in connection.execute(query).mappings())
    return _to_build(row, found)


def list_builds(
    connection: Connection, *, limit: int = 50, after: str | None = None
) -> list[BuildRecord]:
    """Return builds, newest first; with `after`, only builds that come after it in this order."""
    query = select(builds).order_by(builds.c.started_at.desc(), builds.c.id.desc()).limit(limit)
    if after is not None:
        last = load_build(connection, after)
        earlier = builds.c.started_at < last.started_at
        tied = and_(builds.c.started_at == last.started_at, builds.c.id < last.id)
        query = query.where(or_(earlier, tied))
    return [_to_build(row, ()) for row in connection.execute(query).mappings()]


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


def _job_row(build: BuildId, job: JobRecord) -> dict[str, Any]:
    return {
        "build_id": build,
        "ordinal": job.ordinal,
        "state": job.state,
        "reason": job.reason,
        "attempts": job.attempts,
        "body": records.dump(dict(job.body)),
    }


def _to_job(row: RowMapping) -> JobRecord:
    return JobRecord(
        ordinal=row["ordinal"],
        state=row["state"],
        reason=row["reason"],
        attempts=row["attempts"],
        body=records.load(row["body"]),
    )


def _to_build(row: RowMapping, found: tuple[JobRecord, ...]) -> BuildRecord:
    return BuildRecord(
        id=BuildId(row["id"]),
        branch=row["branch"],
        state=row["state"],
        actor=row["actor"],
        started_at=Instant(row["started_at"]),
        ended_at=Instant(row["ended_at"]) if row["ended_at"] is not None else None,
        body=records.load(row["body"]),
        jobs=found,
    )


# Ending builds and dropping their unused branches

_ENDED: dict[AttemptState | None, str] = {
    AttemptState.SUCCEEDED: "succeeded",
    AttemptState.FAILED: "failed",
    AttemptState.SUPERSEDED: "canceled",
    AttemptState.CANCELED: "canceled",
}
_UNFINISHED = ("waiting", "running")


def cancel_build(database: Database, id: str, *, actor: str) -> BuildRecord:
    """Cancel a build and abort its OPEN transactions.

    The process of the build stops when the catalog next rejects its attempt.
    """

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
    """End the attempt and the record of a build together, as its own last step."""

    def work(connection: Connection) -> None:
        succeeded = state == "succeeded"
        end_attempt_in(
            connection, attempt, AttemptState.SUCCEEDED if succeeded else AttemptState.FAILED
        )
        end_build_in(connection, id, state)

    database.write(work)


def settle_builds(database: Database, *, actor: str, key: str | None = None) -> list[BuildId]:
    """Close builds that no process runs any more, superseded or abandoned; return their ids."""
    dead = database.read(partial(_dead, key=key))
    for id in dead:
        database.write(partial(_give_up_dead, id=id, actor=actor))
        _finish(database, id, actor=actor)
    return dead


def _finish(database: Database, id: BuildId, *, actor: str) -> None:
    """Drop the unused branches of a build, then close its record.

    The record is closed last: after a crash before that, recovery finds the build and finishes it.
    """
    drop_unused_branches(database, database.read(partial(_made_for, build=id)), actor=actor)
    database.write(partial(_close, id=id))


def _dead(
    connection: Connection, *, key: str | None = None, id: BuildId | None = None
) -> list[BuildId]:
    """Return builds recorded as running whose attempt has ended or is abandoned."""
    expired = attempts.c.lease_until + records.abandonment(attempts.c.lease_seconds) < now(
        connection
    )
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
    # Its process may have renewed the lease since the first read.
    if _dead(connection, id=id):
        ref = _attempt_of(connection, id)
        give_up_in(connection, ref, AttemptState.FAILED, actor=actor, kind="abandoned")


def _close(connection: Connection, id: BuildId) -> None:
    """Close the record of a build with the state of its attempt; abort its unfinished jobs."""
    state = find_attempt_state(connection, _attempt_of(connection, id))
    if state not in _ENDED or not end_build_in(connection, id, _ENDED[state]):
        return
    mine = (jobs.c.build_id == id, jobs.c.state.in_(_UNFINISHED))
    for row in connection.execute(select(jobs.c.ordinal, jobs.c.body).where(*mine)).all():
        connection.execute(
            update(jobs)
            .where(jobs.c.build_id == id, jobs.c.ordinal == row.ordinal)
            .values(
                state="aborted", body=records.dump({**records.load(row.body), "state": "aborted"})
            )
        )


def _attempt_of(connection: Connection, id: BuildId) -> AttemptRef:
    row = connection.execute(
        select(builds.c.attempt_key, builds.c.attempt_epoch).where(builds.c.id == id)
    ).one()
    return AttemptRef(key=row.attempt_key, epoch=Epoch(row.attempt_epoch))


def _made_for(connection: Connection, build: BuildId) -> list[BranchId]:
    query = select(branches.c.id).where(branches.c.made_for == build)
    return [BranchId(id) for id in connection.execute(query).scalars()]
