"""Engines, on which the jobs of a build compute: a JVM of this process or a Spark Connect server.

Job processes get an engine's address and open their sessions there (`job_session`). The build
cancels by tags what a job left running.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sched
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast

from headgate.errors import SparkStopped, SparkUnavailable
from headgate.spark import jvm
from headgate.spark.java import ICEBERG
from headgate.spark.jvm import GatewayAddress, JvmProcess, Launch
from headgate.spark.session import use_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class ConnectAddress:
    """The URL of a Spark Connect server: `sc://host:port`, with its parameters."""

    url: str


Address: TypeAlias = GatewayAddress | ConnectAddress


def write_address(address: Address) -> str:
    """Encode an address as one line for a job process."""
    return json.dumps(asdict(address))


def read_address(line: str) -> Address:
    """Decode the line of `write_address`."""
    data = json.loads(line)
    return ConnectAddress(**data) if "url" in data else GatewayAddress(**data)


# Exceptions of a Python process whose connection to an engine is broken.
LOST_CONNECTIONS = frozenset(
    {
        "Py4JError",
        "Py4JNetworkError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "BrokenPipeError",
        "RetriesExceeded",
        "SparkConnectGrpcException",
    }
)
_END_SECONDS = 3.0


class Engine(Protocol):
    """Computes for many job processes at once."""

    @property
    def address(self) -> Address: ...

    @property
    def alive(self) -> bool: ...

    def find_end(self, lost_by: str | None) -> SparkStopped | None:
        """Return its end as an error; `lost_by` is the class of a job's exception, None if none."""

    def cancel(self, tags: Iterable[str]) -> None:
        """End everything that runs under these tags, for good: a tag is never used again."""

    def stop(self) -> None:
        """End the engine, if this process started it."""


class SharedJvm:
    """A JVM with a SparkContext that job processes attach to; it ends with this process."""

    # True for a JVM that outlives this process.
    is_borrowed = False

    def __init__(self, process: JvmProcess, gateway: Any, context: Any) -> None:
        self.process = process
        self.address = process.address
        self._gateway = gateway
        self._context = context
        self._late = _LateJobs(self._cancel)

    @classmethod
    def start(cls, request: Launch) -> Self:
        """Start the JVM and its SparkContext; this needs only py4j in this process, not PySpark."""
        with jvm.starting_jvm(request) as process:
            gateway = jvm.open_gateway(process.address)
            session = gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
            return cls(process, gateway, session.sparkContext())

    @property
    def alive(self) -> bool:
        return self.process.alive

    def cancel(self, tags: Iterable[str]) -> None:
        """End every Spark job under these tags for good: a tag is never used again."""
        ended = tuple(tags)
        for tag in ended:
            self._cancel(tag)
        self._late.watch(ended)

    def cancel_all(self) -> None:
        """End every Spark job that runs now."""
        with contextlib.suppress(Exception):
            self._context.cancelAllJobs()

    def lend(self, tag: str) -> None:
        """Let jobs run under this tag; they end with this process, as the JVM does."""

    def find_end(self, lost_by: str | None) -> SparkStopped | None:
        # A killed process closes its connections before it can be waited for.
        return self.process.find_end(_END_SECONDS if lost_by in LOST_CONNECTIONS else 0)

    def _cancel(self, tag: str) -> None:
        try:
            self._context.cancelJobGroupAndFutureJobs(tag)
            self._context.cancelJobsWithTag(tag)
        except Exception:
            # If the JVM has ended, its jobs have too.
            if self.process.find_end(_END_SECONDS) is None:
                raise

    def stop(self) -> None:
        """End the JVM and everything that runs in it."""
        self._late.close()
        if self.alive:
            self._gateway.shutdown()
        self.process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_FIRST_SECONDS = 0.25
# By then the JVM has started whatever it was still planning when the process was killed.
_LAST_SECONDS = 300.0


