"""Cleanup concurrent with writers: it loses races, and a writer that lost one succeeds by retry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog.database import now
from headgate.catalog.datasets import create_tag
from headgate.catalog.garbage_collection import (
    claim_objects,
    condemn_versions,
    find_condemned,
    mark_versions,
    sweep_lock,
)
from headgate.catalog.retention import Retained, compute_retained
from headgate.errors import CatalogUnavailable, ContentSwept, VersionExpired
from headgate.files.edits import FileEdit, publish_edit
from headgate.model.changes import Caller
from headgate.model.failpoints import Failpoint
from headgate.model.ids import Instant, TransactionId
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from headgate.testing.failpoints import calling_at
from headgate.upkeep.cleanup import DAY_SECONDS, clean_up
from tests.support.door import addition, knock
from tests.support.oracle import assert_store_sound
from tests.support.stores import content, files_branch, load_dataset, new_store, put
from tests.support.upkeep import (
    RETAIN_DAYS,
    condemned_locations,
    interrupted,
    is_expired,
    let_days_pass,
    policy,
    stored_keys,
    tidy,
    tidy_later,
    tidy_twice,
)

ORPHAN = "left behind"


@pytest.fixture
def store(catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(catalog_url, tmp_path) as store:
        store.trees.store(ORPHAN.encode())
        let_days_pass(store, 40)
        yield store


@pytest.fixture
def branch(store: Store) -> BranchHandle:
    return files_branch(store)


def _source(store: Store) -> Path:
    path = Path(store.settings.root) / "local"
    path.write_text(ORPHAN)
    return path


def test_door_refuses_a_condemned_object(store: Store, branch: BranchHandle) -> None:
    tidy(store)
    change = addition(branch, "a", ORPHAN, objects=frozenset(condemned_locations(store)))
    with pytest.raises(VersionExpired):
        knock(store, change)
    assert branch.load().view is None


def test_writer_of_a_condemned_object_takes_it_back(store: Store, branch: BranchHandle) -> None:
    tidy(store)
    put(branch, a=ORPHAN)
    assert condemned_locations(store) == set()
    let_days_pass(store, 1.1)
    assert tidy_twice(store).deleted == 0
    assert content(branch) == {"a": ORPHAN}


def test_transaction_that_stages_a_condemned_object_takes_it_back(
    store: Store, branch: BranchHandle
) -> None:
    tidy(store)
    with branch.transaction() as opened:
        opened.write("a", ORPHAN.encode())
    assert content(branch) == {"a": ORPHAN}
    assert_store_sound(store)


def test_writer_of_a_swept_object_stores_it_anew(store: Store, branch: BranchHandle) -> None:
    assert tidy_twice(store).deleted == 1
    put(branch, a=ORPHAN)
    assert condemned_locations(store) == set()
    assert content(branch) == {"a": ORPHAN}


def test_object_stored_anew_after_its_sweep_is_left_to_its_writer(
    store: Store, branch: BranchHandle
) -> None:
    tidy_twice(store)
    let_days_pass(store, 1.1)
    entry = store_bytes(store, "a", ORPHAN.encode())
    assert tidy(store).deleted == 0
    edit = FileEdit(put=[entry])
    publish_edit(
        store.database, store.trees, load_dataset(store), "master", edit, caller=Caller(actor="ana")
    )
    assert content(branch) == {"a": ORPHAN}


def test_content_swept_between_upload_and_publication_is_refused(
    store: Store, branch: BranchHandle
) -> None:
    entry = store_bytes(store, "a", ORPHAN.encode())
    tidy_twice(store)
    with pytest.raises(ContentSwept, match="'a'"):
        publish_edit(
            store.database,
            store.trees,
            load_dataset(store),
            "master",
            FileEdit(put=[entry]),
            caller=Caller(actor="ana"),
        )
    assert branch.load().view is None


def test_put_whose_content_was_swept_meanwhile_uploads_again(
    store: Store, branch: BranchHandle
) -> None:
    source = _source(store)
    tidy(store)

    def sweep() -> None:
        assert tidy_later(store, 1.1).deleted == 1

    with calling_at(Failpoint.FILES_TREE_STORED, sweep):
        branch.put(source, "a")
    assert content(branch) == {"a": ORPHAN}
    assert_store_sound(store)


def test_open_transaction_whose_content_was_swept_meanwhile_uploads_again(
    store: Store,
    branch: BranchHandle,
) -> None:
    source = _source(store)
    tidy(store)
    opened = branch.transaction()
    # Deletes the uploads, like a sweep that was claimed before the transaction opened.
    with calling_at(Failpoint.FILES_TREE_STORED, lambda: _sweep_by_hand(store)):
        opened.put(source, "a")
    opened.commit()
    assert content(branch) == {"a": ORPHAN}


def _sweep_by_hand(store: Store) -> None:
    url = store.objects.url
    store.objects.delete(place.removeprefix(f"{url}/") for place in condemned_locations(store))


def test_object_published_between_look_and_mark_is_given_way_to(
    store: Store, branch: BranchHandle
) -> None:
    objects = interrupted(store, lambda: put(branch, a=ORPHAN))
    cleaned = clean_up(store.database, objects, policy(), actor="ana")
    assert (cleaned.condemned, cleaned.spared) == (0, 1)
    assert condemned_locations(store) == set()
    assert content(branch) == {"a": ORPHAN}


def test_object_staged_between_look_and_mark_is_given_way_to(
    store: Store, branch: BranchHandle
) -> None:
    let_days_pass(store, 40)
    opened = branch.transaction()
    let_days_pass(store, 9)
    objects = interrupted(store, lambda: opened.write("a", ORPHAN.encode()))
    clean_up(store.database, objects, policy(), actor="ana")
    assert condemned_locations(store) == set()
    opened.commit()
    assert content(branch) == {"a": ORPHAN}


def test_cleanup_killed_before_giving_way_is_mended_by_the_next(
    store: Store, branch: BranchHandle
) -> None:
    objects = interrupted(store, lambda: put(branch, a=ORPHAN))
    with (
        calling_at(Failpoint.CLEANUP_CONDEMNED, _stop),
        pytest.raises(InterruptedError),
    ):
        clean_up(store.database, objects, policy(), actor="ana")
    assert len(condemned_locations(store)) == 1
    assert content(branch) == {"a": ORPHAN}
    let_days_pass(store, 1.1)
    assert (tidy(store).spared, condemned_locations(store)) == (1, set())
    assert content(branch) == {"a": ORPHAN}


def _stop() -> None:
    raise InterruptedError


def _look(store: Store) -> Retained:
    return store.database.read(
        lambda c: compute_retained(c, retain_seconds=RETAIN_DAYS * DAY_SECONDS, moment=now(c))
    )


def _condemn(store: Store, retained: Retained) -> int:
    """Run the second half of condemning, after changes since the first read."""
    database = store.database
    mark = database.read(lambda c: mark_versions(c, retained, Instant(now(c) - 1)))
    return len(condemn_versions(database, mark.condemn, retained, Instant(1)))


def _three(store: Store, branch: BranchHandle) -> list[TransactionId]:
    """Publish three transactions and age them; only the view is kept, and a reset is possible."""
    found = [put(branch, a=text) for text in "123"]
    let_days_pass(store, 40)
    return found


def test_version_that_a_reset_returns_to_after_the_look_is_not_condemned(
    store: Store,
    branch: BranchHandle,
) -> None:
    first, second, third = _three(store, branch)
    retained = _look(store)
    branch.reset(to=second)
    assert _condemn(store, retained) == 1
    assert content(branch) == {"a": "2"} and is_expired(branch, first)
    assert content(branch, at=third) == {"a": "3"}


def test_version_that_a_branch_starts_from_after_the_look_is_not_condemned(
    store: Store,
    branch: BranchHandle,
) -> None:
    first, _, _ = _three(store, branch)
    retained = _look(store)
    child = branch.dataset.branch("child").create(parent="master", at=first)
    assert _condemn(store, retained) == 1
    assert content(child) == {"a": "1"}


def test_young_history_of_what_is_returned_to_after_the_look_is_not_condemned(
    store: Store,
    branch: BranchHandle,
) -> None:
    base = put(branch, a="0")
    child = branch.dataset.branch("child").create(parent="master")
    older, newer = put(child, a="1"), put(child, a="2")
    child.delete(force=True)
    let_days_pass(store, 20)
    retained = _look(store)
    knock(store, addition(branch, "b", parent=newer))
    assert _condemn(store, retained) == 0
    assert [is_expired(branch, id) for id in (base, older, newer)] == [False] * 3


def test_young_history_of_a_tag_that_is_returned_to_after_the_look_is_not_condemned(
    store: Store, branch: BranchHandle
) -> None:
    put(branch, a="0")
    child = branch.dataset.branch("child").create(parent="master")
    older, newer = put(child, a="1"), put(child, a="2")
    child.delete(force=True)
    create_tag(store.database, load_dataset(store), "v1", at=newer, caller=Caller(actor="ana"))
    let_days_pass(store, 20)
    retained = _look(store)
    knock(store, addition(branch, "b", parent=newer))
    assert _condemn(store, retained) == 0
    assert content(branch, at=older) == {"a": "1"}


def test_version_that_is_tagged_after_the_look_is_not_condemned(
    store: Store, branch: BranchHandle
) -> None:
    first, _, _ = _three(store, branch)
    retained = _look(store)
    create_tag(store.database, load_dataset(store), "v1", at=first, caller=Caller(actor="ana"))
    assert _condemn(store, retained) == 1
    assert content(branch, at=first) == {"a": "1"}


def test_object_taken_back_after_the_look_is_not_swept(store: Store, branch: BranchHandle) -> None:
    tidy(store)
    let_days_pass(store, 1.1)
    objects = interrupted(store, lambda: put(branch, a=ORPHAN))
    assert clean_up(store.database, objects, policy(), actor="ana").deleted == 0
    assert content(branch) == {"a": ORPHAN}


def test_object_is_claimed_only_as_it_was_condemned(store: Store) -> None:
    tidy(store)
    [location] = condemned_locations(store)
    assert claim_objects(store.database, {location: Instant(5)}, Instant(9)) == []
    assert store.database.read(lambda c: find_condemned(c, [location])) == {location}


def test_second_cleanup_beside_a_sweeping_one_gives_up_its_sweep(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.upkeep.cleanup._SWEEP_LOCK_SECONDS", 0.05)
    tidy(store)
    let_days_pass(store, 1.1)
    with sweep_lock(store.database):
        cleaned = tidy(store)
    assert cleaned.deleted == 0
    assert any("another cleanup" in kept.why for kept in cleaned.kept)
    assert tidy(store).deleted == 1


def test_sweeping_alone_is_given_back_at_the_end(store: Store) -> None:
    database = store.database
    with (
        sweep_lock(database),
        pytest.raises(CatalogUnavailable),
        sweep_lock(database, wait_seconds=0.02),
    ):
        raise AssertionError("two at once")
    with sweep_lock(database, wait_seconds=0):
        assert stored_keys(store)
