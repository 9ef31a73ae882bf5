"""`python -m headgate.worker ORDER`: what `headgate task start` becomes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from headgate import connection
from headgate.conductor import ConductorClient
from headgate.errors import HeadgateError, Invalid
from headgate.tasks.definitions import load_tasks, parse_target
from headgate.tasks.supervisor import PROCESS
from headgate.worker.dispatch import Capacity, Duty, Worker

_FAILED = 1


def main(words: list[str]) -> int:
    """Works until a signal; 0 where it drained, else the exit code that the order names."""
    order = orjson.loads(words[0])
    try:
        work(order)
    except HeadgateError as error:
        _say({"event": "failed", **error.to_json()})
        _tell(order, error.to_json())
        codes: Mapping[str, int] = order["exit_codes"]
        named = (codes[c.__name__] for c in type(error).__mro__ if c.__name__ in codes)
        return next(named, _FAILED)
    _tell(order, {"drained": True})
    return 0


def work(order: Mapping[str, Any], *, command: Sequence[str] = PROCESS) -> None:
    """Opens the store, connects, and polls until a signal comes."""
    target = parse_target(order["target"])
    directory = Path.cwd()
    tasks = load_tasks(target, directory)
    with connection.open(actor=order["actor"]) as hg:
        url = hg.settings.conductor_url
        if url is None:
            raise Invalid(
                "no Conductor is configured: set [conductor] url in headgate.toml, or "
                "HEADGATE_CONDUCTOR_URL."
            )
        duty = Duty(
            place=replace(hg.task_place, command=command),
            client=ConductorClient(url),
            worker=f"{socket.gethostname()}-{os.getpid()}",
            directory=directory,
            module=target.module,
            say=_say,
        )
        Worker(
            duty,
            tasks,
            Capacity(slots=order["slots"], drain_seconds=order["drain_seconds"]),
        ).run()


def _tell(order: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """How it ended, as the one document of a command that was asked for JSON."""
    if order.get("json"):
        sys.stdout.write(orjson.dumps(dict(document), default=str).decode() + "\n")
        sys.stdout.flush()


def _say(line: Mapping[str, Any]) -> None:
    """For people and for whoever collects logs: one line of JSON on stderr."""
    sys.stderr.write(orjson.dumps(dict(line), default=str).decode() + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
