"""Datasets, branches, transactions and units from Python, as in the documentation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headgate
from headgate.errors import (
    BranchExists,
    BranchNotFound,
    DatasetExists,
    FileNotInView,
    Invalid,
    NotFound,
    NotInHistory,
    OpenTransactionAlreadyExists,
    TransactionNotCommitted,
    TransactionNotOpen,
    TransactionTypeViolated,
    Unavailable,
)
from headgate.model.nouns import Publication, TransactionState, TransactionType
from tests.support.stores import expire_just_now


def publications(hg: headgate.Store) -> list[Publication]:
    return hg.publications()


def test_open_without_a_path_finds_the_nearest_store(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = place / "deep" / "er"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    with headgate.open() as hg:
        assert hg.settings.root == place


def test_open_outside_a_store_and_with_what_it_cannot_use_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="headgate init"):
        headgate.open(tmp_path, environ={})
    with pytest.raises(Unavailable):
        headgate.open("http://127.0.0.1:1")
    with pytest.raises(Invalid):
        headgate.open(tmp_path, token="t")


def test_dataset_create_makes_it_with_the_primary_branch(hg: headgate.Store) -> None:
    orders = hg.dataset("sales.orders").create(kind="table")
    assert orders.exists() and not hg.dataset("sales.none").exists()
    assert [branch.name for branch in orders.branches()] == ["master"]
    with pytest.raises(DatasetExists):
        orders.create()
    with pytest.raises(Invalid, match="table, files"):
        hg.dataset("sales.other").create(kind="graph")


def test_branch_create_as_a_child_at_a_transaction_and_as_a_root(hg: headgate.Store) -> None:
    scans = hg.dataset("raw.scans").create(kind="files")
    master = scans.branch("master")
    with master.transaction("APPEND") as first:
        first.write("a.txt", b"1")
    with master.transaction() as second:
        second.write("a.txt", b"2")
    scans.branch("feature").create(parent="master")
    scans.branch("old").create(parent="master", at=first.id)
    scans.branch("alone").create()
    assert scans.branch("feature").read("a.txt") == b"2"
    assert scans.branch("old").read("a.txt") == b"1"
    assert (scans.branch("alone").load().parent, scans.branch("alone").files()) == (None, [])
    assert scans.branch("old").exists() and not scans.branch("none").exists()
    assert not hg.dataset("raw.none").branch("master").exists()
    with pytest.raises(BranchExists):
        scans.branch("old").create()


def test_transaction_commits_at_the_end_of_its_block(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with master.transaction("APPEND") as transaction:
        transaction.write("a.txt", b"hello")
        assert master.files() == []
        assert [entry.path for entry in transaction.files()] == ["a.txt"]
    assert master.read("a.txt") == b"hello"
    assert master.load().view == transaction.id


def test_transaction_aborts_on_an_exception(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with pytest.raises(ZeroDivisionError), master.transaction("APPEND") as transaction:
        transaction.write("a.txt", b"hello")
        raise ZeroDivisionError
    assert (master.files(), master.history()) == ([], [])
    [aborted] = master.history(aborted=True)
    assert (aborted.id, aborted.state) == (transaction.id, TransactionState.ABORTED)


def test_transaction_whose_commit_is_refused_gives_its_branch_back(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with master.transaction() as first:
        first.write("a.txt", b"1")
    with pytest.raises(TransactionTypeViolated), master.transaction("APPEND") as transaction:
        transaction.write("a.txt", b"2")
    assert (master.read("a.txt"), master.load().is_open) == (b"1", False)
    [aborted, _] = master.history(aborted=True)
    assert (aborted.id, aborted.state) == (transaction.id, TransactionState.ABORTED)


def test_transaction_taken_over_during_its_block_is_not_passed_over(
    hg: headgate.Store, place: Path
) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    (place / "b.txt").write_text("of another")
    with pytest.raises(TransactionNotOpen, match="ABORTED"), master.transaction() as transaction:
        transaction.write("a.txt", b"lost")
        with headgate.open(place) as beside:
            expire_just_now(beside, transaction.id)
        master.put(place / "b.txt")
    assert [entry.path for entry in master.files()] == ["b.txt"]


def test_transaction_that_somebody_else_committed_is_left_as_it_is(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with master.transaction() as transaction:
        transaction.write("a.txt", b"1")
        hg.opened(transaction.id).commit()
    assert master.read("a.txt") == b"1"


def test_transaction_says_why_its_block_failed_whatever_else_fails(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with pytest.raises(ZeroDivisionError), master.transaction() as transaction:
        hg.opened(transaction.id).abort()
        raise ZeroDivisionError
    assert not master.load().is_open


def test_transaction_that_ended_in_its_block_is_left_as_it_is(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with master.transaction() as transaction:
        transaction.write("a.txt", b"hello")
        transaction.abort()
    assert master.files() == []
    with pytest.raises(TransactionNotOpen):
        transaction.write("b.txt", b"too late")


def test_transaction_is_one_at_a_time_on_a_branch(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with master.transaction(), pytest.raises(OpenTransactionAlreadyExists, match="ana"):
        master.transaction()
    with pytest.raises(Invalid, match="SNAPSHOT, APPEND, UPDATE, DELETE"):
        master.transaction("COPY")


def test_transaction_against_its_type_stays_open(hg: headgate.Store) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    with master.transaction() as first:
        first.write("a.txt", b"1")
    transaction = master.transaction("APPEND")
    transaction.write("a.txt", b"2")
    with pytest.raises(TransactionTypeViolated):
        transaction.commit()
    transaction.remove("a.txt")
    transaction.write("a.txt", b"1")
    transaction.write("b.txt", b"2")
    transaction.commit()
    assert [entry.path for entry in master.files()] == ["a.txt", "b.txt"]


def test_snapshot_replaces_all_that_was_there(hg: headgate.Store, tmp_path: Path) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    source = tmp_path / "source"
    source.mkdir()
    (source / "new.txt").write_text("new")
    with master.transaction() as first:
        first.write("old.txt", b"old")
    with master.transaction("SNAPSHOT") as second:
        second.put(source, "in")
    assert [entry.path for entry in master.files()] == ["in/new.txt"]
    assert [entry.path for entry in master.files(at=first.id)] == ["old.txt"]


def test_put_and_remove_on_a_branch_are_publications_of_their_own(
    hg: headgate.Store, tmp_path: Path
) -> None:
    master = hg.dataset("raw.scans").create(kind="files").branch("master")
    (tmp_path / "a.txt").write_text("hello")
    put = master.put(tmp_path / "a.txt")
    removed = master.remove("a.txt")
    assert (put.publication, removed.publication) == (2, 3)
    assert [t.type for t in master.history()] == [TransactionType.DELETE, TransactionType.APPEND]
    with pytest.raises(FileNotInView):
        master.read("a.txt")


def test_read_at_what_is_no_past_of_the_dataset_is_refused(hg: headgate.Store) -> None:
    scans = hg.dataset("raw.scans").create(kind="files").branch("master")
    other = hg.dataset("raw.other").create(kind="files").branch("master")
    with other.transaction() as transaction:
        transaction.write("a.txt", b"1")
        with pytest.raises(TransactionNotCommitted):
            other.read("a.txt", at=transaction.id)
    with pytest.raises(NotInHistory):
        scans.files(at=transaction.id)


def test_unit_publishes_several_datasets_at_once(hg: headgate.Store) -> None:
    for name in ("raw.one", "raw.two"):
        hg.dataset(name).create(kind="files")
    before = len(publications(hg))
    with hg.transaction(branch="master") as unit:
        unit.dataset("raw.one").write("a.txt", b"1")
        unit.dataset("raw.two").write("b.txt", b"2")
        unit.dataset("raw.one").write("c.txt", b"3")
        assert hg.dataset("raw.one").branch("master").files() == []
    newest = publications(hg)[0]
    assert len(publications(hg)) == before + 1
    assert sorted(str(move.dataset) for move in newest.moves) == ["raw.one", "raw.two"]
    assert len(hg.dataset("raw.one").branch("master").files()) == 2


def test_unit_with_an_exception_publishes_nothing(hg: headgate.Store) -> None:
    hg.dataset("raw.one").create(kind="files")
    with pytest.raises(ZeroDivisionError), hg.transaction(branch="master") as unit:
        unit.dataset("raw.one").write("a.txt", b"1")
        raise ZeroDivisionError
    master = hg.dataset("raw.one").branch("master")
    assert (master.files(), master.load().is_open) == ([], False)
    with pytest.raises(TransactionNotOpen):
        unit.commit()


def test_unit_whose_parts_are_used_as_blocks_still_ends_as_one(hg: headgate.Store) -> None:
    hg.dataset("raw.one").create(kind="files")
    with hg.transaction(branch="master") as unit:
        with unit.dataset("raw.one") as part:
            part.write("a.txt", b"1")
        assert hg.dataset("raw.one").branch("master").load().is_open
        with pytest.raises(Invalid, match=unit.id):
            part.commit()
    assert hg.dataset("raw.one").branch("master").read("a.txt") == b"1"


def test_unit_on_a_branch_that_a_dataset_lacks_makes_it(hg: headgate.Store) -> None:
    hg.dataset("raw.one").create(kind="files")
    with hg.transaction(branch="feature", create=True) as unit:
        unit.dataset("raw.one").write("a.txt", b"1")
    assert hg.dataset("raw.one").branch("feature").read("a.txt") == b"1"
    assert hg.dataset("raw.one").branch("master").files() == []


def test_unit_that_is_aborted_takes_the_branches_along_that_it_made(hg: headgate.Store) -> None:
    one = hg.dataset("raw.one").create(kind="files")
    with pytest.raises(ZeroDivisionError), hg.transaction(branch="feature", create=True) as unit:
        unit.dataset("raw.one").write("a.txt", b"1")
        raise ZeroDivisionError
    assert not one.branch("feature").exists()


def test_unit_context_is_what_engines_bind_to(hg: headgate.Store) -> None:
    unit = hg.transaction(branch="master")
    assert unit.context == f"txn:{unit.id}"
    unit.abort()


def test_verb_with_a_key_repeated_gives_the_first_answer(hg: headgate.Store) -> None:
    scans = hg.dataset("raw.scans").create(kind="files", idempotency_key="k0")
    scans.create(kind="files", idempotency_key="k0")
    feature = scans.branch("feature").create(parent="master", idempotency_key="k1")
    feature.create(parent="master", idempotency_key="k1")
    first = feature.delete(idempotency_key="k2")
    again = feature.delete(idempotency_key="k2")
    assert (first.replayed, again.replayed) == (False, True)
    assert first.publication == again.publication
    with pytest.raises(BranchNotFound):
        feature.delete(idempotency_key="k3")
    with pytest.raises(Invalid, match="k2"):
        hg.dataset("raw.other").branch("feature").delete(idempotency_key="k2")


def test_verb_with_a_key_called_by_many_at_once_happens_once(hg: headgate.Store) -> None:
    scans = hg.dataset("raw.scans").create(kind="files")

    def create(_: int) -> None:
        scans.branch("feature").create(parent="master", idempotency_key="k")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))
    assert [p.number for p in publications(hg)] == [2, 1]
