"""Job processes as the build sees them: forked in advance, given one job each, listened to, ended.

A process that waits in the pool has done its imports and opened its session, so that a job starts
at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headgate.spark.engines import Address, write_address
from headgate.spark.job_protocol import FORK_MESSAGE, FORK_STARTED, JobDocument

_UNKNOWN_CODE = 255
_PROGRAM = "headgate.spark.job"
# PySpark loads these sooner or later in every driver; they take longer than everything else.
_LIBRARIES = ("pandas", "pyarrow")


class ProcessPool:
    """Processes that wait for a job; each does only one."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ
        self._forks: ForkServer | None = None
        self._waiting: list[JobProcess] = []
        self._lock = threading.Lock()

    def keep_ready(self, count: int, address: Address | None = None) -> None:
        """Let this many processes wait; they join the engine as soon as its address is known."""
        with self._lock:
            self._fill(count, address)

    def take(self, address: Address) -> JobProcess:
        """Return a process that has joined this engine, or is about to."""
        with self._lock:
            self._fill(1, address)
            return self._waiting.pop(0)

    def close(self) -> None:
        with self._lock:
            self._discard(lambda _: True)
            if self._forks is not None:
                self._forks.close()

    def _fill(self, count: int, address: Address | None) -> None:
        # A process cannot leave the engine that it has joined.
        self._discard(lambda p: not p.alive or p.address not in {None, address})
        log = self._directory / "waiting.log"
        while len(self._waiting) < count:
            if self._forks is None or not self._forks.alive:
                self._forks = ForkServer(
                    _PROGRAM, *_LIBRARIES, log=log, environ=self._environ, cwd=self._directory
                )
            self._waiting.append(self._forks.fork(log, JobProcess))
        for process in self._waiting:
            if address is not None and process.address is None:
                process.join(address)

    def _discard(self, useless: Callable[[JobProcess], bool]) -> None:
        for process in [p for p in self._waiting if useless(p)]:
            self._waiting.remove(process)
            process.kill()
            process.close()


class ForkedProcess:
    """A process that the fork server started: lines go to its stdin, and it sends JSON lines.

    Its end is the end of its stdin. It is alive until the fork server reports its end.
    """

    def __init__(self, stdin_fd: int, events_fd: int) -> None:
        self._stdin = os.fdopen(stdin_fd, "wb")
        self._events = os.fdopen(events_fd, "rb")
        self._started = threading.Event()
        self._ended = threading.Event()
        self._pid: int | None = None
        self._code = _UNKNOWN_CODE

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the process until it has ended."""
        for line in self._events:
            # The last line of a killed process may be half a line.
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Return the exit code (negative: the signal that ended it), or None if it still runs."""
        return self._code if self._ended.wait(timeout_seconds) else None

    def wait_started(self) -> None:
        """Wait until the process exists, or never will."""
        self._started.wait()

    def kill(self) -> None:
        """End the process and its children; its Spark jobs are cancelled by their tags."""
        self._started.wait()
        self.send_kill()
        self._ended.wait()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self._events.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def send_kill(self) -> None:
        """Send the signal, without waiting for the end."""
        if self._pid is None or not self.alive:
            return
        # Right after the fork it may not lead a process group yet.
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(self._pid, signal.SIGKILL)
                break

    def set_started(self, pid: int) -> None:
        self._pid = pid
        self._started.set()

    def set_ended(self, code: int = _UNKNOWN_CODE) -> None:
        self._code = code
        self._ended.set()
        self._started.set()

    def send(self, line: bytes) -> None:
        """Send a line; the pipe stays open, because its end ends the process."""
        # If the process has died already, its exit code reports it.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line + b"\n")
            self._stdin.flush()


class JobProcess(ForkedProcess):
    """One attempt in a process of its own, which ends itself when the build's process is gone.

    It receives two lines: the address of the engine to join, then the job to do.
    """

    address: Address | None = None

    def join(self, address: Address) -> None:
        """Let the process open a session in an engine, for a job to come."""
        self.address = address
        self.send(write_address(address).encode())

    def begin(self, document: JobDocument) -> None:
        """Start the only job of this process."""
        self.send(document.to_json().encode())


Process = TypeVar("Process", bound=ForkedProcess)


class ForkServer:
    """One process that has loaded a program and libraries, and forks on request."""

    def __init__(
        self, program: str, *libraries: str, log: Path, environ: Mapping[str, str], cwd: Path
    ) -> None:
        self._socket, theirs = socket.socketpair()
        # -P: the working directory may hold other sources than a job's bundle.
        command = [sys.executable, "-P", "-m", "headgate.spark.fork_server", str(theirs.fileno())]
        with log.open("ab") as output, theirs:
            self._process = subprocess.Popen(
                [*command, program, *libraries],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                env=dict(environ),
                cwd=cwd,
                # Ctrl-C on the terminal is for the build's process to handle.
                start_new_session=True,
            )
        self._lock = threading.Lock()
        self._requested: deque[ForkedProcess] = deque()
        self._running: dict[int, ForkedProcess] = {}
        self._reader = threading.Thread(target=self._read_messages, name="fork-server", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._reader.is_alive()

    def fork(self, log_path: Path, kind: type[Process]) -> Process:
        """Request a process, without waiting for it; its output goes to the log file."""
        stdin_read, stdin_write = os.pipe()
        events_read, events_write = os.pipe()
        process = kind(stdin_write, events_read)
        with self._lock, log_path.open("ab") as log:
            self._requested.append(process)
            try:
                socket.send_fds(self._socket, [b"f"], [stdin_read, log.fileno(), events_write])
            except OSError:
                self._requested.pop()
                process.set_ended()
        os.close(stdin_read)
        os.close(events_write)
        return process

    def close(self) -> None:
        """End the server and the processes that it forked."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._process.wait()
        self._socket.close()

    def _read_messages(self) -> None:
        while message := self._next_message():
            kind, pid, code = FORK_MESSAGE.unpack(message)
            with self._lock:
                if kind == FORK_STARTED:
                    self._running[pid] = self._requested.popleft()
                    self._running[pid].set_started(pid)
                else:
                    self._running.pop(pid).set_ended(code)
        with self._lock:
            for requested in self._requested:
                requested.set_ended()
            # No server is left to report the end of these, so they are killed.
            for orphan in self._running.values():
                orphan.send_kill()
                orphan.set_ended()

    def _next_message(self) -> bytes | None:
        data = b""
        while len(data) < FORK_MESSAGE.size:
            try:
                part = self._socket.recv(FORK_MESSAGE.size - len(data))
            except OSError:
                return None
            if not part:
                return None
            data += part
        return data
