"""A Spark JVM as a child process: how it is started, how Python connects to it, how it ends.

PySpark can start a JVM itself, but then its output reaches the terminal, its settings come from the
environment of this process, and there can be only one.
"""

import contextlib
import importlib.util
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.errors import MissingExtra, SparkStopped, SparkUnavailable

_START_SECONDS = 90
_STOP_SECONDS = 20
_SHOWN_LOG_LINES = 30
# The kernel's SIGKILL, Spark's own code, and Java's with `-XX:+ExitOnOutOfMemoryError`.
_EXITS = {137: ", out of memory?", 52: ", out of memory", 3: ", out of memory?"}

# The imports that PySpark expects in the gateway's view of the JVM.
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
    """The port and the secret by which a process on this machine reaches a JVM's gateway."""

    port: int
    secret: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The settings that a Spark JVM is started with."""

    java_home: Path
    conf: Mapping[str, str]
    environ: Mapping[str, str]
    log_path: Path


class JvmProcess:
    """A running JVM; it exits at the end of its stdin, so it cannot outlive this process."""

    def __init__(
        self, process: subprocess.Popen[bytes], address: GatewayAddress, log_path: Path
    ) -> None:
        self._process = process
        self.address = address
        self._log_path = log_path

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def find_end(self, patience_seconds: float = 0) -> SparkStopped | None:
        """Return the end of the JVM as an error; None if it runs on for this long."""
        try:
            code = self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            return None
        # As a shell reports it: 128 plus the signal.
        exit = 128 - code if code < 0 else code
        return SparkStopped(
            reason=f"Spark stopped (exit {exit}{_EXITS.get(exit, '')})",
            remedy=f"Its log is {self._log_path}. Raise spark.driver.memory in [spark] conf if it "
            "ran out of memory; `--retries` repeats the jobs of a build in a new Spark.",
        )

    def end(self) -> None:
        """Let the JVM shut down; kill it if it does not."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def starting_jvm(request: Launch) -> Iterator[JvmProcess]:
    """Start a JVM whose SparkContext the block creates; if the block fails, end the JVM again."""
    jvm = _launch(request)
    try:
        yield jvm
    except BaseException as error:
        jvm.end()
        if isinstance(error, Exception):
            raise startup_failed("its SparkContext", request.log_path) from error
        raise


def _launch(request: Launch) -> JvmProcess:
    """Start a JVM with an open gateway and without a SparkContext; its output goes to the log."""
    with tempfile.TemporaryDirectory(
        prefix="headgate-spark-", ignore_cleanup_errors=True
    ) as scratch:
        process = spawn(request, Path(scratch), stdin=subprocess.PIPE)
        address = _await_address(process, Path(scratch, "gateway"), request.log_path)
    return JvmProcess(process, address, request.log_path)


def spawn(request: Launch, scratch: Path, *, stdin: int) -> subprocess.Popen[bytes]:
    """Run Spark's own launcher, which opens a gateway and writes its address to `scratch`.

    It also reads the machine's Spark defaults.
    """
    home = spark_home()
    properties = scratch / "spark.properties"
    properties.touch(mode=0o600)
    properties.write_text(properties_text(request.conf), encoding="utf-8")
    with request.log_path.open("ab") as log:
        return subprocess.Popen(
            [
                str(home / "bin" / "spark-submit"),
                "--properties-file",
                str(properties),
                "--load-spark-defaults",
                "pyspark-shell",
            ],
            stdin=stdin,
            stdout=log,
            stderr=log,
            env={
                **spark_environ(request, home),
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(scratch / "gateway"),
            },
            # Ctrl-C on the terminal is for Python to handle, not for the JVM.
            start_new_session=True,
        )


def _await_address(
    process: subprocess.Popen[bytes], written: Path, log_path: Path
) -> GatewayAddress:
    deadline = time.monotonic() + _START_SECONDS
    while not written.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()
            raise startup_failed("its JVM", log_path)
        time.sleep(0.02)
    # Spark writes the file under another name and renames it, so it is complete.
    data = written.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return GatewayAddress(port=port, secret=data[8 : 8 + length].decode())


def open_gateway(address: GatewayAddress, process: JvmProcess | None = None) -> Any:
    """Connect as PySpark does: each Python thread has a Java thread of its own.

    The gateway keeps the process of a JVM that this one started, to report its end.
    """
    from py4j import clientserver  # noqa: PLC0415  (optional: comes with pyspark)
    from py4j.java_gateway import java_import  # noqa: PLC0415  (optional: comes with pyspark)

    gateway = clientserver.ClientServer(
        java_parameters=clientserver.JavaParameters(
            port=address.port, auth_token=address.secret, auto_convert=True
        ),
        python_parameters=clientserver.PythonParameters(port=0, eager_load=False),
    )
    # PySpark reads this attribute: the process that it would have started.
    gateway.proc = None
    gateway.jvm_process = process
    for name in _JVM_IMPORTS:
        java_import(gateway.jvm, name)
    return gateway


def spark_home() -> Path:
    """Return the directory of the installed PySpark, which contains a whole Spark.

    Does not import PySpark: that alone takes a second or two.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtra(feature="Spark", extra="spark")
    return Path(spec.origin).parent


def spark_environ(request: Launch, home: Path) -> dict[str, str]:
    """Return the environment of a Spark JVM: the given one, with this Java, Spark and Python."""
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
        # Otherwise Python workers run whichever `python3` comes first on the path.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def properties_text(conf: Mapping[str, str]) -> str:
    """Return the settings as a Java properties file; a command line is readable by every user."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in conf.items())


def _escape(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    for sign in "=:#! ":
        text = text.replace(sign, f"\\{sign}")
    return text


def log_tail(log_path: Path) -> str:
    """Return the end of a JVM's log, for an error message."""
    try:
        lines = log_path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_SHOWN_LOG_LINES:])


def startup_failed(what: str, log_path: Path) -> SparkUnavailable:
    """Return the error for a JVM that did not start, with the end of its log."""
    return SparkUnavailable(
        reason=f"{what} did not start",
        remedy=f"The end of its log {log_path}:\n{log_tail(log_path)}",
    )
