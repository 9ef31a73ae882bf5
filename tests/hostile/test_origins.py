"""The socket of the pages admits pages of the server's own origin, and of no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headgate.cli.main import run
from tests.support.site import serving

PUBLIC = "https://headgate.example"
_HANDSHAKE = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, httpx.Cookies]]:
    """A server with a declared public URL, and the cookie of a signed-in visitor."""
    root: Path = tmp_path_factory.mktemp("served")
    assert run(["init", str(root)]) == 0
    with serving(root, "--public-url", PUBLIC) as (url, token, _):
        signed_in = httpx.post(f"{url}/login", data={"token": token}, timeout=60)
        assert signed_in.status_code == 303
        yield url, signed_in.cookies


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://127.0.0.1:1",
        "http://localhost",
        "null",
        "https://headgate.example.evil.example",
        "https://evil.example/?https://headgate.example",
    ],
)
def test_page_of_another_origin_is_refused_with_its_visitors_cookie(
    server: tuple[str, httpx.Cookies], origin: str
) -> None:
    url, cookies = server
    forwarded = {"x-forwarded-host": origin.partition("//")[2], "x-forwarded-proto": "https"}
    for more in ({}, forwarded):
        headers = {"origin": origin, **more}
        reply = httpx.get(f"{url}{_HANDSHAKE}", cookies=cookies, headers=headers, timeout=60)
        assert reply.status_code == 400, reply.text
        assert "access-control-allow-origin" not in reply.headers
        asked = httpx.options(f"{url}{_HANDSHAKE}", headers=headers, timeout=60)
        assert "access-control-allow-origin" not in asked.headers


def test_own_page_connects_directly_and_through_a_proxy(server: tuple[str, httpx.Cookies]) -> None:
    url, cookies = server
    host = url.partition("//")[2]
    for headers in (
        {},
        {"origin": url},
        {"origin": f"https://{host}", "x-forwarded-proto": "https"},
        {"origin": PUBLIC},
    ):
        reply = httpx.get(f"{url}{_HANDSHAKE}", cookies=cookies, headers=headers, timeout=60)
        assert reply.status_code == 200 and '"sid"' in reply.text, (headers, reply.text)


def test_sign_in_is_accepted_from_the_public_url(server: tuple[str, httpx.Cookies]) -> None:
    url, _ = server
    form = {"token": "hg_unknown"}
    statuses = [
        httpx.post(f"{url}/login", data=form, headers={"origin": origin}, timeout=60).status_code
        for origin in (PUBLIC, url, "https://evil.example")
    ]
    assert statuses == [401, 401, 403]


@pytest.mark.parametrize("value", ["headgate.example", "ftp://x", "https://a@b", "https://a/b"])
def test_public_url_that_is_not_an_origin_is_refused(
    tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["serve", "--public-url", value]) == 2
