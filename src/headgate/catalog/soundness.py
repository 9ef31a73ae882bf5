"""Whether the catalog is sound: its file, its log, and what was left unfinished in it.

Each check looks at one thing and yields what is wrong with it; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, select, text

from headgate.catalog.database import now
from headgate.catalog.intent_body import body_from_json
from headgate.catalog.intents import list_intents
from headgate.catalog.rows import dataset_name
from headgate.catalog.schema import (
    attempts,
    branches,
    datasets,
    log_counter,
    moves,
    publications,
    transactions,
    units,
)
from headgate.errors import Invalid
from headgate.model.ids import Instant
from headgate.model.nouns import AttemptState, TransactionState

RESTORE = "Restore the catalog from a backup; nothing here mends it."


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: what, where, and what to do about it."""

    what: str
    where: str
    remedy: str


# --- the file -------------------------------------------------------------------------------


def check_sqlite(connection: Connection, *, deep: bool) -> Iterator[Finding]:
    """The pages of the file, and the references between its rows; `deep`: the indexes too."""
    pragma = "integrity_check" if deep else "quick_check"
    for said in connection.execute(text(f"PRAGMA {pragma}(100)")).scalars():
        if said != "ok":
            yield Finding(what=f"the file is damaged: {said}", where="SQLite", remedy=RESTORE)
    for table, row, other, _ in connection.execute(text("PRAGMA foreign_key_check")):
        yield Finding(
            what=f"row {row} of {table} refers to a row of {other} that is not there",
            where="SQLite",
            remedy=RESTORE,
        )


# --- the log --------------------------------------------------------------------------------


def check_counter(connection: Connection) -> Iterator[Finding]:
    """The counter stands at the newest publication, and no number is missing before it."""
    counter = connection.execute(select(log_counter)).one_or_none()
    if counter is None:
        yield _in_log("the log has no counter, so nothing can be published")
        return
    query = select(
        func.count(), func.min(publications.c.number), func.max(publications.c.number)
    ).select_from(publications)
    count, first, last = connection.execute(query).one()
    if (last or 0) != counter.number:
        yield _in_log(
            f"the counter is at {counter.number}, the newest publication is {last or 'none'}"
        )
    if count and (first, last) != (1, count):
        yield _in_log(f"there are {count} publications, numbered from {first} to {last}")
    newest = select(publications.c.at).where(publications.c.number == last)
    at = connection.execute(newest).scalar_one_or_none() if last else None
    if at is not None and at != counter.last_at:
        yield _in_log("the counter's time is not the newest publication's")


def check_views_follow_log(connection: Connection) -> Iterator[Finding]:
    """What each branch shows is what its newest move says."""

    def newest(column: Any) -> Any:
        return (
            select(column)
            .where(moves.c.branch_id == branches.c.id)
            .order_by(moves.c.publication.desc(), moves.c.ordinal.desc())
            .limit(1)
            .scalar_subquery()
        )

    query = select(
        branches.c.name,
        branches.c.view_id,
        newest(moves.c.to_id).label("logged"),
        newest(moves.c.change).label("change"),
        datasets.c.namespace,
        datasets.c.name.label("dataset_name"),
    ).join(datasets, datasets.c.id == branches.c.dataset_id)
    for row in connection.execute(query).mappings():
        where = f"{dataset_name(row)}@{row['name']}"
        if row["change"] is None or row["change"] == "deleted":
            said = "never made it" if row["change"] is None else "has deleted it"
            yield Finding(
                what=f"the branch exists, but the log {said}", where=where, remedy=RESTORE
            )
        elif row["logged"] != row["view_id"]:
            yield Finding(
                what=f"the branch shows {row['view_id'] or 'nothing'}, but by the log it shows "
                f"{row['logged'] or 'nothing'}",
                where=where,
                remedy=RESTORE,
            )


def check_log_replays(connection: Connection) -> Iterator[Finding]:
    """Every move begins where the branch's last one ended; times rise with numbers."""
    over: dict[str, Any] = {
        "partition_by": moves.c.branch_id,
        "order_by": (moves.c.publication, moves.c.ordinal),
    }
    steps = select(
        moves.c.publication,
        moves.c.branch_name,
        moves.c.change,
        moves.c.from_id,
        func.lag(moves.c.to_id).over(**over).label("before"),
        func.lag(moves.c.change).over(**over).label("last_change"),
    ).subquery()
    broken = select(steps).where(
        steps.c.from_id.is_distinct_from(steps.c.before)
        | ((steps.c.change == "created") & steps.c.last_change.is_not(None))
        | ((steps.c.change != "created") & steps.c.last_change.is_(None))
        | (steps.c.last_change == "deleted")
    )
    for row in connection.execute(broken):
        yield _in_log(
            f"publication {row.publication} moves {row.branch_name!r} from "
            f"{row.from_id or 'nothing'}, but it was at {row.before or 'nothing'}"
        )
    earlier = publications.alias("earlier")
    back = select(publications.c.number).join(
        earlier, earlier.c.number == publications.c.number - 1
    )
    for number in connection.execute(back.where(publications.c.at <= earlier.c.at)).scalars():
        yield _in_log(f"publication {number} is not later than the one before it")
    yield from _orphans(connection)


