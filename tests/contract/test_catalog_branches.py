"""Branches on both databases: creation, deletion, and changes of the parent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations, product
from pathlib import Path

import pytest

from headgate.catalog.branches import delete_branches, protect_branch, reparent_branch
from headgate.catalog.datasets import create_tag, delete_tag, list_tags
from headgate.catalog.log import list_publications
from headgate.errors import (
    BranchExists,
    BranchNotFound,
    BranchProtected,
    DeletedBranchNotFound,
    Exists,
    Invalid,
    NotFound,
    NotInHistory,
    OpenTransactionAlreadyExists,
    RestoreRefused,
    TransactionNotCommitted,
    TransactionNotOpen,
    ViewConflict,
)
from headgate.model.changes import Caller
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.upkeep.doctor import check_rows
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.stores import branches_by_name, content, files_branch, new_store, put


def _three(store: Store) -> tuple[BranchHandle, list[str]]:
    """Publish three transactions on a branch."""
    master = files_branch(store)
    return master, [put(master, **{name: name}) for name in ("a", "b", "c")]


def _parents(store: Store) -> dict[str, str | None]:
    return {name: branch.parent for name, branch in branches_by_name(store).items()}


def test_child_points_where_its_parent_points(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        child = master.dataset.branch("feature").create(parent="master")
        assert (child.load().head, child.load().view, child.load().parent) == (
            ids[-1],
            ids[-1],
            "master",
        )
        put(child, d="d")
        assert set(content(child)) == {"a", "b", "c", "d"}
        assert set(content(master)) == {"a", "b", "c"}
        assert_store_sound(store)


def test_child_at_an_earlier_transaction_shows_that_past(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        child = master.dataset.branch("past").create(parent="master", at=ids[0])
        assert content(child) == {"a": "a"}
        put(child, z="z")
        assert [t.id for t in child.history()][1:] == [ids[0]]
        assert_store_sound(store)


def test_child_at_a_transaction_of_another_branch_or_of_a_deleted_one_shows_it(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        feature = master.dataset.branch("feature").create(parent="master")
        elsewhere = put(feature, d="d")
        feature.delete(force=True)
        child = master.dataset.branch("x").create(parent="master", at=elsewhere)
        assert (child.load().parent, set(content(child))) == ("master", {"a", "b", "c", "d"})
        put(child, e="e")
        assert [t.id for t in child.history()][1] == elsewhere
        assert_store_sound(store)


def test_child_at_what_no_branch_may_show_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        elsewhere = put(files_branch(store, "raw.other"), a="a")
        with pytest.raises(NotInHistory):
            master.dataset.branch("x").create(parent="master", at=elsewhere)
        with master.transaction() as opened, pytest.raises(TransactionNotCommitted):
            master.dataset.branch("x").create(parent="master", at=opened.id)
        with pytest.raises(Invalid):
            master.dataset.branch("x").create(at=ids[0])


def test_branch_name_that_is_taken_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        with pytest.raises(BranchExists):
            master.create()
        with pytest.raises(BranchNotFound):
            master.dataset.branch("x").create(parent="nobody")


def test_deleted_branch_hands_its_children_to_the_grandparent(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        develop = master.dataset.branch("develop").create(parent="master")
        feature = master.dataset.branch("feature").create(parent="develop")
        before = feature.load()
        develop.delete(force=True)
        assert _parents(store) == {"master": None, "feature": "master"}
        assert (feature.load().id, feature.load().head) == (before.id, ids[-1])
        master.delete(force=True)
        assert _parents(store) == {"feature": None}
        assert [t.id for t in feature.history()] == list(reversed(ids))
        assert_store_sound(store)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_related_branches_deleted_together_leave_no_parent_that_is_gone(
    catalog_url: str, tmp_path: Path, order: tuple[str, str]
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        for name, parent in (("a", "master"), ("b", "a"), ("c", "b")):
            master.dataset.branch(name).create(parent=parent)
        known = branches_by_name(store)
        delete_branches(
            store.database, [known[name] for name in order], caller=Caller(actor="ana"), force=True
        )
        assert _parents(store) == {"master": None, "c": "master"}
        assert_store_sound(store)


def test_branch_made_again_under_its_name_is_not_the_old_one(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        feature = master.dataset.branch("feature").create(parent="master")
        old = feature.load()
        feature.delete(force=True)
        new = feature.create(parent="master").load()
        assert (old.name, old.view) == (new.name, new.view)
        assert old.id != new.id
        with pytest.raises(ViewConflict):
            delete_branches(store.database, [old], caller=Caller(actor="ana"), force=True)
        assert feature.load() == new


def test_restored_branch_has_its_identity_view_and_children_again(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        develop = master.dataset.branch("develop").create(parent="master")
        put(develop, d="d")
        for name in ("kept", "moved"):
            master.dataset.branch(name).create(parent="develop")
        before = develop.load()
        develop.delete(force=True)
        master.dataset.branch("moved").reparent(under="kept")
        master.dataset.branch("moved").reparent(under="master")
        receipt = develop.restore()
        assert develop.load() == before
        expected = {"master": None, "develop": "master", "kept": "develop", "moved": "master"}
        assert _parents(store) == expected
        [restored] = store.database.read(lambda c: list_publications(c, limit=1))
        assert (restored.number, restored.kind) == (receipt.publication, "restore")
        assert [(m.branch, m.from_transaction, m.to_transaction) for m in restored.moves] == [
            ("develop", None, before.view)
        ]
        checks = store.database.read(lambda connection: check_rows(connection, deep=True))
        assert [check for check in checks if not check.ok] == []
        assert_store_sound(store)


def test_restored_branches_have_the_old_tree_in_whatever_order(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with new_store(made_sqlite_url, tmp_path) as store:
        orders = list(permutations(["a", "b", "c"]))
        for number, (deleted, restored) in enumerate(product(orders, orders[::2])):
            dataset = files_branch(store, f"raw.d{number}").dataset
            for name, parent in (("a", "master"), ("b", "a"), ("c", "b"), ("d", "c")):
                dataset.branch(name).create(parent=parent)
            before = dataset.branches()
            for name in deleted:
                dataset.branch(name).delete(force=True)
            assert {b.name: b.parent for b in dataset.branches()} == {"master": None, "d": "master"}
            for name in restored:
                dataset.branch(name).restore()
            assert dataset.branches() == before, (deleted, restored)
        assert_rows_sound(store)


def test_restored_branch_under_a_name_deleted_twice_is_the_newest(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        feature = master.dataset.branch("feature")
        with pytest.raises(DeletedBranchNotFound):
            feature.restore()
        ids = []
        for name in ("x", "y"):
            put(feature.create(parent="master"), **{name: name})
            ids.append(feature.load().id)
            feature.delete(force=True)
        feature.restore()
        assert (feature.load().id, set(content(feature))) == (ids[1], {"a", "b", "c", "y"})
        with pytest.raises(RestoreRefused, match="cannot be restored"):
            feature.restore()
        put(feature, z="z")
        feature.delete(force=True)
        feature.restore()
        assert set(content(feature)) == {"a", "b", "c", "y", "z"}
        assert_store_sound(store)


def test_restored_branch_that_was_deleted_with_an_open_transaction_is_free(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        feature = master.dataset.branch("feature").create(parent="master")
        opened = feature.transaction()
        feature.delete(force=True)
        feature.restore()
        assert (feature.load().head, feature.load().view) == (ids[-1], ids[-1])
        with pytest.raises(TransactionNotOpen):
            opened.commit()
        put(feature, d="d")
        assert_store_sound(store)


def test_restore_of_a_protected_name_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        feature = master.dataset.branch("feature").create(parent="master")
        protect_branch(store.database, "feature", actor="admin")
        admin = Caller(actor="admin", may_write_protected=True)
        delete_branches(store.database, [feature.load()], caller=admin, force=True)
        with pytest.raises(BranchProtected):
            feature.restore()
        assert set(branches_by_name(store)) == {"master"}


def test_restore_by_many_at_once_happens_once(
    catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        feature = master.dataset.branch("feature").create(parent="master")

        def restore(_: int) -> bool:
            try:
                feature.restore()
            except (RestoreRefused, BranchExists):
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            for _ in range(rounds // 4):
                feature.delete(force=True)
                assert sum(pool.map(restore, range(4))) == 1
        assert_store_sound(store)


def test_branch_that_a_unit_made_and_left_empty_is_not_restored(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        unit = store.transaction(branch="side", create=True)
        unit.dataset("raw.scans")
        unit.abort()
        with pytest.raises(DeletedBranchNotFound):
            master.dataset.branch("side").restore()


def test_reset_goes_back_and_forth_along_what_it_took_off(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        master.reset(to=ids[0])
        assert content(master) == {"a": "a"}
        master.reset(to=ids[2])
        assert content(master) == {"a": "a", "b": "b", "c": "c"}
        nothing = master.reset(to=ids[2])
        assert nothing.publication is None
        assert_store_sound(store)


def test_reset_returns_to_what_was_taken_off_before_it_was_ever_the_view(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        feature = master.dataset.branch("feature").create(parent="master")
        feature.reset(to=ids[0])
        feature.reset(to=ids[1])
        assert content(feature) == {"a": "a", "b": "b"}
        assert_store_sound(store)


def test_reset_to_what_another_branch_showed_goes_there(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        feature = master.dataset.branch("feature").create(parent="master", at=ids[0])
        feature.reset(to=ids[2])
        assert content(feature) == content(master)
        mine = put(feature, d="d")
        feature.delete(force=True)
        master.reset(to=mine)
        assert set(content(master)) == {"a", "b", "c", "d"}
        assert_store_sound(store)


def test_reset_to_a_transaction_of_another_dataset_is_refused(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        elsewhere = put(files_branch(store, "raw.other"), a="a")
        with pytest.raises(NotInHistory):
            master.reset(to=elsewhere)
        with pytest.raises(NotFound):
            master.reset(to="t-unknown")


def test_reset_while_a_transaction_is_open_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        opened = master.transaction()
        for target in ids:
            with pytest.raises(OpenTransactionAlreadyExists):
                master.reset(to=target)
        opened.abort()
        with pytest.raises(TransactionNotCommitted):
            master.reset(to=opened.id)
        assert_store_sound(store)


def test_reparent_that_would_close_a_circle_is_refused(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, _ = _three(store)
        master.dataset.branch("a").create(parent="master")
        master.dataset.branch("b").create(parent="a")
        with pytest.raises(Invalid):
            master.reparent(under="b")
        with pytest.raises(Invalid):
            master.reparent(under="master")
        master.dataset.branch("b").reparent(under="master")
        master.dataset.branch("a").reparent(under=None)
        assert _parents(store) == {"master": None, "a": None, "b": "master"}
        assert_store_sound(store)


def test_reparenting_of_many_at_once_never_closes_a_circle(
    catalog_url: str, tmp_path: Path, rounds: int
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        dataset = files_branch(store, branch="a").dataset
        for name in ("b", "c", "d"):
            dataset.branch(name).create()
        wishes = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]

        def wish(pair: tuple[str, str]) -> None:
            try:
                reparent_branch(
                    store.database,
                    dataset.load(),
                    pair[0],
                    under=pair[1],
                    caller=Caller(actor="ana"),
                )
            except Invalid:
                return

        with ThreadPoolExecutor(4) as pool:
            for _ in range(rounds // 4):
                list(pool.map(wish, wishes))
                assert_rows_sound(store)
                for name, _ in wishes:
                    dataset.branch(name).reparent(under=None)


def test_tag_pins_a_committed_transaction_of_the_dataset(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        dataset = master.dataset.load()
        create_tag(store.database, dataset, "v1", at=ids[0], caller=Caller(actor="ana"))
        with pytest.raises(Exists):
            create_tag(store.database, dataset, "v1", at=ids[1], caller=Caller(actor="ana"))
        with master.transaction() as opened, pytest.raises(TransactionNotCommitted):
            create_tag(store.database, dataset, "v2", at=opened.id, caller=Caller(actor="ana"))
        [tag] = store.database.read(lambda c: list_tags(c, dataset))
        assert (tag.name, tag.transaction) == ("v1", ids[0])
        delete_tag(store.database, dataset, "v1", caller=Caller(actor="ana"))
        with pytest.raises(NotFound):
            delete_tag(store.database, dataset, "v1", caller=Caller(actor="ana"))


def test_protected_branch_refuses_every_way_of_moving_it(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        opened = master.transaction()
        protect_branch(store.database, "master", actor="admin")
        delete = partial(master.delete, force=True)
        held: list[Callable[[], object]] = [opened.commit, delete]
        for move in held:
            with pytest.raises(BranchProtected):
                move()
        opened.abort()
        free: list[Callable[[], object]] = [
            lambda: put(master, d="d"),
            master.transaction,
            delete,
            lambda: master.reset(to=ids[0]),
        ]
        for move in free:
            with pytest.raises(BranchProtected):
                move()
        protect_branch(store.database, "master", actor="admin", protected=False)
        put(master, d="d")
        assert_store_sound(store)


def test_log_names_every_branch_that_a_publication_moved(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master, ids = _three(store)
        feature = master.dataset.branch("feature").create(parent="master")
        feature.delete(force=True)
        kinds = [
            (p.kind, [(m.branch, m.from_transaction, m.to_transaction) for m in p.moves])
            for p in store.database.read(lambda c: list_publications(c, limit=2))
        ]
        assert kinds == [
            ("delete", [("feature", ids[-1], None)]),
            ("create", [("feature", None, ids[-1])]),
        ]
