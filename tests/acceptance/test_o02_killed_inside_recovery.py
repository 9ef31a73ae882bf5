"""O02: recovery is killed, doubled, paused and overtaken; it still happens once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.catalog import recovery
from headgate.catalog.log import list_events, list_publications, list_recoveries
from headgate.errors import IntentPending
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import PublicationKind
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.store.embedded import Store
from tests.support import effects
from tests.support.effects import NEW, OLD, REF, World, new_world, shown
from tests.support.git_outside import KIND
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed, finish, let_go, running, start, wait_until_at
from tests.support.stores import everything, expire_leases, put

RECOVERY_KILLED_AT = [p for p in Failpoint if p.name.startswith("RECOVERY_")]


@pytest.mark.parametrize(
    ("way", "point"),
    [
        *(("forward", point) for point in RECOVERY_KILLED_AT),
        ("back", Failpoint.RECOVERY_CLASSIFIED),
        ("back", Failpoint.RECOVERY_UNDONE),
    ],
)
def test_o02_recovery_killed_and_repeated_settles_once(
    catalog_url: str, tmp_path: Path, way: str, point: Failpoint
) -> None:
    world = _left_behind(catalog_url, tmp_path, way)
    assert_killed(effects.settle, world, point)
    with world.open() as store:
        assert_rows_sound(store)
        expire_leases(store)
        store.recover()
        _check_settled(store, way)
        assert_store_sound(store)


@pytest.mark.parametrize("way", ["forward", "back"])
def test_o02_two_recoveries_at_once_leave_one_audit_row(
    catalog_url: str, tmp_path: Path, way: str
) -> None:
    world = _left_behind(catalog_url, tmp_path, way)
    both = [start(effects.settle_together, world, tmp_path, str(n)) for n in range(3)]
    for process in both:
        assert finish(process) == 0
    with world.open() as store:
        _check_settled(store, way)
        assert_store_sound(store)


def test_o02_recovery_beside_a_paused_recovery_changes_nothing(
    catalog_url: str, tmp_path: Path
) -> None:
    world = _left_behind(catalog_url, tmp_path, "forward")
    point = Failpoint.RECOVERY_CLASSIFIED
    with running(effects.settle_slowly, world, tmp_path, point) as first, world.open() as store:
        wait_until_at(point, tmp_path)
        before = everything(store)
        [kept] = store.recover().kept
        assert kept["why"] == "its owner is alive"
        assert everything(store) == before
        let_go(point, tmp_path)
        assert finish(first) == 0
        _check_settled(store, "forward")


@pytest.mark.parametrize(
    ("way", "point"),
    [
        ("forward", Failpoint.RECOVERY_TAKEN_OVER),
        ("forward", Failpoint.RECOVERY_UNDONE),
        ("back", Failpoint.RECOVERY_CLASSIFIED),
        ("back", Failpoint.RECOVERY_UNDONE),
    ],
)
def test_o02_recovery_that_slept_through_another_does_no_harm(
    catalog_url: str, tmp_path: Path, way: str, point: Failpoint
) -> None:
    world = _left_behind(catalog_url, tmp_path, way)
    with running(effects.settle_slowly, world, tmp_path, point) as first, world.open() as store:
        wait_until_at(point, tmp_path)
        expire_leases(store)
        store.recover()
        let_go(point, tmp_path)
        assert finish(first) == 0
        _check_settled(store, way)
        assert_store_sound(store)


@pytest.mark.parametrize("point", [Failpoint.INTENT_RECORDED, Failpoint.INTENT_EFFECT_DONE])
def test_o02_recovery_beside_a_paused_owner_changes_nothing(
    catalog_url: str, tmp_path: Path, point: Failpoint
) -> None:
    world = new_world(catalog_url, tmp_path)
    with running(effects.own_slowly, world, tmp_path, point) as owner, world.open() as store:
        wait_until_at(point, tmp_path)
        before = everything(store), world.head()
        assert store.recover().kept[0]["why"] == "its owner is alive"
        assert (everything(store), world.head()) == before
        with pytest.raises(IntentPending):
            put(store.dataset(effects.DATASETS[0]).branch("master"), other="x")
        let_go(point, tmp_path)
        assert finish(owner) == 0
        assert shown(store) == [NEW] * 3
        assert_store_sound(store)


@pytest.mark.parametrize(
    "point",
    [Failpoint.INTENT_EFFECT_DONE, Failpoint.INTENT_CONFIRMED, Failpoint.INTENT_PUBLISHED],
)
def test_o02_owner_that_slept_through_recovery_does_not_undo_it(
    catalog_url: str, tmp_path: Path, point: Failpoint
) -> None:
    world = new_world(catalog_url, tmp_path)
    with running(effects.own_slowly, world, tmp_path, point) as owner, world.open() as store:
        wait_until_at(point, tmp_path)
        effect = world.head()
        expire_leases(store)
        assert len(store.recover().rolled_forward) == 1
        let_go(point, tmp_path)
        finish(owner)
        assert (tmp_path / "ended").read_text().startswith("published")
        assert world.head() == effect
        _check_settled(store, "forward")
        assert_store_sound(store)


def test_o02_owner_that_slept_before_its_effect_undoes_what_came_too_late(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    head = world.head()
    point = Failpoint.INTENT_RECORDED
    with running(effects.own_slowly, world, tmp_path, point) as owner, world.open() as store:
        wait_until_at(point, tmp_path)
        expire_leases(store)
        assert len(store.recover().rolled_back) == 1
        let_go(point, tmp_path)
        assert finish(owner) == 1
        assert (tmp_path / "ended").read_text().startswith("IntentTakenOver")
        assert (shown(store), world.head()) == ([OLD] * 3, head)
        assert_store_sound(store)


def test_o02_owner_that_publishes_before_recovery_takes_over_is_not_rolled_back(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery saw no movement; before it could take over, the slow owner did all but clear."""
    world = new_world(catalog_url, tmp_path)
    begin, end = Failpoint.INTENT_RECORDED, Failpoint.INTENT_PUBLISHED
    with running(effects.own_slowly, world, tmp_path, begin, end) as owner, world.open() as store:
        wait_until_at(begin, tmp_path)
        expire_leases(store)
        look = recovery._look

        def look_then_let_the_owner_publish(*arguments: Any) -> Any:
            found = look(*arguments)
            monkeypatch.undo()
            let_go(begin, tmp_path)
            wait_until_at(end, tmp_path)
            return found

        monkeypatch.setattr(recovery, "_look", look_then_let_the_owner_publish)
        assert len(store.recover().rolled_forward) == 1
        let_go(end, tmp_path)
        assert finish(owner) == 0
        assert shown(store) == [NEW] * 3
        assert world.git.log(REF) == ["effect", f"first on {REF}"]
        assert_store_sound(store)


