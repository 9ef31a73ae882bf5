"""P10: the cost of an attempt follows its change, not its workspace; counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select

from headgate.catalog.records import load_dataset
from headgate.catalog.schema import metadata
from headgate.files import private_copy
from headgate.files.edits import FileEdit, publish_edit
from headgate.files.private_copy import LARGE_BYTES
from headgate.files.transfer import hash_file
from headgate.files.tree import Entry, Mode
from headgate.model.changes import Caller
from headgate.model.names import parse_dataset_name
from headgate.store.embedded import Store
from headgate.tasks.messages import Status
from tests.support.task_modules import STEPS, write_module
from tests.support.tasks import (
    SONG,
    Workshop,
    attempt,
    defined,
    input_of,
    new_workshop,
    ref_of,
    view_of,
)

_CHANGED = 10
_MANY = 50_000
# Of the memory of an attempt: a path, an entry and a signature, in several tables.
_BYTES_PER_FILE = 1_000
# In a small process: the peak of a child includes the memory of the process that started it.
_MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
raise SystemExit(code)
"""


@dataclass(frozen=True, kw_only=True)
class _Cost:
    hashes: int
    objects: int
    rows: int


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were hashed to detect changes."""
    seen: list[Path] = []

    def counting(source: Path) -> object:
        seen.append(source)
        return hash_file(source)

    monkeypatch.setattr(private_copy, "hash_file", counting)
    return seen


def _publish_tree(store: Store, count: int) -> str:
    """Publish this many files below one directory, which share one content."""
    dataset = store.database.read(lambda c: load_dataset(c, parse_dataset_name(SONG)))
    digest = store.trees.store(b"same")
    put = [
        Entry(path=f"many/{number:05}", mode=Mode.FILE, size=4, digest=digest)
        for number in range(count)
    ]
    publish_edit(
        store.database,
        store.trees,
        dataset,
        "master",
        FileEdit(put=put),
        caller=Caller(actor="ana"),
    )
    return str(view_of(store))


def _rows(connection: Connection) -> int:
    counts = (select(func.count()).select_from(table) for table in metadata.sorted_tables)
    return sum(connection.execute(count).scalar_one() for count in counts)


def _change_ten(workshop: Workshop, store: Store, given: str, hashed: list[Path]) -> _Cost:
    def change(workspace: Path) -> None:
        for number in range(100, 100 + _CHANGED):
            (workspace / "many" / f"{number:05}").write_text(f"changed {number}")

    hashed.clear()
    objects, rows = len(list(store.objects.list())), store.database.read(_rows)
    done = attempt(workshop, store).run(defined(change), input_of(given))
    assert done.status is Status.COMPLETED, done.traceback
    return _Cost(
        hashes=len(hashed),
        objects=len(list(store.objects.list())) - objects,
        rows=store.database.read(_rows) - rows,
    )


def test_p10_ten_files_changed_of_thousands_cost_what_they_cost_of_hundreds(
    workshop: Workshop, store: Store, hashed: list[Path]
) -> None:
    few = _change_ten(workshop, store, _publish_tree(store, 400), hashed)
    many = _change_ten(workshop, store, _publish_tree(store, 3000), hashed)
    assert (few.hashes, many.hashes) == (_CHANGED, _CHANGED)
    # Each content once, the leaves that refer to them, and one index.
    assert few.objects <= _CHANGED + 3 and many.objects <= few.objects
    assert many.rows <= few.rows


def test_p10_ten_files_changed_of_fifty_thousand_cost_as_much_and_memory_is_bounded(
    made_sqlite_url: str, tmp_path: Path, hashed: list[Path]
) -> None:
    workshop = new_workshop(made_sqlite_url, tmp_path)
    with workshop.open() as store:
        small, large = _publish_tree(store, 400), _publish_tree(store, _MANY)
        cost = _change_ten(workshop, store, large, hashed)
        assert cost.hashes == _CHANGED and cost.objects <= _CHANGED + 3
        store.dataset(SONG).branch("master").reset(to=large)
    many = _peak_bytes(tmp_path, large)
    with workshop.open() as store:
        store.dataset(SONG).branch("master").reset(to=small)
    few = _peak_bytes(tmp_path, small)
    assert (many - few) / _MANY < _BYTES_PER_FILE


def _peak_bytes(directory: Path, given: str) -> int:
    """Return the memory of `headgate task run` or of its attempt, whichever is larger."""
    steps = [{f"many/{number:05}": "changed" for number in range(_CHANGED)}]
    params = {"counter": str(directory / "counter"), "steps": steps}
    (directory / "input.json").write_text(json.dumps(input_of(given, params=params)))
    module = write_module(directory, STEPS, seconds="0", response="600", retries="0", name="p10")
    words = ["task", "run", module, "--input", "input.json", "--json"]
    command = [sys.executable, "-S", "-c", _MEASURE, sys.executable, "-m", "headgate", *words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return int(done.stderr.splitlines()[-1]) * 1024


def test_p10_large_file_that_grew_is_read_once_to_be_stored(
    workshop: Workshop, store: Store, hashed: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(b"x" * LARGE_BYTES)
    store.dataset(SONG).branch("master").put(tmp_path / "large", "large")

    def grow(workspace: Path) -> None:
        with (workspace / "large").open("ab") as file:
            file.write(b"more")

    done = attempt(workshop, store).run(defined(grow), input_of(str(view_of(store))))
    assert done.status is Status.COMPLETED, done.traceback
    assert hashed == []
    [entry] = store.dataset(SONG).branch("master").files()
    assert entry.size == LARGE_BYTES + 4
    assert b"".join(store.trees.stream(entry)).endswith(b"xmore")


def test_p10_large_file_of_the_same_size_is_compared_before_it_is_stored(
    workshop: Workshop, store: Store, hashed: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(b"x" * LARGE_BYTES)
    store.dataset(SONG).branch("master").put(tmp_path / "large", "large")
    given = str(view_of(store))

    def rewrite(workspace: Path) -> None:
        (workspace / "large").write_bytes(b"x" * LARGE_BYTES)

    done = attempt(workshop, store).run(defined(rewrite), input_of(given))
    assert done.status is Status.COMPLETED, done.traceback
    assert len(hashed) == 1 and view_of(store) == given


def test_p10_transfers_of_an_attempt_tell_how_far_they_are(
    workshop: Workshop, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(b"x" * LARGE_BYTES)
    store.dataset(SONG).branch("master").put(tmp_path / "large", "large")
    given = ref_of(str(view_of(store)))
    told: list[tuple[int, int]] = []
    workspaces = workshop.doing(store).workspaces(given)
    copy = workspaces.download(given, tmp_path / "copy", lambda *done: told.append(done))
    assert told[-1] == (1, LARGE_BYTES)
    (tmp_path / "copy" / "new").write_text("1234")
    told.clear()
    changes = private_copy.changes_of(copy)
    identity = attempt(workshop, store).identity()
    workspaces.stage(given, changes, identity, lambda *done: told.append(done))
    assert told == [(1, 4)]
