"""Worker process of `headgate task start`, run as `python -m headgate.worker ORDER`."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from headgate import connection
from headgate.conductor import connect
from headgate.errors import find_known_error
from headgate.tasks.definitions import load_tasks, parse_target
from headgate.tasks.supervisor import PROCESS
from headgate.worker.dispatch import Capacity, Worker, WorkerContext

_FAILED = 1


def main(arguments: list[str]) -> int:
    """Run the worker; return 0 after a drain, or the exit code of the error."""
    order = orjson.loads(arguments[0])
    try:
        work(order)
    except Exception as raised:
        if (error := find_known_error(raised)) is None:
            raise
        _log({"event": "failed", **error.to_json()})
        _print_result(order, error.to_json())
        codes: Mapping[str, int] = order["exit_codes"]
        found = (codes[c.__name__] for c in type(error).__mro__ if c.__name__ in codes)
        return next(found, _FAILED)
    _print_result(order, {"drained": True})
    return 0


def work(order: Mapping[str, Any], *, command: Sequence[str] = PROCESS) -> None:
    """Open the store, connect to Conductor and poll until a signal arrives."""
    target = parse_target(order["target"])
    directory = Path.cwd()
    tasks = load_tasks(target, directory)
    with connection.open(actor=order["actor"]) as hg:
        context = WorkerContext(
            host=replace(hg.task_host, command=command),
            client=connect(hg.settings.conductor_url),
            worker=f"{socket.gethostname()}-{os.getpid()}",
            directory=directory,
            module=target.module,
            log=_log,
        )
        capacity = Capacity(slots=order["slots"], drain_seconds=order["drain_seconds"])
        Worker(context, tasks, capacity).run()


def _print_result(order: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    if order.get("json"):
        sys.stdout.write(orjson.dumps(dict(document), default=str).decode() + "\n")
        sys.stdout.flush()


def _log(line: Mapping[str, Any]) -> None:
    sys.stderr.write(orjson.dumps(dict(line), default=str).decode() + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
