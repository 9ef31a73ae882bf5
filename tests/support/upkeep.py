"""A store whose content can be aged, and its cleanup."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import orjson
from sqlalchemy import BigInteger, Connection, select, update

from headgate.catalog.database import now
from headgate.catalog.retention import record_cleanup
from headgate.catalog.schema import condemned_objects, metadata
from headgate.catalog.warehouse import MARKERS
from headgate.errors import ContentSwept, VersionExpired
from headgate.files.objects import digest_of, key_of
from headgate.model.failpoints import Failpoint
from headgate.model.ids import Instant
from headgate.model.object_store import ObjectInfo, ObjectStore
from headgate.settings import Settings
from headgate.storage.local import LocalStore
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at
from headgate.upkeep.cleanup import (
    DAY_SECONDS,
    CleanupReport,
    Clocks,
    RetentionPolicy,
    clean_up,
    read_database_clock,
)
from tests.support.stores import DATASET, content

RETAIN_DAYS = 30
_DAY_US = DAY_SECONDS * 1_000_000
_INSTANTS = ("_at", "_until")


def let_days_pass(store: Store, days: float) -> None:
    """Age all rows and objects of the store by this many days."""

    def work(connection: Connection) -> None:
        for table in metadata.sorted_tables:
            times = [
                column
                for column in table.c
                if isinstance(column.type, BigInteger)
                and (column.name == "at" or column.name.endswith(_INSTANTS))
            ]
            if times:
                older = {column: column - round(days * _DAY_US) for column in times}
                connection.execute(update(table).values(older))

        # The cleanups of that time, without which it would look like a jump of the clock.
        record_cleanup(connection, now(connection))

    store.database.write(work)
    for path in Path(store.settings.warehouse).rglob("*"):
        if path.is_file():
            before = path.stat().st_mtime - days * DAY_SECONDS
            if path.name.endswith(".metadata.json"):
                path.write_bytes(_aged(path.read_bytes(), days))
            os.utime(path, (before, before))
    # The caches hold the times from before.
    for part in ("tables", "contents", "rows"):
        store.__dict__.pop(part, None)


def _aged(content: bytes, days: float) -> bytes:
    """Return table metadata whose snapshots are older by this many days."""
    metadata = orjson.loads(content)
    for name in ("snapshots", "snapshot-log"):
        for item in metadata.get(name) or []:
            item["timestamp-ms"] -= round(days * DAY_SECONDS * 1000)
    return orjson.dumps(metadata)


def tidy(store: Store, *, dry_run: bool = False, older_than_days: float = 7) -> CleanupReport:
    """Clean up once, by the real clocks."""
    return clean_up(
        store.database, store.objects, policy(older_than_days), actor="ana", dry_run=dry_run
    )


def tidy_later(
    store: Store, days: float, retention: RetentionPolicy | None = None
) -> CleanupReport:
    """Clean up once, by clocks that are this many days ahead."""
    later = Instant(read_database_clock(store.database).database + round(days * _DAY_US))
    clocks = Clocks(database=later, store=later, here=later)
    retention = retention or policy()
    return clean_up(
        store.database,
        store.objects,
        retention,
        actor="ana",
        clocks=clocks,
        confirm_clock=True,
    )


def tidy_twice(store: Store) -> CleanupReport:
    """Condemn, wait for more than a day, and sweep; return the report of the second cleanup."""
    tidy(store)
    let_days_pass(store, 1.1)
    return tidy(store)


def assert_untouched(store: Store) -> None:
    """Assert that cleanup has nothing to do, in a dry run and for real."""
    assert tidy(store, dry_run=True).items == []
    assert tidy_twice(store).items == []


def policy(older_than_days: float = 7) -> RetentionPolicy:
    return RetentionPolicy(
        retain_seconds=RETAIN_DAYS * DAY_SECONDS,
        older_than_seconds=round(older_than_days * DAY_SECONDS),
    )


def leave_orphans(store: Store, number: int) -> None:
    """Create unpublished objects, as many killed writers would leave them."""
    for each in range(number):
        orphan = f"orphan {each}".encode()
        path = Path(store.settings.warehouse) / key_of(digest_of(orphan))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orphan)


def stored_keys(store: Store) -> set[str]:
    """Return the keys of all objects but the marker of the warehouse."""
    return {i.key for i in store.objects.list() if not i.key.startswith(f"{MARKERS}/")}


def condemned_locations(store: Store) -> set[str]:
    return set(
        store.database.read(
            lambda c: c.execute(select(condemned_objects.c.location)).scalars().all()
        )
    )


def is_expired(branch: BranchHandle, at: str) -> bool:
    """Return True if a read at a transaction raises `expired`."""
    try:
        branch.files(at=at)
    except VersionExpired:
        return True
    return False


def why_kept(cleaned: CleanupReport) -> dict[tuple[str, str], int]:
    return {(kept.what, kept.why): kept.count for kept in cleaned.kept}


# --- entry points of processes ----------------------------------------------------------------


def tidy_and_die(settings: Settings, point: str, nth: int) -> None:
    """Execute a cleanup that is killed at a failpoint."""
    with Store(settings) as store:
        die_at(Failpoint(point), nth=nth)
        tidy(store)


def tidy_again_and_again(settings: Settings, stop: Path, fast: float) -> None:
    """Clean up repeatedly, each time two days later than the time before.

    Marks of swept objects must outlive every writer. Here a month passes in a second, less than a
    writer may wait for the database, so they are kept for the whole run.
    """
    retention = replace(policy(), forget_after_seconds=10_000 * DAY_SECONDS)
    with Store(settings, recover_first=False) as store:
        for number in count():
            if stop.exists():
                return
            tidy_later(store, 40 + fast * number, retention)


def write_again_and_again(settings: Settings, name: str, rounds: int) -> None:
    """Write a few contents repeatedly, on a branch of its own, by both kinds of writes."""
    with Store(settings, recover_first=False) as store:
        branch = store.dataset(DATASET).branch(name)
        local = Path(settings.root) / f"{name}.txt"
        for number in range(rounds):
            text = f"content {number % 3}"
            local.write_text(text)
            _insist(lambda: branch.put(local, "put"))
            _insist(lambda text=text: _stage(branch, text))  # type: ignore[misc]
            assert content(branch) == {"put": text, "staged": text}


def _stage(branch: BranchHandle, text: str) -> None:
    with branch.transaction() as opened:
        opened.write("staged", text.encode())


def _insist(act: Callable[[], object]) -> None:
    """Repeat while cleanup intervenes; in production it is a day or two away."""
    for _ in range(50):
        try:
            act()
        except (ContentSwept, VersionExpired):
            continue
        return
    raise AssertionError("cleanup won fifty times")


class Interrupted(LocalStore):
    """A store that calls a function once, just before all of its objects are listed."""

    def __init__(self, root: Path, action: Callable[[], object]) -> None:
        super().__init__(root)
        self._actions = [action]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        while self._actions and not prefix:
            self._actions.pop()()
        return super().list(prefix)


def interrupted(store: Store, action: Callable[[], object]) -> ObjectStore:
    return Interrupted(Path(store.settings.warehouse), action)