def _orphans(connection: Connection) -> Iterator[Finding]:
    """Joins rather than `NOT IN`, which PostgreSQL does in the square of the rows there are."""
    of = moves.c.publication == publications.c.number
    idle = select(publications.c.number).outerjoin(moves, of).where(moves.c.publication.is_(None))
    for number in connection.execute(idle).scalars():
        yield _in_log(f"publication {number} has no moves")
    strays = select(moves.c.publication).distinct().outerjoin(publications, of)
    for number in connection.execute(strays.where(publications.c.number.is_(None))).scalars():
        yield _in_log(f"there are moves of publication {number}, which does not exist")
    ends = moves.alias("ends")
    ended = and_(ends.c.branch_id == moves.c.branch_id, ends.c.change == "deleted")
    lost = (
        select(moves.c.branch_name)
        .outerjoin(branches, branches.c.id == moves.c.branch_id)
        .outerjoin(ends, ended)
        .where(moves.c.change == "created", branches.c.id.is_(None), ends.c.branch_id.is_(None))
    )
    for name in connection.execute(lost).scalars():
        yield _in_log(f"the branch {name!r} is gone, but the log has not deleted it")


def _in_log(what: str) -> Finding:
    return Finding(what=what, where="the log", remedy=RESTORE)


# --- unfinished -----------------------------------------------------------------------------


def check_leases(connection: Connection) -> Iterator[Finding]:
    """Transactions and units that somebody left OPEN."""
    moment = now(connection)
    held = (
        select(
            transactions.c.id,
            transactions.c.actor,
            transactions.c.lease_until,
            transactions.c.branch_name,
            datasets.c.namespace,
            datasets.c.name.label("dataset_name"),
        )
        .join(datasets, datasets.c.id == transactions.c.dataset_id)
        .where(transactions.c.state == TransactionState.OPEN, transactions.c.lease_until < moment)
    )
    for row in connection.execute(held).mappings():
        yield Finding(
            what=f"transaction {row['id']} of {row['actor']} is OPEN, and its lease ran out "
            f"{_ago(moment, row['lease_until'])} ago",
            where=f"{dataset_name(row)}@{row['branch_name']}",
            remedy=f"If nobody works on it: headgate txn abort {row['id']} (`headgate recover` "
            "does it some time later).",
        )
    query = select(units).where(
        units.c.state == TransactionState.OPEN, units.c.lease_until < moment
    )
    for row in connection.execute(query).mappings():
        yield Finding(
            what=f"unit {row['id']} of {row['actor']} is open, and its lease ran out "
            f"{_ago(moment, row['lease_until'])} ago",
            where=f"branch {row['branch_name']}",
            remedy=f"If nobody works on it: headgate txn abort {row['id']}.",
        )


def count_silent_attempts(connection: Connection) -> int:
    """Attempts that never said how they ended; a newer one of their key takes over."""
    query = select(func.count()).where(
        attempts.c.state == AttemptState.RUNNING, attempts.c.lease_until < now(connection)
    )
    return int(connection.execute(query).scalar_one())


def check_intents(connection: Connection) -> Iterator[Finding]:
    """Operations with an effect outside that were never finished."""
    moment = now(connection)
    for intent in list_intents(connection):
        where = f"operation {intent.operation} of {intent.actor} ({intent.kind})"
        try:
            body_from_json(intent.body or {})
        except Invalid:
            yield Finding(
                what="its intent cannot be read, so recovery leaves it, and its branches, alone",
                where=where,
                remedy="Look at the system outside, bring it to where it should be, then delete "
                f"intent {intent.ref.id} from the catalog's tables intents and intent_branches.",
            )
            continue
        if intent.lease_until < moment:
            yield Finding(
                what=f"it is unfinished in phase {intent.phase}, and its lease ran out "
                f"{_ago(moment, intent.lease_until)} ago",
                where=where,
                remedy="Run `headgate recover`.",
            )


def _ago(moment: Instant, then: int) -> str:
    seconds = max(0, moment - then) // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
