"""The build's side of the nursery: processes that are ready as soon as they are forked."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

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
