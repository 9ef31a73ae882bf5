"""A server that needs Spark: one JVM for all requests, which ends with the server."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headgate.model.access import Role
from headgate.settings import load_settings
from headgate.store.embedded import Store
from tests.support.serving import ServerProcess
from tests.support.shell import headgate_json
from tests.support.tables import create_tables

pytestmark = pytest.mark.timeout(300)


def _jvms(pid: int) -> list[int]:
    """Return the Java processes below a process, at any depth."""
    below = [pid]
    for one in below:
        below += [child for child in _children(one) if child not in below]
    return [one for one in below if "java" in Path(f"/proc/{one}/comm").read_text()]


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


def test_serve_that_needed_spark_has_one_jvm_and_leaves_none(tmp_path: Path) -> None:
    headgate_json("init", cwd=tmp_path)
    with Store(load_settings(tmp_path)) as store:
        create_tables(store, "master", orders=[{"id": 1}])
        bearer = {
            actor: store.create_token(actor=actor, role=Role.ADMIN)["token"]
            for actor in ("ana", "bo")
        }
    with ServerProcess(tmp_path) as server:
        for token in bearer.values():
            reply = httpx.post(
                f"{server.url}/api/v1/cleanup",
                json={"dry_run": True, "engine": "spark"},
                headers={"authorization": f"Bearer {token}"},
                timeout=200,
            )
            assert reply.status_code == 200, reply.text
        [jvm] = _jvms(server.pid)
        assert server.end() == 0
        assert not Path(f"/proc/{jvm}").exists()
