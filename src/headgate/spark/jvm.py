"""The one JVM of a build: started by the build's process, used by all its job processes."""

from __future__ import annotations

import contextlib
import heapq
import importlib.util
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headgate.errors import MissingExtra, SparkUnavailable

# Where the installed PySpark is, without importing it: that alone takes a second or two.


def spark_home() -> Path:
    """The directory of the installed PySpark, which holds a whole Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtra(feature="Spark", extra="spark")
    return Path(spec.origin).parent


# A Spark JVM as a process: how it is started, how Python talks to it, how it ends.
#
# PySpark can start one itself, but then its noise reaches the terminal, its settings come from this
# process's own environment, and there can be one only.

_START_SECONDS = 90
_STOP_SECONDS = 20
_SHOWN_LOG_LINES = 30

# What PySpark expects to find imported in the gateway's view of the JVM.
_JVM_IMPORTS = (
    "org.apache.spark.SparkConf",
    "org.apache.spark.api.java.*",
    "org.apache.spark.api.python.*",
    "org.apache.spark.ml.python.*",
    "org.apache.spark.mllib.api.python.*",
    "org.apache.spark.resource.*",
    "org.apache.spark.sql.Encoders",
    "org.apache.spark.sql.OnSuccessCall",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
    "org.apache.spark.sql.hive.*",
    "scala.Tuple2",
)


@dataclass(frozen=True, kw_only=True)
class GatewayAddress:
    """How a process on this machine reaches a JVM's gateway."""

    port: int
    secret: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a Spark JVM is started with."""

    java_home: Path
    conf: Mapping[str, str]
    environ: Mapping[str, str]
    log_path: Path
    # Of the JVM and its Python workers; None: this process's own.
    cwd: Path | None = None


class JvmProcess:
    """A running JVM; it reads its stdin and exits at the end of it, so it cannot outlive us."""

    def __init__(self, process: subprocess.Popen[bytes], address: GatewayAddress) -> None:
        self._process = process
        self.address = address

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Lets the JVM shut down by itself, and kills it where it does not."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def launch(request: Launch) -> JvmProcess:
    """Starts a JVM with an open gateway and no SparkContext yet; what it says goes to the log."""
    home = spark_home()
    scratch = Path(tempfile.mkdtemp(prefix="headgate-spark-"))
    answer = scratch / "gateway"
    try:
        process = _spawn(request, home, scratch, answer)
        address = _await_address(process, answer, request.log_path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return JvmProcess(process, address)


def connect(address: GatewayAddress) -> Any:
    """A gateway as PySpark makes it: each Python thread has a Java thread of its own."""
    from py4j.clientserver import (  # noqa: PLC0415  (optional: comes with pyspark)
        ClientServer,
        JavaParameters,
        PythonParameters,
    )
    from py4j.java_gateway import java_import  # noqa: PLC0415  (optional: comes with pyspark)

    gateway = ClientServer(
        java_parameters=JavaParameters(
            port=address.port, auth_token=address.secret, auto_convert=True
        ),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    # PySpark looks here for the process that it would have started.
    gateway.proc = None
    for name in _JVM_IMPORTS:
        java_import(gateway.jvm, name)
    return gateway


def spark_environ(request: Launch, home: Path) -> dict[str, str]:
    """The environment of a Spark JVM: the given one, with this Java, this Spark, this Python."""
    given = {
        name: value for name, value in request.environ.items() if not name.startswith("PYSPARK_")
    }
    if request.conf.get("spark.master", "local").startswith("local"):
        given.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {
        **given,
        "JAVA_HOME": str(request.java_home),
        "SPARK_HOME": str(home),
        "SPARK_CONNECT_MODE": "0",
        # Python workers would otherwise be whatever `python3` comes first on the path.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def properties_text(conf: Mapping[str, str]) -> str:
    """The settings as a Java properties file; on a command line everybody could read them."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in conf.items())


def log_tail(log_path: Path) -> str:
    """The end of a JVM's output, for a message about its failure."""
    try:
        lines = log_path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_SHOWN_LOG_LINES:])


def submit_command(home: Path, properties: Path) -> list[str]:
    """Spark's own launcher, told to open a gateway; it also reads the machine's Spark defaults."""
    return [
        str(home / "bin" / "spark-submit"),
        "--properties-file",
        str(properties),
        "--load-spark-defaults",
        "pyspark-shell",
    ]


def startup_failed(what: str, log_path: Path) -> SparkUnavailable:
    """The error of a Spark that did not come up, with what it said last."""
    return SparkUnavailable(
        reason=f"{what} did not start",
        remedy=f"The end of its log {log_path}:\n{log_tail(log_path)}",
    )


