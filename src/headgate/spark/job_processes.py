"""Job processes that wait for their job: imports and attaching are done before it comes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from headgate.spark.engines import Address, write_address
from headgate.spark.job_protocol import JobDocument

# The build's side of the nursery: processes that are ready as soon as they are forked.

# What a nursery reports: what happened, a process id, and of a death the exit code.
BORN, DIED = b"B", b"D"
MESSAGE = struct.Struct("<cii")
_UNKNOWN = 255


class Forked:
    """A process that a nursery forked for us; it lives until its death is reported."""

    def __init__(self) -> None:
        self._born = threading.Event()
        self._died = threading.Event()
        self._pid: int | None = None
        self._code = _UNKNOWN

    @property
    def pid(self) -> int | None:
        """Its id, once it is born; None if it never was."""
        self._born.wait()
        return self._pid

    @property
    def alive(self) -> bool:
        return not self._died.is_set()

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """The exit code (negative: the signal that ended it), or None if it still lives."""
        return self._code if self._died.wait(timeout_seconds) else None

    def kill(self) -> None:
        """Ends it and all that it started."""
        pid = self.pid
        if pid is None or not self.alive:
            return
        # Right after its birth it may not lead a group yet.
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(pid, signal.SIGKILL)
                break

    def be_born(self, pid: int) -> None:
        self._pid = pid
        self._born.set()

    def die(self, code: int = _UNKNOWN) -> None:
        self._code = code
        self._died.set()
        self._born.set()


class Nursery:
    """One process that has loaded what jobs need, and forks as many as are asked for."""

    def __init__(self, log_path: Path, *, environ: Mapping[str, str], cwd: Path) -> None:
        self._socket, theirs = socket.socketpair()
        with log_path.open("ab") as log, theirs:
            self._process = subprocess.Popen(
                # -P: the working directory may hold other sources than a job's bundle.
                [sys.executable, "-P", "-m", "headgate.spark.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env=dict(environ),
                cwd=cwd,
                # Ctrl-C on the terminal is for this process to act upon.
                start_new_session=True,
            )
        self._lock = threading.Lock()
        self._unborn: deque[Forked] = deque()
        self._living: dict[int, Forked] = {}
        self._reader = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._reader.is_alive()

    def fork(self, *, stdin: int, log: int, events: int) -> Forked:
        """Asks for a process with these descriptors, and does not wait until it is there."""
        forked = Forked()
        with self._lock:
            self._unborn.append(forked)
            try:
                socket.send_fds(self._socket, [b"f"], [stdin, log, events])
            except OSError:
                self._unborn.pop()
                forked.die()
        return forked

    def close(self) -> None:
        """Ends the nursery, and whatever it has forked that still lives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._process.wait()
        self._socket.close()

    def _listen(self) -> None:
        while message := self._next_message():
            kind, pid, code = MESSAGE.unpack(message)
            with self._lock:
                if kind == BORN:
                    self._living[pid] = self._unborn.popleft()
                    self._living[pid].be_born(pid)
                else:
                    self._living.pop(pid).die(code)
        with self._lock:
            for unborn in self._unborn:
                unborn.die()
            # Nobody is left to say how these end: they are killed, so that they do.
            for orphan in self._living.values():
                orphan.kill()
                orphan.die()

    def _next_message(self) -> bytes | None:
        data = b""
        while len(data) < MESSAGE.size:
            try:
                part = self._socket.recv(MESSAGE.size - len(data))
            except OSError:
                return None
            if not part:
                return None
            data += part
        return data


# The build's side of a job process: tell it what to do, hear it, end it.


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


class ProcessPool:
    """Each process does one job; those that wait here have done all that comes before it."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ
        self._nursery: Nursery | None = None
        self._waiting: list[JobProcess] = []
        self._lock = threading.Lock()

    def keep_ready(self, count: int, address: Address | None = None) -> None:
        """Lets so many processes wait; they join the engine as soon as there is one."""
        with self._lock:
            self._fill(count, address)

    def take(self, address: Address) -> JobProcess:
        """A process that has joined this engine, or is about to."""
        with self._lock:
            self._fill(1, address)
            return self._waiting.pop(0)

    def close(self) -> None:
        with self._lock:
            self._discard(lambda _: True)
            if self._nursery is not None:
                self._nursery.close()

    def _fill(self, count: int, address: Address | None) -> None:
        # What has joined another engine, one that is gone, is of no use.
        self._discard(lambda p: not p.alive or p.address not in {None, address})
        while len(self._waiting) < count:
            self._waiting.append(self._start())
        for process in self._waiting:
            if address is not None and process.address is None:
                process.join(address)

    def _start(self) -> JobProcess:
        log = self._directory / "waiting.log"
        if self._nursery is None or not self._nursery.alive:
            self._nursery = Nursery(log, environ=self._environ, cwd=self._directory)
        return JobProcess.start(self._nursery, log)

    def _discard(self, useless: Callable[[JobProcess], bool]) -> None:
        for process in [p for p in self._waiting if useless(p)]:
            self._waiting.remove(process)
            process.kill()
            process.close()
