"""Attempts of one task that publish to lakeFS, each in a process that can be killed or paused."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.catalog.workspaces import find_maker
from headgate.lakefs.endpoint import connect
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import AttemptRef
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.tasks.messages import Outcome, Status
from headgate.tasks.ports import WorkspaceRef
from headgate.testing.failpoints import die_at, pause_at
from tests.support.lakefs_double import LakeFSDouble, serve_double
from tests.support.lakefs_harness import LakeFSHarness, create_repository
from tests.support.processes import running
from tests.support.stores import files_branch, new_settings, put
from tests.support.task_runs import wait_for
from tests.support.tasks import Attempt, defined, writes

REPOSITORY = "songs"
OWNER = "ana"
OLD = {"a": "1"}
NEW = {"new": "x"}
KEYS = {
    "HEADGATE_LAKEFS_ACCESS_KEY_ID": "key",
    "HEADGATE_LAKEFS_SECRET_ACCESS_KEY": "s3cret",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A store and the lakeFS branch that its attempts publish to; can be sent to a process."""

    settings: Settings
    directory: Path
    given: WorkspaceRef

    def open(self) -> Store:
        return Store(self.settings, recover_first=False)

    def harness(self, store: Store) -> LakeFSHarness:
        return LakeFSHarness(store, connect(self.settings), REPOSITORY)

    def head(self, store: Store) -> str:
        return self.harness(store).head(self.given)

    def files(self, store: Store) -> dict[str, str]:
        return self.harness(store).files(self.given)

    def commit(self, store: Store, **files: str) -> str:
        """Make another writer's commit on top of the head."""
        return self.harness(store).commit(self.given, files)

    def maker(self, store: Store, commit: str) -> AttemptRef | None:
        return store.database.read(lambda c: find_maker(c, REPOSITORY, commit))

    def attempt(self, store: Store, files: Mapping[str, str]) -> tuple[Attempt, Outcome]:
        """Dispatch one more attempt of the task."""
        attempt = Attempt(store=store, root=self.directory / "tasks")
        data = {"workspace": self.given.to_json(), "params": {}}
        return attempt, attempt.run(defined(writes(**files)), data)

    def work(self, store: Store, files: Mapping[str, str]) -> Attempt:
        """Execute one more attempt of the task, which must complete."""
        attempt, done = self.attempt(store, files)
        assert done.status is Status.COMPLETED, done.traceback
        return attempt


@contextmanager
def lakefs_place(catalog_url: str, root: Path) -> Iterator[Place]:
    """Create a store with a dataset, and a lakeFS double in a process of its own."""
    with running(serve_double, root):
        wait_for((root / "url").exists)
        settings = replace(
            new_settings(catalog_url, root, actor=OWNER),
            lakefs_endpoint=(root / "url").read_text(),
            environ=KEYS,
        )
        lakefs = connect(settings)
        create_repository(lakefs, REPOSITORY, "mem://songs", "main")
        with Store(settings) as store:
            put(files_branch(store), a="1")
            given = LakeFSHarness(store, lakefs, REPOSITORY).new_target(OLD)
        yield Place(settings=settings, directory=root, given=given)


@contextmanager
def double_store(double: LakeFSDouble, catalog_url: str, root: Path) -> Iterator[Store]:
    """Open a store whose lakeFS is a double in this process."""
    with double.serving() as url:
        made = replace(new_settings(catalog_url, root), lakefs_endpoint=url, environ=KEYS)
        with Store(made) as opened:
            yield opened


# --- entry points of processes ---


def publish(place: Place, files: Mapping[str, str]) -> None:
    with place.open() as store:
        place.work(store, files)


def publish_until(place: Place, point: Failpoint) -> None:
    """Execute an attempt that dies at a failpoint."""
    with place.open() as store:
        die_at(point)
        place.work(store, NEW)


def publish_slowly(place: Place, flags: Path, *points: Failpoint) -> None:
    """Execute an attempt that pauses at failpoints, and write its result to a file."""
    with place.open() as store:
        pause_at(*points, flags=flags)
        _, done = place.attempt(store, NEW)
        (flags / "ended").write_text(f"{done.status} {done.code}")


def recover_until(place: Place, point: Failpoint) -> None:
    """Execute a recovery that dies at a failpoint."""
    with place.open() as store:
        die_at(point)
        store.recover()


def recover_slowly(place: Place, flags: Path, point: Failpoint) -> None:
    """Execute a recovery that pauses at a failpoint."""
    with place.open() as store:
        pause_at(point, flags=flags)
        store.recover()


def recover_together(place: Place, flags: Path, name: str) -> None:
    """Execute one of three recoveries that begin at the same time."""
    with place.open() as store:
        (flags / f"ready-{name}").touch()
        while len(list(flags.glob("ready-*"))) < 3:
            time.sleep(0.001)
        store.recover()
