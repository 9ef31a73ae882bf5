"""A project under test: a copy of its repository, a store, a branch and a shared Spark."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headgate.builds.plan import PlanRequest
from headgate.builds.report import BuildOutcome, PlannedBuild
from headgate.builds.run import BuildRequest, run_build
from headgate.builds.spark_jobs import SparkJobs
from headgate.errors import WorkFailed
from headgate.files.edits import FileEdit
from headgate.model.nouns import BuildState
from headgate.settings import FILE_NAME, BuildSettings, Settings, SparkSettings, load_settings
from headgate.spark.engines import SharedJvm
from headgate.spark.session import launch_request
from headgate.store.datasets import DatasetHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from headgate.testing.faults import Failpoints

if TYPE_CHECKING:
    from headgate.spark.session import DataFrame, SparkSession


_GIT_SETTINGS = ("user.name=headgate", "user.email=headgate@example.org", "commit.gpgsign=false")
_OMITTED = {".git", ".venv", "venv", ".headgate", "node_modules", "__pycache__"}


def copy_project(source: Path, target: Path, *, branch: str) -> None:
    """Copy tracked and untracked files that Git does not ignore; commit them on a branch."""
    target.mkdir(parents=True)
    for name in _files(source):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, copy)
    git(target, "init", "--quiet", "--initial-branch", branch)
    commit(target, "initial state of the project")


def commit(repository: Path, message: str) -> None:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message)


def git(repository: Path, *words: str) -> str:
    settings = [word for setting in _GIT_SETTINGS for word in ("-c", setting)]
    command = ["git", *settings, "-C", str(repository), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def _files(source: Path) -> list[Path]:
    """Return relative paths of files that Git does not ignore; outside Git, of all files."""
    listed = subprocess.run(
        ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        found = [Path(name) for name in listed.stdout.split("\0") if name]
    else:
        found = [path.relative_to(source) for path in source.rglob("*")]
    return [
        path
        for path in found
        if not _OMITTED.intersection(path.parts)
        and (source / path).is_file()
        and not (source / path).is_symlink()
    ]


# Shared Spark: its start takes longer than most tests.

PRIMARY = "master"
# Few tasks for small data; two cores are enough to find races.
_CONF = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}
_MASTER = "local[2]"
_NO_CONF: Mapping[str, str] = MappingProxyType({})


class SharedSpark:
    """A JVM for the builds and sessions of all tests, started at its first use."""

    def __init__(self, conf: Mapping[str, str] = _NO_CONF) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="headgate-testing-"))
        self._conf = conf
        self._jvm: SharedJvm | None = None

    @property
    def is_started(self) -> bool:
        return self._jvm is not None

    def jvm(self) -> SharedJvm:
        """Return the JVM; start it at the first call."""
        if self._jvm is None:
            settings = embedded_settings(self._directory, self._conf)
            self._jvm = SharedJvm.start(launch_request(settings, self._directory / "spark.log"))
        return self._jvm

    def session(self) -> SparkSession:
        """Return a new session without a Headgate catalog."""
        from headgate.spark.job_session import join  # noqa: PLC0415  (slow: PySpark)

        return join(self.jvm().address)

    def stop(self) -> None:
        """Leave and stop the JVM if it was started."""
        if self._jvm is not None:
            from headgate.spark.job_session import leave  # noqa: PLC0415  (slow: PySpark)

            leave()
            self._jvm.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def embedded_settings(root: Path, conf: Mapping[str, str] = _NO_CONF) -> Settings:
    """Return settings of an embedded store in a directory; other stores' settings are ignored."""
    (root / FILE_NAME).touch()
    machine = load_settings(root)
    # Without bytecode files every job process would compile PySpark and pandas again.
    return replace(
        machine,
        root=root,
        catalog=f"sqlite:///{root / 'catalog.db'}",
        warehouse=str(root / "warehouse"),
        spark=SparkSettings(master=_MASTER, conf={**_CONF, **conf}),
        builds=BuildSettings(branch=PRIMARY),
        lineage=None,
        server_url=None,
        token=None,
        environ={k: v for k, v in machine.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
    )


class Project:
    """A project under test: inputs are on the primary branch, builds on the test's branch."""

    def __init__(self, store: Store, repository: Path, branch: str, failpoints: Failpoints) -> None:
        self.store = store
        self.repository = repository
        self.branch = branch
        self.failpoints = failpoints

    @property
    def context(self) -> str:
        """Context of the test: its branch, then the primary branch."""
        return self.branch if self.branch == PRIMARY else f"{self.branch}>{PRIMARY}"

    # --- data -------------------------------------------------------------------------------

    def put_files(
        self, dataset: str, files: Mapping[str, str | bytes], *, branch: str = PRIMARY
    ) -> None:
        """Publish files by path; create the dataset if it does not exist."""
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
        """Publish rows as a table; they replace existing rows unless `append` is set."""
        self._existing(dataset, "table", branch)
        session = self.spark(branch)
        if isinstance(rows, Sequence):
            frame: Any = session.createDataFrame(list(rows), schema)
        else:
            # A DataFrame belongs to its session, whose catalog is another branch.
            frame = session.createDataFrame(rows.collect(), rows.schema)
        writer = frame.writeTo(dataset)
        if append:
            writer.append()
        else:
            writer.using("iceberg").createOrReplace()

    def _existing(self, dataset: str, kind: str, branch: str) -> DatasetHandle:
        handle = self.store.dataset(dataset)
        return handle if handle.exists() else handle.create(kind, branch=branch, create=True)

    def rows(self, dataset: str, *, context: str | None = None) -> list[dict[str, Any]]:
        """Return all rows of a table in the test's context, or in another."""
        found = self.spark(context or self.context).table(dataset).collect()
        return [row.asDict(recursive=True) for row in found]

    def spark(self, context: str | None = None) -> SparkSession:
        """Return a session on the shared Spark whose catalog `headgate` is a context."""
        return self.store.spark(context or self.context)

    # --- logic ------------------------------------------------------------------------------

    def edit(self, path: str, before: str, after: str) -> None:
        """Replace text in a file of the test's copy; commit and publish it on the test's branch."""
        file = self.repository / path
        text = file.read_text()
        if before not in text:
            raise ValueError(f"{path} does not contain {before!r}")
        if git(self.repository, "branch", "--show-current").strip() != self.branch:
            git(self.repository, "checkout", "--quiet", "-B", self.branch)
        file.write_text(text.replace(before, after))
        commit(self.repository, f"change {path}")
        self.store.publish_jobspecs(self.repository)

    def merge(self) -> None:
        """Merge the test's branch in Git and publish the logic on the primary branch."""
        git(self.repository, "checkout", "--quiet", PRIMARY)
        git(self.repository, "merge", "--quiet", "--no-ff", "--no-edit", self.branch)
        self.store.publish_jobspecs(self.repository)

    # --- builds -----------------------------------------------------------------------------

    def plan(self, *targets: str, branch: str | None = None, upstream: bool = True) -> PlannedBuild:
        """Plan a build without running it."""
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
        """Build on the test's branch with its faults; raise if a job fails and `check` is set."""
        request = BuildRequest(
            plan=self._request(
                targets, branch, upstream=upstream, force=force, parameters=parameters or {}
            ),
            actor=self.store.settings.actor,
            retries=retries,
            atomic=atomic,
        )
        parts = self.store.build_parts
        jobs = self.failpoints.wrap(SparkJobs(parts), self.store.database)
        directory = self.store.settings.root / "builds"
        outcome = run_build(parts, request, directory, jobs=jobs)
        if check and outcome.state is not BuildState.SUCCEEDED:
            raise WorkFailed(_failure_text(outcome))
        return outcome

    def _request(self, targets: Sequence[str], branch: str | None, **more: Any) -> PlanRequest:
        branch = branch or self.branch
        fallback = () if branch == PRIMARY else (PRIMARY,)
        return PlanRequest(targets=tuple(targets), branch=branch, fallback=fallback, **more)


def _failure_text(outcome: BuildOutcome) -> str:
    lines = [f"the build {outcome.state}:"]
    for job in outcome.jobs:
        if job.error:
            lines.append(f"{job.title}: {job.error.get('message', 'failed')}")
            lines.append(str(job.error.get("traceback", "")))
    return "\n".join(line for line in lines if line)
