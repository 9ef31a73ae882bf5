"""One operation into three datasets with an effect outside: what is killed at every phase."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.catalog.outside import Effect, publish_with_effects
from headgate.model.changes import PublishRequest, Receipt
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import AttemptRef, PublicationKind
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import die_at, pause_at
from tests.support.door import addition
from tests.support.git_outside import KIND, GitRefs, new_git
from tests.support.stores import content, files_branch, new_settings, put

DATASETS = ("raw.a", "raw.b", "raw.c")
REF = "refs/heads/data"
OTHER_REF = "refs/heads/more"
OWNER = "olga"
OLD = {"kept": "old"}
NEW = {"kept": "old", "added": "new"}


@dataclass(frozen=True)
class World:
    """A store with three datasets, and the repository outside; can be sent to a process."""

    settings: Settings
    git: GitRefs

    def open(self) -> Store:
        store = Store(self.settings, recover_first=False)
        store.outside[KIND] = self.git
        return store

    def head(self, ref: str = REF) -> str | None:
        return self.git.find_head({"ref": ref})


def new_world(catalog_url: str, root: Path) -> World:
    settings = new_settings(catalog_url, root, actor=OWNER)
    with Store(settings) as store:
        for name in DATASETS:
            put(files_branch(store, name), **OLD)
    return World(settings, new_git(root, REF, OTHER_REF))


def operate(
    store: Store,
    effects: Sequence[Effect],
    *,
    attempt: AttemptRef | None = None,
    lease_seconds: int = 60,
) -> Receipt:
    """Adds a file to each of the three datasets, in one publication with the effects."""
    request = PublishRequest(
        actor=store.settings.actor,
        kind=PublicationKind.MERGE,
        changes=tuple(
            addition(store.dataset(name).branch("master"), "added", "new") for name in DATASETS
        ),
        attempt=attempt,
    )
    return publish_with_effects(
        store.database,
        request,
        effects,
        store.outside[KIND],
        name=KIND,
        lease_seconds=lease_seconds,
    )


def shown(store: Store) -> list[dict[str, str]]:
    """What the three datasets show."""
    return [content(store.dataset(name).branch("master")) for name in DATASETS]


def own(world: World, point: Failpoint, nth: int = 1, planned: bool = True, refs: int = 1) -> None:
    """An owner that dies at a failpoint; the entry of a process."""
    with world.open() as store:
        effects = _effects(world.git, planned, refs)
        die_at(point, nth=nth)
        operate(store, effects)


def own_slowly(world: World, flags: Path, *points: Failpoint) -> None:
    """An owner that pauses at failpoints; writes down how it ended."""
    with world.open() as store:
        effects = _effects(world.git, True, 1)
        pause_at(*points, flags=flags)
        try:
            receipt = operate(store, effects)
            (flags / "ended").write_text(f"published {receipt.publication}")
        except Exception as error:
            (flags / "ended").write_text(f"{type(error).__name__}: {error}")
            raise SystemExit(1) from error


def settle(world: World, point: Failpoint) -> None:
    """A recovery that dies at a failpoint."""
    with world.open() as store:
        die_at(point)
        store.recover()


def settle_slowly(world: World, flags: Path, point: Failpoint) -> None:
    """A recovery that pauses at a failpoint."""
    with world.open() as store:
        pause_at(point, flags=flags)
        store.recover()


def settle_together(world: World, flags: Path, name: str) -> None:
    """One of three recoveries that begin at the same moment."""
    with world.open() as store:
        (flags / f"ready-{name}").touch()
        while len(list(flags.glob("ready-*"))) < 3:
            time.sleep(0.001)
        store.recover()


def _effects(git: GitRefs, planned: bool, refs: int) -> list[Effect]:
    make = git.planned_effect if planned else git.unplanned_effect
    return [make(ref, "effect") for ref in (REF, OTHER_REF)[:refs]]
