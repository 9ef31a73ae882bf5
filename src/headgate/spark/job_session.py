"""The Spark session of one job, in the engine that all jobs of a build share.

A process opens a session (`join`) before its job arrives, then gives it to the job (`attach`):
settings, a tag to cancel it by, and the code of its bundle for Python workers.
"""

import os
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from headgate.spark.engines import Address, ConnectAddress, open_connect_session, session_tag
from headgate.spark.jvm import GatewayAddress, JvmProcess, open_gateway
from headgate.spark.session import WORKER_PYTHON, use_catalog
from headgate.transforms.discovery import import_roots


@dataclass(frozen=True, kw_only=True)
class StageProgress:
    """Progress of the running Spark jobs: their stages, and the tasks of the running stages."""

    stages_done: int
    stages: int
    tasks_done: int
    tasks: int


class JobSession(Protocol):
    """A job's session in an engine, and the tags of everything that it computes."""

    @property
    def session(self) -> SparkSession: ...

    @property
    def tags(self) -> tuple[str, ...]: ...

    def spark_jobs(self) -> int | None:
        """Return how many Spark jobs ran for this job; None if the engine does not answer."""

    def stage_progress(self) -> StageProgress | None:
        """Return the progress of what runs now; None if nothing runs."""


def join(address: Address, process: JvmProcess | None = None) -> SparkSession:
    """Open a new session in the engine; `process` reports the end of a JVM."""
    if isinstance(address, ConnectAddress):
        return open_connect_session(address.url)
    joined: Any = SparkContext._active_spark_context
    if joined is not None and joined._gateway.gateway_parameters.port == address.port:
        return _new_session(joined)
    return _new_session(_existing_context(address, process))


def leave() -> None:
    """Disconnect this process from the JVM that it joined; it may then start or join another."""
    context = SparkContext._active_spark_context
    if context is not None:
        # Otherwise the thread that collects accumulators logs that the JVM is gone.
        if context._accumulatorServer is not None:
            context._accumulatorServer.shutdown()
        context._gateway.close(keep_callback_server=True)
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def attach(
    address: Address, session: Any, *, conf: Mapping[str, str], tag: str, bundle: Path
) -> JobSession:
    """Give an unused session to one job: its settings, its tag, its code."""
    if isinstance(address, ConnectAddress):
        # For this session alone: Python workers are pooled by session.
        session.addArtifacts(str(archive_bundle(bundle)), pyfile=True)
        session.addTag(tag)
        return _ConnectSession(use_catalog(session, conf))
    context = session.sparkContext
    _ship_bundle(context, bundle)
    # Workers of plain RDDs would look in the JVM's working directory first, at other sources.
    context.environment["PYTHONSAFEPATH"] = "1"
    # The group too, because Spark can reject a group's future jobs, but not a tag's.
    context.setJobGroup(tag, tag, interruptOnCancel=True)
    context.addJobTag(tag)
    use_catalog(session, conf)
    # A tag belongs to a thread; the session's own also marks the jobs of other threads.
    return _JvmSession(session=session, tags=(tag, session._jsparkSession.sessionJobTag()))


@dataclass(frozen=True, kw_only=True)
class _JvmSession:
    session: SparkSession
    tags: tuple[str, ...]

    def spark_jobs(self) -> int | None:
        try:
            return len(self._job_ids(self._tracker()))
        except (Py4JError, OSError):
            return None

    def stage_progress(self) -> StageProgress | None:
        try:
            tracker = self._tracker()
            stages, active = self._stages(tracker), set(tracker.getActiveStageIds())
            infos = {stage: tracker.getStageInfo(stage) for stage in stages}
            found = {stage: info.get() for stage, info in infos.items() if info.isDefined()}
            tasks = {
                stage: (int(info.numCompletedTasks()), int(info.numTasks()))
                for stage, info in found.items()
            }
        except (Py4JError, OSError):
            return None
        running = [tasks[stage] for stage in tasks.keys() & active]
        if not running:
            return None
        return StageProgress(
            stages_done=sum(done == total for done, total in tasks.values()),
            stages=len(stages),
            tasks_done=sum(done for done, _ in running),
            tasks=sum(total for _, total in running),
        )

    def _tracker(self) -> Any:
        return self.session.sparkContext._jsc.sc().statusTracker()

    def _job_ids(self, tracker: Any) -> set[int]:
        return {int(job) for tag in self.tags for job in tracker.getJobIdsForTag(tag)}

    def _stages(self, tracker: Any) -> set[int]:
        """Return all stages of the running Spark jobs: done, running and pending."""
        own: set[int] = set()
        for job in self._job_ids(tracker) & set(tracker.getActiveJobIds()):
            info = tracker.getJobInfo(job)
            if info.isDefined():
                own.update(info.get().stageIds())
        return own


