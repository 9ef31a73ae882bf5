"""S05: writers that wait for an OPEN transaction hold no thread of the server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from headgate.catalog.database import Connection
from headgate.catalog.schema import tickets
from headgate.store.embedded import Store
from tests.support.rows import PERSON, graph_store, ids_of
from tests.support.serving import ServerProcess

WRITERS = 45
_PATIENCE_SECONDS = 240.0


class Line:
    """Writers of one table, each with a request that waits at a server."""

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self.store = store
        self.answers: list[Future[httpx.Response]] = []
        token = store.create_token(actor="walt", role="writer")["token"]
        self.headers = {"authorization": f"Bearer {token}"}
        self._pool = pool
        self._table = {"dataset": PERSON, "branch": "master"}

    def post(
        self, server: ServerProcess, path: str, *, key: str | None = None, **body: Any
    ) -> httpx.Response:
        headers = self.headers | ({"idempotency-key": key} if key else {})
        url = f"{server.url}/api/v1{path}"
        return httpx.post(url, json=body, headers=headers, timeout=_PATIENCE_SECONDS)

    def open_transaction(self, server: ServerProcess) -> str:
        opened = self.post(server, "/transactions", **self._table, type="APPEND", lease_seconds=900)
        assert opened.status_code == 201, opened.text
        return str(opened.json()["transaction"])

    def add(self, server: ServerProcess, id: str | None = None, *, key: str | None = None) -> None:
        """Send a write, and wait until it has its place."""
        before, number = self.count(), len(self.answers)
        sql = insert(id or f"{number:02}")
        more = {"branch": "master", "sql": sql, "timeout_seconds": _PATIENCE_SECONDS}
        self.answers.append(self._pool.submit(self.post, server, "/mutate", key=key, **more))
        until(lambda: self.count() > before, f"writer {number} does not wait in line")

    def count(self) -> int:
        """Return the number of writers that wait, as the catalog records it."""

        def read(connection: Connection) -> int:
            return int(connection.execute(select(func.count()).select_from(tickets)).scalar_one())

        return self.store.database.read(read)

    def publications(self) -> list[int]:
        """Return the publications of the writers, in order of their arrival."""
        replies = [answer.result(_PATIENCE_SECONDS) for answer in self.answers]
        assert [reply.status_code for reply in replies] == [200] * len(replies), replies[0].text
        return [int(reply.json()["publication"]) for reply in replies]


def insert(id: str) -> str:
    return f"insert into {PERSON} (id) values ('{id}')"


def until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.005)


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@contextmanager
def line_at(catalog_url: str, root: Path) -> Iterator[Line]:
    (root / "headgate.toml").write_text(
        f'[store]\ncatalog = "{catalog_url}"\nwarehouse = "{root}/warehouse"\n'
    )
    with graph_store(catalog_url, root) as store, ThreadPoolExecutor(WRITERS) as pool:
        yield Line(store, pool)


def test_s05_writers_that_wait_leave_the_server_free_and_all_end_in_order(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with line_at(made_catalog_url, tmp_path) as line, ServerProcess(tmp_path) as server:
        opened = line.open_transaction(server)
        threads = threads_of(server.pid)
        for _ in range(WRITERS):
            line.add(server)
        assert threads_of(server.pid) - threads < WRITERS // 2
        # All are answered while every writer waits, which they do until the commit.
        assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200
        assert line.post(server, f"/transactions/{opened}/renew").status_code == 200
        assert line.count() == WRITERS
        assert not any(answer.done() for answer in line.answers)
        assert line.post(server, f"/transactions/{opened}/commit").status_code == 200
        published = line.publications()
        assert published == sorted(published)
        assert ids_of(line.store, PERSON) == [f"{number:02}" for number in range(WRITERS)]
        assert line.count() == 0
        assert server.end() == 0


def test_s05_writers_leave_the_line_if_they_disconnect_end_or_their_server_stops(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with line_at(made_sqlite_url, tmp_path) as line, ServerProcess(tmp_path) as server:
        opened = line.open_transaction(server)
        line.add(server)
        with _mutate_by_socket(server, line.headers, key="once"):
            until(lambda: line.count() == 2, "it does not wait in line")
            assert line.store.status("once")["state"] == "in_progress"
        until(lambda: line.count() == 1, "it is still in the line")
        # Sent again, twice, it is done once.
        line.add(server, "once", key="once")
        line.add(server, "once", key="once")
        assert line.post(server, f"/transactions/{opened}/abort").status_code == 200
        first, second, third = line.publications()
        assert first < second == third
        assert ids_of(line.store, PERSON) == ["00", "once"]

        line.open_transaction(server)
        line.add(server)
        line.add(server)
        assert server.end() == 0
        for answer in line.answers[3:]:
            reply = answer.result(_PATIENCE_SECONDS)
            assert reply.status_code == 503
            assert "Send it again" in reply.json()["error"]
        assert line.count() == 0
        assert ids_of(line.store, PERSON) == ["00", "once"]


@contextmanager
def _mutate_by_socket(
    server: ServerProcess, headers: dict[str, str], *, key: str
) -> Iterator[None]:
    """Send a write, and close its connection at the end of the block."""
    body = json.dumps({"branch": "master", "sql": insert("once")}).encode()
    lines = [
        "POST /api/v1/mutate HTTP/1.1",
        "host: headgate",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"authorization: {headers['authorization']}",
        f"idempotency-key: {key}",
    ]
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        yield


def test_s05_writers_of_two_servers_stand_in_one_line(
    made_postgres_url: str, tmp_path: Path
) -> None:
    with (
        line_at(made_postgres_url, tmp_path) as line,
        ServerProcess(tmp_path) as one,
        ServerProcess(tmp_path) as other,
    ):
        opened = line.open_transaction(one)
        for number in range(8):
            line.add(other if number % 2 else one)
        assert line.post(one, f"/transactions/{opened}/commit").status_code == 200
        published = line.publications()
        assert published == sorted(published)
