"""Queue of writers: first come, first served, and every wait ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection

from headgate.catalog.database import Database, WriteQueue, now

_CROWD = 8
_FORKING = """
import os, sys
from headgate.catalog.database import Database, now

database = Database(sys.argv[1])
database.read(now)
parents = database._write_queue
with parents.slot(timeout_seconds=60):
    child = os.fork()
    if child == 0:
        database.write(now)
        os._exit(int(database._write_queue is parents))
    _, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def _start(queue: WriteQueue, order: list[int], number: int) -> threading.Thread:
    def write() -> None:
        with queue.slot(timeout_seconds=60):
            order.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    return writer


def _await_waiting(queue: WriteQueue, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(queue._waiting) < count:
        assert time.monotonic() < deadline, "it does not wait in the queue"
        time.sleep(0.001)


def test_line_serves_those_who_wait_in_the_order_in_which_they_came() -> None:
    queue, order = WriteQueue(), list[int]()
    writers = []
    with queue.slot(timeout_seconds=60):
        for number in range(_CROWD):
            writers.append(_start(queue, order, number))
            _await_waiting(queue, 2 + number)
        assert order == []
    for writer in writers:
        writer.join()
    assert order == list(range(_CROWD))


def test_line_that_does_not_move_is_not_waited_for_and_keeps_its_order() -> None:
    queue, order = WriteQueue(), list[int]()
    with queue.slot(timeout_seconds=60):
        with queue.slot(timeout_seconds=0.01):
            order.append(0)
        later = _start(queue, order, 1)
        _await_waiting(queue, 2)
        assert order == [0]
    later.join()
    assert order == [0, 1]


def test_line_goes_on_after_a_turn_that_failed() -> None:
    queue = WriteQueue()
    with pytest.raises(ZeroDivisionError), queue.slot(timeout_seconds=60):
        raise ZeroDivisionError
    with queue.slot(timeout_seconds=0):
        assert len(queue._waiting) == 1
    assert not queue._waiting


def test_writers_of_one_catalog_stand_in_line_and_readers_do_not(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/catalog.db")
    database.read(now)
    inside, go_on, order = threading.Event(), threading.Event(), list[int]()

    def first(_: Connection) -> None:
        inside.set()
        assert go_on.wait(60)

    writers = [threading.Thread(target=database.write, args=(first,))]
    writers[0].start()
    assert inside.wait(60)
    for number in range(_CROWD):
        work = partial(lambda n, _: order.append(n), number)
        writers.append(threading.Thread(target=database.write, args=(work,)))
        writers[-1].start()
        _await_waiting(database._write_queue, 2 + number)
    database.read(now)
    go_on.set()
    for writer in writers:
        writer.join()
    assert order == list(range(_CROWD))
    database.close()


def test_child_of_a_fork_does_not_wait_for_its_parents_writers(tmp_path: Path) -> None:
    # In a separate process: this one has threads, and must not fork.
    command = [sys.executable, "-c", _FORKING, f"sqlite:///{tmp_path}/catalog.db"]
    assert subprocess.run(command, check=False).returncode == 0
