"""Invalid arguments are rejected in Python too, embedded and remote, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import headgate
from headgate.errors import Invalid, NotFound


@pytest.mark.parametrize("seconds", [0, -1, 7 * 24 * 3600 + 1, 10**30])
def test_lease_is_a_second_to_a_week(hg: headgate.Store, seconds: int) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with pytest.raises(Invalid, match="lease"):
        master.transaction(lease_seconds=seconds)
    with pytest.raises(Invalid, match="lease"):
        hg.transaction(branch="master", lease_seconds=seconds)
    assert not master.load().is_open


def test_text_in_place_of_bytes_is_refused_with_what_to_do(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with pytest.raises(Invalid, match="encode"), master.transaction() as transaction:
        transaction.write("a.txt", "text")  # type: ignore[arg-type]


@pytest.mark.parametrize("branches", ["", [], ",", ["ana/*", ""], ["a\nb"]])
def test_token_without_a_branch_that_it_may_write_is_refused(
    hg: headgate.Store, branches: str | list[str]
) -> None:
    before = len(hg.tokens())
    with pytest.raises(Invalid, match="branch"):
        hg.create_token(actor="bo", role="writer", branches=branches)
    assert len(hg.tokens()) == before


def test_token_takes_branches_as_a_list_or_as_one_text(hg: headgate.Store) -> None:
    listed = hg.create_token(actor="bo", role="writer", branches=["bo/*", "try/*"])
    written = hg.create_token(actor="bo", role="writer", branches="bo/*,try/*")
    assert listed["branches"] == written["branches"] == ["bo/*", "try/*"]
    assert hg.create_token(actor="bo", role="reader")["branches"] == ["*"]


def test_token_of_somebody_or_some_role_that_cannot_be_is_refused(hg: headgate.Store) -> None:
    with pytest.raises(Invalid, match="reader, writer, admin"):
        hg.create_token(actor="bo", role="owner")
    with pytest.raises(Invalid, match="printable"):
        hg.create_token(actor="b\no", role="reader")


def test_build_of_nothing_or_on_names_that_cannot_be_is_refused(hg: headgate.Store) -> None:
    for wrong in (
        {"targets": [], "branch": "master"},
        {"targets": ["a.b"], "branch": "bad name"},
        {"targets": ["a.b"], "branch": "feature", "fallback": ["bad name"]},
        {"targets": ["a.b"], "branch": "master", "retries": -1},
        {"targets": ["a.b"], "branch": "master", "wait_seconds": -1},
    ):
        with pytest.raises(Invalid):
            hg.build(wrong.pop("targets"), **wrong)  # type: ignore[arg-type]
    assert hg.builds() == []


def test_list_of_less_than_nothing_or_of_an_unknown_kind_is_refused(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    for listing in (hg.publications, hg.events, hg.builds, master.history):
        for limit in (-1, 2**70):
            with pytest.raises(Invalid):
                listing(limit=limit)
    with pytest.raises(Invalid):
        hg.events(skip=-1)
    for rows in (-1, 2**70):
        with pytest.raises(Invalid):
            hg.dataset("raw.scans").show(rows=rows)
    with pytest.raises(Invalid, match="commit"):
        hg.publications(kind="comit")
    assert len(hg.publications(kind="create")) == 1


def test_actor_that_a_terminal_would_obey_is_refused(place: Path) -> None:
    with pytest.raises(Invalid, match="printable"):
        headgate.open(place, actor="a\x1b[31m")
    with pytest.raises(Invalid, match="printable"):
        headgate.open(place, environ={"HEADGATE_ACTOR": "a\nb"})


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 201])
def test_key_that_a_terminal_or_a_header_would_obey_is_refused(
    hg: headgate.Store, key: str
) -> None:
    with pytest.raises(Invalid, match="idempotency key"):
        hg.mutate("master", "delete from a.b", idempotency_key=key)
    with pytest.raises(Invalid, match="idempotency key"):
        hg.load("master", {"a.b": [{"id": 1}]}, idempotency_key=key)


@pytest.mark.parametrize("text", ["\udce9", "a\0b"], ids=ascii)
def test_text_that_is_none_is_refused_or_found_nowhere(hg: headgate.Store, text: str) -> None:
    scans = hg.dataset("raw.scans")
    scans.create(kind="files")
    asked: list[Callable[[], object]] = [
        lambda: hg.status(text)["state"] != "not_found",
        lambda: list(hg.publications(actor=text)),
        lambda: list(hg.publications(branch=text)),
        lambda: hg.jobspecs(branch=text),
        lambda: hg.build_record(text),
        lambda: hg.revoke_token(text),
        lambda: scans.branch(text).load(),
        lambda: scans.branch("master").read(text),
        lambda: hg.mutate("master", text),
    ]
    for ask in asked:
        with suppress(Invalid, NotFound):
            assert not ask()
