"""O03 and O04: twelve writers of rows on one branch, as threads and as processes."""

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
from headgate.testing.failpoints import pause_at
from tests.support.oracle import assert_rows_sound
from tests.support.processes import finish, let_go, start, wait_until_at
from tests.support.rows import PERSON, graph_store, ids_of, made_settings, publications, rows_of

_WRITERS = 12


def test_o03_threads_with_keys_of_their_own_all_commit(
    made_catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    each = max(1, rounds // 10)
    with graph_store(made_catalog_url, tmp_path) as store:

        def write(number: int) -> None:
            for at in range(each):
                sql = f"insert into graph.person (id) values ('{number:02}-{at:03}')"
                store.mutate("master", sql, timeout_seconds=300)

        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(write, range(_WRITERS)))
        wanted = [f"{n:02}-{at:03}" for n in range(_WRITERS) for at in range(each)]
        assert ids_of(store, PERSON) == wanted
        assert len(publications(store)) == len(wanted) + 1
        assert_rows_sound(store)


def test_o03_threads_on_one_row_let_one_pass_each_time(
    made_catalog_url: str, tmp_path: Path
) -> None:
    """A writer that read the row before a concurrent change is rejected: no update is lost."""
    with graph_store(made_catalog_url, tmp_path, "k") as store:

        def write(_: int) -> bool:
            try:
                store.mutate("master", "update graph.person set age = age + 1 where id = 'k'")
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(_WRITERS) as pool:
            passed = sum(pool.map(write, range(_WRITERS)))
        assert passed >= 1
        assert rows_of(store, PERSON)[0]["age"] == 7 + passed


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
    each = max(1, rounds // 10)
    flags = tmp_path / "flags"
    flags.mkdir()
    with graph_store(made_catalog_url, tmp_path) as store:
        settings = made_settings(made_catalog_url, tmp_path)
        names = [f"p{n:02}" for n in range(_WRITERS)]
        began = time.monotonic()
        crowd = [start(_write, settings, n, each, flags, n == "p00") for n in names]
        wait_until_at(Failpoint.MUTATION_STAGED, flags)
        assert [finish(process) for process in crowd[1:]] == [0] * (_WRITERS - 1)
        let_go(Failpoint.MUTATION_STAGED, flags)
        assert finish(crowd[0]) == 0
        record_property("seconds", round(time.monotonic() - began, 1))
        assert ids_of(store, PERSON) == [f"{n}-{at:03}" for n in names for at in range(each)]
        assert_rows_sound(store)


def _update(settings: Settings, flags: Path, name: str) -> None:
    with Store(settings, recover_first=False) as store:
        mine = flags / name
        mine.mkdir()
        pause_at(Failpoint.MUTATION_STAGED, flags=mine)
        try:
            store.mutate("master", "update graph.person set age = age + 1 where id = 'k'")
        except Conflict as conflict:
            assert conflict.code == "conflict"
            raise SystemExit(4) from None


@pytest.mark.parametrize("writers", [4])
def test_o04_processes_on_one_row_let_exactly_one_pass(
    made_catalog_url: str, tmp_path: Path, writers: int
) -> None:
    flags = tmp_path / "flags"
    flags.mkdir()
    with graph_store(made_catalog_url, tmp_path, "k") as store:
        settings = made_settings(made_catalog_url, tmp_path)
        names = [f"w{n}" for n in range(writers)]
        crowd = [start(_update, settings, flags, name) for name in names]
        for name in names:
            wait_until_at(Failpoint.MUTATION_STAGED, flags / name)
        for name in names:
            let_go(Failpoint.MUTATION_STAGED, flags / name)
        assert sorted(finish(process) for process in crowd) == [0] + [4] * (writers - 1)
        assert rows_of(store, PERSON)[0]["age"] == 8
