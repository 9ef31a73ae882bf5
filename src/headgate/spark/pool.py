"""Job processes that wait for their job: imports and attaching are done before it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from headgate.spark.gateway import GatewayAddress
from headgate.spark.processes import JobProcess


class ProcessPool:
    """Each process does one job; those that wait here have done all that comes before it."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ
        self._waiting: list[JobProcess] = []
        self._lock = threading.Lock()
        self._closed = False

    def keep_ready(self, count: int, address: GatewayAddress | None = None) -> None:
        """Lets so many processes wait; before there is a JVM they only load what they need."""
        with self._lock:
            self._discard(lambda p: not p.alive or (p.address or address) != address)
            while len(self._waiting) < count and not self._closed:
                self._waiting.append(self._spawn())
            for process in self._waiting:
                if address is not None and process.address is None:
                    process.join(address)

    def take(self, address: GatewayAddress) -> JobProcess:
        """A process that has joined this JVM, or is about to."""
        with self._lock:
            self._discard(lambda p: not p.alive or p.address not in {None, address})
            process = self._waiting.pop(0) if self._waiting else self._spawn()
        if process.address is None:
            process.join(address)
        return process

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._discard(lambda _: True)

    def _spawn(self) -> JobProcess:
        return JobProcess.spawn(
            self._directory / "waiting.log", environ=self._environ, cwd=self._directory
        )

    def _discard(self, useless: Callable[[JobProcess], bool]) -> None:
        for process in [p for p in self._waiting if useless(p)]:
            self._waiting.remove(process)
            process.kill()
            process.close()
