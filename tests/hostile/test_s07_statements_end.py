"""S07: scripts end: by their limits, with their client and with the server, which goes on."""

from __future__ import annotations

import http.client
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.builds import record_build_in
from headgate.model.ids import mint_build
from headgate.store.embedded import Store
from tests.support.rows import GRAPH, PERSON, apply_text, ids_of, insert_people, made_settings
from tests.support.serving import ServerProcess

_WITHOUT_END = (
    "insert into graph.person (id) "
    "with recursive r(n) as (select 1 union all select n + 1 from r where n > 0) "
    "select max(n)::varchar from r"
)
_CROSS_JOIN = (
    "insert into graph.person (id) select max(a.n + b.n + c.n)::varchar "
    "from range(1000000) a(n), range(1000000) b(n), range(1000000) c(n)"
)
_ALL_MEMORY = (
    "insert into graph.person (id, name) "
    "select n::varchar, repeat('x', 1000) || n from range(100000000) r(n)"
)
_ONE_LARGE_VALUE = "insert into graph.person (id) select repeat('x', 4000000000)"
# The time in which a server ends, and for a busy machine some more.
_END_SECONDS, _MARGIN_SECONDS = 20.0, 5.0
# Longer than any step takes, and far less than the limit of a script in these tests.
_PATIENCE_SECONDS = 60.0


class Served:
    """A server as a process of its own, with one table."""

    def __init__(self, catalog_url: str, root: Path, limits: str) -> None:
        self.root, self.catalog_url = root, catalog_url
        (root / "headgate.toml").write_text(
            f'[store]\ncatalog = "{catalog_url}"\nwarehouse = "{root}/warehouse"\n'
            f"[server]\n{limits}\n"
        )
        with self.open() as store:
            apply_text(store, GRAPH)
            self.token = str(store.create_token(actor="walt", role="writer")["token"])
        self.process = ServerProcess(root)
        self.headers = {"authorization": f"Bearer {self.token}"}
        self.client = httpx.Client(
            base_url=f"{self.process.url}/api/v1", headers=self.headers, timeout=120
        )

    def open(self) -> Store:
        return Store(made_settings(self.catalog_url, self.root))

    def mutate(self, sql: str, **headers: str) -> httpx.Response:
        return self.client.post("/mutate", json={"branch": "master", "sql": sql}, headers=headers)

    @contextmanager
    def sent(self, path: str, body: dict[str, Any], **headers: str) -> Iterator[None]:
        """Send a request without reading its response; at the end, close the connection."""
        connection = http.client.HTTPConnection(urlsplit(self.process.url).netloc)
        sent = {**self.headers, "content-type": "application/json", **headers}
        connection.request("POST", f"/api/v1{path}", orjson.dumps(body), sent)
        try:
            yield
        finally:
            connection.close()

    @contextmanager
    def locked_catalog(self) -> Iterator[None]:
        """Hold the write lock of the catalog."""
        with closing(sqlite3.connect(self.catalog_url.removeprefix("sqlite:///"))) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def state_of(self, key: str) -> str:
        return str(self.client.get(f"/status/{key}").json()["state"])


@pytest.fixture
def limited(made_sqlite_url: str, tmp_path: Path) -> Iterator[Served]:
    """A server with limits that are reached soon."""
    limits = "statement_seconds = 3\nstatement_memory_bytes = 300_000_000\nscript_bytes = 100_000"
    served = Served(made_sqlite_url, tmp_path, limits)
    with served.process, served.client:
        yield served


@pytest.fixture
def patient(made_sqlite_url: str, tmp_path: Path) -> Iterator[Served]:
    """A server on which a script may run longer than any test."""
    served = Served(made_sqlite_url, tmp_path, "statement_seconds = 3600")
    with served.process, served.client:
        yield served


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-Ao", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in listed.stdout.splitlines())
    return [int(child) for child, parent in pairs if int(parent) == pid]


