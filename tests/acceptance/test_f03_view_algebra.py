"""F03: the view of a branch is the fold of its transactions, with any aborts and forks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.errors import TransactionTypeViolated
from headgate.store.datasets import BranchHandle, DatasetHandle
from tests.support.oracle import assert_store_sound
from tests.support.stores import content, files_branch, new_store, put

Files = dict[str, str]
_TYPES = ["SNAPSHOT", "APPEND", "UPDATE", "DELETE"]
_PATHS = ["a", "b/c", "b/d", "e"]


@dataclass(frozen=True, kw_only=True)
class _Folded:
    """A committed transaction, and the files that it shows according to the fold."""

    # Empty before the first commit.
    id: str
    files: Files
    parents: list[_Folded]

    def line(self) -> list[_Folded]:
        return [self, *self.parents] if self.id else []


def _step(
    branch: BranchHandle, type: str, put: Files, remove: list[str], *, abort: bool = False
) -> str | None:
    """Run one transaction with these changes; return its id if it was committed."""
    opened = branch.transaction(type)
    for path, text in put.items():
        opened.write(path, text.encode())
    if remove:
        opened.remove(*remove)
    if abort:
        opened.abort()
        return None
    try:
        opened.commit()
    except TransactionTypeViolated:
        opened.abort()
        return None
    return opened.id


def _fold(before: Files, type: str, put: Files, remove: list[str]) -> Files | None:
    """Return the view after a transaction; None if its type forbids the change."""
    start = {} if type == "SNAPSHOT" else before
    after = {path: text for path, text in {**start, **put}.items() if path not in remove}
    kept = all(after.get(path) == text for path, text in before.items())
    grown = bool(after.keys() - before.keys())
    shrunk = bool(before.keys() - after.keys())
    changed = any(before[path] != after[path] for path in before.keys() & after.keys())
    allowed = {
        "SNAPSHOT": True,
        "APPEND": kept,
        "UPDATE": not shrunk,
        "DELETE": not grown and not changed,
    }
    return after if allowed[type] else None


def test_f03_the_seeds_table_ends_as_it_says(catalog_url: str, tmp_path: Path) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        _step(master, "SNAPSHOT", {"A": "1", "B": "1"}, [])
        _step(master, "APPEND", {"C": "1"}, [])
        _step(master, "UPDATE", {"A": "2"}, [])
        _step(master, "DELETE", {}, ["B"])
        assert content(master) == {"A": "2", "C": "1"}
        _step(master, "SNAPSHOT", {"D": "1"}, [])
        assert content(master) == {"D": "1"}
        assert [t.type for t in master.history()] == [
            *("SNAPSHOT", "DELETE", "UPDATE", "APPEND", "SNAPSHOT")
        ]
        assert_store_sound(store)


def test_f03_append_that_overwrites_fails_at_commit_and_stays_open(
    catalog_url: str, tmp_path: Path
) -> None:
    with new_store(catalog_url, tmp_path) as store:
        master = files_branch(store)
        view = put(master, a="1")
        opened = master.transaction("APPEND")
        opened.write("new", b"1")
        opened.write("a", b"2")
        with pytest.raises(TransactionTypeViolated, match="'a'"):
            opened.commit()
        assert (master.load().head, master.load().view) == (opened.id, view)
        assert content(master) == {"a": "1"}
        opened.write("a", b"1")
        opened.commit()
        assert content(master) == {"a": "1", "new": "1"}
        assert_store_sound(store)


@pytest.mark.parametrize("seed", range(3))
def test_f03_random_histories_show_what_the_fold_says(
    catalog_url: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with new_store(catalog_url, tmp_path) as store:
        dataset = files_branch(store).dataset
        views: dict[str, _Folded] = {"master": _Folded(id="", files={}, parents=[])}
        for number in range(24):
            name = chance.choice(list(views))
            if chance.random() < 0.2:
                _fork(dataset, views, name, f"fork{number}", chance)
                continue
            type, put, remove = _random_change(chance, views[name].files)
            abort = chance.random() < 0.2
            after = _fold(views[name].files, type, put, remove)
            id = _step(dataset.branch(name), type, put, remove, abort=abort)
            assert (id is None) == (abort or after is None), (type, put, remove)
            if id is not None and after is not None:
                views[name] = _Folded(id=id, files=after, parents=views[name].line())
            assert content(dataset.branch(name)) == views[name].files
        for name, view in views.items():
            for past in view.line():
                assert content(dataset.branch(name), at=past.id) == past.files
        assert_store_sound(store)


def _fork(
    dataset: DatasetHandle,
    views: dict[str, _Folded],
    parent: str,
    name: str,
    chance: random.Random,
) -> None:
    """Create a branch at any transaction of the parent's history."""
    if views[parent].line():
        origin = chance.choice(views[parent].line())
        dataset.branch(name).create(parent=parent, at=origin.id)
        views[name] = origin


def _random_change(chance: random.Random, shown: Files) -> tuple[str, Files, list[str]]:
    type = chance.choice(_TYPES)
    chosen = chance.sample(_PATHS, chance.randint(0, 2))
    put = {path: str(chance.randint(0, 2)) for path in chosen}
    there = [path for path in shown if path not in put and type != "SNAPSHOT"]
    return type, put, chance.sample(there, min(len(there), chance.randint(0, 1)))
