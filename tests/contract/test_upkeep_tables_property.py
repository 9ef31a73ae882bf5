"""After any operations on a table, all that the rules keep is complete; nothing else is left."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import CommitFailedException

from headgate.catalog.datasets import create_tag, delete_tag
from headgate.errors import Conflict, Exists, NotFound, VersionExpired
from headgate.model.changes import Caller
from headgate.store.embedded import Store
from headgate.store.transactions import UnitHandle
from tests.support.oracle import assert_rows_sound
from tests.support.postgres import PostgresServer
from tests.support.stores import hold_for_years, load, load_dataset, new_store
from tests.support.table_upkeep import (
    TABLE,
    TableClient,
    check_travel,
    keys_of,
    leave_files,
    shown_at,
)
from tests.support.upkeep import RETAIN_DAYS, let_days_pass, stored_keys, tidy

# PyIceberg warns if an overwrite finds an empty table.
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match")
# Errors that are correct in some states; lost content would raise other errors.
_REFUSALS = (Conflict, Exists, NotFound, VersionExpired, CommitFailedException)
_DAYS = (1.1, 3, 8, 15, 31, 60)


@dataclass
class World:
    """A store with one table, and its history recorded independently of cleanup."""

    store: Store
    client: TableClient
    today: float = 0.0
    # Content of each transaction, the time of its commit, and its parent.
    shown: dict[str, list[int]] = field(default_factory=dict)
    closed: dict[str, float] = field(default_factory=dict)
    parent: dict[str, str | None] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    # Last view and time of deletion of deleted branches.
    deleted: list[tuple[str, float]] = field(default_factory=list)
    unit: UnitHandle | None = None

    def branch(self, choice: int) -> str:
        return sorted(self.views)[choice % len(self.views)]

    def past(self, choice: int) -> str:
        return sorted(self.shown)[choice % len(self.shown)]

    def kept(self) -> set[str]:
        """Return the transactions to keep, by the rules of the design only."""
        past: set[str] = set()
        deleted = {view for view, day in self.deleted if self.today - day < RETAIN_DAYS}
        live = {*self.views.values(), *deleted}
        for view in live:
            here: str | None = view
            while here is not None:
                past.add(here)
                here = self.parent[here]
        young = {id for id in past if self.today - self.closed[id] < RETAIN_DAYS}
        return live | young | set(self.tags.values())

    def look(self) -> None:
        """Record the current views of the branches, and new transactions."""
        branches = {b.name: str(b.view) for b in self.store.dataset(TABLE).branches()}
        for view in branches.values():
            here: str | None = view
            while here is not None and here not in self.shown:
                self.shown[here] = shown_at(self.store, here)
                self.closed[here], self.parent[here] = self.today, load(self.store, here).parent
                here = self.parent[here]
        self.views = branches

    def check(self) -> None:
        """Check that kept transactions and their snapshots are readable; others may be expired."""
        kept = self.kept()
        for id, values in self.shown.items():
            try:
                assert shown_at(self.store, id) == values, id
            except VersionExpired:
                assert id not in kept, id
                continue
            if (version := load(self.store, id).version) is not None:
                check_travel(self.store, version.location)

    def check_lean(self) -> None:
        """Check that only files of versions that are not expired are stored."""
        alive: set[str] = set()
        for id in self.shown:
            with contextlib.suppress(VersionExpired):
                shown_at(self.store, id)
                version = load(self.store, id).version
                alive |= {version.location} if version else set()
        assert stored_keys(self.store) == keys_of(self.store, alive)


def _append(world: World, which: int, what: int) -> None:
    world.client.append(what, context=world.branch(which))


def _overwrite(world: World, which: int, what: int) -> None:
    world.client.overwrite(what, context=world.branch(which))


def _remove(world: World, which: int, what: int) -> None:
    world.client.table(world.branch(which)).delete(f"id = {what}")


def _branch(world: World, which: int, what: int) -> None:
    store, source = world.store, world.branch(which)
    store.dataset(TABLE).branch(f"b{what}").create(parent=source)


def _delete(world: World, which: int, what: int) -> None:
    if len(world.views) > 1:
        name = world.branch(which)
        world.store.dataset(TABLE).branch(name).delete(force=True)
        world.deleted.append((world.views[name], world.today))


def _reset(world: World, which: int, what: int) -> None:
    world.store.dataset(TABLE).branch(world.branch(which)).reset(to=world.past(what))


def _tag(world: World, which: int, what: int) -> None:
    if f"v{what}" not in world.tags:
        dataset, at = load_dataset(world.store, TABLE), world.past(which)
        create_tag(world.store.database, dataset, f"v{what}", at=at, caller=Caller(actor="ana"))
        world.tags[f"v{what}"] = at


def _untag(world: World, which: int, what: int) -> None:
    if world.tags.pop(f"v{what}", None):
        delete_tag(
            world.store.database,
            load_dataset(world.store, TABLE),
            f"v{what}",
            caller=Caller(actor="ana"),
        )


def _leave(world: World, which: int, what: int) -> None:
    leave_files(world.store, f"tables/d-{which}/data/{what}.parquet")


def _open(world: World, which: int, what: int) -> None:
    if world.unit is None:
        branch = world.branch(which)
        world.unit = world.store.transaction(branch=branch)
        hold_for_years(world.store, world.unit.id)
        world.client.append(what, context=world.unit.context)


def _close(world: World, which: int, what: int) -> None:
    if world.unit is not None:
        unit, world.unit = world.unit, None
        unit.commit() if what % 2 else unit.abort()


def _days(world: World, which: int, what: int) -> None:
    days = _DAYS[what % len(_DAYS)]
    world.client.forget()
    let_days_pass(world.store, days)
    world.today += days


def _tidy(world: World, which: int, what: int) -> None:
    tidy(world.store)
    world.check()


_ACTS: dict[str, Callable[[World, int, int], None]] = {
    act.__name__: act
    for act in (
        *(_append, _overwrite, _remove, _branch, _delete, _reset, _tag, _untag),
        *(_leave, _open, _close, _days, _tidy),
    )
}
_OFTEN = ["_append", "_overwrite", "_days", "_days", "_tidy"]
# An example takes seconds: to shrink a failing one would take an hour.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
Act = tuple[str, int, int]
ACTS = st.lists(
    st.tuples(st.sampled_from([*_ACTS, *_OFTEN]), st.integers(0, 3), st.integers(0, 7)),
    min_size=5,
    max_size=14,
)
# A unit older than all else holds its writes; a tag and a reset return to forgotten versions.
_HELD: list[Act] = [
    *[("_open", 0, 3), ("_days", 0, 4), ("_tidy", 0, 0), ("_days", 0, 0), ("_tidy", 0, 0)],
    *[("_close", 0, 1), ("_overwrite", 0, 5), ("_tag", 1, 1), ("_days", 0, 5), ("_tidy", 0, 0)],
    *[("_days", 0, 0), ("_tidy", 0, 0), ("_reset", 0, 1), ("_append", 0, 6)],
]


def _play(store: Store, acts: list[Act]) -> None:
    with TableClient(store) as client:
        world = World(store, client)
        client.create(0)
        world.look()
        for name, which, what in [*acts, ("_close", 0, 0), ("_days", 0, 5), ("_tidy", 0, 0)]:
            with contextlib.suppress(*_REFUSALS):
                _ACTS[name](world, which, what)
            world.look()
        _days(world, 0, 0)
        _tidy(world, 0, 0)
        world.check_lean()
        assert_rows_sound(store)


@settings(max_examples=8, phases=_PHASES)
@given(acts=ACTS)
@example(acts=_HELD)
def test_tables_keep_what_the_rules_say_and_no_more_on_sqlite(acts: list[Act]) -> None:
    with (
        tempfile.TemporaryDirectory() as root,
        new_store(f"sqlite:///{root}/catalog.db", Path(root)) as store,
    ):
        _play(store, acts)


@settings(max_examples=2, phases=_PHASES)
@given(acts=ACTS)
@example(acts=_HELD)
def test_tables_keep_what_the_rules_say_and_no_more_on_postgresql(
    postgres_server: PostgresServer, acts: list[Act]
) -> None:
    name = postgres_server.create_database()
    with (
        tempfile.TemporaryDirectory() as root,
        new_store(postgres_server.database_url(name), Path(root)) as store,
    ):
        _play(store, acts)
    postgres_server.drop_database(name)
