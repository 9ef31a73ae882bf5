"""Job processes that wait for their job: imports and attaching are done before it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from headgate.spark.engines import Address
from headgate.spark.forking import Nursery
from headgate.spark.processes import JobProcess


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