def _spawn(request: Launch, home: Path, scratch: Path, answer: Path) -> subprocess.Popen[bytes]:
    properties = scratch / "spark.properties"
    properties.touch(mode=0o600)
    properties.write_text(properties_text(request.conf), encoding="utf-8")
    with request.log_path.open("ab") as log:
        return subprocess.Popen(
            submit_command(home, properties),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=request.cwd,
            env={
                **spark_environ(request, home),
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
            },
            # Ctrl-C on the terminal is for Python to act upon, not for the JVM.
            start_new_session=True,
        )


def _await_address(
    process: subprocess.Popen[bytes], answer: Path, log_path: Path
) -> GatewayAddress:
    deadline = time.monotonic() + _START_SECONDS
    while not answer.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()
            raise startup_failed("its JVM", log_path)
        time.sleep(0.02)
    # Spark writes the file under another name and renames it: what is there is whole.
    data = answer.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return GatewayAddress(port=port, secret=data[8 : 8 + length].decode())


def _escape(text: str) -> str:
    """One name or value as a properties file spells it."""
    for plain, spelled in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, spelled)
    for sign in "=:#! ":
        text = text.replace(sign, f"\\{sign}")
    return text


# Spark jobs that begin after their owner was ended, and are ended too.
#
# A process that is killed may have asked the JVM for a job a moment before; Spark refuses future
# jobs of a group, but not those under a tag, and threads of user code have only the session's tag.

_FIRST_SECONDS = 0.25
# A question to the JVM that was still being planned then has long been answered.
_LAST_SECONDS = 300.0


class LateJobs:
    """Looks again under each tag, ever more seldom, until nothing can come under it any more."""

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        # When to look next, under which tag, and how long to wait after that.
        self._due: list[tuple[float, str, float]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, tags: Iterable[str]) -> None:
        """From now on nothing under these tags lives long."""
        with self._changed:
            for tag in tags:
                heapq.heappush(
                    self._due, (time.monotonic() + _FIRST_SECONDS, tag, 2 * _FIRST_SECONDS)
                )
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._look, name="late-jobs", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Ends the watch: the JVM is about to end, or is somebody else's from here on."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _look(self) -> None:
        while (tag := self._next()) is not None:
            # A JVM that does not answer, or no longer, has nothing left that could be ended.
            with contextlib.suppress(Exception):
                self._cancel(tag)

    def _next(self) -> str | None:
        with self._changed:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, tag, pause = heapq.heappop(self._due)
                if pause < _LAST_SECONDS:
                    heapq.heappush(self._due, (time.monotonic() + pause, tag, 2 * pause))
                return tag
        return None


class SharedJvm:
    """A JVM with a SparkContext that other processes attach to; it dies with this process."""

    def __init__(
        self, process: JvmProcess | None, address: GatewayAddress, gateway: Any, context: Any
    ) -> None:
        # None: somebody else's, who started it and will end it.
        self._process = process
        self.address = address
        self._gateway = gateway
        self._context = context
        self._late = LateJobs(self._cancel)

    @classmethod
    def start(cls, request: Launch) -> Self:
        """Starts the JVM and its SparkContext; this process needs no PySpark for it, only py4j."""
        process = launch(request)
        try:
            gateway = connect(process.address)
            session = gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
            return cls(process, process.address, gateway, session.sparkContext())
        except BaseException as error:
            process.end()
            if isinstance(error, Exception):
                raise startup_failed("its SparkContext", request.log_path) from error
            raise

    @classmethod
    def at(cls, address: GatewayAddress) -> Self:
        """A JVM that another process started; to stop it here is only to let go of it."""
        gateway = connect(address)
        return cls(None, address, gateway, gateway.jvm.org.apache.spark.SparkContext.getOrCreate())

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is None or self._process.alive

    def cancel(self, tags: Iterable[str]) -> None:
        """Ends every Spark job under these tags for good: a tag is never used again."""
        ended = tuple(tags)
        for tag in ended:
            self._cancel(tag)
        self._late.watch(ended)

    def _cancel(self, tag: str) -> None:
        try:
            self._context.cancelJobGroupAndFutureJobs(tag)
            self._context.cancelJobsWithTag(tag)
        except Exception:
            # With the JVM, all that ran in it has ended.
            if self.alive:
                raise

    def active_jobs(self) -> int:
        """How many Spark jobs are running now, of whatever tag."""
        return len(self._context.statusTracker().getActiveJobIds())

    def stop(self) -> None:
        """Ends the JVM and all that runs in it."""
        self._late.close()
        if self._process is None:
            self._gateway.close(keep_callback_server=True)
            return
        self._gateway.shutdown()
        self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
