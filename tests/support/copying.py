"""Incremental jobs without Spark: every file that is read becomes a file of each output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headgate.builds.attempt import JobResult, JobWork, Progress
from headgate.files.edits import FileEdit, root_of, stage_edit
from headgate.files.tree import ChangeKind, Entry
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from tests.support.stores import load


@dataclass(frozen=True)
class Copied:
    """One attempt: the job's first output, its extent, and the paths that it read."""

    output: str
    incremental: bool
    paths: tuple[str, ...]


@dataclass(kw_only=True)
class CopyJobs:
    """Jobs whose outputs hold, for every path of every input, its text and the logic's mark."""

    store: Store
    copied: list[Copied] = field(default_factory=list)
    # By output: number of attempts that fail after half of their writes.
    failing: dict[str, int] = field(default_factory=dict)

    def expect(self, count: int) -> None:
        assert count >= 0

    def start(self, work: JobWork) -> _CopyAttempt:
        return _CopyAttempt(self, work)


class _CopyAttempt:
    def __init__(self, jobs: CopyJobs, work: JobWork) -> None:
        self._jobs = jobs
        self._store = jobs.store
        self._work = work

    def run(self, progress: Progress) -> JobResult:
        progress({"event": "started", "tags": []})
        first = str(next(iter(self._work.outputs)))
        read = [entry for name in self._work.inputs for entry in self._read(name)]
        paths = tuple(sorted(entry.path for entry in read))
        self._jobs.copied.append(Copied(first, self._work.is_incremental, paths))
        if self._jobs.failing.get(first, 0) > 0:
            self._jobs.failing[first] -= 1
            self._write(read[: len(read) // 2 + 1])
            return JobResult(succeeded=False, error={"message": f"{first} failed"})
        self._write(read)
        return JobResult(succeeded=True, rows=len(read))

    def stop(self, reason: str) -> None:
        raise AssertionError(f"nobody stops a copy: {reason}")

    def _read(self, name: str) -> Iterable[Entry]:
        trees = self._store.trees
        pin, span = self._work.inputs[name], self._work.added.get(name)
        now = root_of(load(self._store, pin.transaction).version)
        if span is None or span.since is None:
            return list(trees.walk(now))
        before = root_of(load(self._store, span.since.transaction).version)
        changes = list(trees.difference(before, now))
        assert ChangeKind.CHANGED not in {change.kind for change in changes}
        return [change.after for change in changes if change.after is not None]

    def _write(self, read: Sequence[Entry]) -> None:
        logic = self._work.decision.job.spec.logic_hash
        put = [
            store_bytes(self._store, entry.path, self._store.trees.read(entry) + logic.encode())
            for entry in read
        ]
        for id in self._work.outputs.values():
            stage_edit(
                self._store.database,
                self._store.trees,
                load(self._store, id),
                FileEdit(put=put),
                attempt=self._work.attempt,
            )
