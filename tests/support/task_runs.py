"""Tasks on the local orchestrator, each attempt in a real process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headgate.model.failpoints import Failpoint
from headgate.tasks.definitions import load_task, parse_target
from headgate.tasks.supervisor import PROCESS, LocalResult, Request, run_locally
from tests.support.task_modules import STEPS, write_module
from tests.support.task_process import armed_command
from tests.support.tasks import Workshop, input_of, new_workshop, put_files

_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A workshop with one published input and a module whose attempts execute steps."""

    workshop: Workshop
    module: str
    given: str

    @property
    def directory(self) -> Path:
        return self.workshop.directory

    @property
    def flags(self) -> Path:
        return self.directory / "flags"

    def data(self, *steps: dict[str, str], wait: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = {
            "counter": str(self.directory / "counter"),
            "steps": list(steps) or [{}],
        }
        if wait:
            params["wait_for"] = str(self.directory / "go-on")
        return input_of(self.given, params=params)

    def run(
        self,
        data: dict[str, Any],
        *,
        key: str = "k",
        retries: int = 1,
        command: Sequence[str] = PROCESS,
    ) -> LocalResult:
        """Execute the task, in processes that this one supervises."""
        with self.workshop.open() as store:
            place = replace(self.workshop.doing(store).task_host, command=command)
            definition = load_task(parse_target(self.module), self.directory)
            request = Request(
                definition=definition,
                target=self.module,
                directory=self.directory,
                data=data,
                key=key,
                retries=retries,
            )
            return run_locally(place, request)

    def armed(self, what: str, point: Failpoint) -> tuple[str, ...]:
        self.flags.mkdir(exist_ok=True)
        return armed_command(what, point, self.flags)


def new_stage(
    catalog_url: str,
    directory: Path,
    *,
    seconds: int = 0,
    response: int = 600,
    retries: int = 2,
    name: str = "steps",
) -> Stage:
    workshop = new_workshop(catalog_url, directory)
    module = write_module(
        directory,
        STEPS,
        seconds=str(seconds),
        response=str(response),
        retries=str(retries),
        name=name,
    )
    with workshop.open() as store:
        given = put_files(store, a="1", b="2")
    return Stage(workshop=workshop, module=module, given=given)


def supervise(stage: Stage, data: dict[str, Any], command: Sequence[str]) -> None:
    """A supervisor in a process of its own."""
    stage.run(data, retries=0, command=command)


def wait_for(what: Callable[[], bool], told: str = "it did not happen") -> None:
    ends_at = time.monotonic() + _PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < ends_at, told
        time.sleep(0.01)
