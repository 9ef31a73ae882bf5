"""Writers of one process that wait for a SQLite catalog share one SQL transaction."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from headgate.catalog.database import Database
from headgate.errors import BranchExists, CatalogFull, HeadgateError
from headgate.model.access import ReadPolicy, Role
from headgate.settings import Settings
from headgate.store.embedded import Store
from tests.support.oracle import assert_store_sound
from tests.support.processes import finish, start
from tests.support.stores import files_branch, new_store, put

Work = Callable[[Connection], object]
_PATIENCE = 60.0
_ADD = text("INSERT INTO notes (text) VALUES (:text)")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/notes.db")
    database.write(lambda c: c.execute(text("CREATE TABLE notes (text TEXT)")))
    yield database
    database.close()


def note(words: str, connection: Connection) -> str:
    connection.execute(_ADD, {"text": words})
    return words


def notes(database: Database) -> list[str]:
    query = text("SELECT text FROM notes ORDER BY rowid")
    return database.read(lambda c: [row[0] for row in c.execute(query)])


@contextmanager
def counted_commits(database: Database) -> Iterator[list[object]]:
    commits: list[object] = []
    engine = database._connected()

    def count(connection: Connection) -> None:
        commits.append(connection)

    event.listen(engine, "commit", count)
    try:
        yield commits
    finally:
        event.remove(engine, "commit", count)


def at_once(database: Database, *acts: Callable[[], object]) -> list[Future[Any]]:
    """Call these functions, each of which writes once, while the catalog is locked by another."""
    assert database.path is not None
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(len(acts)) as pool:
        calls: list[Future[Any]] = []
        for act in acts:
            calls.append(pool.submit(act))
            deadline = time.monotonic() + _PATIENCE
            while len(database._write_queue._waiting) < len(calls):
                assert time.monotonic() < deadline, "it does not wait in the queue"
                time.sleep(0.001)
        other.execute("COMMIT")
        other.close()
    return calls


def test_writers_that_wait_share_a_transaction_and_each_gets_its_result(
    database: Database,
) -> None:
    words = [f"note {number}" for number in range(8)]
    with counted_commits(database) as commits:
        calls = at_once(database, *(partial(database.write, partial(note, w)) for w in words))
    assert [call.result() for call in calls] == words == notes(database)
    assert len(commits) == 1


def test_group_has_at_most_thirty_two_writers(database: Database) -> None:
    words = [f"note {number}" for number in range(40)]
    with counted_commits(database) as commits:
        calls = at_once(database, *(partial(database.write, partial(note, w)) for w in words))
    assert [call.result() for call in calls] == words and sorted(notes(database)) == sorted(words)
    assert len(commits) == 2


@pytest.mark.parametrize("place", [0, 1, 3])
def test_writer_that_is_rejected_leaves_nothing_and_the_others_keep_their_changes(
    database: Database, place: int
) -> None:
    def reject(connection: Connection) -> None:
        note("rejected", connection)
        raise BranchExists(dataset="a.b", branch="c")

    works: list[Work] = [partial(note, str(n)) for n in range(3)]
    works.insert(place, reject)
    with counted_commits(database) as commits:
        calls = at_once(database, *(partial(database.write, work) for work in works))
    assert isinstance(calls.pop(place).exception(), BranchExists)
    assert [call.result() for call in calls] == ["0", "1", "2"] == notes(database)
    assert len(commits) == 1


@pytest.mark.parametrize("place", [0, 2])
def test_writer_for_whom_the_disk_is_full_does_not_fail_the_others(
    database: Database, place: int
) -> None:
    engine = database._connected()
    engine.dispose()
    event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA max_page_count = 20"))
    words = ["a", "b", "c"]
    words.insert(place, "x" * 1_000_000)
    calls = at_once(database, *(partial(database.write, partial(note, w)) for w in words))
    assert isinstance(calls.pop(place).exception(), CatalogFull)
    assert [call.result() for call in calls] == ["a", "b", "c"]
    assert sorted(notes(database)) == ["a", "b", "c"]


def test_group_whose_transaction_is_lost_is_repeated_by_each_writer_alone(
    database: Database,
) -> None:
    tries: list[str] = []

    def lose(connection: Connection) -> None:
        # SQLite ends the transaction by itself after some errors of the disk.
        tries.append("lose")
        raw: Any = connection.connection.driver_connection
        raw.execute("ROLLBACK")
        raise BranchExists(dataset="a.b", branch="c")

    works: list[Work] = [partial(note, "first"), lose, partial(note, "last")]
    calls = at_once(database, *(partial(database.write, work) for work in works))
    assert [calls[0].result(), calls[2].result()] == ["first", "last"]
    assert isinstance(calls[1].exception(), HeadgateError) and len(tries) == 2
    assert sorted(notes(database)) == ["first", "last"]


def test_interrupt_ends_its_own_thread_and_the_group_is_written_all_the_same(
    database: Database,
) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupted(connection: Connection) -> str:
        if interrupts:
            raise interrupts.pop()
        return note("second", connection)

    works: list[Work] = [partial(note, "first"), interrupted, partial(note, "third")]
    calls = at_once(database, *(partial(database.write, work) for work in works))
    # It arrives in the thread that runs the work of all.
    assert isinstance(calls[0].exception(), KeyboardInterrupt)
    assert [call.result() for call in calls[1:]] == ["second", "third"]
    assert sorted(notes(database)) == ["second", "third"]


def test_writer_with_limited_rights_is_in_no_group(database: Database) -> None:
    policy = ReadPolicy(actor="rea", role=Role.WRITER, branches=("a",), datasets=("*",))
    limited = database.limited_to(policy)
    options: list[object] = []

    def look(words: str, connection: Connection) -> str:
        options.append((words, connection.get_execution_options().get("read_policy")))
        return words

    with counted_commits(database) as commits:
        at_once(
            database,
            partial(database.write, partial(look, "a")),
            partial(limited.write, partial(look, "limited")),
            partial(database.write, partial(look, "b")),
        )
    assert sorted(options, key=str) == [("a", None), ("b", None), ("limited", policy)]
    assert len(commits) == 2


# --- publications ---------------------------------------------------------------------------


def test_publications_of_a_group_have_numbers_of_their_own_and_equal_keys_one_receipt(
    tmp_path: Path,
) -> None:
    with new_store(f"sqlite:///{tmp_path}/catalog.db", tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        before = store.publications(limit=1)[0].number
        creations = [
            partial(master.dataset.branch(f"b{n}").create, parent="master") for n in range(6)
        ]
        same = partial(master.dataset.branch("same").create, parent="master", idempotency_key="key")
        calls = at_once(store.database, *creations, same, same, creations[0])
        assert [call.exception() for call in calls[:8]] == [None] * 8
        assert isinstance(calls[8].exception(), BranchExists)
        numbers = [publication.number for publication in store.publications(limit=8)]
        assert numbers == [before + at for at in range(7, -1, -1)]
        assert_store_sound(store)


def _publish_many(settings: Settings) -> None:
    """Create branches by ten threads, and report each one that the caller was told."""
    store = Store(settings)
    told = os.open(settings.root / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work(thread: int) -> None:
        for number in range(10_000):
            name = f"t{thread}-{number}"
            store.dataset("raw.scans").branch(name).create(parent="master")
            os.write(told, f"{name}\n".encode())

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_killed_process_has_published_all_that_its_threads_were_told(tmp_path: Path) -> None:
    with new_store(f"sqlite:///{tmp_path}/catalog.db", tmp_path) as store:
        put(files_branch(store), a="1")
        process = start(_publish_many, store.settings)
        told = tmp_path / "told"
        deadline = time.monotonic() + _PATIENCE
        while not told.exists() or told.stat().st_size < 1500:
            assert time.monotonic() < deadline and process.is_alive()
            time.sleep(0.01)
        process.kill()
        finish(process)
        said = set(told.read_text().split("\n")[:-1])
        found = {branch.name for branch in store.dataset("raw.scans").branches()}
        assert said <= found and len(found - said) <= 1 + 10
        assert_store_sound(store)
