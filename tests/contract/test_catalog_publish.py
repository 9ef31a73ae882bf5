"""The door on both databases: expectations, rejections and records."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import insert, update

from headgate.catalog.log import list_publications
from headgate.catalog.operations import begin_operation, find_operations
from headgate.catalog.schema import condemned_objects, versions
from headgate.catalog.transactions import stage_version
from headgate.errors import (
    IdempotencyKeyReused,
    OpenTransactionAlreadyExists,
    TransactionNotCommitted,
    TransactionNotFound,
    VersionExpired,
    ViewConflict,
)
from headgate.files.edits import tree_version
from headgate.files.tree import EMPTY
from headgate.model.changes import CreateBranch, MoveBranch, OperationKey, Provenance
from headgate.model.failpoints import Failpoint
from headgate.model.ids import BranchId, TransactionId, mint_branch, mint_operation
from headgate.store.embedded import Store
from headgate.testing.failpoints import reached_points
from tests.support.door import addition, commit_of, knock, seen
from tests.support.oracle import assert_store_sound
from tests.support.stores import content, everything, files_branch, load, new_store, put


def _key(key: str = "k1", request: str = "hash") -> OperationKey:
    return OperationKey(principal="ana", kind="put", branch="master", key=key, request_hash=request)


def _publications(store: Store) -> int:
    return len(store.database.read(lambda c: list_publications(c, limit=1000)))


def test_many_branches_move_in_one_publication(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        branches = [files_branch(store, f"raw.d{n}") for n in range(5)]
        receipt = knock(store, *(addition(branch, "x") for branch in branches))
        newest = store.database.read(list_publications)[0]
        assert (newest.number, len(newest.moves)) == (receipt.publication, 5)
        assert [content(branch) for branch in branches] == [{"x": "x"}] * 5
        assert receipt.transactions == {b.load().id: b.load().view for b in branches}
        assert_store_sound(store)


def test_conflict_names_every_branch_that_did_not_match_and_changes_nothing(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        branches = [files_branch(store, f"raw.d{n}") for n in range(3)]
        changes = [addition(branch, "x") for branch in branches]
        winners = [put(branch, other="1") for branch in branches[:2]]
        before = everything(store)
        with pytest.raises(ViewConflict) as conflict:
            knock(store, *changes)
        assert everything(store) == before
        body = conflict.value.to_json()
        assert [c["actual"] for c in body["conflicts"]] == winners
        assert body["manifest_conflict"] == {
            "table_key": "raw.d0@master",
            "expected": None,
            "actual": winners[0],
        }
        assert body["code"] == "conflict"


def test_branch_that_is_gone_is_a_conflict(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        change, read = addition(master, "x"), seen(master)
        other = files_branch(store, "raw.other")
        master.delete(force=True)
        master.create()
        for request in ((change, ()), (addition(other, "x"), (read,))):
            with pytest.raises(ViewConflict) as conflict:
                knock(store, request[0], reads=request[1])
            assert conflict.value.mismatches[0].field == "branch"


def test_addition_while_a_transaction_is_open_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        put(master, a="1")
        change = addition(master, "x")
        opened = master.transaction()
        with pytest.raises(OpenTransactionAlreadyExists) as refused:
            knock(store, change)
        assert refused.value.facts["transaction"] == opened.id


def test_replacement_keeps_the_replaced_one_off_the_branch(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        first = put(master, a="1")
        known = Provenance(adoptable=True, build_key="key")
        knock(store, addition(master, "b", provenance=known))
        replaced = master.load().view
        assert replaced is not None and load(store, replaced).adoptable
        knock(store, addition(master, "c", parent=first))
        assert [t.id for t in master.history()][1:] == [first]
        assert load(store, replaced).state == "COMMITTED"
        assert not load(store, replaced).adoptable
        assert_store_sound(store)


def test_addition_upon_what_is_no_past_of_the_dataset_is_refused(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, other = files_branch(store), files_branch(store, "raw.other")
        put(master, a="1")
        aborted = master.transaction()
        aborted.abort()
        foreign = put(other, a="1")
        for parent, refusal in (
            (TransactionId("t-unknown"), TransactionNotFound),
            (foreign, TransactionNotFound),
            (TransactionId(aborted.id), TransactionNotCommitted),
        ):
            with pytest.raises(refusal):
                knock(store, addition(master, "x", parent=parent))
            with pytest.raises(refusal):
                knock(store, _move(master.load().id, master.load().view, parent))
            with pytest.raises(refusal):
                knock(store, _create(store, parent))
        assert_store_sound(store)


def _move(branch: BranchId, view: TransactionId | None, to: TransactionId) -> MoveBranch:
    return MoveBranch(branch=branch, expected_head=view, expected_view=view, to=to)


def _create(store: Store, view: TransactionId) -> CreateBranch:
    dataset = store.dataset("raw.scans").load().id
    return CreateBranch(
        id=mint_branch(), dataset=dataset, name="new", parent=None, head=view, view=view
    )


def test_condemned_content_does_not_pass_the_door(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        first = put(master, a="1")
        put(master, a="2")
        opened = master.transaction()
        opened.write("b", b"reused")
        _condemn_version(store, first)
        with pytest.raises(VersionExpired):
            knock(store, _create(store, first))
        entry = next(e for e in opened.files() if e.path == "b")
        location = store.trees.objects.location(entry.digest)
        row = {"location": location, "condemned_at": 1, "bytes": 6}
        store.database.write(lambda c: c.execute(insert(condemned_objects), [row]))
        with pytest.raises(VersionExpired):
            opened.commit()
        with pytest.raises(VersionExpired):
            _stage_again(store, opened.id, location)
        opened.abort()
        with pytest.raises(VersionExpired):
            knock(store, addition(master, "b", "reused", objects=frozenset([location])))
        with pytest.raises(VersionExpired):
            master.reset(to=first)


def _stage_again(store: Store, transaction: str, location: str) -> None:
    """Stage another version that reuses the object."""
    found = load(store, transaction)
    assert found.version is not None
    stage_version(
        store.database,
        found.id,
        tree_version(EMPTY),
        expected=found.version.id,
        objects=[location],
    )


def _condemn_version(store: Store, transaction: str) -> None:
    version = load(store, transaction).version
    assert version is not None
    store.database.write(
        lambda c: c.execute(
            update(versions).where(versions.c.id == version.id).values(condemned_at=1)
        )
    )


def test_repeated_operation_gets_the_first_receipt_wherever_the_heads_are(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        change = addition(master, "x")
        first = knock(store, change, operation=_key())
        put(master, later="1")
        before = everything(store)
        again = knock(store, change, operation=_key())
        assert again.replayed
        assert (again.publication, again.transactions, again.operation) == (
            first.publication,
            first.transactions,
            first.operation,
        )
        assert everything(store) == before
        assert_store_sound(store)


def test_operation_key_with_another_request_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        knock(store, addition(master, "x"), operation=_key())
        with pytest.raises(IdempotencyKeyReused):
            knock(store, addition(master, "y"), operation=_key(request="another"))
        other = OperationKey(
            principal="bo", kind="put", branch="master", key="k1", request_hash="another"
        )
        knock(store, addition(master, "y"), operation=other)
        assert set(content(master)) == {"x", "y"}


def test_outcome_without_effect_is_recorded_and_is_no_publication(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        count = _publications(store)
        first = knock(store, operation=_key())
        put(master, a="1")
        again = knock(store, addition(master, "x"), operation=_key())
        assert (first.publication, again.publication, again.replayed) == (None, None, True)
        assert _publications(store) == count + 1
        assert content(master) == {"a": "1"}


def test_refused_operation_leaves_its_key_free(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        stale = addition(master, "x")
        put(master, a="1")
        with pytest.raises(ViewConflict):
            knock(store, stale, operation=_key())
        assert store.database.read(lambda c: find_operations(c, "k1")) == []
        assert not knock(store, addition(master, "x"), operation=_key()).replayed


def test_status_by_key_says_in_progress_then_committed(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        store.database.write(lambda c: begin_operation(c, mint_operation(), _key()))
        [status] = store.database.read(lambda c: find_operations(c, "k1"))
        assert (status["state"], status["publication"]) == ("in_progress", None)
        receipt = knock(store, addition(master, "x"), operation=_key())
        [status] = store.database.read(lambda c: find_operations(c, "k1"))
        assert (status["state"], status["publication"]) == ("committed", receipt.publication)


def test_read_set_that_still_holds_is_no_conflict(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        nodes, edges = files_branch(store, "graph.nodes"), files_branch(store, "graph.edges")
        put(nodes, n1="1")
        read = seen(nodes)
        opened = nodes.transaction()
        knock(store, addition(edges, "e1"), reads=(read,))
        opened.abort()
        knock(store, addition(edges, "e2"), reads=(read,))
        assert set(content(edges)) == {"e1", "e2"}


def test_reads_alone_publish_nothing(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        nodes = files_branch(store, "graph.nodes")
        read = seen(nodes)
        count = _publications(store)
        assert knock(store, reads=(read,)).publication is None
        assert _publications(store) == count
        put(nodes, n1="1")
        with pytest.raises(ViewConflict) as conflict:
            knock(store, reads=(read,))
        assert conflict.value.mismatches[0].field == "view (read)"


def test_commit_and_addition_in_one_publication(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        first, second = files_branch(store, "raw.a"), files_branch(store, "raw.b")
        opened = first.transaction()
        opened.write("x", b"1")
        with reached_points() as points:
            knock(store, commit_of(load(store, opened.id)), addition(second, "y"))
        assert points.count(Failpoint.PUBLISH_COMMITTED) == 1
        assert (set(content(first)), set(content(second))) == ({"x"}, {"y"})
        assert_store_sound(store)
