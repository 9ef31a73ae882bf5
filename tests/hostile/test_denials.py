"""Denied requests fill neither the catalog nor the memory, and are counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import CatalogUnavailable, RoleDenied
from headgate.model.access import Grant, Role
from headgate.server import authorization
from headgate.server.authorization import Authority
from headgate.store.embedded import Store
from tests.support.cli import new_cli
from tests.support.stores import new_settings, new_store


class Clock:
    """The clock of the server, which a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(authorization, "time", made)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(f"sqlite:///{tmp_path}/catalog.db", tmp_path) as made:
        yield made


def _deny(
    authority: Authority,
    *,
    actor: str = "rea",
    token: str = "tok-1",
    operation: str = "put_file",
    branch: str = "b",
) -> None:
    denied = RoleDenied(actor=actor, role="reader", right="write")
    grant = Grant(actor=actor, role=Role.READER, token=token)
    authority.note(grant, operation, denied, branch=branch)


def _events(store: Store) -> list[tuple[str, str, int]]:
    found = store.events(kind="refused", limit=1000)
    return [(event["actor"], event["wanted"], event["count"]) for event in found]


def test_denials_of_one_rule_are_one_event_an_hour_with_their_number(
    store: Store, clock: Clock
) -> None:
    authority = Authority(store.database)
    for number in range(500):
        clock.seconds = number
        _deny(authority, branch=f"made-up-{number}")
    assert _events(store) == [("rea", "put_file", 1)]
    authority.flush()
    assert _events(store) == [("rea", "put_file", 500)]
    clock.seconds = 3599
    _deny(authority)
    clock.seconds = 3600
    _deny(authority)
    _deny(authority)
    authority.flush()
    assert sorted(_events(store)) == [("rea", "put_file", 2), ("rea", "put_file", 501)]


def test_other_actors_tokens_and_operations_have_events_of_their_own(
    store: Store, clock: Clock
) -> None:
    authority = Authority(store.database)
    for _ in range(3):
        _deny(authority)
        _deny(authority, actor="walt")
        _deny(authority, token="tok-2")
        _deny(authority, operation="create_branch")
    authority.flush()
    assert sorted(_events(store)) == [
        ("rea", "create_branch", 3),
        ("rea", "put_file", 3),
        ("rea", "put_file", 3),
        ("walt", "put_file", 3),
    ]
    events = store.events(kind="refused", limit=10)
    assert {event["token"] for event in events} == {"tok-1", "tok-2"}


def test_counters_are_bounded_and_a_dropped_one_is_written_first(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "_REMEMBERED", 10)
    authority = Authority(store.database)
    for actor in range(30):
        for _ in range(2):
            _deny(authority, actor=f"a{actor:02}")
    assert len(authority._noted) == 10
    authority.flush()
    assert {count for _, _, count in _events(store)} == {2} and len(_events(store)) == 30


def test_denial_that_cannot_be_recorded_is_no_error_and_the_next_one_is(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(store.database)
    with monkeypatch.context() as broken:

        def fail(_: object) -> None:
            raise CatalogUnavailable(where="here", reason="it is away")

        broken.setattr(store.database, "write", fail)
        _deny(authority)
        authority.flush()
    assert _events(store) == []
    _deny(authority)
    assert _events(store) == [("rea", "put_file", 1)]


def test_log_lists_denials_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = new_cli(tmp_path, monkeypatch, capsys)
    cli.ok("init")
    settings = new_settings(f"sqlite:///{tmp_path}/.headgate/catalog.db", tmp_path)
    with Store(settings) as store:
        authority = Authority(store.database)
        for _ in range(1200):
            _deny(authority)
        authority.flush()
    [event] = cli.json("log", "--events", "--kind", "refused")
    assert (event["actor"], event["wanted"], event["count"]) == ("rea", "put_file", 1200)
    assert "put_file (role_denied, 1,200 times)" in cli.ok("log", "--events").out
    assert cli.error("log", "--events", "--recoveries", code=2) == "invalid"
