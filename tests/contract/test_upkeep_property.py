"""After any operations and any cleanups, all that the rules keep can be read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.catalog.datasets import create_tag, delete_tag
from headgate.errors import Conflict, Exists, FileNotInView, NotInHistory, VersionExpired
from headgate.model.changes import Caller
from headgate.store.datasets import BranchHandle, DatasetHandle
from headgate.store.embedded import Store
from headgate.store.transactions import TransactionHandle
from headgate.upkeep.doctor import check_rows
from tests.support.oracle import assert_rows_sound
from tests.support.postgres import PostgresServer
from tests.support.stores import (
    DATASET,
    content,
    files_branch,
    hold_for_years,
    load_dataset,
    new_store,
    put,
)
from tests.support.upkeep import RETAIN_DAYS, is_expired, let_days_pass, tidy

# Errors that are correct in some states; lost content would raise other errors.
_REFUSALS = (Conflict, Exists, FileNotInView, NotInHistory, VersionExpired)
_DAYS = (0.5, 1.1, 3, 6, 8, 15, 31, 60)


@dataclass
class World:
    """A store with one dataset, and its history recorded independently of cleanup."""

    store: Store
    today: float = 0.0
    # Content of each transaction, the time of its commit, and its parent.
    shown: dict[str, dict[str, str]] = field(default_factory=dict)
    closed: dict[str, float] = field(default_factory=dict)
    parent: dict[str, str | None] = field(default_factory=dict)
    views: dict[str, str | None] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    # Name, last view and time of deletion of branches that are deleted now, oldest first.
    deleted: list[tuple[str, str | None, float]] = field(default_factory=list)

    @property
    def dataset(self) -> DatasetHandle:
        return self.store.dataset(DATASET)

    def branch(self, choice: int) -> BranchHandle:
        names = sorted(self.views)
        return self.dataset.branch(names[choice % len(names)])

    def past(self, choice: int) -> str:
        ids = sorted(self.shown)
        return ids[choice % len(ids)]

    def history(self, view: str | None) -> list[str]:
        found = []
        while view is not None:
            found.append(view)
            view = self.parent[view]
        return found

    def kept(self) -> set[str]:
        """Return the transactions to keep, by the rules of the design only."""
        live = {view for view in self.views.values() if view}
        live |= {view for _, view, day in self.deleted if view and self.today - day < RETAIN_DAYS}
        past = {id for view in live for id in self.history(view)}
        young = {id for id in past if self.today - self.closed[id] < RETAIN_DAYS}
        return live | young | set(self.tags.values())

    def look(self) -> None:
        """Record the current views of the branches, and new transactions."""
        for branch in self.dataset.branches():
            before, self.views[branch.name] = self.views.get(branch.name), branch.view
            if branch.view is not None and branch.view not in self.shown:
                self.shown[branch.view] = content(self.dataset.branch(branch.name))
                self.closed[branch.view] = self.today
                self.parent[branch.view] = before

    def check(self) -> None:
        """Check that kept transactions are readable; others are, or raise `expired`."""
        reader, kept = self.branch(0), self.kept()
        for id, files in self.shown.items():
            if id in kept or not is_expired(reader, id):
                assert content(reader, at=id) == files, id
        for name, view in self.views.items():
            assert content(self.dataset.branch(name)) == (self.shown[view] if view else {})


def _put(world: World, which: int, what: int) -> None:
    put(world.branch(which), **{f"f{what % 3}": str(what)})


def _remove(world: World, which: int, what: int) -> None:
    world.branch(which).remove(f"f{what % 3}")


def _branch(world: World, which: int, what: int) -> None:
    source = world.branch(which)
    history = world.history(world.views[source.name])
    at = history[what % len(history)] if history and what % 2 else None
    world.dataset.branch(f"b{what}").create(parent=source.name, at=at)


def _delete(world: World, which: int, what: int) -> None:
    if len(world.views) > 1:
        gone = world.branch(which)
        gone.delete(force=True)
        world.deleted.append((gone.name, world.views.pop(gone.name), world.today))


def _restore(world: World, which: int, what: int) -> None:
    if world.deleted:
        name = world.deleted[which % len(world.deleted)][0]
        last = max(at for at, (other, _, _) in enumerate(world.deleted) if other == name)
        view, kept = world.deleted[last][1], world.kept()
        try:
            world.dataset.branch(name).restore()
        except VersionExpired:
            assert view not in kept
            return
        del world.deleted[last]
        world.views[name] = view


def _reset(world: World, which: int, what: int) -> None:
    if world.shown:
        world.branch(which).reset(to=world.past(what))


def _tag(world: World, which: int, what: int) -> None:
    if world.shown and f"v{what}" not in world.tags:
        dataset, at = load_dataset(world.store), world.past(which)
        create_tag(world.store.database, dataset, f"v{what}", at=at, caller=Caller(actor="ana"))
        world.tags[f"v{what}"] = at


def _untag(world: World, which: int, what: int) -> None:
    if world.tags.pop(f"v{what}", None):
        delete_tag(
            world.store.database, load_dataset(world.store), f"v{what}", caller=Caller(actor="ana")
        )


def _open(world: World, which: int, what: int) -> None:
    opened = world.branch(which).transaction()
    hold_for_years(world.store, opened.id)
    opened.write(f"f{what % 3}", str(what).encode())


def _close(world: World, which: int, what: int) -> None:
    heads = sorted({str(b.head) for b in world.dataset.branches() if b.is_open})
    if heads:
        opened = TransactionHandle.load(world.store, heads[which % len(heads)])
        opened.commit() if what % 2 else opened.abort()


def _days(world: World, which: int, what: int) -> None:
    let_days_pass(world.store, _DAYS[what])
    world.today += _DAYS[what]


def _tidy(world: World, which: int, what: int) -> None:
    tidy(world.store)
    world.check()


_ACTS: dict[str, Callable[[World, int, int], None]] = {
    act.__name__: act
    for act in (
        _put,
        _remove,
        _branch,
        _delete,
        _restore,
        _reset,
        _tag,
        _untag,
        _open,
        _close,
        _days,
        _tidy,
    )
}
_OFTEN = ["_put", "_put", "_days", "_days", "_tidy"]
Act = tuple[str, int, int]
ACTS = st.lists(
    st.tuples(st.sampled_from([*_ACTS, *_OFTEN]), st.integers(0, 7), st.integers(0, 7)),
    min_size=10,
    max_size=40,
)
# Forgets a tree, puts the same content again after its sweep, and resets to a removed one.
_AGAIN: list[Act] = [
    *[("_put", 0, 1), ("_put", 0, 4), ("_days", 0, 7), ("_tidy", 0, 0), ("_days", 0, 1)],
    *[("_tidy", 0, 0), ("_put", 0, 1), ("_reset", 0, 0), ("_days", 0, 7), ("_tidy", 0, 0)],
]


def _play(store: Store, acts: list[Act]) -> None:
    files_branch(store)
    world = World(store)
    world.look()
    for name, which, what in [*acts, ("_days", 0, 7), ("_tidy", 0, 0), ("_days", 0, 1)]:
        with contextlib.suppress(*_REFUSALS):
            _ACTS[name](world, which, what)
        world.look()
    _tidy(world, 0, 0)
    assert_rows_sound(store)
    checks = store.database.read(lambda connection: check_rows(connection, deep=True))
    assert [check for check in checks if not check.ok] == []


@settings(max_examples=30)
@given(acts=ACTS)
@example(acts=_AGAIN)
def test_what_the_rules_keep_stays_readable_on_sqlite(acts: list[Act]) -> None:
    with (
        tempfile.TemporaryDirectory() as root,
        new_store(f"sqlite:///{root}/catalog.db", Path(root)) as store,
    ):
        _play(store, acts)


@settings(max_examples=8)
@given(acts=ACTS)
@example(acts=_AGAIN)
def test_what_the_rules_keep_stays_readable_on_postgresql(
    postgres_server: PostgresServer, acts: list[Act]
) -> None:
    name = postgres_server.create_database()
    with (
        tempfile.TemporaryDirectory() as root,
        new_store(postgres_server.database_url(name), Path(root)) as store,
    ):
        _play(store, acts)
    postgres_server.drop_database(name)
