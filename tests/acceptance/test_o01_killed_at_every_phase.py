"""O01: the owner of a three-dataset operation with an outside effect is killed at every phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.catalog.intents import list_intents
from headgate.catalog.log import list_publications, list_recoveries
from headgate.catalog.recovery import Recovered
from headgate.model.failpoints import Failpoint
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.store.embedded import Store
from tests.support import effects
from tests.support.effects import DATASETS, NEW, OLD, OWNER, new_world, shown
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed
from tests.support.stores import expire_leases, load

_FORWARD = (
    Failpoint.INTENT_EFFECT_DONE,
    Failpoint.INTENT_CONFIRMED,
    Failpoint.PUBLISH_LOCKED,
    Failpoint.PUBLISH_APPLIED,
    Failpoint.PUBLISH_COMMITTED,
    Failpoint.INTENT_PUBLISHED,
)
OWNER_KILLED_AT = (Failpoint.INTENT_RECORDED, *_FORWARD)
_PUBLISHED = (Failpoint.PUBLISH_COMMITTED, Failpoint.INTENT_PUBLISHED)


def test_o01_killed_before_the_effect_leaves_the_old_state(
    catalog_url: str, tmp_path: Path
) -> None:
    world = new_world(catalog_url, tmp_path)
    head = world.head()
    assert_killed(effects.own, world, Failpoint.INTENT_RECORDED)
    with world.open() as store:
        recovered = _recover(store)
        assert (len(recovered.rolled_back), recovered.rolled_forward) == (1, [])
        assert shown(store) == [OLD] * 3
        assert world.head() == head
        assert_store_sound(store)


@pytest.mark.parametrize("point", _FORWARD)
def test_o01_killed_after_the_effect_ends_in_the_new_state(
    catalog_url: str, tmp_path: Path, point: Failpoint
) -> None:
    world = new_world(catalog_url, tmp_path)
    head = world.head()
    assert_killed(effects.own, world, point)
    with world.open() as store:
        assert_rows_sound(store)
        assert shown(store) == ([NEW] * 3 if point in _PUBLISHED else [OLD] * 3)
        [operation] = [i.operation for i in store.database.read(list_intents)]
        recovered = _recover(store)
        assert recovered.rolled_forward == [operation]
        assert shown(store) == [NEW] * 3
        assert world.head() != head
        _check_audit(store, operation, by_recovery=point not in _PUBLISHED)
        assert_store_sound(store)


@pytest.mark.parametrize("nth", [1, 2])
def test_o01_killed_between_two_effects_is_all_or_nothing(
    catalog_url: str, tmp_path: Path, nth: int
) -> None:
    world = new_world(catalog_url, tmp_path)
    heads = world.head(), world.head(effects.OTHER_REF)
    assert_killed(effects.own, world, Failpoint.INTENT_EFFECT_DONE, nth, True, 2)
    with world.open() as store:
        recovered = _recover(store)
        moved = (world.head(), world.head(effects.OTHER_REF)) != heads
        assert moved is (nth == 2)
        assert shown(store) == ([NEW] * 3 if moved else [OLD] * 3)
        assert len(recovered.rolled_forward if moved else recovered.rolled_back) == 1
        assert_store_sound(store)


def _recover(store: Store) -> Recovered:
    expire_leases(store)
    return store.recover()


def _check_audit(store: Store, operation: str, *, by_recovery: bool) -> None:
    """The owner's operation and name on the work, recovery's on the publication and the audit."""
    newest = store.database.read(lambda c: list_publications(c, limit=1))[0]
    assert newest.operation == operation
    assert newest.actor == (RECOVERY_ACTOR if by_recovery else OWNER)
    assert {str(m.dataset) for m in newest.moves} == set(DATASETS)
    for move in newest.moves:
        assert load(store, str(move.to_transaction)).actor == OWNER
    [audit] = store.database.read(list_recoveries)
    assert (audit["operation_id"], audit["original_actor"]) == (operation, OWNER)
    assert (audit["kind"], audit["publication"]) == ("roll_forward", newest.number)
