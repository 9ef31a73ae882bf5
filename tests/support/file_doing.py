"""A client's jobs without Spark: orders executed on files, whose bytes go over HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headgate.builds.attempt import JobResult, Progress, log_in
from headgate.builds.spark_jobs import JobResources
from headgate.client import builds
from headgate.errors import Unavailable
from headgate.files.objects import Digest
from headgate.files.tree import Entry
from headgate.spark.job_protocol import JobOrder

_FILE = "made"


@dataclass(kw_only=True)
class FileWork:
    """Behaviour of the jobs of a client, by first output."""

    failing: dict[str, int] = field(default_factory=dict)
    endless: frozenset[str] = frozenset()
    # Results of the checks of every job.
    checks: tuple[dict[str, Any], ...] = ()
    # True: the engine fails to start.
    broken: bool = False
    ran: list[str] = field(default_factory=list)
    orders: list[JobOrder] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    # Set while an endless job is executing.
    busy: threading.Event = field(default_factory=threading.Event)


class _FileResources(JobResources):
    """Workplace with the server's bytes, and no engine."""

    work: FileWork

    def expect(self, count: int) -> None:
        self.work.expected.append(count)
        if self.work.broken:
            raise Unavailable("there is no Java here.")


class _FileRunner:
    def __init__(self, means: Any, directory: Path) -> None:
        self._trees, self._work = means.trees, means.work
        self._directory = directory
        self._stopped = threading.Event()
        self._reason = ""

    def run(self, order: JobOrder, progress: Progress) -> JobResult:
        first = next(iter(order.outputs.values())).dataset
        # Decided before a test can see that the job runs, and change the decision for the next one.
        is_endless = first in self._work.endless
        self._work.ran.append(first)
        self._work.orders.append(order)
        self._directory.mkdir(parents=True)
        log_in(self._directory).write_text(f"{first} was here\n")
        progress({"event": "started", "pid": 1, "tags": []})
        if is_endless:
            self._work.busy.set()
            assert self._stopped.wait(60), f"nothing stopped {first}"
            return JobResult(succeeded=False, error={"message": self._reason})
        if self._work.failing.get(first, 0) > 0:
            self._work.failing[first] -= 1
            return JobResult(succeeded=False, error={"message": f"{first} failed", "line": 7})
        progress({"event": "written", "rows": len(order.outputs)})
        files = {name: self._made(order, out.dataset) for name, out in order.outputs.items()}
        return JobResult(
            succeeded=True,
            written=tuple(files),
            files=files,
            rows=len(files),
            spark_jobs=1,
            checks=self._work.checks,
        )

    def stop(self, reason: str) -> None:
        self._reason = reason
        self._stopped.set()

    def _made(self, order: JobOrder, dataset: str) -> list[Entry]:
        read = [self._text(given.root or "") for given in order.inputs.values()]
        place = self._directory / dataset
        place.mkdir()
        (place / _FILE).write_text(f"{dataset}1({','.join(read)})")
        entries: list[Entry] = self._trees.upload(place)
        return entries

    def _text(self, root: str) -> str:
        [entry] = self._trees.walk(Digest(root))
        text: bytes = self._trees.read(entry)
        return text.decode()


def do_by_files(monkeypatch: pytest.MonkeyPatch) -> FileWork:
    """Make clients of this process execute their jobs this way."""
    work = FileWork()
    with_engine = builds.client_resources

    def means(*given: Any, **more: Any) -> JobResources:
        made = with_engine(*given, **more)
        plain = _FileResources(**vars(made))
        object.__setattr__(plain, "work", work)
        return plain

    monkeypatch.setattr(builds, "client_resources", means)
    monkeypatch.setattr(builds, "JobRunner", _FileRunner)
    return work