class _LateJobs:
    """Cancels each tag again, at growing intervals, until no job can start under it any more.

    A process may have requested a job just before it was killed. Spark rejects future jobs of a
    group, but not those of a tag, and threads of user code only have the session's tag.
    """

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._due = sched.scheduler(time.monotonic)
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="late-jobs", daemon=True)
        self._thread.start()

    def watch(self, tags: Iterable[str]) -> None:
        for tag in tags:
            self._due.enter(_FIRST_SECONDS, 0, self._end, (tag, 2 * _FIRST_SECONDS))
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._changed.wait(self._due.run(blocking=False))
            self._changed.clear()

    def _end(self, tag: str, pause: float) -> None:
        if self._closed:
            return
        # A JVM that does not answer has nothing left to cancel.
        with contextlib.suppress(Exception):
            self._cancel(tag)
        if pause < _LAST_SECONDS:
            self._due.enter(pause, 0, self._end, (tag, 2 * pause))


_SESSION_TAG = "headgate-session-"
_CONNECT_PORT = 15002
# Pauses of 50 ms to 13 s: the client's default is to try for ten minutes.
_CONNECT_RETRIES = 5


class ConnectServer:
    """A Connect server as the engine of builds; its operator starts and stops it."""

    def __init__(self, url: str) -> None:
        _check_client(url)
        self.address = ConnectAddress(url=url)
        self.alive = True

    def find_end(self, lost_by: str | None) -> SparkStopped | None:
        if lost_by not in LOST_CONNECTIONS or (lost_by != "RetriesExceeded" and self._answers()):
            return None
        return SparkStopped(
            reason=f"the Spark Connect server at {_place(self.address.url)} stopped answering",
            remedy="Restart it, or look for the cause in its log; `--retries` repeats a job.",
        )

    def _answers(self) -> bool:
        host, _, port = _place(self.address.url).rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_END_SECONDS):
                return True
        except OSError:
            return False

    def cancel(self, tags: Iterable[str]) -> None:
        """End the sessions behind these tags; further requests in them fail."""
        for tag in tags:
            if tag.startswith(_SESSION_TAG):
                self._end(tag.removeprefix(_SESSION_TAG))

    def stop(self) -> None:
        """Do nothing: the server outlives the builds."""

    def _end(self, session_id: str) -> None:
        from pyspark.sql.connect import client as connect  # noqa: PLC0415  (optional, and slow)

        url = self.address.url
        server = url.rstrip(";") if "/;" in url else f"{url.rstrip('/')}/"
        client = connect.SparkConnectClient(
            f"{server};session_id={session_id}", retry_policy={"max_retries": 3}
        )
        # A server that does not answer any more computes nothing either.
        with contextlib.suppress(Exception):
            client.interrupt_all()
            client.release_session()
        client.close()


def _place(url: str) -> str:
    """Return host and port of a Connect URL; its parameters may have a token."""
    place = url.removeprefix("sc://").partition("/")[0]
    return place if ":" in place.rpartition("]")[2] else f"{place}:{_CONNECT_PORT}"


def session_tag(session: Any) -> str:
    """Return the tag by which `ConnectServer.cancel` ends a session of the server."""
    return f"{_SESSION_TAG}{session.session_id}"


def open_connect_session(url: str) -> SparkSession:
    """Open a new session of a Connect server, without a catalog."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (optional, and slow)
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415  (optional)

    session: Any = SparkSession.builder.remote(url).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=_CONNECT_RETRIES)])
    return cast("SparkSession", session)


def connect_remote(url: str, conf: Mapping[str, str]) -> SparkSession:
    """Open a session of a Connect server with these settings, and check that its catalog works."""
    _check_client(url)
    session = open_connect_session(url)
    try:
        return use_catalog(session, conf)
    except Exception as error:
        session.stop()
        reason = str(error).strip().partition("\n")[0]
        raise SparkUnavailable(
            reason=f"the Spark Connect server {url} cannot use the catalog: {reason}",
            remedy=f"It needs the jar {ICEBERG} and Iceberg's SQL extensions, and it must reach "
            "the URL in [spark] endpoint.",
        ) from error


def _check_client(url: str) -> None:
    """Raise early if the client's libraries are missing."""
    jvm.spark_home()
    if importlib.util.find_spec("grpc") is None:
        raise SparkUnavailable(
            reason=f"{url} is a Spark Connect server, and its client is not installed",
            remedy="pip install 'headgate[connect]'",
        )
