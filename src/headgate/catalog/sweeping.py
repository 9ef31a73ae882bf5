"""Sweeping in SQL: which condemned objects may be deleted now, and by whom.

The mark of an object outlives its bytes: a writer that saw them before, and publishes later, is
refused by the door instead of showing a file that is not there.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from sqlalchemy import Connection, delete, select, text, update

from headgate.catalog.condemning import bundles_named
from headgate.catalog.database import Database
from headgate.catalog.schema import condemned_objects
from headgate.errors import CatalogUnavailable
from headgate.model.ids import Instant

# Any fixed number: it names the sweep among PostgreSQL's advisory locks.
_POSTGRES_LOCK = 4_817_220_265
_POLL_SECONDS = 0.01


def claim_objects(database: Database, due: Mapping[str, Instant], at: Instant) -> list[str]:
    """Of the objects due, those still condemned as they were; their marks begin anew.

    To be called, and the bytes deleted, while sweeping alone.
    """
    return database.write(partial(_claim, due=due, at=at))


def _claim(connection: Connection, due: Mapping[str, Instant], at: Instant) -> list[str]:
    query = (
        select(condemned_objects.c.location, condemned_objects.c.condemned_at)
        .where(condemned_objects.c.location.in_(sorted(due)))
        .order_by(condemned_objects.c.location)
        .with_for_update()
    )
    unchanged = [place for place, since in connection.execute(query) if since == due[place]]
    needed = _bundles_needed(connection, unchanged)
    claimed = [place for place in unchanged if place not in needed]
    connection.execute(
        update(condemned_objects)
        .where(condemned_objects.c.location.in_(claimed))
        .values(condemned_at=at)
    )
    return claimed


def _bundles_needed(connection: Connection, locations: Iterable[str]) -> set[str]:
    """Bundles pass no door: that no JobSpec names one is seen once more, just before."""
    bundles = [place for place in locations if place.endswith(".zip")]
    named = bundles_named(connection) if bundles else frozenset()
    return {place for place in bundles if PurePosixPath(place).stem in named}


def forget_objects(database: Database, gone: Mapping[str, Instant]) -> None:
    """Drops the marks of objects that were swept long ago and not condemned since."""

    def work(connection: Connection) -> None:
        for place, since in gone.items():
            connection.execute(
                delete(condemned_objects).where(
                    condemned_objects.c.location == place,
                    condemned_objects.c.condemned_at == since,
                )
            )

    if gone:
        database.write(work)


@contextmanager
def sweeping_alone(database: Database, *, wait_seconds: float = 30.0) -> Iterator[None]:
    """Nobody else deletes condemned bytes, or takes them back, within the block.

    The lock ends with its process, however that ends.
    """
    with _lock(database) as try_lock:
        deadline = time.monotonic() + wait_seconds
        while not try_lock():
            if time.monotonic() > deadline:
                raise CatalogUnavailable(
                    where=database.where, reason="another cleanup is deleting and does not end"
                )
            time.sleep(_POLL_SECONDS)
        yield


@contextmanager
def _lock(database: Database) -> Iterator[Callable[[], bool]]:
    """A way to try for the lock, which is given back at the end of the block."""
    if database.path is not None:
        with _lock_file(database) as file:
            yield partial(_try_file, file)
        return
    lock = {"lock": _POSTGRES_LOCK}
    with database.raw() as connection:
        try:
            take = text("SELECT pg_try_advisory_lock(:lock)")
            yield lambda: bool(connection.execute(take, lock).scalar_one())
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:lock)"), lock)


def _lock_file(database: Database) -> IO[str]:
    """Beside the catalog: SQLite's own file must not be opened by anybody else."""
    try:
        return Path(f"{database.path}.sweeping").open("a")
    except OSError as error:
        reason = error.strerror or str(error)
        raise CatalogUnavailable(where=database.where, reason=reason) from error


def _try_file(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