def _existing_context(address: GatewayAddress, process: JvmProcess | None) -> Any:
    gateway = open_gateway(address, process)
    # Creates nothing: the JVM's address is given out only when its SparkContext exists.
    shared = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    on_interrupt = signal.getsignal(signal.SIGINT)
    context: Any = SparkContext(
        gateway=gateway,
        jsc=gateway.jvm.JavaSparkContext(shared),
        conf=SparkConf(_jvm=gateway.jvm, _jconf=shared.getConf()),
    )
    # PySpark's handler would cancel every job of the JVM, those of other processes too.
    signal.signal(signal.SIGINT, on_interrupt)
    context.pythonExec = shared.getConf().get(WORKER_PYTHON, sys.executable)
    context.stop = _leave_running
    return context


def _new_session(context: Any) -> Any:
    classic = context._jvm.org.apache.spark.sql.classic.SparkSession
    shared = classic.getDefaultSession().get()
    session: Any = SparkSession(context, jsparkSession=shared.newSession())
    # So that `SparkSession.active()` in user code returns this one and not the shared one.
    classic.setActiveSession(session._jsparkSession)
    session.stop = _leave_running
    return session


def _leave_running() -> None:
    """Replace `stop`: the JVM is the build's, and other jobs work in it."""


def _ship_bundle(context: Any, bundle: Path) -> None:
    """Put the bundle on the path of Python workers: on this machine, or where they unpack it.

    Workers are pooled by their environment, so each bundle gets workers of its own.
    """
    if is_local(context.master):
        context.environment["PYTHONPATH"] = os.pathsep.join(map(str, import_roots(bundle)))
        return
    context.addArchive(f"{archive_bundle(bundle)}#{bundle.name}")
    # Relative to the directory in which an executor keeps the files of a session.
    context._python_includes.append(bundle.name)
    context.environment["HEADGATE_BUNDLE"] = bundle.name


def is_local(master: str) -> bool:
    """Return whether a master's workers run on this machine, and so read its disk."""
    return master.startswith("local") and not master.startswith("local-cluster")


class _ConnectSession:
    """Measures what it computes by the client's progress events."""

    def __init__(self, session: Any) -> None:
        self.session: SparkSession = session
        self.tags = (session_tag(session),)
        self._lock = threading.Lock()
        self._computed: set[str] = set()
        # The stages of each running execution.
        self._running: dict[str, list[Any]] = {}
        session.registerProgressHandler(self._on_progress)

    def spark_jobs(self) -> int:
        """Return how many executions had tasks: the server does not report the jobs of each."""
        with self._lock:
            return len(self._computed)

    def stage_progress(self) -> StageProgress | None:
        with self._lock:
            stages = [stage for running in self._running.values() for stage in running]
        if not stages:
            return None
        return StageProgress(
            stages_done=sum(stage.done for stage in stages),
            stages=len(stages),
            tasks_done=sum(stage.num_completed_tasks for stage in stages),
            tasks=sum(stage.num_tasks for stage in stages),
        )

    def _on_progress(
        self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        name = operation_id or ""
        with self._lock:
            if stages:
                self._computed.add(name)
                self._running[name] = list(stages)
            if done:
                self._running.pop(name, None)


# --- a bundle as a file for other machines --------------------------------------------------

_TOP = PurePosixPath(".")


def archive_bundle(bundle: Path) -> Path:
    """Return a zip beside an unpacked bundle, written once; its root is where modules are imported.

    Spark identifies archives by their path, so the same bundle must always have the same one.
    """
    archive = bundle.with_name(f"{bundle.name}.zip")
    if not archive.is_file():
        handle, draft = tempfile.mkstemp(prefix=f".{bundle.name[:12]}-", dir=bundle.parent)
        with os.fdopen(handle, "wb") as file:
            _write_archive(bundle, file)
        Path(draft).replace(archive)
    return archive


def _write_archive(bundle: Path, file: IO[bytes]) -> None:
    # Later entries win: the modules of the `src` layout come first on the path.
    entries = {
        path.relative_to(root).as_posix(): path
        for root in reversed(import_roots(bundle))
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(file, "w") as archive:
        # Python finds a package without `__init__.py` in a zip only by its directory's own entry.
        for parent in sorted({p for name in entries for p in PurePosixPath(name).parents} - {_TOP}):
            archive.mkdir(str(parent))
        for name, path in sorted(entries.items()):
            archive.write(path, name)
