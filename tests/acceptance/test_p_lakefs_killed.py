"""A process is killed in a merge or reset of lakeFS: recovery reports landed or not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog.log import list_events
from headgate.catalog.recovery import list_intents
from headgate.catalog.workspaces import Intent
from headgate.model.recovery import RECOVERY_ACTOR
from headgate.store.embedded import Store
from tests.support import lakefs_tasks
from tests.support.lakefs_double import HELD
from tests.support.lakefs_tasks import NEW, OLD, Place, lakefs_place
from tests.support.processes import run, running
from tests.support.stores import expire_leases
from tests.support.task_runs import wait_for


@pytest.fixture
def place(made_catalog_url: str, tmp_path: Path) -> Iterator[Place]:
    with lakefs_place(made_catalog_url, tmp_path) as made:
        yield made


def _kill_inside(place: Place, request: str, when: str) -> None:
    hold = place.directory / f"{request}.{when}"
    hold.touch()
    with running(lakefs_tasks.publish, place, NEW) as client:
        wait_for((place.directory / HELD).exists)
        client.kill()
        client.join()
        assert client.exitcode == -signal.SIGKILL
    hold.unlink()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("request_name", ["merge", "hard_reset"])
def test_attempt_killed_inside_its_request_is_told_landed_or_not_and_nothing_moves(
    place: Place, request_name: str, when: str
) -> None:
    if request_name == "hard_reset":
        assert run(lakefs_tasks.publish, place, {"lost": "x"}) == 0
    with place.open() as store:
        before = place.head(store)
        _kill_inside(place, request_name, when)
        head, landed = place.head(store), when == "after"
        assert (head != before) is landed
        [intent] = store.database.read(list_intents)
        expire_leases(store)
        _assert_recovered(store, intent, landed=landed, action=request_name.removeprefix("hard_"))
        assert place.head(store) == head
        if landed:
            assert place.files(store) == {**OLD, **NEW}
            assert place.maker(store, head) is not None
        last = place.work(store, {"last": "y"})
        assert place.files(store) == {**OLD, "last": "y"}
        assert place.maker(store, place.head(store)) == last.ref
        expire_leases(store)
        assert len(store.sweep_staging()) == 1
        assert place.harness(store).staging_left(place.given) == []


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
