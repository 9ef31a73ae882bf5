"""Limits of the API, without a network: a request that is too slow gets an error response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.errors import Invalid, Unavailable
from headgate.server.limits import Gate, Visitors
from headgate.settings import ServerSettings, load_settings

QUICK = ServerSettings(answer_seconds=0.2, stall_seconds=0.05)
SMALL = ServerSettings(document_bytes=10)


async def _reads_then_answers(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def _sleeps(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(1)
    await _reads_then_answers(scope, receive, send)


def _ask(
    app: ASGIApp,
    *,
    body: Sequence[bytes] = (b"",),
    ends: bool = True,
    path: str = "/api/v1/x",
    limits: ServerSettings = QUICK,
    is_valid: Callable[[str], bool] = lambda token: token == "t",
) -> tuple[int, str, int]:
    """Return the status, error code and number of responses of one request."""
    sent: list[Message] = []
    parts = [
        {"type": "http.request", "body": part, "more_body": not ends or n < len(body) - 1}
        for n, part in enumerate(body)
    ]

    async def receive() -> Message:
        if parts:
            return parts.pop(0)
        await asyncio.sleep(5)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        headers = [(b"authorization", b"Bearer t"), (b"transfer-encoding", b"chunked")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await Gate(app, limits, Visitors(is_valid))(scope, receive, send)
        # The abandoned handler ends by itself, and its response is dropped.
        await asyncio.sleep(1.5 if app is _sleeps else 0)

    asyncio.run(run())
    starts = [m for m in sent if m["type"] == "http.response.start"]
    text = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    return starts[0]["status"], json.loads(text).get("code", ""), len(starts)


def test_answer_in_time_passes() -> None:
    assert _ask(_reads_then_answers, limits=ServerSettings()) == (200, "", 1)


def test_answer_that_does_not_come_is_told_once_and_what_comes_later_is_dropped() -> None:
    assert _ask(_sleeps) == (504, "no_answer_in_time", 1)


def test_body_that_does_not_go_on_is_refused() -> None:
    patient = ServerSettings(answer_seconds=60, stall_seconds=0.05)
    asked = _ask(_reads_then_answers, body=[b"x"], ends=False, limits=patient)
    assert asked == (408, "body_timeout", 1)


def test_body_that_grows_over_the_limit_is_refused() -> None:
    assert _ask(_reads_then_answers, body=[b"x" * 6, b"x" * 6], limits=SMALL) == (
        413,
        "too_large",
        1,
    )


def test_token_that_cannot_be_checked_is_neither_refused_nor_believed() -> None:
    def down(token: str) -> bool:
        raise Unavailable("the catalog does not respond.")

    assert _ask(_reads_then_answers, is_valid=down) == (503, "unavailable", 1)


def test_stranger_has_an_empty_body_and_then_is_gone() -> None:
    received: list[Message] = []

    async def listens(scope: Scope, receive: Receive, send: Send) -> None:
        received.extend([await receive(), await receive()])
        await _reads_then_answers(scope, receive, send)

    asked = _ask(listens, body=[b"secret"], ends=False, is_valid=lambda _: False)
    assert asked == (200, "", 1)
    assert [(one["type"], one.get("body")) for one in received] == [
        ("http.request", b""),
        ("http.disconnect", None),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("connections = 0", "server.connections is 0; it must be a whole number above 0"),
        ("connections = 1.5", "server.connections is 1.5; it must be a whole number"),
        ("stall_seconds = -1", "server.stall_seconds is -1; it must be a number of seconds"),
        ('idle_seconds = "long"', "server.idle_seconds must be a number, not 'long'"),
        ("connection = 5", "key server.connection is unknown. Did you mean 'connections'"),
    ],
)
def test_limit_that_is_none_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(f"[server]\n{line}\n")
    with pytest.raises(Invalid, match=problem):
        load_settings(tmp_path, {})


def test_limits_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text("[server]\nconnections = 7\nheader_seconds = 0.5\n")
    found = load_settings(tmp_path, {"HEADGATE_SERVER_UPLOAD_BYTES": "1000"}).server
    assert found == ServerSettings(connections=7, header_seconds=0.5, upload_bytes=1000)


def test_path_outside_the_api_is_left_alone() -> None:
    assert _ask(_sleeps, path="/iceberg/v1/config") == (200, "", 1)