def test_o02_recovery_overtaken_by_one_that_has_not_published_yet_undoes_nothing(
    catalog_url: str, tmp_path: Path
) -> None:
    world = _left_behind(catalog_url, tmp_path, "forward")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    point = Failpoint.RECOVERY_CLASSIFIED
    with running(effects.settle_slowly, world, first, point) as old, world.open() as store:
        wait_until_at(point, first)
        expire_leases(store)
        with running(effects.settle_slowly, world, second, point) as new:
            wait_until_at(point, second)
            let_go(point, first)
            assert finish(old) == 0
            assert (shown(store), world.git.log(REF)[0]) == ([OLD] * 3, "effect")
            let_go(point, second)
            assert finish(new) == 0
        _check_settled(store, "forward")
        assert world.git.log(REF)[0] == "effect"
        assert_store_sound(store)


def _left_behind(catalog_url: str, root: Path, way: str) -> World:
    """What an owner leaves that died right after its effect, or right before it."""
    world = new_world(catalog_url, root)
    point = Failpoint.INTENT_CONFIRMED if way == "forward" else Failpoint.INTENT_EFFECT_DONE
    # Two effects of which one was made can only be undone.
    assert_killed(effects.own, world, point, 1, True, 1 if way == "forward" else 2)
    with world.open() as store:
        expire_leases(store)
    return world


def _check_settled(store: Store, way: str) -> None:
    git = store.outside[KIND]
    assert shown(store) == ([NEW] * 3 if way == "forward" else [OLD] * 3)
    moved = {ref: git.find_head({"ref": ref}) for ref in (effects.REF, effects.OTHER_REF)}
    [audit] = store.database.read(list_recoveries)
    assert audit["kind"] == f"roll_{way}"
    for outcome in audit["outcomes"]:
        if way == "back":
            assert outcome["restored_to"] == moved[outcome["target"]["ref"]]
    published = store.database.read(lambda c: list_publications(c, kind=PublicationKind.MERGE))
    operations = [audit["operation_id"]] if way == "forward" else []
    assert [p.operation for p in published] == operations
    [event] = store.database.read(lambda c: list_events(c, actor=RECOVERY_ACTOR))
    assert event["operation"] == audit["operation_id"]
