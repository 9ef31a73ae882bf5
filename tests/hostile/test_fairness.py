"""Sixteen processes put different files on one branch: none starves, and health is not hurt."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

import headgate
from headgate.errors import Conflict
from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.processes import finish, start
from tests.support.rows import made_settings, publications
from tests.support.serving import ServerProcess
from tests.support.stores import DATASET, content, files_branch

_WRITERS = 16
# Publications of all writers together, however long a busy machine takes for them.
_PUBLICATIONS = _WRITERS * 8


@dataclass(frozen=True, kw_only=True)
class Load:
    """What each writer achieved in the same time."""

    published: list[int]
    conflicts: int
    # Of all publications.
    seconds: list[float]


def _put_files(root: Path, url: str, token: str, name: str) -> None:
    """Put one file after another until the test ends the load."""
    flags = root / "flags"
    source = root / name
    where = {"where": url, "token": token} if url else {"where": root}
    done, conflicts, seconds = 0, 0, []
    with headgate.open(**where, recover_first=False) as store:
        master = store.dataset(DATASET).branch("master")
        (flags / f"{name}.ready").touch()
        while not (flags / "go").exists():
            time.sleep(0.005)
        while not (flags / "stop").exists():
            source.write_text(f"{name} {done}")
            began = time.monotonic()
            try:
                master.put(source, f"{name}/{done}")
            except Conflict:
                conflicts += 1
                continue
            seconds.append(time.monotonic() - began)
            done += 1
    words = " ".join([str(done), str(conflicts), *map(str, seconds)])
    (flags / f"{name}.done").write_text(words)


def _run(store: Store, root: Path, url: str, token: str, meanwhile: Callable[[], None]) -> Load:
    flags = root / "flags"
    flags.mkdir()
    crowd = [start(_put_files, root, url, token, f"p{n:02}") for n in range(_WRITERS)]
    while len(list(flags.glob("*.ready"))) < _WRITERS:
        assert all(process.is_alive() for process in crowd)
        time.sleep(0.01)
    before = len(publications(store))
    (flags / "go").touch()
    while len(publications(store)) - before < _PUBLICATIONS:
        meanwhile()
        time.sleep(0.02)
    (flags / "stop").touch()
    assert [finish(process) for process in crowd] == [0] * _WRITERS
    said = [file.read_text().split() for file in sorted(flags.glob("*.done"))]
    return Load(
        published=[int(words[0]) for words in said],
        conflicts=sum(int(words[1]) for words in said),
        seconds=[float(word) for words in said for word in words[2:]],
    )


def _check(store: Store, load: Load) -> None:
    assert load.conflicts == 0
    assert min(load.published) >= statistics.median(load.published) / 2, load.published
    wanted = {
        f"p{n:02}/{i}": f"p{n:02} {i}" for n, many in enumerate(load.published) for i in range(many)
    }
    assert content(store.dataset(DATASET).branch("master")) == wanted


def _configure(catalog_url: str, root: Path) -> None:
    (root / "headgate.toml").write_text(
        f'[store]\ncatalog = "{catalog_url}"\nwarehouse = "{root}/warehouse"\n'
    )


def test_processes_on_one_branch_of_an_embedded_store_share_it_evenly(
    made_catalog_url: str, tmp_path: Path
) -> None:
    _configure(made_catalog_url, tmp_path)
    with Store(made_settings(made_catalog_url, tmp_path)) as store:
        files_branch(store)
        _check(store, _run(store, tmp_path, "", "", lambda: None))


def test_clients_on_one_branch_of_a_server_share_it_evenly_and_leave_it_healthy(
    made_catalog_url: str, tmp_path: Path
) -> None:
    _configure(made_catalog_url, tmp_path)
    ready: list[float] = []
    with Store(load_settings(tmp_path)) as store, ServerProcess(tmp_path) as server:
        files_branch(store)
        token = str(store.create_token(actor="walt", role="writer")["token"])

        def check_health() -> None:
            began = time.monotonic()
            assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200
            ready.append(time.monotonic() - began)

        load = _run(store, tmp_path, server.url, token, check_health)
        _check(store, load)
        assert statistics.median(ready) < statistics.median(load.seconds) / 2
        assert max(ready) < max(load.seconds)