def _evaluators(served: Served) -> list[int]:
    return [one for forks in _children(served.process.pid) for one in _children(forks)]


def test_s07_script_beyond_a_limit_is_stopped_and_the_server_goes_on(limited: Served) -> None:
    pid = limited.process.pid
    too_deep = f"insert into graph.person (id) select {'(' * 10_000}1{')' * 10_000}"
    too_long = "insert into graph.person (id) select 'x' --" + "x" * 100_000
    for sql, code, words in (
        (_WITHOUT_END, "statement_stopped", "statement_seconds = 3"),
        (_CROSS_JOIN, "statement_stopped", "statement_seconds = 3"),
        (_ALL_MEMORY, "statement_stopped", "statement_memory_bytes = 300000000"),
        (_ONE_LARGE_VALUE, "statement_stopped", "statement_memory_bytes = 300000000"),
        (too_deep, "invalid_script", "[server] script_depth"),
        (too_long, "invalid_script", "[server] script_bytes"),
    ):
        reply = limited.mutate(sql)
        assert (reply.status_code, reply.json()["code"]) == (400, code), reply.text
        assert words in reply.json()["error"]
        assert limited.mutate(insert_people(f"after-{len(words)}-{len(sql)}")).status_code == 200
    for path in ("/schema/plan", "/schema/apply"):
        reply = limited.client.post(path, json={"branch": "master", "text": "#" * 100_001})
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_schema_file"), reply.text
        assert "[server] script_bytes" in reply.json()["error"]
    assert limited.process.pid == pid
    with limited.open() as store:
        assert len(ids_of(store, PERSON)) == 6


def test_s07_load_that_needs_too_much_memory_is_stopped(limited: Served) -> None:
    # Small to send, and large to parse: every row has all columns.
    rows = [{f"c{n}": 1} for n in range(30_000)]
    body = {"branch": "master", "rows": {PERSON: rows}}
    reply = limited.client.post("/load", json=body)
    assert (reply.status_code, reply.json()["code"]) == (400, "statement_stopped"), reply.text
    assert limited.mutate(insert_people("after")).status_code == 200


@pytest.fixture
def small(made_sqlite_url: str, tmp_path: Path) -> Iterator[Served]:
    """A server on which a statement has little memory, and much time."""
    served = Served(made_sqlite_url, tmp_path, "statement_memory_bytes = 300_000_000")
    with served.process, served.client:
        yield served


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_s07_rows_that_need_too_much_memory_are_not_read_in_the_server(small: Served) -> None:
    # A few kilobytes on disk, and 240 MB in memory.
    insert = "insert into graph.person (id, name) select '{}-' || n, repeat('x', 1000000) "
    with small.open() as store:
        for branch in ("master", "walt/f>master"):
            for number in range(4):
                sql = insert.format(f"{branch}-{number}") + "from range(60) r(n)"
                store.mutate(branch, sql)
        store.mutate("walt/f", "delete from graph.person where id = 'master-0-1'")
    small.client.get("/datasets")
    before, pid = _peak_bytes(small.process.pid), small.process.pid
    merge = {"source": "walt/f", "into": "master"}
    schema = {"branch": "walt/f>master", "text": GRAPH.replace("age", "years")}
    posts: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/merge", merge),
        ("/merge", {**merge, "dry_run": True}),
        ("/optimize", {"dataset": PERSON, "branch": "walt/f"}),
        ("/schema/apply", schema),
    )
    replies = [small.client.post(path, json=body) for path, body in posts]
    for params in ({"from": "master", "to": "walt/f"}, {"branch": "walt/f", "into": "master"}):
        replies.append(small.client.get("/diff", params={**params, "dataset": PERSON}))
    for reply in replies:
        assert (reply.status_code, reply.json()["code"]) == (400, "statement_stopped"), reply.text
        assert "statement_memory_bytes = 300000000" in reply.json()["error"]
    content = f"/datasets/{PERSON}/content"
    reply = small.client.get(content, params={"context": "master", "rows": 1000})
    assert (reply.status_code, reply.json()["code"]) == (400, "statement_stopped"), reply.text
    # A file of 60 MB for rows that are shown is decoded elsewhere too.
    assert _peak_bytes(pid) - before < 60_000_000
    assert small.process.pid == pid
    assert small.mutate(insert_people("after")).status_code == 200


