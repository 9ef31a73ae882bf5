"""`headgate serve` and its tokens: a real server process, real clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, UnauthorizedError

from tests.support.shell import headgate_json

ROWS = pa.table({"id": [1, 2]})


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _serving(root: Path) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """A server on a store of its own: its URL, its first token, its process."""
    port = _free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "serve", "--port", str(port), "--json"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        _await(f"http://127.0.0.1:{port}/healthz")
        yield told["url"], told["token"], process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def _await(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            assert httpx.get(url).status_code == 200
            return
        except httpx.ConnectError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)


def _client(url: str, token: str, context: str) -> RestCatalog:
    return RestCatalog("headgate", uri=url, warehouse=context, token=token)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    headgate_json("init", cwd=tmp_path)
    return tmp_path


def test_serve_first_start_gives_one_admin_token_that_works(root: Path) -> None:
    with _serving(root) as (url, token, process):
        client = _client(url, token, "master")
        client.create_namespace("shop")
        client.create_table("shop.a", ROWS.schema).append(ROWS)
        assert client.load_table("shop.a").scan().to_arrow().num_rows == 2
        ready = httpx.get(url.replace("/iceberg", "/readyz")).json()
        assert ready["ok"] is True
    assert process.returncode == 0
    with _serving(root) as (_, second, _process):
        assert second is None


def test_serve_reader_and_pattern_bound_what_is_written(root: Path) -> None:
    with _serving(root) as (url, admin, _):
        _client(url, admin, "master").create_namespace("shop")
        _client(url, admin, "master").create_table("shop.a", ROWS.schema)
        words = ("token", "create", "--role")
        reader = headgate_json(*words, "reader", "--actor", "rita", cwd=root)["token"]
        writer = headgate_json(
            *words, "writer", "--actor", "walt", "--branches", "walt/*", cwd=root
        )["token"]

        assert _client(url, reader, "master").load_table("shop.a").name() == ("shop", "a")
        with pytest.raises(ForbiddenError):
            _client(url, reader, "master").load_table("shop.a").append(ROWS)
        with pytest.raises(ForbiddenError):
            _client(url, writer, "master").load_table("shop.a").append(ROWS)
        _client(url, writer, "walt/try>master").load_table("shop.a").append(ROWS)
    log = headgate_json("log", "--actor", "walt", cwd=root)
    assert {move["branch"] for entry in log for move in entry["moves"]} == {"walt/try"}


def test_serve_revoked_expired_and_unknown_tokens_are_refused(root: Path) -> None:
    with _serving(root) as (url, _, _process):
        made = headgate_json("token", "create", "--role", "admin", "--actor", "ana", cwd=root)
        short = headgate_json(
            "token", "create", "--role", "admin", "--actor", "bo", "--expires", "1s", cwd=root
        )
        assert _client(url, made["token"], "master").list_namespaces() == []
        headgate_json("token", "revoke", made["id"], cwd=root)
        time.sleep(1.1)
        for secret in (made["token"], short["token"], "hg_nobody"):
            with pytest.raises((ForbiddenError, UnauthorizedError)):
                _client(url, secret, "master").list_namespaces()
    listed = headgate_json("token", "list", cwd=root)
    assert made["token"] not in json.dumps(listed)


def test_serve_client_cannot_make_the_server_read_a_file(root: Path) -> None:
    with _serving(root) as (url, admin, _):
        client = _client(url, admin, "master")
        client.create_namespace("shop")
        with pytest.raises(Exception, match="dataset register"):
            client.register_table("shop.stolen", "file:///etc/passwd")
