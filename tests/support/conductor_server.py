"""A real Conductor server: fetched once by its Maven coordinates, started on loopback."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.maven import cached, ensure, fetch_jar, java, must

VERSION = "3.32.3"
NO_CONDUCTOR = "no Conductor server: it could not be fetched (make test-engines says why)"
_START_SECONDS = 480.0
_JAR = f"conductor-server-{VERSION}-boot.jar"


def find_server() -> Path | None:
    """Return the unpacked server; None if it was never fetched."""
    jar = _place() / _JAR
    return jar if jar.is_file() else None


def ensure_server() -> Path:
    """Return the unpacked server, and fetch it if necessary."""
    return ensure(_place(), _fetch) / _JAR


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
        "--conductor.app.workflow-offset-timeout=1s",
        "--conductor.app.max-postpone-duration-seconds=2s",
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


def _fetch(scratch: Path) -> Path:
    fetch_jar(scratch, "org.conductoross", "conductor-server", VERSION, classifier="boot")
    unpack = [str(java()), "-Djarmode=tools", "-jar", _JAR, "extract", "--destination", "server"]
    must(unpack, scratch)
    return scratch / "server"


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
    return cached("conductor") / f"server-{VERSION}"
