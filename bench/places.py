"""Filled catalogs of several sizes, on both databases."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.cases import Scale, Tell, Timed, Unavailable
from bench.filling import Filled, fill
from bench.floor import floor_of
from bench.loading import load
from headgate.catalog.database import Database
from headgate.files.tree import EMPTY, Entry, Mode
from headgate.files.tree_store import FileTrees
from headgate.model.ids import Instant
from headgate.storage.local import LocalStore
from tests.support.postgres import fresh_database, running_postgres
from tests.support.postgres_binaries import NO_POSTGRES, find_binaries

_SIZES = {"10²": 10**2, "10⁴": 10**4, "10⁶": 10**6}
_QUICK_SIZES = {"10²": 10**2, "10⁴": 10**4}
_TREES = 16


@dataclass(frozen=True, kw_only=True)
class Place:
    """One filled catalog, and trees whose objects exist."""

    database: Database
    filled: Filled
    trees: tuple[str, ...]
    floor: Timed


@contextmanager
def on_sqlite(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Place]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        urls = (f"sqlite:///{root}/{number}.db" for number in range(len(_SIZES)))
        with filled(scale, tell, root, partial(next, urls)) as places:
            yield places


@contextmanager
def on_postgres(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Place]]:
    if find_binaries() is None:
        raise Unavailable(NO_POSTGRES)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as root,
        running_postgres() as server,
        filled(scale, tell, Path(root), partial(fresh_database, server)) as places,
    ):
        yield places


@contextmanager
def filled(
    scale: Scale, tell: Tell, root: Path, new_url: Callable[[], str]
) -> Iterator[Mapping[str, Place]]:
    trees = store_trees(FileTrees(LocalStore(root / "warehouse")))
    with ExitStack() as stack:
        places = {}
        for label, size in (_QUICK_SIZES if scale.quick else _SIZES).items():
            database = Database(new_url())
            stack.callback(database.close)
            filled = _fill(database, size, trees, tell)
            floor = stack.enter_context(floor_of(database))
            places[label] = Place(database=database, filled=filled, trees=trees, floor=floor)
        yield places


def _fill(database: Database, size: int, trees: tuple[str, ...], tell: Tell) -> Filled:
    start = time.monotonic()
    until = Instant(time.time_ns() // 1_000)
    filled = load(database, lambda sink: fill(sink, size, trees=trees, until=until))
    seconds = time.monotonic() - start
    tell(
        f"{database.dialect}: {filled.transactions:,} transactions, {filled.publications:,} "
        f"publications, {filled.branches:,} branches in {seconds:.1f} s"
    )
    return filled


def store_trees(trees: FileTrees) -> tuple[str, ...]:
    """Store a few small trees, which all versions refer to, so that a check of the store passes."""
    made = []
    for number in range(_TREES):
        content = f"{number}\n".encode()
        digest = trees.store(content)
        entry = Entry(path="part.txt", mode=Mode.FILE, size=len(content), digest=digest)
        made.append(str(trees.edit(EMPTY, put=[entry]).root))
    return tuple(made)
