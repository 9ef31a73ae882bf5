"""Spark Connect: a session of its own for each job, which can be ended from another process."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.errors import SparkUnavailable
from headgate.spark.engines import ConnectAddress, StageProgress, archive_of
from headgate.spark.java import ICEBERG
from headgate.spark.jvm import spark_home
from headgate.spark.session import point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION_TAG = "headgate-session-"


class ConnectServer:
    """A Connect server as the engine of builds; it is somebody else's, and outlives them."""

    def __init__(self, url: str) -> None:
        check_client(url)
        self.address = ConnectAddress(url=url)
        self.alive = True

    def cancel(self, tags: Iterable[str]) -> None:
        """Ends the sessions behind these tags; whoever still uses one is told that it is closed."""
        for tag in tags:
            if tag.startswith(_SESSION_TAG):
                self._end(tag.removeprefix(_SESSION_TAG))

    def stop(self) -> None:
        """Nothing of it is ours to stop."""

    def _end(self, session_id: str) -> None:
        from pyspark.sql.connect.client import (  # noqa: PLC0415  (optional, and slow)
            SparkConnectClient,
        )

        client = SparkConnectClient(
            _with_session(self.address.url, session_id), retry_policy={"max_retries": 3}
        )
        # A server that does not answer any more computes nothing either.
        with contextlib.suppress(Exception):
            client.interrupt_all()
            client.release_session()
        client.close()


class RemoteJob:
    """A job's session on a Connect server; what it computes is told by the client's progress."""

    def __init__(self, session: Any) -> None:
        self.session: SparkSession = session
        self.tags = (f"{_SESSION_TAG}{session.session_id}",)
        self._lock = threading.Lock()
        self._computed: set[str] = set()
        self._running: dict[str, StageProgress] = {}
        session.registerProgressHandler(self._note)

    def spark_jobs(self) -> int:
        """How many executions had tasks: the server does not say how many jobs each one was."""
        with self._lock:
            return len(self._computed)

    def stage_progress(self) -> StageProgress | None:
        with self._lock:
            running = list(self._running.values())
        if not running:
            return None
        return StageProgress(
            stages_done=sum(one.stages_done for one in running),
            stages=sum(one.stages for one in running),
            tasks_done=sum(one.tasks_done for one in running),
            tasks=sum(one.tasks for one in running),
        )

    def _note(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        name = operation_id or ""
        with self._lock:
            if stages:
                self._computed.add(name)
                self._running[name] = StageProgress(
                    stages_done=sum(stage.done for stage in stages),
                    stages=len(stages),
                    tasks_done=sum(stage.num_completed_tasks for stage in stages),
                    tasks=sum(stage.num_tasks for stage in stages),
                )
            if done:
                self._running.pop(name, None)


def join_remote(address: ConnectAddress) -> SparkSession:
    """A new session of the server, for a job that is not known yet."""
    return _new_session(address.url)


def attach_remote(
    session: SparkSession, *, conf: Mapping[str, str], tag: str, bundle: Path
) -> RemoteJob:
    """Gives a session that nobody has used yet to one job: its settings, its tag, its code."""
    remote: Any = session
    # Of this session alone: Python workers are pooled by session, so each has its own modules.
    remote.addArtifacts(str(archive_of(bundle)), pyfile=True)
    remote.addTag(tag)
    return RemoteJob(point(session, conf))


def connect_remote(url: str, conf: Mapping[str, str]) -> SparkSession:
    """A new session of the server with these settings, whose catalog has answered."""
    check_client(url)
    session = _new_session(url)
    try:
        return point(session, conf)
    except Exception as error:
        session.stop()
        raise SparkUnavailable(
            reason=f"the Spark Connect server {url} cannot use the catalog: {_first_line(error)}",
            remedy=f"It needs the jar {ICEBERG} and Iceberg's SQL extensions, and it must reach "
            "the URL that [spark] endpoint names.",
        ) from error


def check_client(url: str) -> None:
    """Refuses early where the libraries of the client are missing."""
    spark_home()
    if importlib.util.find_spec("grpc") is None:
        raise SparkUnavailable(
            reason=f"{url} is a Spark Connect server, and its client is not installed",
            remedy="pip install 'headgate[connect]'",
        )


def _new_session(url: str) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415  (optional, and slow)

    session: SparkSession = SparkSession.builder.remote(url).create()
    return session


def _with_session(url: str, session_id: str) -> str:
    """The same server, and a session there that somebody else has made."""
    start = url if "/;" in url else f"{url.rstrip('/')}/"
    return f"{start.rstrip(';')};session_id={session_id}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
