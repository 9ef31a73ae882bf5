"""A process killed inside a merge or reset of lakeFS: recovery says which it was, moves nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from headgate.catalog.intents import Intent, list_intents
from headgate.catalog.log import list_events
from headgate.catalog.workspaces import find_maker
from headgate.lakefs.endpoint import connect
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.tasks.messages import Status
from headgate.tasks.ports import WorkspaceRef
from headgate.testing.lakefs_ground import LakeFSGround
from tests.support.lakefs_double import HELD, serve_double
from tests.support.processes import run, running
from tests.support.stores import expire_leases, new_settings
from tests.support.task_runs import wait_for
from tests.support.tasks import Attempt, defined, writes

_REPOSITORY = "songs"
_OLD = {"a": "1"}
_KEYS = {
    "HEADGATE_LAKEFS_ACCESS_KEY_ID": "key",
    "HEADGATE_LAKEFS_SECRET_ACCESS_KEY": "s3cret",
}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A store, and the repository whose branch its attempts publish to; for any process."""

    settings: Settings
    directory: Path
    given: WorkspaceRef

    def data(self) -> dict[str, object]:
        return {"workspace": self.given.to_json(), "params": {}}

    def work(self, store: Store, files: Mapping[str, str]) -> Attempt:
        """One more attempt of the same task, done to its end."""
        attempt = Attempt(store=store, root=self.directory / "tasks")
        done = attempt.run(defined(writes(**files)), self.data())
        assert done.status is Status.COMPLETED, done.traceback
        return attempt


@pytest.fixture
def place(made_catalog_url: str, tmp_path: Path) -> Iterator[_Place]:
    with running(serve_double, tmp_path):
        wait_for((tmp_path / "url").exists)
        settings = replace(
            new_settings(made_catalog_url, tmp_path),
            lakefs_endpoint=(tmp_path / "url").read_text(),
            environ=_KEYS,
            cache=tmp_path / "cache",
        )
        connect(settings).create_repository(_REPOSITORY, "mem://songs", "main")
        with Store(settings) as store:
            given = _ground(store).new_target(_OLD)
        yield _Place(settings=settings, directory=tmp_path, given=given)


def _ground(store: Store) -> LakeFSGround:
    return LakeFSGround(store, connect(store.settings), _REPOSITORY)


def _attempt(place: _Place, files: Mapping[str, str]) -> None:
    """What a process of its own does."""
    with Store(place.settings, recover_first=False) as store:
        place.work(store, files)


def _kill_inside(place: _Place, request: str, when: str, files: Mapping[str, str]) -> None:
    hold = place.directory / f"{request}.{when}"
    hold.touch()
    with running(_attempt, place, files) as client:
        wait_for((place.directory / HELD).exists)
        client.kill()
        client.join()
        assert client.exitcode == -signal.SIGKILL
    hold.unlink()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("request_name", ["merge", "hard_reset"])
def test_attempt_killed_inside_its_request_is_told_landed_or_not_and_nothing_moves(
    place: _Place, request_name: str, when: str
) -> None:
    if request_name == "hard_reset":
        assert run(_attempt, place, {"lost": "x"}) == 0
    with Store(place.settings, recover_first=False) as store:
        ground = _ground(store)
        before = ground.head(place.given)
        _kill_inside(place, request_name, when, {"new": "x"})
        head, landed = ground.head(place.given), when == "after"
        assert (head != before) is landed
        [intent] = store.database.read(list_intents)
        expire_leases(store)
        _assert_recovered(store, intent, landed=landed, action=request_name.removeprefix("hard_"))
        assert ground.head(place.given) == head
        if landed:
            assert ground.files(place.given) == {**_OLD, "new": "x"}
            maker = store.database.read(partial(_maker, head=head))
            assert maker is not None
        last = place.work(store, {"last": "y"})
        assert ground.files(place.given) == {**_OLD, "last": "y"}
        assert store.database.read(partial(_maker, head=ground.head(place.given))) == last.ref
        expire_leases(store)
        assert len(store.sweep_staging()) == 1
        assert ground.staging_left(place.given) == []


def _assert_recovered(store: Store, intent: Intent, *, landed: bool, action: str) -> None:
    done = store.recover()
    assert (done.rolled_forward, done.rolled_back) == (
        ([intent.operation], []) if landed else ([], [intent.operation])
    )
    assert store.database.read(list_intents) == []
    [event] = store.database.read(lambda c: list_events(c, actor=RECOVERY_ACTOR))
    assert event["kind"] == ("workspace landed" if landed else "workspace not landed")
    assert event["action"] == action
    again = store.recover()
    assert (again.rolled_forward, again.rolled_back) == ([], [])


def _maker(connection: object, head: str) -> object:
    return find_maker(connection, _REPOSITORY, head)  # type: ignore[arg-type]
