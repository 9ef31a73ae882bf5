"""Clients without a token, and clients that send or read too slowly, do not stop a server."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from headgate.iceberg.app import ROUTES
from headgate.model.contexts import encode_prefix, parse_context
from headgate.server.app import ROUTERS
from headgate.server.authorization import TOKEN_PATH
from headgate.server.web import markup
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from tests.support.rows import made_settings
from tests.support.strangers import ANOTHER, LIMITS, STRANGER, Strangers, fill, serving_strangers

_PREFIX = encode_prefix(parse_context("master"), client="c" * 16)
API = sorted(
    {
        (method, fill(route.path))
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
)
ICEBERG = [("GET", "/iceberg/v1/config?warehouse=master")] + [
    (route.method, f"/iceberg/v1/{_PREFIX}/{fill(route.pattern)}") for route in ROUTES
]
PAGES = [
    *(markup.DATASETS, "/datasets/x.y", markup.BRANCHES, markup.LINEAGE),
    *(markup.BUILDS, "/builds/x", markup.LOG, markup.REVIEW),
]
GUESSER = "127.0.0.9"
SOCKETS = "/_nicegui_ws/socket.io/?EIO=4&transport="


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strangers]:
    with serving_strangers(tmp_path_factory.mktemp("strangers")) as served:
        yield served


@pytest.fixture(autouse=True)
def alive(served: Strangers) -> Iterator[None]:
    """After each test, the same server answers."""
    yield
    served.disconnect()
    served.check_health()


# Authentication before bodies


@pytest.mark.parametrize("token", ["", "Bearer hg_guess", "Basic YTpi"])
def test_every_route_refuses_a_stranger_whose_body_never_ends(
    served: Strangers, token: str
) -> None:
    for method, path in [*API, *ICEBERG, ("GET", "/metrics")]:
        client = served.connect()
        client.chunked(method, path, **({"authorization": token} if token else {}))
        response = client.response()
        assert (response.status, response.headers["connection"]) == (401, "close"), (method, path)
        # It gets a moment to read the response, and is cut off.
        client.flood()
        client.close()


@pytest.mark.parametrize("token", ["", "Bearer hg_nobody"])
def test_endpoint_of_an_embedded_store_reads_no_body_of_a_stranger(
    made_sqlite_url: str, tmp_path: Path, token: str
) -> None:
    with Store(made_settings(made_sqlite_url, tmp_path)) as store:
        endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules)
        context = encode_prefix(parse_context("master"))
        try:
            connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=60)
            connection.putrequest("POST", f"/v1/{context}/namespaces")
            connection.putheader("content-length", "1000000")
            if token:
                connection.putheader("authorization", token)
            connection.endheaders()
            # The response arrives though none of the body was sent.
            assert connection.getresponse().status == 401
            connection.close()
        finally:
            endpoint.stop()


@pytest.mark.parametrize("length", ["1000000000000", "100"])
def test_stranger_that_announces_a_body_gets_its_answer_without_sending_it(
    served: Strangers, length: str
) -> None:
    for headers in ({}, {"expect": "100-continue"}):
        client = served.connect()
        client.head("POST", "/api/v1/load", content_length=length, **headers)
        assert client.response().status == 401
        client.wait_until_closed()


def test_pages_and_sockets_do_not_read_what_a_stranger_sends(served: Strangers) -> None:
    sent = [("GET", path, 303) for path in PAGES]
    sent += [("POST", f"{SOCKETS}polling&sid=x", 401), ("GET", f"{SOCKETS}polling", 303)]
    sent += [
        ("POST", markup.SIGN_OUT, 303),
        ("POST", markup.SIGN_IN, 413),
        ("GET", "/healthz", 200),
    ]
    for method, path, status in sent:
        client = served.connect()
        client.chunked(method, path)
        response = client.response()
        assert (response.status, response.headers["connection"]) == (status, "close"), path
        client.flood()


# Sizes


@pytest.mark.parametrize(
    ("method", "path", "most"),
    [
        ("POST", "/api/v1/datasets", 16 * 1024**2),
        ("POST", "/api/v1/load", 16 * 1024**2),
        ("POST", f"/iceberg/v1/{_PREFIX}/namespaces", 16 * 1024**2),
        ("PUT", f"/api/v1/contents/{'0' * 64}", LIMITS["upload_bytes"]),
        ("POST", "/login", 8 * 1024),
        ("POST", TOKEN_PATH, 8 * 1024),
    ],
)
def test_body_over_its_limit_is_refused_announced_or_not(
    served: Strangers, method: str, path: str, most: int
) -> None:
    headers = {"authorization": served.bearer("writer"), "content_type": "application/json"}
    announced = served.connect()
    announced.head(method, path, content_length=str(most + 1), **headers)
    assert announced.response().status == 413
    unannounced = served.connect()
    unannounced.head(method, path, transfer_encoding="chunked", **headers)
    refused = threading.Event()

    def send() -> None:
        assert unannounced.flood() < most + 16 * 1024**2
        refused.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert unannounced.response().status == 413
    sender.join()
    assert refused.is_set()


def test_headers_over_their_limit_are_refused(served: Strangers) -> None:
    for data in (b"x" * 8192, b"x: y\r\n" * 2000):
        client = served.connect()
        client.send(b"GET /healthz HTTP/1.1\r\nx: ")
        assert client.flood(data) < 16 * 1024**2
    trailers = served.connect()
    trailers.head(
        "PUT",
        f"/api/v1/contents/{'0' * 64}",
        transfer_encoding="chunked",
        authorization=served.bearer("writer"),
    )
    trailers.send(b"1\r\nx\r\n0\r\n")
    assert trailers.flood(b"x: y\r\n" * 2000) < 16 * 1024**2


# Time


def test_connections_that_do_not_go_on_are_closed(served: Strangers) -> None:
    silent, half, blank, idle = (served.connect() for _ in range(4))
    half.send(b"GET /healthz HTTP/1.1\r\nHost: ")
    idle.head("GET", "/healthz")
    assert idle.response().status == 200
    ends = threading.Event()

    def trickle() -> None:
        while not ends.wait(0.1):
            for client, byte in ((half, b"x"), (blank, b"\n")):
                try:
                    client.send(byte)
                except OSError:
                    continue

    trickler = threading.Thread(target=trickle)
    trickler.start()
    try:
        for client in (silent, half, blank, idle):
            client.wait_until_closed()
    finally:
        ends.set()
        trickler.join()


def test_bodies_that_trickle_are_refused(served: Strangers) -> None:
    bearer = served.bearer("writer")
    upload, document, form, credential = clients = [served.connect() for _ in range(4)]
    upload.head("PUT", f"/api/v1/contents/{'0' * 64}", content_length="999", authorization=bearer)
    document.head("POST", "/api/v1/load", content_length="999", authorization=bearer)
    form.head("POST", "/login", content_length="999")
    credential.head("POST", TOKEN_PATH, content_length="999")
    for _ in range(100):
        for client in clients:
            try:
                client.send(b"x")
            except OSError:
                continue
        if not any(client.is_open() for client in clients):
            break
        time.sleep(0.1)
    answers = [client.response() for client in (upload, document, form)]
    assert [(answer.status, answer.code) for answer in answers] == [(408, "body_timeout")] * 3
    assert credential.response().status == 408


def test_client_that_does_not_read_its_response_is_dropped(served: Strangers) -> None:
    with served.http("writer") as http:
        made = {"dataset": "raw.scans", "kind": "files"}
        assert http.post("/api/v1/datasets", json=made).status_code == 201
        where = "/api/v1/files/raw.scans/large?branch=master"
        http.put(where, content=b"x" * LIMITS["upload_bytes"]).raise_for_status()
    reader = served.connect(receive_buffer=4096)
    reader.head("GET", where, authorization=served.bearer("reader"))
    # Many small responses to a client that reads none, before it has a token.
    stranger = served.connect(receive_buffer=4096)
    stranger.send(b"GET /api/openapi.json HTTP/1.1\r\nHost: headgate\r\n\r\n" * 30)
    reader.wait_until_closed()
    stranger.wait_until_closed()


def test_pipeline_without_end_is_cut(served: Strangers) -> None:
    client = served.connect()
    assert client.flood(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" * 1000) < 16 * 1024**2


# Documents


def _objects(number: int) -> bytes:
    return b"{" + b",".join(b'"%d":0' % n for n in range(number)) + b"}"


@pytest.mark.parametrize(
    "rows",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"0" + b"}" * 100_000,
        b"[" * 1_000_000,
        _objects(1_000_000),
        _objects(240_000),
        b"[" + b"[]," * 5_000_000 + b"[]]",
        b"9" * 1_000_000,
        b'{"t":[{"x":NaN}]}',
        b'{"t":[{"x":-Infinity}]}',
        b'{"t":[{"x":1,"x":2}]}',
        b'{"t":[{"x":"\xff"}]}',
    ],
    ids=[
        *("arrays", "objects", "open", "keys", "wrong", "lists"),
        *("digits", "nan", "infinity", "twice", "utf"),
    ],
)
@pytest.mark.parametrize("where", ["api", "iceberg"])
def test_document_that_nobody_means_is_refused_and_stalls_nothing(
    served: Strangers, rows: bytes, where: str
) -> None:
    paths = {"api": "/api/v1/load", "iceberg": f"/iceberg/v1/{_PREFIX}/namespaces"}
    body = b'{"branch": "master", "rows": %s}' % rows
    ends, slowest = threading.Event(), [served.check_health()]

    def watch() -> None:
        while not ends.is_set():
            slowest.append(served.check_health())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with served.http("writer") as http:
            headers = {"content-type": "application/json"}
            replies = [http.post(paths[where], content=body, headers=headers) for _ in range(3)]
    finally:
        ends.set()
        watcher.join()
    if where == "api":
        told = {(reply.status_code, reply.json()["code"]) for reply in replies}
        assert told == {(400, "malformed_request")}, replies[0].text
    else:
        assert {reply.status_code for reply in replies} == {400}, replies[0].text
    assert max(slowest) < 10


# Connections


def _hold(served: Strangers, number: int, source: Callable[[int], str]) -> int:
    """Open connections that send half of a request; return how many the server keeps."""
    clients = []
    for n in range(number):
        client = served.connect(source(n))
        client.send(b"GET /healthz HTTP/1.1\r\nHost: ")
        clients.append(client)
    # Answered once the server has accepted all connections before.
    served.check_health()
    return sum(client.is_open() for client in clients)


@pytest.mark.parametrize(
    ("number", "source", "most"),
    [
        (30, lambda _: STRANGER, LIMITS["connections_per_address"]),
        (90, lambda n: f"127.0.1.{n + 1}", LIMITS["connections"]),
    ],
    ids=["one address", "many addresses"],
)
def test_stranger_that_holds_all_connections_keeps_out_nobody(
    served: Strangers, number: int, source: Callable[[int], str], most: int
) -> None:
    assert _hold(served, number, source) <= most
    for address in ("127.0.0.1", ANOTHER, STRANGER):
        served.check_health(address)
        with served.http("admin", source=address) as http:
            assert http.get("/api/v1/datasets").status_code == 200


def test_connection_with_a_token_is_never_replaced(served: Strangers) -> None:
    known = served.connect()
    for _ in range(3):
        known.head("GET", "/api/v1/tokens", authorization=served.bearer("admin"))
        assert known.response().status == 200
        _hold(served, 30, lambda _: STRANGER)
        _hold(served, 90, lambda n: f"127.0.1.{n + 1}")


def test_clients_with_tokens_that_hold_all_connections_leave_room_on_the_machine(
    served: Strangers,
) -> None:
    for n in range(LIMITS["connections"]):
        client = served.connect(f"127.0.2.{n + 1}")
        client.head("GET", "/api/v1/protected", authorization=served.bearer("reader"))
        assert client.response().status == 200
    refused = served.connect(ANOTHER).response()
    assert (refused.status, refused.code) == (503, "too_many_connections")
    served.check_health("127.0.0.1")


# Sign-in


def test_wrong_tokens_are_slowed_down_and_lock_out_nobody(served: Strangers) -> None:
    with served.http(source=STRANGER) as guesser, served.http(source=ANOTHER) as other:
        statuses = [_sign_in(guesser, f"hg_{n}") for n in range(10)]
        assert statuses == [401] * 10
        began = time.monotonic()
        assert _sign_in(guesser, "hg_more") == 429
        assert time.monotonic() - began >= 2
        assert _sign_in(other, "hg_other") == 401
        # Also from the guesser's address, which may be that of a proxy or an office.
        assert _sign_in(guesser, served.tokens["reader"]) == 303
        assert _sign_in(guesser, "hg_again") == 429


def _sign_in(http: httpx.Client, token: str) -> int:
    return http.post("/login", data={"token": token}).status_code


def test_wrong_credentials_are_slowed_down_and_lock_out_nobody(served: Strangers) -> None:
    with served.http(source=GUESSER) as guesser, served.http(source=ANOTHER) as other:
        assert [_issue(guesser, f"hg_{n}") for n in range(10)] == [401] * 10
        began = time.monotonic()
        assert _issue(guesser, "hg_more") == 429
        assert time.monotonic() - began >= 2
        # The form and this endpoint count together.
        assert _sign_in(guesser, "hg_form") == 429
        assert _issue(other, "hg_other") == 401
        assert _issue(guesser, served.tokens["reader"]) == 200


def _issue(http: httpx.Client, secret: str) -> int:
    form = {"grant_type": "client_credentials", "client_secret": secret}
    return http.post(TOKEN_PATH, data=form).status_code


# WebSockets


def test_socket_of_a_stranger_is_refused(served: Strangers) -> None:
    url = served.server.url.replace("http", "ws") + f"{SOCKETS}websocket"
    for cookie in ("", "headgate_session=tok-x.99999999999.abc"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, additional_headers={"cookie": cookie})


def test_socket_message_over_the_limit_ends_the_socket(served: Strangers) -> None:
    with served.http() as http:
        answer = http.post("/login", data={"token": served.tokens["reader"]})
    session = SimpleCookie(answer.headers["set-cookie"])["headgate_session"].OutputString([])
    url = served.server.url.replace("http", "ws") + f"{SOCKETS}websocket"
    with connect(url, additional_headers={"cookie": session}) as socket:
        assert str(socket.recv(timeout=60)).startswith("0{")
        socket.send("4" + "x" * 2 * 1024**2)
        with pytest.raises(ConnectionClosedError) as closed:
            while True:
                socket.recv(timeout=60)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
