"""A project under test: its transforms in a repository, a store, and a branch of the test's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.builds.job import SparkJobs
from headgate.builds.outcome import PlannedBuild
from headgate.builds.plan import PlanRequest
from headgate.builds.run import BuildOutcome, BuildRequest, run_build
from headgate.errors import WorkFailed
from headgate.files.writing import FileEdit
from headgate.handles import DatasetHandle, store_bytes
from headgate.model.job_states import BuildState
from headgate.store import Store
from headgate.testing.faults import Failpoints
from headgate.testing.machine import PRIMARY
from headgate.testing.repository import commit, git

if TYPE_CHECKING:
    from headgate.spark.workplace import DataFrame, SparkSession


class Project:
    """Inputs go to the primary branch; what is built goes to the test's own, off it."""

    def __init__(self, store: Store, repository: Path, branch: str, failpoints: Failpoints) -> None:
        self.store = store
        self.repository = repository
        self.branch = branch
        self.failpoints = failpoints

    @property
    def context(self) -> str:
        """What the test sees: its own branch, then the primary one."""
        return self.branch if self.branch == PRIMARY else f"{self.branch}>{PRIMARY}"

    # --- data -------------------------------------------------------------------------------

    def put_files(
        self, dataset: str, files: Mapping[str, str | bytes], *, branch: str = PRIMARY
    ) -> None:
        """Publishes files by path, making the dataset if there is none."""
        handle = self._existing(dataset, "files", branch)
        put = [
            store_bytes(self.store, path, text.encode() if isinstance(text, str) else text)
            for path, text in files.items()
        ]
        handle.branch(branch).edit(FileEdit(put=put))

    def put_table(
        self,
        dataset: str,
        rows: Sequence[Any] | DataFrame,
        schema: str | None = None,
        *,
        branch: str = PRIMARY,
        append: bool = False,
    ) -> None:
        """Publishes rows as a table, in place of what was there or, with `append`, after it."""
        self._existing(dataset, "table", branch)
        session = self.spark(branch)
        if isinstance(rows, Sequence):
            frame: Any = session.createDataFrame(list(rows), schema)
        else:
            # A frame belongs to a session; this one's catalog is the branch.
            frame = session.createDataFrame(rows.collect(), rows.schema)
        writer = frame.writeTo(dataset)
        if append:
            writer.append()
        else:
            writer.using("iceberg").createOrReplace()

    def _existing(self, dataset: str, kind: str, branch: str) -> DatasetHandle:
        handle = self.store.dataset(dataset)
        return handle if handle.exists() else handle.create(kind=kind, branch=branch)

    def rows(self, dataset: str, *, context: str | None = None) -> list[dict[str, Any]]:
        """All rows that the test's branch shows of a table, or that another context does."""
        found = self.spark(context or self.context).table(dataset).collect()
        return [row.asDict(recursive=True) for row in found]

    def spark(self, context: str | None = None) -> SparkSession:
        """A session on the shared Spark whose catalog `headgate` is a context of the store."""
        return self.store.spark(context or self.context)

    # --- logic ------------------------------------------------------------------------------

    def edit(self, path: str, before: str, after: str) -> None:
        """Changes the code of this test's copy on the test's branch, commits and publishes it."""
        file = self.repository / path
        text = file.read_text()
        if before not in text:
            raise ValueError(f"{path} does not have {before!r}")
        if git(self.repository, "branch", "--show-current").strip() != self.branch:
            git(self.repository, "checkout", "--quiet", "-B", self.branch)
        file.write_text(text.replace(before, after))
        commit(self.repository, f"change {path}")
        self.store.publish_jobspecs(self.repository)

    def merge(self) -> None:
        """Merges the test's branch in Git and publishes the logic on the primary branch."""
        git(self.repository, "checkout", "--quiet", PRIMARY)
        git(self.repository, "merge", "--quiet", "--no-ff", "--no-edit", self.branch)
        self.store.publish_jobspecs(self.repository)

    # --- builds -----------------------------------------------------------------------------

    def plan(self, *targets: str, branch: str | None = None, upstream: bool = True) -> PlannedBuild:
        """What a build would do; nothing is changed."""
        request = self._request(targets, branch, upstream=upstream)
        return self.store.plan(
            request.targets, branch=request.branch, fallback=request.fallback, upstream=upstream
        )

    def build(
        self,
        *targets: str,
        branch: str | None = None,
        upstream: bool = True,
        force: bool = False,
        parameters: Mapping[str, Any] | None = None,
        retries: int = 0,
        atomic: bool = False,
        check: bool = True,
    ) -> BuildOutcome:
        """Builds on the test's branch, failpoints armed; raises where a job failed and `check`."""
        request = BuildRequest(
            plan=self._request(
                targets, branch, upstream=upstream, force=force, parameters=parameters or {}
            ),
            actor=self.store.settings.actor,
            retries=retries,
            atomic=atomic,
        )
        parts = self.store.build_parts
        jobs = self.failpoints.around(SparkJobs(parts), self.store.database)
        directory = self.store.settings.root / "builds"
        outcome = run_build(parts, request, directory, jobs=jobs)
        if check and outcome.state is not BuildState.SUCCEEDED:
            raise WorkFailed(_why(outcome))
        return outcome

    def _request(self, targets: Sequence[str], branch: str | None, **more: Any) -> PlanRequest:
        on = branch or self.branch
        fallback = () if on == PRIMARY else (PRIMARY,)
        return PlanRequest(targets=tuple(targets), branch=on, fallback=fallback, **more)


def _why(outcome: BuildOutcome) -> str:
    told = [f"the build {outcome.state}:"]
    for job in outcome.jobs:
        if job.error:
            told.append(f"{job.title}: {job.error.get('message', 'failed')}")
            told.append(str(job.error.get("traceback", "")))
    return "\n".join(line for line in told if line)
