"""A session cookie names a token, cannot be forged, and expires."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.server.web.sessions import LIFETIME_SECONDS, Sessions, load_key

KEY = b"k" * 32


def test_session_that_was_issued_names_its_token_until_it_ends() -> None:
    sessions = Sessions(KEY)
    cookie = sessions.issue("tok-1", now=1000)
    assert sessions.read(cookie, now=1000 + LIFETIME_SECONDS - 1) == "tok-1"
    assert sessions.read(cookie, now=1000 + LIFETIME_SECONDS) is None


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: c.replace("tok-1", "tok-2"),
        lambda c: c.replace(".44200.", ".99999."),
        lambda c: c[:-1] + ("0" if c[-1] != "0" else "1"),
        lambda c: c.rsplit(".", 1)[0],
        lambda c: c + "ä",
        lambda c: "",
        lambda c: None,
    ],
)
def test_session_that_was_changed_is_nobodys(forge: object) -> None:
    sessions = Sessions(KEY)
    cookie = sessions.issue("tok-1", now=1000)
    assert callable(forge)
    assert sessions.read(forge(cookie), now=1001) is None


def test_session_of_another_server_is_nobodys() -> None:
    cookie = Sessions(b"other" * 8).issue("tok-1")
    assert Sessions(KEY).read(cookie) is None


def test_load_key_makes_one_that_only_its_user_reads_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pages.key"
    key = load_key(path)
    assert load_key(path) == key and len(key) == 32
    assert path.stat().st_mode & 0o077 == 0
    assert [found.name for found in path.parent.iterdir()] == ["pages.key"]
