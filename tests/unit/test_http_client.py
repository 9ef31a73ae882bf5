"""The HTTP client of a served store, against a server that closes, cuts and redirects."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.client.http import HttpClient
from headgate.errors import Invalid, Unavailable
from tests.support.source import PACKAGE

_DOCUMENT = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 12}'
# Responses of a server before it closes the connection.
_NOTHING = b""
_HALF_DOCUMENT = _DOCUMENT[:-5]
_HALF_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n5\r\ne"
# The connection stays open, and no more bytes arrive.
_UNFINISHED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n"

_FORK = """
import os, sys
from headgate.client.http import HttpClient
http = HttpClient(sys.argv[1], None)
http.get("/parent")
child = os.fork()
if child == 0:
    http.get("/child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
http.get("/parent")
"""


class _Server:
    """Sends the scripted replies in their order, then documents."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        # Requests, and beside each the number of its connection.
        self.requests: list[bytes] = []
        self.connections: list[int] = []
        # Connections that end at their next request.
        self.stale: set[int] = set()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close_connections(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with ThreadPoolExecutor(max_workers=64) as serving:
            for number in itertools.count(1):
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    break
                self._open.append(connection)
                serving.submit(self._serve, connection, number)
            self.close_connections()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError):
            while request := _request_on(connection):
                self.requests.append(request)
                self.connections.append(number)
                if number in self.stale:
                    return
                reply = self.replies.pop(0) if self.replies else _DOCUMENT
                connection.sendall(reply)
                if reply in {_NOTHING, _HALF_DOCUMENT, _HALF_CHUNKS}:
                    return


def _request_on(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (part := connection.recv(65536)):
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    while len(body) < int(length or 0):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def server() -> Iterator[_Server]:
    made = _Server()
    yield made
    made.close()


@pytest.fixture
def http(server: _Server) -> Iterator[HttpClient]:
    made = HttpClient(server.url, "hg_secret")
    yield made
    made.close()


def test_requests_one_after_the_other_share_a_connection(server: _Server, http: HttpClient) -> None:
    assert [http.get("/x"), http.post("/x", b=1), http.exists("/x")] == [{"a": 12}] * 2 + [True]
    assert server.connections == [1, 1, 1]
    assert all(b"authorization: bearer hg_secret" in one.lower() for one in server.requests)


def test_threads_have_connections_of_their_own(server: _Server, http: HttpClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: http.get("/x"), range(80))) == [{"a": 12}] * 80
    assert set(server.connections) <= set(range(1, 9))


def test_forked_process_does_not_use_connections_of_its_parent(server: _Server) -> None:
    # In a process without threads, which may fork.
    subprocess.run(
        [sys.executable, "-c", _FORK, server.url],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        check=True,
    )
    assert server.connections == [1, 2, 1]


def test_connection_that_the_server_closed_while_idle_is_replaced(
    server: _Server, http: HttpClient
) -> None:
    http.get("/x")
    server.close_connections()
    # A request that may be sent only once.
    assert http.post("/x") == {"a": 12}
    assert server.connections == [1, 2]


@pytest.mark.parametrize("lost", [_NOTHING, _HALF_DOCUMENT])
def test_repeatable_request_whose_reply_is_lost_is_sent_again_with_its_key(
    server: _Server, http: HttpClient, lost: bytes
) -> None:
    server.replies = [lost]
    assert http.publish("POST", "/x", None, body={"b": 1}).document == {"a": 12}
    first, second = server.requests
    assert first == second and b"idempotency-key: " in first.lower()
    assert server.connections == [1, 2]


def test_repeatable_request_whose_reply_is_lost_twice_fails(
    server: _Server, http: HttpClient
) -> None:
    server.replies = [_NOTHING] * 2
    with pytest.raises(Unavailable, match="closed connection without response") as raised:
        http.get("/x")
    assert "carried out" not in str(raised.value)
    assert len(server.requests) == 2


def test_request_that_is_not_repeatable_is_sent_once(server: _Server, http: HttpClient) -> None:
    server.replies = [_NOTHING]
    with pytest.raises(Unavailable, match="may have been carried out"):
        http.post("/x")
    assert len(server.requests) == 1


def test_second_request_avoids_the_other_idle_connections(
    server: _Server, http: HttpClient
) -> None:
    server.replies = [_UNFINISHED + b"0\r\n\r\n"] * 2
    streams = [http.stream("/x"), http.stream("/x")]
    assert [next(stream) for stream in streams] == [b"abcd"] * 2
    assert [list(stream) for stream in streams] == [[], []]
    server.stale = {1, 2}
    assert http.get("/x") == {"a": 12}
    assert server.connections == [1, 2, 2, 3]


def test_file_is_sent_again_from_its_beginning(
    server: _Server, http: HttpClient, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789" * 20_000)
    server.replies = [_NOTHING]
    http.send_file("/contents/x", file)
    assert [one.partition(b"\r\n\r\n")[2] for one in server.requests] == [file.read_bytes()] * 2


@pytest.mark.parametrize(("reply", "read"), [(_HALF_DOCUMENT, b'{"a"'), (_HALF_CHUNKS, b"abcde")])
def test_stream_that_is_cut_yields_what_came_and_fails(
    server: _Server, http: HttpClient, reply: bytes, read: bytes
) -> None:
    server.replies = [reply]
    came = b""
    with pytest.raises(Unavailable, match="cut in the middle of a response"):
        for chunk in http.stream("/x"):
            came += chunk
    assert came == read
    assert len(server.requests) == 1


def test_stream_yields_at_once_and_leaves_no_rest_to_the_next_request(
    server: _Server, http: HttpClient
) -> None:
    server.replies = [_UNFINISHED]
    stream = http.stream("/x")
    assert next(stream) == b"abcd"
    assert isinstance(stream, Generator)
    stream.close()
    assert http.get("/x") == {"a": 12}
    assert server.connections == [1, 2]


def test_server_that_does_not_answer_in_time_is_unavailable(
    server: _Server, http: HttpClient
) -> None:
    server.replies = [_UNFINISHED]
    with pytest.raises(Unavailable, match="timed out"):
        http.request("POST", "/x", timeout_seconds=0.2)


@pytest.mark.parametrize(
    "head", [b"302 Found\r\nLocation: /y", b"503 Service Unavailable\r\nRetry-After: 1"]
)
def test_redirect_and_retry_after_are_not_followed(
    server: _Server, http: HttpClient, head: bytes
) -> None:
    server.replies = [b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % head]
    with pytest.raises(Unavailable, match=f"answered {head[:3].decode()}"):
        http.get("/x")
    assert len(server.requests) == 1


def test_proxies_of_the_environment_are_not_used(
    server: _Server, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert http.get("/x") == {"a": 12}


def test_paths_are_sent_below_the_servers_root_and_as_they_are(server: _Server) -> None:
    http = HttpClient(f"{server.url}/below/", None)
    http.get("/files/a.b/../c%2Fd", deep=True, at=None, key=["x", "ä"])
    http.close()
    target = b"/below/api/v1/files/a.b/../c%2Fd?deep=true&key=x&key=%C3%A4"
    assert server.requests[0].startswith(b"GET %s HTTP/1.1" % target)


def test_pages_follow_links_until_the_limit(server: _Server, http: HttpClient) -> None:
    link = b'Link: </api/v1/x?cursor=2>; rel="next"'
    page = b"HTTP/1.1 200 OK\r\n%s\r\nContent-Length: 6\r\n\r\n[1, 2]"
    server.replies = [page % link, page % link, page % b"A: b"] * 2
    assert list(http.pages("/x")) == [1, 2] * 3
    server.replies = [page % link] * 3
    assert list(http.pages("/x", limit=4)) == [1, 2] * 2
    assert len(server.requests) == 5


def test_client_that_is_closed_connects_again(server: _Server, http: HttpClient) -> None:
    http.get("/x")
    http.close()
    assert http.get("/x") == {"a": 12}
    assert server.connections == [1, 2]


def test_url_with_an_impossible_port_is_rejected() -> None:
    with pytest.raises(Invalid, match="not the URL of a server"):
        HttpClient("http://host:99999", None)
