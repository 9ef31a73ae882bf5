"""Content that cleanup condemns and sweeps: nothing before its time, nothing still needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from headgate.catalog.branches import create_branch, reset_branch
from headgate.catalog.database import now
from headgate.catalog.datasets import create_tag
from headgate.catalog.log import list_events
from headgate.catalog.resolve import find_shown
from headgate.catalog.schema import condemned_objects, operations, versions
from headgate.errors import ObjectNotFound, VersionExpired
from headgate.model.changes import Caller
from headgate.model.contexts import parse_context
from headgate.model.ids import TransactionId
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import TransactionHandle
from tests.support.door import addition, knock
from tests.support.oracle import assert_store_sound
from tests.support.stores import (
    content,
    everything,
    files_branch,
    load,
    load_dataset,
    new_store,
    put,
)
from tests.support.upkeep import (
    condemned_locations,
    is_expired,
    let_days_pass,
    stored_keys,
    tidy,
    tidy_later,
    tidy_twice,
    why_kept,
)


@pytest.fixture
def store(catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(catalog_url, tmp_path) as store:
        yield store


@pytest.fixture
def branch(store: Store) -> BranchHandle:
    return files_branch(store)


def _forgotten(store: Store, branch: BranchHandle) -> TransactionId:
    """Publish a transaction that no branch has shown for so long that no rule keeps it."""
    first = put(branch, a="old")
    put(branch, a="new")
    let_days_pass(store, 40)
    return first


def test_forgotten_transaction_is_condemned_first_and_swept_a_day_later(
    store: Store,
    branch: BranchHandle,
) -> None:
    first = _forgotten(store, branch)
    before = stored_keys(store)
    cleaned = tidy(store)
    assert (cleaned.condemned, cleaned.deleted, cleaned.bytes) == (4, 0, 0)
    assert stored_keys(store) == before and is_expired(branch, first)
    let_days_pass(store, 0.9)
    waiting = tidy(store)
    assert (waiting.condemned, waiting.deleted) == (0, 0)
    assert why_kept(waiting)["object", "condemned; not due for deletion yet"] == 3
    let_days_pass(store, 0.2)
    swept = tidy(store)
    assert (swept.condemned, swept.deleted) == (0, 3)
    assert swept.bytes == sum(item.bytes for item in swept.items) > 0
    assert len(stored_keys(store)) == len(before) - 3
    assert content(branch) == {"a": "new"} and is_expired(branch, first)
    assert tidy(store).items == []
    assert_store_sound(store)


def test_injected_clocks_decide_as_time_does(store: Store, branch: BranchHandle) -> None:
    put(branch, a="old")
    put(branch, a="new")
    assert tidy_later(store, 29).items == []
    assert tidy_later(store, 31).condemned == 4
    assert tidy_later(store, 31.9).deleted == 0
    assert tidy_later(store, 32.1).deleted == 3
    assert content(branch) == {"a": "new"}


def test_aborted_transaction_is_swept(store: Store, branch: BranchHandle) -> None:
    opened = branch.transaction()
    opened.write("a", b"1")
    opened.abort()
    let_days_pass(store, 8)
    assert "of an aborted transaction" in {item.why for item in tidy(store).items}
    let_days_pass(store, 1.1)
    assert tidy(store).deleted == 3
    assert stored_keys(store) == set()


def test_replaced_working_version_is_swept(store: Store, branch: BranchHandle) -> None:
    opened = branch.transaction("SNAPSHOT")
    opened.write("a", b"1")
    opened.remove("a")
    opened.write("b", b"2")
    opened.commit()
    let_days_pass(store, 8)
    assert any("staged and then replaced" in item.why for item in tidy(store).items)
    let_days_pass(store, 1.1)
    tidy(store)
    assert content(branch) == {"b": "2"}


def test_deleted_branch_leaves_nothing_but_what_others_share(
    store: Store, branch: BranchHandle
) -> None:
    put(branch, a="shared")
    child = branch.dataset.branch("child").create(parent="master")
    gone = put(child, b="own")
    child.delete(force=True)
    let_days_pass(store, 28)
    assert tidy_twice(store).deleted == 0
    let_days_pass(store, 2)
    assert tidy_twice(store).deleted == 3
    assert content(branch) == {"a": "shared"}
    assert is_expired(branch, gone)


def test_transaction_that_a_reset_took_off_long_ago_is_swept(
    store: Store, branch: BranchHandle
) -> None:
    first, second = put(branch, a="1"), put(branch, a="2")
    branch.reset(to=first)
    let_days_pass(store, 40)
    tidy_twice(store)
    assert content(branch) == {"a": "1"} and is_expired(branch, second)
    with pytest.raises(VersionExpired):
        branch.reset(to=second)


def test_upload_that_was_never_published_is_swept(store: Store) -> None:
    store.trees.store(b"orphan")
    let_days_pass(store, 8)
    assert tidy_twice(store).deleted == 1
    assert stored_keys(store) == set()


def test_condemned_transaction_answers_expired_everywhere(
    store: Store, branch: BranchHandle
) -> None:
    dataset = load_dataset(store)
    first = _forgotten(store, branch)
    [at] = [p for p in (load(store, first).publication,) if p is not None]
    tidy(store)
    moment = parse_context(f"master@{at}")
    version = load(store, first).version
    attempts = (
        lambda: branch.read("a", at=first),
        lambda: branch.files(at=first),
        lambda: TransactionHandle.load(store, first).files(),
        lambda: store.database.read(lambda c: find_shown(c, moment, dataset)),
        lambda: reset_branch(
            store.database, dataset, "master", to=first, caller=Caller(actor="ana")
        ),
        lambda: create_branch(
            store.database, dataset, "x", parent="master", at=first, caller=Caller(actor="a")
        ),
        lambda: create_tag(store.database, dataset, "v1", at=first, caller=Caller(actor="ana")),
        lambda: knock(store, addition(branch, "b", version=version)),
    )
    for attempt in attempts:
        before = everything(store)
        with pytest.raises(VersionExpired):
            attempt()
        assert everything(store) == before


def test_object_that_is_referenced_again_is_spared(store: Store, branch: BranchHandle) -> None:
    put(branch, a="1")
    [location] = [f"{store.objects.url}/{key}" for key in sorted(stored_keys(store))[:1]]
    row = {"location": location, "condemned_at": 1, "bytes": 1}
    store.database.write(lambda c: c.execute(insert(condemned_objects), [row]))
    cleaned = tidy(store)
    assert (cleaned.spared, cleaned.deleted) == (1, 0)
    assert condemned_locations(store) == set()
    assert content(branch) == {"a": "1"}


def test_version_that_is_needed_again_is_spared_with_its_objects(
    store: Store, branch: BranchHandle
) -> None:
    first = _forgotten(store, branch)
    tidy(store)
    _pin_by_force(store, first)
    let_days_pass(store, 1.1)
    dry = tidy(store, dry_run=True)
    assert [(item.step, item.what) for item in dry.items if item.what == "version"] == [
        ("spare", "version")
    ]
    assert dry.deleted == 0
    cleaned = tidy(store)
    assert (cleaned.spared, cleaned.deleted) == (1, 0)
    assert content(branch, at=first) == {"a": "old"}
    assert condemned_locations(store) == set()


def test_version_that_is_needed_again_but_was_swept_stays_condemned(
    store: Store, branch: BranchHandle
) -> None:
    first = _forgotten(store, branch)
    tidy_twice(store)
    _pin_by_force(store, first)
    kept = why_kept(tidy(store))
    assert kept["condemned version", "needed again, but partly deleted"] == 1
    assert is_expired(branch, first)


def _pin_by_force(store: Store, transaction: TransactionId) -> None:
    """Create a tag in the same moment in which its transaction is condemned."""

    def set_mark(at: int | None) -> int | None:
        version = load(store, transaction).version
        assert version is not None
        before: int | None = store.database.read(
            lambda c: c.execute(
                select(versions.c.condemned_at).where(versions.c.id == version.id)
            ).scalar_one()
        )
        store.database.write(
            lambda c: c.execute(
                update(versions).where(versions.c.id == version.id).values(condemned_at=at)
            )
        )
        return before

    mark = set_mark(None)
    create_tag(
        store.database, load_dataset(store), "pin", at=transaction, caller=Caller(actor="ana")
    )
    set_mark(mark)


def test_dry_run_says_what_and_why_and_changes_nothing(store: Store, branch: BranchHandle) -> None:
    _forgotten(store, branch)
    store.trees.store(b"orphan")
    let_days_pass(store, 8)
    before, files = everything(store), sorted(Path(store.settings.warehouse).rglob("*"))
    dry = tidy(store, dry_run=True)
    assert everything(store) == before
    assert sorted(Path(store.settings.warehouse).rglob("*")) == files
    real = tidy(store)
    assert dry.to_json() == real.to_json() | {"dry_run": True}
    let_days_pass(store, 1.1)
    dry = tidy(store, dry_run=True)
    assert (dry.condemned, dry.deleted) == (0, 4)
    assert dry.bytes == tidy(store).bytes > 0


def test_mark_outlives_the_sweep_by_thirty_days(store: Store) -> None:
    store.trees.store(b"orphan")
    let_days_pass(store, 8)
    tidy_twice(store)
    let_days_pass(store, 29)
    tidy(store)
    assert len(condemned_locations(store)) == 1
    let_days_pass(store, 2)
    tidy(store)
    assert condemned_locations(store) == set()


def test_operations_older_than_thirty_days_are_forgotten(store: Store) -> None:

    def remembered() -> int:
        return len(store.database.read(lambda c: c.execute(select(operations.c.id)).all()))

    row = {
        **dict.fromkeys(("id", "principal", "kind", "branch", "key", "request_hash"), "x"),
        "state": "done",
        "at": store.database.read(now),
    }
    store.database.write(lambda c: c.execute(insert(operations), [row]))
    let_days_pass(store, 29)
    tidy(store)
    assert remembered() == 1
    let_days_pass(store, 2)
    tidy(store)
    assert remembered() == 0


def test_cleanup_that_did_something_leaves_an_event(store: Store) -> None:
    tidy(store)
    assert store.database.read(lambda c: list_events(c, kind="cleanup")) == []
    store.trees.store(b"orphan")
    let_days_pass(store, 8)
    tidy(store)
    [event] = store.database.read(lambda c: list_events(c, kind="cleanup"))
    assert (event["actor"], event["condemned"], event["deleted"]) == ("ana", 1, 0)


def test_damaged_tree_stops_the_sweep(store: Store, branch: BranchHandle) -> None:
    """While the objects of a version are unknown, nothing may be deleted."""
    put(branch, a="1")
    store.trees.store(b"orphan")
    let_days_pass(store, 8)
    version = load(store, str(branch.load().view)).version
    assert version is not None
    root = version.location
    store.objects.delete([f"objects/sha256/{root[:2]}/{root[2:]}"])
    left = stored_keys(store)
    with pytest.raises(ObjectNotFound, match="headgate doctor"):
        tidy(store)
    assert (stored_keys(store), condemned_locations(store)) == (left, set())
