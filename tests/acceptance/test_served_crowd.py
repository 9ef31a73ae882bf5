"""Concurrent clients of a real server that is killed meanwhile: no write is lost or doubled."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.served_crowd import Heard, check, prepare, run_crowd
from tests.support.serving import ServerProcess
from tests.support.shell import headgate_json

CLIENTS = 12
REQUESTS = 12
PUBLICATIONS = CLIENTS * REQUESTS // 2


def _kill_half_way(server: ServerProcess) -> Callable[[Heard], None]:
    def meanwhile(heard: Heard) -> None:
        while len(heard.told) < PUBLICATIONS // 2:
            time.sleep(0.01)
        server.end(signal.SIGKILL)
        server.start()

    return meanwhile


def test_server_killed_under_a_crowd_loses_nothing_and_does_nothing_twice(
    made_catalog_url: str, tmp_path: Path
) -> None:
    headgate_json("init", "--catalog", made_catalog_url, cwd=tmp_path)
    with Store(load_settings(tmp_path)) as store:
        token = prepare(store)
        with ServerProcess(tmp_path) as server:
            heard = run_crowd(
                server.url,
                token,
                clients=CLIENTS,
                goes_on=lambda done: done < REQUESTS,
                meanwhile=_kill_half_way(server),
            )
            assert server.end() == 0
        assert len(heard.told) == PUBLICATIONS and heard.asked_again
        check(store, heard)
        assert store.examine()["ok"]
