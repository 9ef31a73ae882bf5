"""How long cleanup waits before each step, and by which clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.catalog.database import Database, now
from headgate.errors import Invalid
from headgate.model.ids import Instant
from headgate.model.ports import ObjectStore
from headgate.upkeep.probing import probe

DAY_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What has to be how old, in seconds."""

    # How long a version is kept after a branch stopped showing it.
    retain_seconds: int
    # What is younger is never condemned.
    older_than_seconds: int = 7 * DAY_SECONDS
    # From condemning to sweeping, at least.
    sweep_after_seconds: int = DAY_SECONDS
    # How long the door remembers what was swept: longer than any writer sleeps.
    forget_after_seconds: int = 30 * DAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Now, by the two clocks there are: leases and marks know the one, objects the other."""

    database: Instant
    store: Instant


Clock = Callable[[], Moments]


def check_older_than(seconds: int) -> int:
    """A grace that leaves every writer the time to publish what it has uploaded."""
    if seconds < DAY_SECONDS:
        raise Invalid(
            f"--older-than {seconds} s is too short: what is younger than 24 h may belong to a "
            "writer that has not published yet. Give 24h or more.",
            older_than_seconds=seconds,
        )
    return seconds


def read_clocks(database: Database, objects: ObjectStore) -> Moments:
    """Asks both; the store answers with the time it gives to a new object."""
    return Moments(database=database.read(now), store=probe(objects).modified_at)


def read_one_clock(database: Database) -> Moments:
    """For those who must not write: the database's clock for both."""
    moment = database.read(now)
    return Moments(database=moment, store=moment)
