"""PostgreSQL fails in the middle of a publication, or at its COMMIT: no write is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from headgate.catalog.log import list_publications
from headgate.catalog.recovery import list_intents
from headgate.cli.main import run
from headgate.errors import (
    CatalogUnavailable,
    CommitInterrupted,
    HeadgateError,
    OutcomeUnknown,
    Unavailable,
)
from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.tasks.messages import Status
from headgate.testing.failpoints import calling_at
from tests.support.api import Api
from tests.support.broken_socket import breaking_at
from tests.support.iceberg import Front
from tests.support.lakefs_tasks import NEW, Place, lakefs_place
from tests.support.oracle import assert_store_sound
from tests.support.postgres import PostgresServer
from tests.support.proxy import Cut, Proxy, proxy_before
from tests.support.stores import (
    DATASET,
    content,
    expire_leases,
    files_branch,
    new_settings,
    publish_files,
    put,
)

_OLD = {"a": "1"}
_NEW = {"a": "1", "b": "2"}


@contextmanager
def _proxied(url: str, root: Path) -> Iterator[tuple[Proxy, Store, Settings]]:
    """Yield the proxy, a store behind it, and the settings that connect directly."""
    direct = new_settings(url, root)
    with Store(direct) as store:
        put(files_branch(store), **_OLD)
    with proxy_before(make_url(url).port or 5432) as proxy:
        through = make_url(url).set(port=proxy.port).render_as_string(hide_password=False)
        with Store(replace(direct, catalog=through)) as store:
            yield proxy, store, direct


def _cut(proxy: Proxy, cut: Cut, *, for_good: bool = False) -> None:
    proxy.cut, proxy.refusing = cut, for_good


@pytest.fixture(autouse=True)
def _no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer go on beside one of the same process that is paused."""
    monkeypatch.setattr("headgate.files.edits.TURN_SECONDS", 0.1)


def _publish(store: Store) -> None:
    put(store.dataset(DATASET).branch("master"), b="2")


def test_commit_that_never_arrived_is_reported_as_not_done(
    postgres_url: str, tmp_path: Path
) -> None:
    with _proxied(postgres_url, tmp_path) as (proxy, store, _):
        with (
            calling_at(Failpoint.PUBLISH_APPLIED, lambda: _cut(proxy, Cut.BEFORE)),
            pytest.raises(CatalogUnavailable, match="nothing was changed") as refused,
        ):
            _publish(store)
        assert refused.value.retryable
        assert content(store.dataset(DATASET).branch("master")) == _OLD
        _publish(store)
        assert_store_sound(store)


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.LATE])
def test_commit_whose_answer_was_lost_is_found_and_reported_as_done(
    postgres_url: str, tmp_path: Path, cut: Cut
) -> None:
    """Includes a commit that is still in flight when the store searches for it."""
    with _proxied(postgres_url, tmp_path) as (proxy, store, _):
        with calling_at(Failpoint.PUBLISH_APPLIED, lambda: _cut(proxy, cut)):
            _publish(store)
        newest = store.database.read(lambda c: list_publications(c, limit=1))[0]
        assert newest.number == 3
        assert content(store.dataset(DATASET).branch("master")) == _NEW
        assert_store_sound(store)


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_commit_after_which_nobody_can_be_asked_is_unknown(
    postgres_url: str, tmp_path: Path, cut: Cut
) -> None:
    with _proxied(postgres_url, tmp_path) as (proxy, store, direct):
        with (
            calling_at(Failpoint.PUBLISH_APPLIED, lambda: _cut(proxy, cut, for_good=True)),
            pytest.raises(OutcomeUnknown) as unknown,
        ):
            _publish(store)
        assert isinstance(unknown.value, Unavailable) and not unknown.value.retryable
        with Store(direct) as looking:
            newest = looking.database.read(lambda c: list_publications(c, limit=1))[0]
            landed = newest.operation == unknown.value.facts["operation"]
            assert landed is (cut is Cut.AFTER)
            assert content(looking.dataset(DATASET).branch("master")) == (_NEW if landed else _OLD)
            assert_store_sound(looking)


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_opening_cut_at_its_commit_says_that_it_may_have_happened(
    postgres_url: str, tmp_path: Path, cut: Cut
) -> None:
    with _proxied(postgres_url, tmp_path) as (proxy, store, _):
        master = store.dataset(DATASET).branch("master")
        with (
            calling_at(Failpoint.OPEN_APPLIED, lambda: _cut(proxy, cut)),
            pytest.raises(CommitInterrupted, match="may or may not") as unknown,
        ):
            master.transaction()
        assert isinstance(unknown.value, HeadgateError)
        assert master.load().is_open is (cut is Cut.AFTER)
        expire_leases(store)
        assert_store_sound(store)


