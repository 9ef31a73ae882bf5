"""Pipelines for tests: JobSpecs without Git, jobs without Spark."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.builds.attempt import JobResult, Jobs, JobWork, Progress, log_in
from headgate.builds.plan import PlanRequest
from headgate.builds.report import BuildOutcome
from headgate.builds.run import BuildRequest, run_build
from headgate.catalog.jobspecs import publish_jobspecs
from headgate.catalog.records import views_on
from headgate.files.edits import FileEdit, stage_edit
from headgate.model.jobspecs import JobSpec
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import DatasetKind, Transaction
from headgate.store.embedded import Store
from headgate.store.transactions import ShownFiles, store_bytes
from tests.support.jobspecs import spec
from tests.support.stores import load

_FILE = "made"


def files_spec(outputs: str, *inputs: str, logic: str = "1", **declared: Any) -> JobSpec:
    """Return a JobSpec whose outputs are files datasets; names as in `tests.support.jobspecs`."""
    made = spec(outputs, *inputs, logic=logic, **declared)
    kept = tuple(replace(o, kind=DatasetKind.FILES) for o in made.outputs)
    return replace(made, declaration=replace(made.declaration, outputs=kept))


def publish(store: Store, branch: str, *specs: JobSpec, clean: bool = True) -> None:
    """Publish what a repository declares on a branch name."""
    source = [replace(s, source=replace(s.source, branch=branch, clean=clean)) for s in specs]
    publish_jobspecs(
        store.database,
        branch=branch,
        repository="example",
        commit="c0ffee",
        clean=clean,
        actor="ana",
        specs=[
            {"outputs": [str(o.dataset) for o in s.outputs], "jobspec": s.to_json()} for s in source
        ],
    )


def _open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass(kw_only=True)
class FileJobs:
    """Jobs without Spark: every output is one file with the texts of its inputs."""

    store: Store
    # By output: number of attempts of its job that fail.
    failing: dict[str, int] = field(default_factory=dict)
    # Outputs whose jobs publish nothing, and outputs whose jobs end only when stopped.
    aborting: frozenset[str] = frozenset()
    endless: frozenset[str] = frozenset()
    # Jobs that are not endless wait until it is set.
    gate: threading.Event = field(default_factory=_open_gate)
    # By output: results of the checks of its job.
    checks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    # Executed jobs by first output; one entry for each attempt.
    ran: list[str] = field(default_factory=list)
    # Announced number of jobs; one entry for each announcement.
    expected: list[int] = field(default_factory=list)

    def expect(self, count: int) -> None:
        self.expected.append(count)

    def start(self, work: JobWork) -> _FileAttempt:
        return _FileAttempt(self, work)


class _FileAttempt:
    def __init__(self, jobs: FileJobs, work: JobWork) -> None:
        self._jobs = jobs
        self._work = work
        self._stopped = threading.Event()
        self._reason = ""

    def run(self, progress: Progress) -> JobResult:
        first = str(next(iter(self._work.outputs)))
        # Decided before a test can see that the job runs, and change the decision for the next one.
        is_endless = first in self._jobs.endless
        self._jobs.ran.append(first)
        self._work.directory.mkdir(parents=True, exist_ok=True)
        log_in(self._work.directory).write_text(f"{first} was here\n")
        progress({"event": "started", "tags": []})
        if is_endless:
            assert self._stopped.wait(60), f"nothing stopped {first}"
            return JobResult(succeeded=False, error={"message": self._reason})
        assert self._jobs.gate.wait(60), f"nothing let {first} end"
        if self._jobs.failing.get(first, 0) > 0:
            self._jobs.failing[first] -= 1
            error = {"message": f"{first} failed"}
            checks = tuple(self._jobs.checks.get(first, ()))
            return JobResult(succeeded=False, error=error, checks=checks)
        if first in self._jobs.aborting:
            return JobResult(succeeded=True, aborted=True)
        for name, id in self._work.outputs.items():
            self._write(str(name), id)
        return JobResult(succeeded=True, rows=len(self._work.outputs))

    def stop(self, reason: str) -> None:
        self._reason = reason
        self._stopped.set()

    def _write(self, name: str, id: str) -> None:
        store = self._jobs.store
        read = [text_of(store, load(store, p.transaction)) for p in self._work.inputs.values()]
        text = f"{name}{self._work.decision.job.spec.logic_hash}({','.join(read)})"
        stage_edit(
            store.database,
            store.trees,
            load(store, id),
            FileEdit(put=[store_bytes(store, _FILE, text.encode())]),
            attempt=self._work.attempt,
        )


def text_of(store: Store, transaction: Transaction) -> str:
    """Return the text of a transaction of such a job."""
    shown = ShownFiles(store=store, dataset=transaction.dataset, transaction=transaction)
    return store.trees.read(shown.find(_FILE)).decode()


def build(
    store: Store,
    targets: str | Sequence[str],
    *,
    jobs: Jobs | None = None,
    branch: str = "master",
    fallback: Sequence[str] = (),
    upstream: bool = True,
    force: bool = False,
    full: bool = False,
    adopt: str = "any",
    parameters: Mapping[str, Any] | None = None,
    **options: Any,
) -> BuildOutcome:
    """Build with jobs that write files; `options` are those of a BuildRequest."""
    names = targets.split() if isinstance(targets, str) else targets
    request = BuildRequest(
        plan=PlanRequest(
            targets=tuple(names),
            branch=branch,
            fallback=tuple(fallback),
            upstream=upstream,
            force=force,
            full=full,
            adopt=adopt,
            parameters=parameters or {},
        ),
        actor=store.settings.actor,
        **options,
    )
    work = store.settings.root / "work"
    return run_build(store.build_parts, request, work, jobs=jobs or FileJobs(store=store))


def states(outcome: BuildOutcome) -> dict[str, str]:
    """Return each job's state, by its outputs."""
    return {job.title: job.state.value for job in outcome.jobs}


def shown(store: Store, *names: str, branch: str = "master") -> dict[str, str]:
    """Return the texts of datasets that such jobs made, in one read of a branch."""
    wanted = [parse_dataset_name(name) for name in names]
    views = store.database.read(lambda c: views_on(c, wanted, branch))
    return {str(name): text_of(store, view) for name, view in views.items()}
