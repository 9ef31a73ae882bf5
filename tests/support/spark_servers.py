"""A real standalone cluster and a real Spark Connect server, on loopback, for a block."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headgate.spark.java import ensure_jars, find_java_home
from headgate.spark.jvm import Launch, log_tail, properties_text, spark_environ, spark_home
from headgate.spark.session import jvm_conf

_CACHE = Path(os.environ.get("HEADGATE_CACHE", "~/.cache/headgate")).expanduser()
_SOURCES = str(Path(__file__).parents[2] / "src")
_WORKERS = 2
_PATIENCE_SECONDS = 300
# Resources of one executor; the machine is small, and so is the data.
EXECUTOR_CONF = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}


def free_port() -> int:
    """Return a free port outside of the range of ephemeral ports."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def launch(directory: Path, conf: Mapping[str, str]) -> Launch:
    """Return the environment of these servers: the machine's Java, this Python, loopback only."""
    java_home = find_java_home(os.environ, _CACHE)
    jars = ensure_jars(_CACHE, java_home=java_home, environ=os.environ)
    return Launch(
        java_home=java_home,
        conf={
            **jvm_conf(jars=jars),
            "spark.sql.warehouse.dir": (directory / "spark-warehouse").as_uri(),
            **conf,
        },
        environ={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        log_path=directory / "driver.log",
    )


@contextmanager
def running_cluster(directory: Path) -> Iterator[str]:
    """Run a master with two workers, and yield its URL."""
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    where = ["--host", "127.0.0.1"]
    with ExitStack() as stack:
        words = ["master.Master", *where, "--port", str(port), "--webui-port", str(page)]
        stack.enter_context(_running(directory / "master.log", words, port))
        for number in range(_WORKERS):
            own = directory / f"worker-{number}"
            own.mkdir()
            own_port = free_port()
            words = ["worker.Worker", *where, "--port", str(own_port), "--webui-port", "0"]
            words += ["--cores", "1", "--memory", "1g", "--work-dir", str(own), master]
            stack.enter_context(_running(own / "worker.log", words, own_port))
        yield master


@contextmanager
def running_connect(directory: Path) -> Iterator[str]:
    """Run a Connect server with Iceberg in local mode, and yield its URL."""
    port = free_port()
    conf = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    properties = directory / "connect.properties"
    properties.write_text(properties_text(launch(directory, conf).conf))
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--properties-file", str(properties)),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        "spark-internal",
    ]
    with _process(directory / "connect.log", command, port):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _running(log: Path, words: list[str], port: int) -> Iterator[None]:
    name, *rest = words
    command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *rest]
    with _process(log, command, port):
        yield


@contextmanager
def _process(log: Path, command: list[str], port: int) -> Iterator[None]:
    """Run one server from when it listens until the end of the block."""
    request = launch(log.parent, {"spark.master": "local"})
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=log.parent,
            env={**spark_environ(request, spark_home()), "PYTHONPATH": _SOURCES},
            start_new_session=True,
        )
    try:
        _await(process, port, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            alive = process.poll() is None
            assert alive and time.monotonic() < deadline, f"it did not start:\n{log_tail(log)}"
            time.sleep(0.1)
