"""O09: another writer moves the lakeFS branch during our publication, or after its owner died."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from headgate.catalog.recovery import list_intents
from headgate.catalog.schema import intents
from headgate.lakefs.endpoint import connect
from headgate.model.failpoints import Failpoint
from headgate.store.embedded import Store
from headgate.tasks.messages import Status
from headgate.testing.failpoints import armed, calling_at
from tests.support import lakefs_tasks
from tests.support.lakefs_tasks import NEW, OLD, Place, lakefs_place
from tests.support.oracle import assert_store_sound
from tests.support.processes import assert_killed
from tests.support.stores import DATASET, everything, expire_leases, put

_BEFORE = Failpoint.INTENT_RECORDED
_AFTER = Failpoint.INTENT_EFFECT_DONE
_LANDED, _NOT_LANDED, _UNKNOWN = "workspace landed", "workspace not landed", "workspace unknown"


@pytest.fixture
def place(catalog_url: str, tmp_path: Path) -> Iterator[Place]:
    with lakefs_place(catalog_url, tmp_path) as made:
        yield made


def test_o09_merge_onto_a_foreign_commit_is_undone_while_it_is_the_head(place: Place) -> None:
    """The other commit comes after the head was read; lakeFS still merges onto it."""
    with place.open() as store:
        with calling_at(_BEFORE, lambda: _commit(place, store, theirs="1")):
            _, done = place.attempt(store, NEW)
        assert (done.status, done.code) == (Status.FAILED, "publish_fence")
        assert "the merge was undone" in str(done.reason)
        assert place.files(store) == {**OLD, "theirs": "1"}
        assert store.database.read(list_intents) == []
        assert place.harness(store).parent(place.given, place.head(store)) == place.given.ref
        assert_store_sound(store)


def test_o09_merge_whose_answer_was_lost_is_undone_too(place: Place) -> None:
    with place.open() as store:
        lose = place.directory / "merge.lost"
        with calling_at(_BEFORE, lambda: _commit(place, store, theirs="1")):
            lose.touch()
            _, done = place.attempt(store, NEW)
        assert (done.status, done.code) == (Status.FAILED, "publish_fence")
        assert place.files(store) == {**OLD, "theirs": "1"}
        assert store.database.read(list_intents) == []


def test_o09_merge_under_a_foreign_head_fails_closed_and_keeps_the_intent(place: Place) -> None:
    with place.open() as store:
        theirs: list[str] = []

        def meddle(point: Failpoint) -> None:
            if point in (_BEFORE, _AFTER):
                theirs.append(place.commit(store, **{f"theirs-{len(theirs)}": "1"}))

        with armed(meddle):
            _, done = place.attempt(store, NEW)
        assert (done.status, done.code) == (Status.FAILED, "undo_refused")
        [intent] = store.database.read(list_intents)
        assert intent.operation in str(done.reason) and "headgate recover" in str(done.reason)
        assert place.head(store) == theirs[1]
        # Next step of the operator: reset the branch; recovery records its head.
        where = place.given.repository, place.given.branch
        connect(place.settings).hard_reset(*where, theirs[0], timeout_seconds=None)
        expire_leases(store)
        [kept] = store.recover().kept
        assert kept["operation"] == intent.operation and theirs[0] in kept["why"]
        assert place.head(store) == theirs[0]
        assert [row["kind"] for row in store.recoveries()] == [_UNKNOWN]
        assert_store_sound(store)


def test_o09_undo_that_lakefs_refuses_fails_closed_and_keeps_the_intent(place: Place) -> None:
    with place.open() as store:
        refuse = place.directory / "hard_reset.refuse"
        with calling_at(_BEFORE, lambda: _commit(place, store, theirs="1")):
            refuse.touch()
            _, done = place.attempt(store, NEW)
        assert (done.status, done.code) == (Status.FAILED, "undo_refused")
        assert place.files(store) == {**OLD, **NEW, "theirs": "1"}
        refuse.unlink()
        head = place.head(store)
        expire_leases(store)
        assert len(store.recover().rolled_forward) == 1
        assert place.head(store) == head
        # Neither at the input nor on top of it: the next attempt is rejected.
        assert place.attempt(store, NEW)[1].code == "publish_fence"
        assert_store_sound(store)


@pytest.mark.parametrize(
    ("recorded", "dies_at", "meddle"),
    [
        (_NOT_LANDED, _BEFORE, lambda place, store: None),
        (_LANDED, _AFTER, lambda place, store: None),
        (_UNKNOWN, _BEFORE, lambda place, store: place.commit(store, theirs="1")),
        (_UNKNOWN, _AFTER, lambda place, store: place.commit(store, theirs="1")),
        (_UNKNOWN, _AFTER, lambda place, store: place.harness(store).remove(place.given)),
    ],
)
def test_o09_what_a_dead_owner_left_is_recorded_and_nothing_is_moved(
    place: Place, recorded: str, dies_at: Failpoint, meddle: Callable[[Place, Store], object]
) -> None:
    assert_killed(lakefs_tasks.publish_until, place, dies_at)
    with place.open() as store:
        gone = meddle(place, store) is None and recorded == _UNKNOWN
        head = None if gone else place.head(store)
        expire_leases(store)
        [intent] = store.database.read(list_intents)
        recovered = store.recover()
        assert recovered.rolled_forward == ([intent.operation] if recorded == _LANDED else [])
        assert recovered.rolled_back == ([intent.operation] if recorded == _NOT_LANDED else [])
        assert len(recovered.kept) == (recorded == _UNKNOWN)
        [audit] = store.recoveries()
        assert (audit["kind"], audit["operation"]) == (recorded, intent.operation)
        assert audit["outcomes"][0]["head"] == head
        assert gone or place.head(store) == head
        assert_store_sound(store)


@pytest.mark.parametrize("damage", ["{", '{"action": "merge"}', "[]"])
def test_o09_corrupt_intent_is_kept_and_blocks_nothing(place: Place, damage: str) -> None:
    assert_killed(lakefs_tasks.publish_until, place, _BEFORE)
    with place.open() as store:
        store.database.write(lambda c: c.execute(update(intents).values(body=damage)))
        expire_leases(store)
        assert [kept["why"] for kept in store.recover().kept] == ["its intent cannot be read"]
        place.work(store, NEW)
        put(store.dataset(DATASET).branch("master"), other="x")
        assert place.files(store) == {**OLD, **NEW}
        assert_store_sound(store)


def test_o09_dry_run_says_what_it_would_record_and_records_nothing(place: Place) -> None:
    assert_killed(lakefs_tasks.publish_until, place, _AFTER)
    with place.open() as store:
        expire_leases(store)
        before = everything(store)
        assert len(store.recover(dry_run=True).rolled_forward) == 1
        assert everything(store) == before


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"lakefs_endpoint": "http://127.0.0.1:1"}, "lakeFS did not complete the request"),
        ({"environ": {}}, "HEADGATE_LAKEFS_ACCESS_KEY_ID"),
        ({"lakefs_endpoint": None}, "no lakeFS is configured here"),
    ],
)
def test_o09_lakefs_that_cannot_be_asked_keeps_the_intent_and_the_store_usable(
    place: Place, settings: dict[str, object], why: str
) -> None:
    assert_killed(lakefs_tasks.publish_until, place, _AFTER)
    with place.open() as store:
        expire_leases(store)
    with Store(replace(place.settings, **settings)) as store:  # type: ignore[arg-type]
        [kept] = store.recover().kept
        assert why in kept["why"]
        put(store.dataset(DATASET).branch("master"), other="x")
    # The next recovery does not have to wait for a lease.
    with place.open() as store:
        assert len(store.recover().rolled_forward) == 1
        assert_store_sound(store)


def _commit(place: Place, store: Store, **files: str) -> None:
    place.commit(store, **files)