@contextmanager
def _behind_proxy(place: Place) -> Iterator[tuple[Proxy, Store]]:
    """Yield the proxy, and the owner's store, whose catalog is behind it."""
    url = make_url(place.settings.catalog)
    with proxy_before(url.port or 5432, _is_commit) as proxy:
        through = url.set(port=proxy.port).render_as_string(hide_password=False)
        with Store(replace(place.settings, catalog=through)) as store:
            yield proxy, store


def _is_commit(data: bytes) -> bool:
    """Return True for COMMIT; BEGIN with READ COMMITTED must pass."""
    return b"COMMIT" in data.replace(b"COMMITTED", b"")


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_lakefs_move_is_neither_undone_nor_doubled_when_its_record_is_unknown(
    postgres_url: str, tmp_path: Path, cut: Cut
) -> None:
    with lakefs_place(postgres_url, tmp_path) as place:
        with _behind_proxy(place) as (proxy, owner):
            gone = calling_at(Failpoint.INTENT_EFFECT_DONE, lambda: _cut(proxy, cut, for_good=True))
            with gone:
                _, done = place.attempt(owner, NEW)
        assert done.status is Status.FAILED
        with place.open() as store:
            made = place.head(store)
            pending = [intent.operation for intent in store.database.read(list_intents)]
            assert len(pending) == (cut is Cut.BEFORE)
            expire_leases(store)
            assert store.recover().rolled_forward == pending
            assert (place.head(store), place.files(store)) == (made, {**_OLD, **NEW})
            assert place.maker(store, made) is not None
            assert_store_sound(store)


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_lakefs_move_is_recorded_when_the_answer_of_its_commit_was_lost(
    postgres_url: str, tmp_path: Path, cut: Cut
) -> None:
    with lakefs_place(postgres_url, tmp_path) as place, _behind_proxy(place) as (proxy, owner):
        with calling_at(Failpoint.INTENT_EFFECT_DONE, lambda: _cut(proxy, cut)):
            attempt = place.work(owner, NEW)
        assert owner.database.read(list_intents) == []
        assert place.maker(owner, place.head(owner)) == attempt.ref
        assert_store_sound(owner)