def test_s07_evaluator_that_crashes_is_an_error_of_one_client(patient: Served) -> None:
    replies: list[httpx.Response] = []
    client = threading.Thread(target=lambda: replies.append(patient.mutate(_WITHOUT_END)))
    client.start()
    while client.is_alive():
        for pid in _evaluators(patient):
            _check_environment(pid)
            os.kill(pid, signal.SIGSEGV)
        client.join(0.5)
    [reply] = replies
    assert (reply.status_code, reply.json()["code"]) == (400, "evaluator_died"), reply.text
    assert "was ended by SIGSEGV" in reply.json()["error"]
    assert patient.mutate(insert_people("after")).status_code == 200
    with patient.open() as store:
        assert ids_of(store, PERSON) == ["after"]


def _check_environment(pid: int) -> None:
    """Raise if an evaluator holds a variable of the server that may be a secret."""
    file = Path(f"/proc/{pid}/environ")
    if file.exists():
        assert b"HEADGATE" not in file.read_bytes()


def test_s07_client_that_leaves_interrupts_its_script(patient: Served) -> None:
    body = {"branch": "master", "sql": _WITHOUT_END}
    with patient.sent("/mutate", body, **{"idempotency-key": "left"}):
        _wait_until(lambda: patient.state_of("left") == "in_progress")
    _wait_until(lambda: patient.state_of("left") == "not_committed")
    assert patient.mutate(insert_people("a"), **{"idempotency-key": "left-2"}).status_code == 200


def test_s07_server_ends_in_time_whatever_runs(patient: Served) -> None:
    with patient.open() as store:
        # A build of another process, whose progress a client watches.
        build = mint_build()
        attempt = dispatch_attempt(store.database, build, actor="bo", lease_seconds=600).ref
        body = {"targets": [PERSON], "fallback": ["master"]}
        store.database.write(
            lambda c: record_build_in(
                c, id=build, branch="master", actor="bo", attempt=attempt, body=body, planned=[]
            )
        )
        # A transaction that keeps others waiting.
        other = store.dataset(PERSON).branch("other")
        other.create("master")
        other.transaction()
    waits = {"branch": "other", "sql": insert_people("w"), "timeout_seconds": 300}
    without_end = {"branch": "master", "sql": _WITHOUT_END, "timeout_seconds": 300}
    with (
        patient.client.stream("GET", f"/builds/{build}/progress") as events,
        patient.sent("/mutate", without_end, **{"idempotency-key": "endless"}),
        patient.sent("/mutate", waits, **{"idempotency-key": "waiting"}),
    ):
        # Kept: the connection is closed with its iterator.
        chunks = events.iter_bytes()
        assert next(chunks).startswith(b"event: progress")
        for key in ("endless", "waiting"):
            _wait_until(lambda key=key: patient.state_of(key) == "in_progress")  # type: ignore[misc]
        _wait_until(lambda: bool(_evaluators(patient)))
        evaluators = _evaluators(patient)
        # Requests that write wait for the lock, on threads that nothing can interrupt.
        with patient.locked_catalog():
            began = time.monotonic()
            assert patient.process.end() == 0
            assert time.monotonic() - began < _END_SECONDS + _MARGIN_SECONDS
        assert b"event: end" not in b"".join(chunks)
    for pid in evaluators:
        _wait_until(lambda pid=pid: not _is_alive(pid))  # type: ignore[misc]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
