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

from headgate.spark.gateway import GatewayAddress, connect
from headgate.spark.session import configure
from headgate.transforms.finding import import_roots


@dataclass(frozen=True, kw_only=True)
class Attached:
    """A session in a JVM that others use too, and the tags that all its Spark jobs carry."""

    session: SparkSession
    tags: tuple[str, ...]

    def spark_jobs(self) -> int | None:
        """How many Spark jobs ran under these tags; None if the JVM does not answer any more."""
        try:
            return len(self._job_ids(self._tracker()))
        except (Py4JError, OSError):
            return None

    def task_progress(self) -> tuple[int, int] | None:
        """Of the running stages of these jobs: tasks done, tasks in all; None if none runs."""
        try:
            tracker, done, total = self._tracker(), 0, 0
            for stage in self._stages(tracker):
                info = tracker.getStageInfo(stage)
                if info.isDefined():
                    done += info.get().numCompletedTasks()
                    total += info.get().numTasks()
        except (Py4JError, OSError):
            return None
        return (done, total) if total else None

    def _tracker(self) -> Any:
        return self.session.sparkContext._jsc.sc().statusTracker()

    def _job_ids(self, tracker: Any) -> set[int]:
        return {int(job) for tag in self.tags for job in tracker.getJobIdsForTag(tag)}

    def _stages(self, tracker: Any) -> set[int]:
        mine: set[int] = set()
        for job in self._job_ids(tracker) & set(tracker.getActiveJobIds()):
            info = tracker.getJobInfo(job)
            if info.isDefined():
                mine.update(info.get().stageIds())
        return mine & set(tracker.getActiveStageIds())


def join(address: GatewayAddress) -> SparkSession:
    """A new session of the JVM's one SparkContext, for a job that is not known yet."""
    return _new_session(_existing_context(address))


def attach(session: SparkSession, *, conf: Mapping[str, str], tag: str, bundle: Path) -> Attached:
    """Gives a session that nobody has used yet to one job: its settings, its tag, its code."""
    context = session.sparkContext
    # Python workers are pooled by their environment: a bundle gets workers that know it alone.
    context.environment["PYTHONPATH"] = os.pathsep.join(map(str, import_roots(bundle)))
    # Workers of plain RDDs would look in the JVM's working directory first: other sources, maybe.
    context.environment["PYTHONSAFEPATH"] = "1"
    # The group too, because Spark can refuse a group's future jobs, but not a tag's.
    context.setJobGroup(tag, tag, interruptOnCancel=True)
    context.addJobTag(tag)
    configure(session, conf)
    # The tag is a matter of a thread; the session's own also marks what other threads run.
    return Attached(session=session, tags=(tag, session._jsparkSession.sessionJobTag()))


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
    context.pythonExec = sys.executable
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