def test_server_killed_in_the_middle_of_a_publication_loses_nothing(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    settings = new_settings(own_postgres.database_url(own_postgres.create_database()), tmp_path)
    with Store(settings) as store:
        put(files_branch(store), **_OLD)
        with (
            calling_at(Failpoint.PUBLISH_LOCKED, own_postgres.kill),
            pytest.raises(CatalogUnavailable),
        ):
            _publish(store)
        with pytest.raises(CatalogUnavailable):
            _publish(store)
        own_postgres.restart()
        assert content(store.dataset(DATASET).branch("master")) == _OLD
        with (
            calling_at(Failpoint.PUBLISH_APPLIED, own_postgres.kill),
            pytest.raises(OutcomeUnknown),
        ):
            _publish(store)
        own_postgres.restart()
        assert content(store.dataset(DATASET).branch("master")) == _OLD
        with (
            calling_at(Failpoint.PUBLISH_APPLIED, lambda: _bounce(own_postgres)),
            pytest.raises(CatalogUnavailable, match="nothing was changed"),
        ):
            _publish(store)
        _publish(store)
        with calling_at(Failpoint.PUBLISH_COMMITTED, lambda: _bounce(own_postgres)):
            put(store.dataset(DATASET).branch("master"), c="3")
        assert content(store.dataset(DATASET).branch("master")) == {**_NEW, "c": "3"}
        assert_store_sound(store)


def test_socket_that_breaks_at_any_wait_of_a_publication_is_told_and_forgotten(
    postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is that of an unavailable catalog, not of a damaged one; nothing else is logged."""
    with Store(new_settings(postgres_url, tmp_path)) as store:
        master = files_branch(store)
        shown, refused = content(master), 0
        for wait in count():
            new = {f"f{wait}": "x"}
            with breaking_at(wait) as waits:
                try:
                    publish_files(master, **new)
                    shown |= new
                except CatalogUnavailable:
                    refused += 1
            assert content(master) == shown
            if not waits.broken:
                break
        assert refused > 0 < len(shown)
        assert [record.getMessage() for record in caplog.records] == []
        assert_store_sound(store)


def _bounce(server: PostgresServer) -> None:
    server.kill()
    server.restart()


def _with_options(settings: Settings, options: str) -> Settings:
    url = make_url(settings.catalog).update_query_dict({"options": options})
    return replace(settings, catalog=url.render_as_string(hide_password=False))


def test_paused_owner_of_locks_loses_its_session_and_the_others_go_on(
    postgres_url: str, tmp_path: Path
) -> None:
    direct = new_settings(postgres_url, tmp_path)
    with Store(direct) as other:
        put(files_branch(other), **_OLD)
        hasty = _with_options(direct, "-c idle_in_transaction_session_timeout=2000")
        with Store(hasty) as paused:
            master = other.dataset(DATASET).branch("master")
            waiting = calling_at(Failpoint.PUBLISH_LOCKED, lambda: _publish_other(other))
            with waiting, pytest.raises(CatalogUnavailable):
                _publish(paused)
            assert content(master) == {"a": "1", "c": "3"}
            _publish(paused)
        assert content(master) == {**_NEW, "c": "3"}
        assert_store_sound(other)


def _publish_other(store: Store) -> None:
    put(store.dataset(DATASET).branch("master"), c="3")


def test_lock_that_nobody_gives_back_is_reported_after_its_time(
    postgres_url: str, tmp_path: Path
) -> None:
    direct = new_settings(postgres_url, tmp_path)
    with Store(direct) as holding:
        put(files_branch(holding), **_OLD)
        with Store(_with_options(direct, "-c lock_timeout=200")) as waiting:

            def knock() -> None:
                with pytest.raises(CatalogUnavailable, match="lock timeout"):
                    _publish_other(waiting)

            with calling_at(Failpoint.PUBLISH_LOCKED, knock):
                _publish(holding)
        assert content(holding.dataset(DATASET).branch("master")) == _NEW


def test_session_has_an_end_to_idling_in_a_transaction(postgres_url: str, tmp_path: Path) -> None:
    with Store(new_settings(postgres_url, tmp_path)) as store:
        shown = store.database.read(
            lambda c: c.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        )
        assert shown == "1min"


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_reply_that_cannot_be_read_after_a_publication_is_an_unknown_outcome(
    postgres_url: str, tmp_path: Path, front: Front, cut: Cut
) -> None:
    """A client that is told "does not respond" would repeat a change that has happened."""
    with _proxied(postgres_url, tmp_path) as (proxy, store, direct):
        api = Api(store, front)
        admin = api.admin
        with calling_at(Failpoint.PUBLISH_COMMITTED, lambda: _cut(proxy, cut, for_good=True)):
            body = {"dataset": DATASET, "name": "made", "parent": "master"}
            reply = admin.call("POST", "/branches", json=body)
        assert (reply.status_code, reply.json()["code"]) == (503, "outcome_unknown"), reply.text
        # A request that has published nothing is refused as before.
        refused = admin.call("POST", "/branches", json={**body, "name": "other"})
        assert (refused.status_code, refused.json()["code"]) == (503, "catalog_unavailable")
        api.close()
        with Store(direct) as looking:
            newest = looking.database.read(lambda c: list_publications(c, limit=1))[0]
            assert newest.operation == reply.json()["operation"]
            assert {b.name for b in looking.dataset(DATASET).branches()} == {"master", "made"}


def test_command_that_cannot_read_its_result_says_that_it_may_have_happened(
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _proxied(postgres_url, tmp_path) as (proxy, store, direct):
        text = f'[store]\ncatalog = "{store.settings.catalog}"\nwarehouse = "{direct.warehouse}"\n'
        (tmp_path / "headgate.toml").write_text(text)
        monkeypatch.chdir(tmp_path)
        words = ("branch", "create", DATASET, "made", "--from", "master", "--json")
        with calling_at(
            Failpoint.PUBLISH_COMMITTED, lambda: _cut(proxy, Cut.BEFORE, for_good=True)
        ):
            assert run(words) == 6
        assert json.loads(capsys.readouterr().out)["code"] == "outcome_unknown"
        with Store(direct) as looking:
            assert {b.name for b in looking.dataset(DATASET).branches()} == {"master", "made"}
