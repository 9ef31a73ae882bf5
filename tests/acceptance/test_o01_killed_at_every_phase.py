"""O01: an attempt is killed at every phase of its publication to lakeFS: old state or new.

`test_o01_mutations_killed` covers the catalog's own publications, into three datasets at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog.recovery import list_intents
from headgate.model.failpoints import Failpoint
from headgate.store.embedded import Store
from tests.support import lakefs_tasks
from tests.support.lakefs_tasks import NEW, OLD, OWNER, Place, lakefs_place
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed, run
from tests.support.stores import expire_leases

OWNER_KILLED_AT = (
    Failpoint.INTENT_RECORDED,
    Failpoint.INTENT_EFFECT_DONE,
    Failpoint.INTENT_CLEARED,
)


@pytest.fixture
def place(catalog_url: str, tmp_path: Path) -> Iterator[Place]:
    with lakefs_place(catalog_url, tmp_path) as made:
        yield made


def _abandon(place: Place) -> None:
    """Publish without a report: the next attempt replaces the publication by a hard reset."""
    assert run(lakefs_tasks.publish, place, {"lost": "x"}) == 0


@pytest.mark.parametrize("action", ["merge", "reset"])
def test_o01_killed_before_the_effect_leaves_the_old_state(place: Place, action: str) -> None:
    if action == "reset":
        _abandon(place)
    with place.open() as store:
        head = place.head(store)
        assert_killed(lakefs_tasks.publish_until, place, Failpoint.INTENT_RECORDED)
        [intent] = store.database.read(list_intents)
        expire_leases(store)
        recovered = store.recover()
        assert (recovered.rolled_back, recovered.rolled_forward) == ([intent.operation], [])
        assert place.head(store) == head
        _check_audit(store, place, intent.operation, outcome="not landed")
        _check_next_attempt(store, place)


@pytest.mark.parametrize("action", ["merge", "reset"])
@pytest.mark.parametrize("point", OWNER_KILLED_AT[1:])
def test_o01_killed_after_the_effect_ends_in_the_new_state(
    place: Place, point: Failpoint, action: str
) -> None:
    if action == "reset":
        _abandon(place)
    with place.open() as store:
        assert_killed(lakefs_tasks.publish_until, place, point)
        assert_rows_sound(store)
        head = place.head(store)
        assert place.files(store) == {**OLD, **NEW}
        pending = [intent.operation for intent in store.database.read(list_intents)]
        assert len(pending) == (point is Failpoint.INTENT_EFFECT_DONE)
        expire_leases(store)
        assert store.recover().rolled_forward == pending
        assert place.head(store) == head
        assert place.maker(store, head) is not None
        if pending:
            _check_audit(store, place, pending[0], outcome="landed")
        _check_next_attempt(store, place)


def _check_audit(store: Store, place: Place, operation: str, *, outcome: str) -> None:
    """Check the operation and actor of the owner, and the head of the branch."""
    [audit] = store.recoveries()
    assert (audit["operation"], audit["original_actor"]) == (operation, OWNER)
    assert audit["kind"] == f"workspace {outcome}"
    assert audit["outcomes"] == [
        {
            "target": {"repository": place.given.repository, "branch": place.given.branch},
            "outcome": outcome,
            "head": place.head(store),
        }
    ]


def _check_next_attempt(store: Store, place: Place) -> None:
    """Check that the next attempt replaces the work of the dead one."""
    last = place.work(store, {"last": "y"})
    assert place.files(store) == {**OLD, "last": "y"}
    assert place.maker(store, place.head(store)) == last.ref
    assert_store_sound(store)
