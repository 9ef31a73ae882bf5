"""Workflows on a real Conductor server, and workers in processes of their own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from headgate.worker.__main__ import work
from tests.support.source import ROOT
from tests.support.task_runs import Stage, new_stage

_PATIENCE_SECONDS = 300.0
_COUNT = itertools.count(1)
_START = (
    "import sys; sys.path[:0] = {paths!r}; "
    "from tests.support.conductor import start; raise SystemExit(start())"
)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A workflow of one task, whose module is in a directory of its own."""

    url: str
    stage: Stage
    name: str

    def begin(self, data: dict[str, Any]) -> str:
        answer = self._post(f"/workflow/{self.name}", data)
        assert answer.status_code == 200, answer.text
        return answer.text

    def again(self, workflow: str, how: str) -> None:
        """Call `restart`, or `rerun` from its task."""
        [task, *_] = self.tasks(workflow)
        body = {"reRunFromTaskId": task["taskId"]} if how == "rerun" else None
        answer = self._post(f"/workflow/{workflow}/{how}", body)
        assert answer.status_code < 300, answer.text

    def terminate(self, workflow: str) -> None:
        httpx.delete(f"{self.url}/api/workflow/{workflow}", timeout=60).raise_for_status()

    def load(self, workflow: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(
            f"{self.url}/api/workflow/{workflow}", params={"includeTasks": True}, timeout=60
        ).json()
        return found

    def tasks(self, workflow: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.load(workflow)["tasks"]
        return found

    def wait(self, workflow: str) -> dict[str, Any]:
        """Return the workflow when it has ended; the server evaluates it by itself."""
        ends_at = time.monotonic() + _PATIENCE_SECONDS
        while (found := self.load(workflow))["status"] == "RUNNING":
            assert time.monotonic() < ends_at, [task["status"] for task in found["tasks"]]
            time.sleep(0.3)
        return found

    @contextmanager
    def worker(
        self, *, slots: int = 1, drain: float | None = None, command: Sequence[str] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run `headgate task start` as leader of a process group; kill the group at the end."""
        order = {
            "target": self.stage.module,
            "slots": slots,
            "drain_seconds": drain,
            "actor": "ana",
            "exit_codes": {},
        }
        code = _START.format(paths=[str(ROOT), str(ROOT / "src")])
        words = [sys.executable, "-c", code, orjson.dumps(order).decode(), *command]
        with (
            (self.stage.directory / "worker.log").open("ab") as log,
            subprocess.Popen(
                words, cwd=self.stage.directory, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def log(self) -> str:
        return (self.stage.directory / "worker.log").read_text()

    def _post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/api{path}", json=body, timeout=60)


def start() -> int:
    """The worker process as shipped, with the test's own entry for attempts."""
    order = orjson.loads(sys.argv[1])
    if sys.argv[2:]:
        work(order, command=tuple(sys.argv[2:]))
    else:
        work(order)
    return 0


def new_flow(
    url: str, catalog_url: str, directory: Path, *, response: int = 600, **more: Any
) -> Flow:
    """Register a task with a unique name, in a workflow that passes its input on."""
    from headgate.conductor import ConductorClient
    from headgate.tasks.definitions import load_task, make_taskdef, parse_target

    name = f"steps_{os.getpid()}_{next(_COUNT)}"
    stage = new_stage(catalog_url, directory, response=response, name=name, **more)
    with (directory / "headgate.toml").open("a") as settings:
        settings.write(f'\n[conductor]\nurl = "{url}"\n')
    taskdef = make_taskdef(load_task(parse_target(stage.module), directory))
    ConductorClient(url).register([taskdef])
    words = ("workspace", "params")
    workflow = {
        "name": f"flow_{name}",
        "version": 1,
        "schemaVersion": 2,
        "ownerEmail": "a@b.c",
        "tasks": [
            {
                "name": name,
                "taskReferenceName": "only",
                "type": "SIMPLE",
                "inputParameters": {w: f"${{workflow.input.{w}}}" for w in words},
            }
        ],
        "outputParameters": {"ref": "${only.output.workspace.ref}"},
    }
    flow = Flow(url=url, stage=stage, name=f"flow_{name}")
    answer = flow._post("/metadata/workflow", workflow)
    assert answer.status_code == 200, answer.text
    return flow


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals, *pids: int) -> None:
    """Signal the attempts, which lead groups of their own, and their worker.

    The attempts come first: the worker may end them as soon as it gets the signal.
    """
    for pid in (*pids, process.pid):
        os.kill(pid, number)
