"""O02: recovery is killed, run twice, paused and overtaken; it still takes effect once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Connection

from headgate.catalog.log import list_events, list_recoveries
from headgate.catalog.recovery import list_intents
from headgate.model.failpoints import Failpoint
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.store.embedded import Store
from tests.support import lakefs_tasks
from tests.support.lakefs_tasks import NEW, OLD, Place, lakefs_place
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed, finish, let_go, running, start, wait_until_at
from tests.support.stores import DATASET, everything, expire_leases, put

RECOVERY_KILLED_AT = [p for p in Failpoint if p.name.startswith("RECOVERY_")]
_LANDINGS = ("landed", "not landed")

T = TypeVar("T")


@pytest.fixture
def place(catalog_url: str, tmp_path: Path) -> Iterator[Place]:
    with lakefs_place(catalog_url, tmp_path) as made:
        yield made


@pytest.mark.parametrize("landing", _LANDINGS)
@pytest.mark.parametrize("point", RECOVERY_KILLED_AT)
def test_o02_recovery_killed_and_repeated_settles_once(
    place: Place, landing: str, point: Failpoint
) -> None:
    _leave_behind(place, landing)
    assert_killed(lakefs_tasks.recover_until, place, point)
    with place.open() as store:
        assert_rows_sound(store)
        expire_leases(store)
        store.recover()
        _check_settled(store, place, landing)
        assert_store_sound(store)


@pytest.mark.parametrize("landing", _LANDINGS)
def test_o02_two_recoveries_at_once_leave_one_audit_row(
    place: Place, tmp_path: Path, landing: str
) -> None:
    _leave_behind(place, landing)
    all_at_once = [
        start(lakefs_tasks.recover_together, place, tmp_path, str(number)) for number in range(3)
    ]
    for process in all_at_once:
        assert finish(process) == 0
    with place.open() as store:
        _check_settled(store, place, landing)
        assert_store_sound(store)


def test_o02_recovery_beside_a_paused_recovery_changes_nothing(
    place: Place, tmp_path: Path
) -> None:
    _leave_behind(place, "landed")
    point = Failpoint.RECOVERY_CLASSIFIED
    with (
        running(lakefs_tasks.recover_slowly, place, tmp_path, point) as first,
        place.open() as store,
    ):
        wait_until_at(point, tmp_path)
        before = everything(store)
        [kept] = store.recover().kept
        assert kept["why"] == "its owner is alive"
        assert everything(store) == before
        let_go(point, tmp_path)
        assert finish(first) == 0
        _check_settled(store, place, "landed")


@pytest.mark.parametrize("landing", _LANDINGS)
@pytest.mark.parametrize("point", [Failpoint.RECOVERY_TAKEN_OVER, Failpoint.RECOVERY_CLASSIFIED])
def test_o02_recovery_that_slept_through_another_does_no_harm(
    place: Place, tmp_path: Path, landing: str, point: Failpoint
) -> None:
    _leave_behind(place, landing)
    with (
        running(lakefs_tasks.recover_slowly, place, tmp_path, point) as first,
        place.open() as store,
    ):
        wait_until_at(point, tmp_path)
        expire_leases(store)
        store.recover()
        let_go(point, tmp_path)
        assert finish(first) == 0
        _check_settled(store, place, landing)
        assert_store_sound(store)


def test_o02_recovery_overtaken_by_one_that_has_not_settled_yet_settles_nothing(
    place: Place, tmp_path: Path
) -> None:
    _leave_behind(place, "landed")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    point = Failpoint.RECOVERY_CLASSIFIED
    with running(lakefs_tasks.recover_slowly, place, first, point) as old, place.open() as store:
        wait_until_at(point, first)
        expire_leases(store)
        with running(lakefs_tasks.recover_slowly, place, second, point) as new:
            wait_until_at(point, second)
            let_go(point, first)
            assert finish(old) == 0
            assert store.recoveries() == []
            let_go(point, second)
            assert finish(new) == 0
        _check_settled(store, place, "landed")
        assert_store_sound(store)


@pytest.mark.parametrize("point", [Failpoint.INTENT_RECORDED, Failpoint.INTENT_EFFECT_DONE])
def test_o02_recovery_beside_a_paused_owner_changes_nothing(
    place: Place, tmp_path: Path, point: Failpoint
) -> None:
    with (
        running(lakefs_tasks.publish_slowly, place, tmp_path, point) as owner,
        place.open() as store,
    ):
        wait_until_at(point, tmp_path)
        before = everything(store), place.head(store)
        assert store.recover().kept[0]["why"] == "its owner is alive"
        assert (everything(store), place.head(store)) == before
        # The intent locks no branch of the catalog.
        put(store.dataset(DATASET).branch("master"), other="x")
        let_go(point, tmp_path)
        assert finish(owner) == 0
        assert (tmp_path / "ended").read_text() == "COMPLETED None"
        assert place.files(store) == {**OLD, **NEW}
        assert store.recoveries() == []
        assert_store_sound(store)


def test_o02_owner_that_slept_through_recovery_does_not_undo_it(
    place: Place, tmp_path: Path
) -> None:
    point = Failpoint.INTENT_EFFECT_DONE
    with (
        running(lakefs_tasks.publish_slowly, place, tmp_path, point) as owner,
        place.open() as store,
    ):
        wait_until_at(point, tmp_path)
        made = place.head(store)
        expire_leases(store)
        assert len(store.recover().rolled_forward) == 1
        let_go(point, tmp_path)
        assert finish(owner) == 0
        assert (tmp_path / "ended").read_text() == "COMPLETED None"
        assert place.head(store) == made
        _check_settled(store, place, "landed")
        assert_store_sound(store)


def test_o02_owner_that_slept_before_its_effect_fails_and_the_next_attempt_replaces_it(
    place: Place, tmp_path: Path
) -> None:
    """Recovery recorded that nothing landed, so a later effect is not a result."""
    point = Failpoint.INTENT_RECORDED
    with (
        running(lakefs_tasks.publish_slowly, place, tmp_path, point) as owner,
        place.open() as store,
    ):
        wait_until_at(point, tmp_path)
        expire_leases(store)
        assert len(store.recover().rolled_back) == 1
        let_go(point, tmp_path)
        assert finish(owner) == 0
        assert (tmp_path / "ended").read_text() == "FAILED intent_taken_over"
        late = place.maker(store, place.head(store))
        assert late is not None
        assert len(store.recoveries()) == 1
        last = place.work(store, {"last": "y"})
        assert (last.ref.key, last.ref.epoch) == (late.key, late.epoch + 1)
        assert place.files(store) == {**OLD, "last": "y"}
        assert_store_sound(store)


def test_o02_owner_that_ends_before_recovery_takes_over_is_left_alone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery saw an expired intent; before the takeover, the slow owner cleared it."""
    point = Failpoint.INTENT_RECORDED
    with (
        running(lakefs_tasks.publish_slowly, place, tmp_path, point) as owner,
        place.open() as store,
    ):
        wait_until_at(point, tmp_path)
        expire_leases(store)

        write = store.database.write

        def write_after_the_owner(work: Callable[[Connection], T]) -> T:
            monkeypatch.undo()
            let_go(point, tmp_path)
            assert finish(owner) == 0
            return write(work)

        # The first write of recovery is the takeover.
        monkeypatch.setattr(store.database, "write", write_after_the_owner)
        recovered = store.recover()
        assert (recovered.rolled_forward, recovered.rolled_back) == ([], [])
        assert (tmp_path / "ended").read_text() == "COMPLETED None"
        assert (store.recoveries(), place.files(store)) == ([], {**OLD, **NEW})
        assert_store_sound(store)


def _leave_behind(place: Place, landing: str) -> None:
    """Leave the state of an attempt that died just after its effect, or just before it."""
    landed = landing == "landed"
    point = Failpoint.INTENT_EFFECT_DONE if landed else Failpoint.INTENT_RECORDED
    assert_killed(lakefs_tasks.publish_until, place, point)
    with place.open() as store:
        expire_leases(store)


def _check_settled(store: Store, place: Place, landing: str) -> None:
    """Check one audit row, one event, and that recovery did not move the branch."""
    assert store.database.read(list_intents) == []
    assert place.files(store) == ({**OLD, **NEW} if landing == "landed" else OLD)
    assert (place.maker(store, place.head(store)) is not None) is (landing == "landed")
    [audit] = store.database.read(list_recoveries)
    assert audit["kind"] == f"workspace {landing}"
    [event] = store.database.read(lambda c: list_events(c, actor=RECOVERY_ACTOR))
    assert (event["kind"], event["operation"]) == (audit["kind"], audit["operation"])
