"""The build's side of a job process: start it, hear it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from headgate.spark.document import JobDocument
from headgate.spark.gateway import GatewayAddress


class JobProcess:
    """One attempt in a process of its own; it ends itself when this process is gone.

    It is told two things, when they are known: the JVM that it joins, then the job that it does.
    """

    def __init__(self, process: subprocess.Popen[bytes], events_fd: int) -> None:
        self._process = process
        self._events = os.fdopen(events_fd, "rb")
        self.address: GatewayAddress | None = None

    @classmethod
    def start(
        cls,
        document: JobDocument,
        log_path: Path,
        *,
        environ: Mapping[str, str],
        cwd: Path | None = None,
    ) -> Self:
        """A process that begins its job at once; what user code prints goes to the log file."""
        job = cls.spawn(log_path, environ=environ, cwd=cwd)
        job.join(GatewayAddress(port=document.gateway_port, secret=document.gateway_secret))
        job.begin(document)
        return job

    @classmethod
    def spawn(cls, log_path: Path, *, environ: Mapping[str, str], cwd: Path | None = None) -> Self:
        """A process that loads what every job needs, and waits to be told more."""
        read_end, write_end = os.pipe()
        try:
            with log_path.open("ab") as log:
                process = subprocess.Popen(
                    # -P: the working directory may hold other sources than the bundle.
                    [sys.executable, "-P", "-m", "headgate.spark.job", str(write_end)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_end,),
                    env=dict(environ),
                    cwd=cwd,
                    # A group of its own, so that one signal reaches all that it started.
                    start_new_session=True,
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return cls(process, read_end)

    def join(self, address: GatewayAddress) -> None:
        """Lets the process make its session in a JVM, for a job to come."""
        self.address = address
        self._tell(json.dumps({"port": address.port, "secret": address.secret}))

    def begin(self, document: JobDocument) -> None:
        """Gives the process its job; there is no second one."""
        self._tell(document.to_json())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def events(self) -> Iterator[dict[str, Any]]:
        """What the process reports, as it comes, until it has ended."""
        for line in self._events:
            # The last line of a killed process may be half a line.
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """The exit code (negative: the signal that ended it), or None if it still runs."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Ends the process and all that it started; its Spark jobs are cancelled by their tags."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Lets go of the pipes of a process that has ended."""
        self._events.close()
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _tell(self, line: str) -> None:
        """Sends a line; the pipe stays open, and its end says that we are gone."""
        stdin = self._process.stdin
        assert stdin is not None
        # A process that died at once is reported by its exit code.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(line.encode() + b"\n")
            stdin.flush()
