"""A job process joins the JVM of its build: a session, a tag and a code path of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from headgate.spark.engines import StageProgress, archive_of
from headgate.spark.jvm import GatewayAddress, connect
from headgate.spark.session import PYTHON_OF_WORKERS, point
from headgate.transforms.discovery import import_roots


@dataclass(frozen=True, kw_only=True)
class AttachedJob:
    """A session in a JVM that others use too, and the tags that all its Spark jobs carry."""

    session: SparkSession
    tags: tuple[str, ...]

    def spark_jobs(self) -> int | None:
        """How many Spark jobs ran under these tags; None if the JVM does not answer any more."""
        try:
            return len(self._job_ids(self._tracker()))
        except (Py4JError, OSError):
            return None

    def stage_progress(self) -> StageProgress | None:
        """How far the running Spark jobs of this one are; None if none runs."""
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
        """Of the Spark jobs that run now, all stages: done, at work, and still to come."""
        mine: set[int] = set()
        for job in self._job_ids(tracker) & set(tracker.getActiveJobIds()):
            info = tracker.getJobInfo(job)
            if info.isDefined():
                mine.update(info.get().stageIds())
        return mine


def join(address: GatewayAddress) -> SparkSession:
    """A new session of the JVM's one SparkContext, for a job that is not known yet."""
    joined = SparkContext._active_spark_context
    if joined is not None and joined._gateway.gateway_parameters.port == address.port:
        return _new_session(joined)
    return _new_session(_existing_context(address))


def leave() -> None:
    """Lets go of the JVM that this process has joined: PySpark may then start or join another."""
    context = SparkContext._active_spark_context
    if context is not None:
        # Else the thread that collects accumulators would complain that the JVM is gone.
        if context._accumulatorServer is not None:
            context._accumulatorServer.shutdown()
        context._gateway.close(keep_callback_server=True)
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def attach(
    session: SparkSession, *, conf: Mapping[str, str], tag: str, bundle: Path
) -> AttachedJob:
    """Gives a session that nobody has used yet to one job: its settings, its tag, its code."""
    context = session.sparkContext
    _lead_workers_to(context, bundle)
    # Workers of plain RDDs would look in the JVM's working directory first: other sources, maybe.
    context.environment["PYTHONSAFEPATH"] = "1"
    # The group too, because Spark can refuse a group's future jobs, but not a tag's.
    context.setJobGroup(tag, tag, interruptOnCancel=True)
    context.addJobTag(tag)
    point(session, conf)
    # The tag is a matter of a thread; the session's own also marks what other threads run.
    return AttachedJob(session=session, tags=(tag, session._jsparkSession.sessionJobTag()))


def _lead_workers_to(context: Any, bundle: Path) -> None:
    """Lets Python workers find the bundle: on this machine, or where they have unpacked it.

    Workers are pooled by their environment: a bundle gets workers that know it alone.
    """
    if is_here(context.master):
        context.environment["PYTHONPATH"] = os.pathsep.join(map(str, import_roots(bundle)))
        return
    context.addArchive(f"{archive_of(bundle)}#{bundle.name}")
    # Relative to wherever an executor keeps the files of a session.
    context._python_includes.append(bundle.name)
    context.environment["HEADGATE_BUNDLE"] = bundle.name


def is_here(master: str) -> bool:
    """Whether a master's workers are in the same JVM, and so see this machine's disk."""
    return master.startswith("local") and not master.startswith("local-cluster")


def _existing_context(address: GatewayAddress) -> Any:
    gateway = connect(address)
    # Creates nothing: the JVM was given out only once its SparkContext was there.
    shared = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    on_interrupt = signal.getsignal(signal.SIGINT)
    context: Any = SparkContext(
        gateway=gateway,
        jsc=gateway.jvm.JavaSparkContext(shared),
        conf=SparkConf(_jvm=gateway.jvm, _jconf=shared.getConf()),
    )
    # PySpark's handler would cancel every job of the JVM, the other processes' too.
    signal.signal(signal.SIGINT, on_interrupt)
    context.pythonExec = shared.getConf().get(PYTHON_OF_WORKERS, sys.executable)
    context.stop = _leave_running
    return context


def _new_session(context: Any) -> Any:
    classic = context._jvm.org.apache.spark.sql.classic.SparkSession
    shared = classic.getDefaultSession().get()
    session: Any = SparkSession(context, jsparkSession=shared.newSession())
    # So that `SparkSession.active()` in user code finds this one and not the shared one.
    classic.setActiveSession(session._jsparkSession)
    session.stop = _leave_running
    return session


def _leave_running() -> None:
    """In place of `stop`: the JVM is the build's, and other jobs work in it."""
