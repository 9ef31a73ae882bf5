"""`headgate serve` and its tokens: a real server process, real clients."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, UnauthorizedError

from tests.support.serving import serving
from tests.support.shell import headgate_json

ROWS = pa.table({"id": [1, 2]})


def _client(url: str, token: str, context: str) -> RestCatalog:
    return RestCatalog("headgate", uri=url, warehouse=context, token=token)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    headgate_json("init", cwd=tmp_path)
    return tmp_path


def test_serve_first_start_gives_one_admin_token_that_works(root: Path) -> None:
    with serving(root) as (url, token, process):
        client = _client(url, token, "master")
        client.create_namespace("shop")
        client.create_table("shop.a", ROWS.schema).append(ROWS)
        assert client.load_table("shop.a").scan().to_arrow().num_rows == 2
        ready = httpx.get(url.replace("/iceberg", "/readyz"), timeout=60).json()
        assert ready["ok"] is True
        # The API returns JSON errors also for paths that the pages do not know.
        api = url.replace("/iceberg", "/api/v1")
        missing, wrong = (
            httpx.get(f"{api}/nothing", timeout=60),
            httpx.get(f"{api}/mutate", timeout=60),
        )
        assert (missing.status_code, missing.json()["code"]) == (404, "no_such_route")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert process.returncode == 0
    with serving(root) as (_, second, _process):
        assert second is None


def test_serve_reader_and_pattern_bound_what_is_written(root: Path) -> None:
    with serving(root) as (url, admin, _):
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
    with serving(root) as (url, _, _process):
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
    with serving(root) as (url, admin, _):
        client = _client(url, admin, "master")
        client.create_namespace("shop")
        # The client obeys the server's configuration, and sends no request.
        with pytest.raises(NotImplementedError, match="register"):
            client.register_table("shop.stolen", "file:///etc/passwd")
