"""O03 and O04: twelve writers of rows on one branch, as threads and as processes.

In a round, each of the twelve writes once. Writers with keys of their own do not wait for the end
of a round: the faster ones go on to the next. Threads do all rounds on SQLite, and processes on
PostgreSQL; the other database has a tenth of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.errors import Conflict
from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import armed, pause_at
from tests.support.oracle import assert_rows_sound
from tests.support.processes import finish, let_go, start, wait_until_at
from tests.support.rows import PERSON, graph_store, ids_of, made_settings, publications, rows_of

pytestmark = pytest.mark.timeout(1800)

_PATIENCE_SECONDS = 1500.0

_WRITERS = 12
_ADD_ONE = "update graph.person set age = age + 1 where id = 'k'"


def _rounds_on(catalog_url: str, rounds: int, *, most: str) -> int:
    return rounds if catalog_url.startswith(most) else max(1, rounds // 10)


def test_o03_threads_with_keys_of_their_own_all_commit(
    made_catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    rounds = _rounds_on(made_catalog_url, rounds, most="sqlite")
    with graph_store(made_catalog_url, tmp_path) as store:

        def write(number: int) -> None:
            for at in range(rounds):
                sql = f"insert into graph.person (id) values ('{number:02}-{at:03}')"
                store.mutate("master", sql, timeout_seconds=300)

        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(write, range(_WRITERS)))
        wanted = [f"{n:02}-{at:03}" for n in range(_WRITERS) for at in range(rounds)]
        assert ids_of(store, PERSON) == wanted
        assert len(publications(store)) == len(wanted) + 1
        assert_rows_sound(store)


def test_o03_threads_on_one_row_let_one_pass_each_time(
    made_catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    """A writer that read the row before a concurrent change is rejected: no update is lost."""
    rounds = _rounds_on(made_catalog_url, rounds, most="sqlite")
    with graph_store(made_catalog_url, tmp_path, "k") as store:

        def write(_: int) -> bool:
            try:
                store.mutate("master", _ADD_ONE)
            except Conflict as conflict:
                assert conflict.code == "conflict"
                return False
            return True

        with ThreadPoolExecutor(_WRITERS) as pool:
            passed = [sum(pool.map(write, range(_WRITERS))) for _ in range(rounds)]
        assert min(passed) >= 1
        assert rows_of(store, PERSON)[0]["age"] == 7 + sum(passed)
        assert_rows_sound(store)


def _write(settings: Settings, name: str, each: int, flags: Path, paused: bool) -> None:
    with Store(settings, recover_first=False) as store:
        if paused:
            pause_at(Failpoint.MUTATION_STAGED, flags=flags)
        (flags / f"{name}.ready").touch()
        while len(list(flags.glob("*.ready"))) < _WRITERS:
            time.sleep(0.01)
        for at in range(each):
            sql = f"insert into graph.person (id) values ('{name}-{at:03}')"
            store.mutate("master", sql, timeout_seconds=300)


def test_o04_processes_with_keys_of_their_own_all_commit(
    made_catalog_url: str,
    tmp_path: Path,
    rounds: int,
    record_property: Callable[[str, object], None],
) -> None:
    """One process pauses between staging and publishing until all others are done."""
    rounds = _rounds_on(made_catalog_url, rounds, most="postgresql")
    flags = tmp_path / "flags"
    flags.mkdir()
    with graph_store(made_catalog_url, tmp_path) as store:
        settings = made_settings(made_catalog_url, tmp_path)
        names = [f"p{n:02}" for n in range(_WRITERS)]
        began = time.monotonic()
        crowd = [start(_write, settings, n, rounds, flags, n == "p00") for n in names]
        wait_until_at(Failpoint.MUTATION_STAGED, flags)
        assert [finish(process, _PATIENCE_SECONDS) for process in crowd[1:]] == [0] * (_WRITERS - 1)
        let_go(Failpoint.MUTATION_STAGED, flags)
        assert finish(crowd[0], _PATIENCE_SECONDS) == 0
        record_property("seconds", round(time.monotonic() - began, 1))
        assert ids_of(store, PERSON) == [f"{n}-{at:03}" for n in names for at in range(rounds)]
        assert_rows_sound(store)


def _update(settings: Settings, flags: Path, name: str, rounds: int) -> None:
    """Update one row in each round, when all others have staged theirs."""
    with Store(settings, recover_first=False) as store:
        for at in range(rounds):
            here = flags / f"{at:03}"
            here.mkdir(exist_ok=True)

            def meet(point: Failpoint, here: Path = here) -> None:
                if point is Failpoint.MUTATION_STAGED:
                    (here / f"{name}.staged").touch()
                    _wait_for_all(here, "staged")

            passed = True
            with armed(meet):
                try:
                    store.mutate("master", _ADD_ONE)
                except Conflict as conflict:
                    assert conflict.code == "conflict"
                    passed = False
            (here / f"{name}.{'passed' if passed else 'refused'}").touch()
            (here / f"{name}.ended").touch()
            _wait_for_all(here, "ended")


def _wait_for_all(flags: Path, what: str) -> None:
    while len(list(flags.glob(f"*.{what}"))) < _WRITERS:
        time.sleep(0.01)


def test_o04_processes_on_one_row_let_exactly_one_pass(
    made_catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    rounds = _rounds_on(made_catalog_url, rounds, most="postgresql")
    flags = tmp_path / "flags"
    flags.mkdir()
    with graph_store(made_catalog_url, tmp_path, "k") as store:
        settings = made_settings(made_catalog_url, tmp_path)
        names = [f"w{n:02}" for n in range(_WRITERS)]
        crowd = [start(_update, settings, flags, name, rounds) for name in names]
        assert [finish(process, _PATIENCE_SECONDS) for process in crowd] == [0] * _WRITERS
        passed = [len(list((flags / f"{at:03}").glob("*.passed"))) for at in range(rounds)]
        assert passed == [1] * rounds
        assert rows_of(store, PERSON)[0]["age"] == 7 + rounds
        assert_rows_sound(store)
