"""A project under test: its transforms in a repository, a store, and a branch of the test's own."""

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
from headgate.files.publication import FileEdit
from headgate.model.nouns import BuildState
from headgate.settings import FILE_NAME, BuildSettings, Settings, SparkSettings, load_settings
from headgate.spark.jvm import SharedJvm
from headgate.spark.workplace import launch_request
from headgate.store.datasets import DatasetHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from headgate.testing.faults import Failpoints

if TYPE_CHECKING:
    from headgate.spark.workplace import DataFrame, SparkSession


# A project's files as they stand, in a Git repository of their own.

_AS_NOBODY = ("user.name=headgate", "user.email=headgate@example.org", "commit.gpgsign=false")
_LEFT_OUT = {".git", ".venv", "venv", ".headgate", "node_modules", "__pycache__"}


def copy_project(source: Path, target: Path, *, branch: str) -> None:
    """Copies all that Git would track, changed or not, and commits it on a branch."""
    target.mkdir(parents=True)
    for name in _files(source):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, place)
    git(target, "init", "--quiet", "--initial-branch", branch)
    commit(target, "the project as it stands")


def commit(repository: Path, message: str) -> None:
    """Commits everything as it is."""
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message)


def git(repository: Path, *words: str) -> str:
    settings = [word for setting in _AS_NOBODY for word in ("-c", setting)]
    command = ["git", *settings, "-C", str(repository), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def _files(source: Path) -> list[Path]:
    """Relative paths: tracked and new files, or, outside of Git, whatever is not hidden."""
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
        if not _LEFT_OUT.intersection(path.parts)
        and (source / path).is_file()
        and not (source / path).is_symlink()
    ]


# One Spark for all tests of a process: starting it takes longer than most of them.

PRIMARY = "master"
# Small data needs few tasks, and two cores are enough to find out what is not safe in parallel.
_CONF = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}
_MASTER = "local[2]"
_NOTHING: Mapping[str, str] = MappingProxyType({})


class SparkOfTests:
    """A JVM that builds share, and that this process joins when somebody asks for a session.

    It is started when it is first needed: a test of files alone never waits for it.
    """

    def __init__(self, conf: Mapping[str, str] = _NOTHING) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="headgate-testing-"))
        self._conf = conf
        self._jvm: SharedJvm | None = None

    @property
    def is_started(self) -> bool:
        return self._jvm is not None

    def jvm(self) -> SharedJvm:
        """The one JVM, from now on running."""
        if self._jvm is None:
            settings = settings_of_tests(self._directory, self._conf)
            self._jvm = SharedJvm.start(launch_request(settings, self._directory / "spark.log"))
        return self._jvm

    def session(self) -> SparkSession:
        """A session of its own on the shared Spark, without a catalog of Headgate's."""
        from headgate.spark.attach import join  # noqa: PLC0415  (slow: PySpark)

        return join(self.jvm().address)

    def stop(self) -> None:
        """Ends the JVM if there is one, and forgets that this process had joined it."""
        if self._jvm is not None:
            from headgate.spark.attach import leave  # noqa: PLC0415  (slow: PySpark)

            leave()
            self._jvm.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def settings_of_tests(root: Path, conf: Mapping[str, str] = _NOTHING) -> Settings:
    """An embedded store in a directory, whatever store the shell points at; Java as configured."""
    file = root / FILE_NAME
    file.touch()
    machine = load_settings(root)
    # Without bytecode every job's process would compile PySpark and pandas again.
    environ = {k: v for k, v in machine.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
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
        environ=environ,
    )


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
