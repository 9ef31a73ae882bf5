"""The build's side of a job process: tell it what to do, hear it, end it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from headgate.spark.document import JobDocument
from headgate.spark.engines import Address, write_address
from headgate.spark.forking import Forked, Nursery


class JobProcess:
    """One attempt in a process of its own; it ends itself when this process is gone.

    It is told two things, when they are known: the engine that it joins, then the job that it does.
    """

    def __init__(self, process: Forked, stdin_fd: int, events_fd: int) -> None:
        self._process = process
        self._stdin = os.fdopen(stdin_fd, "wb")
        self._events = os.fdopen(events_fd, "rb")
        self.address: Address | None = None

    @classmethod
    def start(cls, nursery: Nursery, log_path: Path) -> Self:
        """A process that waits to be told more; what it prints meanwhile goes to the log file."""
        told, tell = os.pipe()
        heard, hear = os.pipe()
        with log_path.open("ab") as log:
            forked = nursery.fork(stdin=told, log=log.fileno(), events=hear)
        os.close(told)
        os.close(hear)
        return cls(forked, tell, heard)

    def join(self, address: Address) -> None:
        """Lets the process make its session in an engine, for a job to come."""
        self.address = address
        self._tell(write_address(address))

    def begin(self, document: JobDocument) -> None:
        """Gives the process its job; there is no second one."""
        self._tell(document.to_json())

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.alive

    def events(self) -> Iterator[dict[str, Any]]:
        """What the process reports, as it comes, until it has ended."""
        for line in self._events:
            # The last line of a killed process may be half a line.
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """The exit code (negative: the signal that ended it), or None if it still runs."""
        return self._process.wait(timeout_seconds)

    def kill(self) -> None:
        """Ends the process and all that it started; its Spark jobs are cancelled by their tags."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Lets go of the pipes of a process that has ended."""
        self._events.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def _tell(self, line: str) -> None:
        """Sends a line; the pipe stays open, and its end says that we are gone."""
        # A process that died at once is reported by its exit code.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line.encode() + b"\n")
            self._stdin.flush()
