"""Other systems beside which Headgate is measured: fetched once, started on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import orjson

from bench.cases import Tell, Unavailable
from bench.clients import Talk, reply, request_of
from tests.support.engine_packages import Packages
from tests.support.maven import cached, ensure, fetch_jar, java
from tests.support.spark_servers import free_port

NESSIE_VERSION = "0.99.0"
_JAR = f"nessie-quarkus-{NESSIE_VERSION}-runner.jar"
DUCKLAKE = Packages(title="DuckDB 1.5.5 with DuckLake (32 MB)", name="ducklake", version="1.5.5")
_START_SECONDS = 180.0


class Nessie:
    """A server whose store is RocksDB, with eight tables on its branch `main`."""

    def __init__(self, port: int) -> None:
        self.port = port
        head = json.loads(reply(port, request_of("GET", "/api/v2/trees/main")))["reference"]["hash"]
        made = json.loads(reply(port, _commit(head, [_put(f"t{at}", None, 0) for at in range(8)])))
        self._heads = [made["targetBranch"]["hash"]] * 8
        ids = {one["key"]["elements"][0]: one["contentId"] for one in made["addedContents"]}
        self._ids = [ids[f"t{at}"] for at in range(8)]

    def content(self) -> bytes:
        """Return the request that reads a table of the branch."""
        return request_of("GET", "/api/v2/trees/main/contents/t0")

    def commits(self, table: int, count: int) -> Talk:
        """Change one table; each commit expects the state that the last one left."""
        for number in range(count):
            put = _put(f"t{table}", self._ids[table], number)
            reply = yield _commit(self._heads[table], [put])
            self._heads[table] = json.loads(reply)["targetBranch"]["hash"]

    def branches(self, names: Sequence[str]) -> Talk:
        """Create branches of all tables."""
        source = orjson.dumps({"type": "BRANCH", "name": "main", "hash": self._heads[0]})
        for name in names:
            yield request_of("POST", f"/api/v2/trees?type=BRANCH&name={name}", body=source)


def _commit(head: str, operations: Sequence[object]) -> bytes:
    body = {"commitMeta": {"message": "bench"}, "operations": operations}
    path = f"/api/v2/trees/main@{head}/history/commit"
    return request_of("POST", path, body=orjson.dumps(body))


def _put(table: str, id: str | None, number: int) -> dict[str, object]:
    content = {
        "type": "ICEBERG_TABLE",
        "metadataLocation": f"file:///bench/{table}/{number}.metadata.json",
        "snapshotId": number,
        "schemaId": 0,
        "specId": 0,
        "sortOrderId": 0,
        **({"id": id} if id else {}),
    }
    return {"type": "PUT", "key": {"elements": [table]}, "content": content}


@contextmanager
def running_nessie(home: Path, tell: Tell) -> Iterator[Nessie]:
    """Start a server for the block."""
    try:
        jar = ensure(cached(_JAR), _fetch_nessie)
    except (OSError, RuntimeError) as error:
        raise Unavailable(f"Nessie could not be fetched: {error}") from error
    port, log = free_port(), home / "nessie.log"
    options = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": free_port(),
        "quarkus.otel.sdk.disabled": "true",
        "nessie.version.store.type": "ROCKSDB",
        "nessie.version.store.persist.rocks.database-path": home / "rocks",
    }
    words = [str(java()), "-Xmx1g", *(f"-D{key}={value}" for key, value in options.items())]
    began = time.monotonic()
    with (
        log.open("wb") as out,
        subprocess.Popen([*words, "-jar", str(jar)], cwd=home, stdout=out, stderr=out) as process,
    ):
        try:
            _await(port, process, log)
            tell(f"Nessie {NESSIE_VERSION} started in {time.monotonic() - began:.0f} s")
            yield Nessie(port)
        finally:
            process.terminate()


def _fetch_nessie(scratch: Path) -> Path:
    module = ("org.projectnessie.nessie", "nessie-quarkus", NESSIE_VERSION)
    return fetch_jar(scratch, *module, classifier="runner")


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            reply(port, request_of("GET", "/api/v2/config"))
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise Unavailable(f"Nessie did not start:\n{log.read_text()[-2000:]}")


# Executes each line of its input, statements in JSON, as one transaction; prints milliseconds.
_LAKE = """
import json, pathlib, sys, time
import duckdb, duckdb_extension_ducklake as package
[file] = pathlib.Path(package.__file__).parent.rglob("*.duckdb_extension")
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET enable_progress_bar = false")
connection.execute(f"LOAD '{file}'")
connection.execute("ATTACH 'ducklake:meta.ducklake' AS lake (DATA_PATH 'data/')")
connection.execute("USE lake")
for line in sys.stdin:
    statements = json.loads(line)
    if len(statements) > 1:
        statements = ["BEGIN", *statements, "COMMIT"]
    began = time.perf_counter()
    for statement in statements:
        connection.execute(statement)
    print((time.perf_counter() - began) * 1000, flush=True)
"""

# Executes statements as one transaction, and returns its milliseconds.
Lake: TypeAlias = Callable[..., float]


@contextmanager
def opened_lake(home: Path) -> Iterator[Lake]:
    """Open a DuckLake whose catalog is a DuckDB file, in a process of its own."""
    try:
        packages = DUCKLAKE.ensure_fetched()
    except (OSError, RuntimeError) as error:
        raise Unavailable(f"DuckLake could not be fetched: {error}") from error
    with subprocess.Popen(
        [sys.executable, "-c", _LAKE],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(packages)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def execute(*statements: str) -> float:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(statements) + "\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        try:
            yield execute
        finally:
            process.stdin.close()
