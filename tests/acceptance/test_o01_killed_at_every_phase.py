"""O01: an attempt is killed at every phase of its publication to lakeFS: old state or new.

`test_o01_mutations_killed` covers the catalog's own publications, into three datasets at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog.recovery import list_intents
from headgate.model.failpoints import Failpoint
from headgate.store.embedded import Store
from tests.support import lakefs_tasks
from tests.support.cli import new_cli
from tests.support.lakefs_double import HELD
from tests.support.lakefs_tasks import KEYS, NEW, OLD, OWNER, Place, lakefs_place
from tests.support.oracle import assert_rows_sound, assert_store_sound
from tests.support.processes import assert_killed, run
from tests.support.stores import expire_leases
from tests.support.task_modules import STEPS, write_module
from tests.support.task_runs import wait_for

OWNER_KILLED_AT = (
    Failpoint.INTENT_RECORDED,
    Failpoint.INTENT_EFFECT_DONE,
    Failpoint.INTENT_CLEARED,
)


@pytest.fixture
def place(catalog_url: str, tmp_path: Path) -> Iterator[Place]:
    with lakefs_place(catalog_url, tmp_path) as made:
        yield made


def _abandon(place: Place) -> None:
    """Publish without a report: the next attempt replaces the publication by a hard reset."""
    assert run(lakefs_tasks.publish, place, {"lost": "x"}) == 0


@pytest.mark.parametrize("action", ["merge", "reset"])
def test_o01_killed_before_the_effect_leaves_the_old_state(place: Place, action: str) -> None:
    if action == "reset":
        _abandon(place)
    with place.open() as store:
        head = place.head(store)
        assert_killed(lakefs_tasks.publish_until, place, Failpoint.INTENT_RECORDED)
        [intent] = store.database.read(list_intents)
        expire_leases(store)
        recovered = store.recover()
        assert (recovered.rolled_back, recovered.rolled_forward) == ([intent.operation], [])
        assert place.head(store) == head
        _check_audit(store, place, intent.operation, outcome="not landed")
        _check_next_attempt(store, place)


@pytest.mark.parametrize("action", ["merge", "reset"])
@pytest.mark.parametrize("point", OWNER_KILLED_AT[1:])
def test_o01_killed_after_the_effect_ends_in_the_new_state(
    place: Place, point: Failpoint, action: str
) -> None:
    if action == "reset":
        _abandon(place)
    with place.open() as store:
        assert_killed(lakefs_tasks.publish_until, place, point)
        assert_rows_sound(store)
        head = place.head(store)
        assert place.files(store) == {**OLD, **NEW}
        pending = [intent.operation for intent in store.database.read(list_intents)]
        assert len(pending) == (point is Failpoint.INTENT_EFFECT_DONE)
        expire_leases(store)
        assert store.recover().rolled_forward == pending
        assert place.head(store) == head
        assert place.maker(store, head) is not None
        if pending:
            _check_audit(store, place, pending[0], outcome="landed")
        _check_next_attempt(store, place)


@pytest.mark.parametrize("when", ["before", "after"])
def test_o01_command_killed_inside_its_merge_is_settled_by_the_recover_command(
    place: Place,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """O01 and O02 as users type them: `task run`, `recover`, `log --recoveries`, `task run`."""
    cli = new_cli(place.directory, monkeypatch, capsys)
    run = _task_run(place, monkeypatch)
    hold = place.directory / f"merge.{when}"
    hold.touch()
    with subprocess.Popen([sys.executable, "-m", "headgate", *run]) as command:
        wait_for((place.directory / HELD).exists)
        command.kill()
    hold.unlink()
    with place.open() as store:
        landed = place.head(store) != place.given.ref
        assert landed is (when == "after")
        [intent] = store.database.read(list_intents)
        expire_leases(store)
    dry = cli.json("recover", "--dry-run")
    settled = cli.json("recover")
    assert settled["rolled_forward" if landed else "rolled_back"] == [intent.operation]
    assert dry["rolled_forward"] == settled["rolled_forward"]
    again = cli.json("recover")
    assert (again["rolled_forward"], again["rolled_back"]) == ([], [])
    [audit] = cli.json("log", "--recoveries")
    outcome = "landed" if landed else "not landed"
    assert (audit["kind"], audit["operation"]) == (f"workspace {outcome}", intent.operation)
    done = cli.json(*run)
    with place.open() as store:
        assert done["output"]["workspace"]["ref"] == place.head(store)
        assert place.files(store) == {**OLD, "step": "2"}
        assert_store_sound(store)


def _task_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return the command, for a store that it finds in the directory; each attempt differs."""
    root, settings = place.directory, place.settings
    (root / "headgate.toml").write_text(
        f'[store]\ncatalog = "{settings.catalog}"\nwarehouse = "{settings.warehouse}"\n'
        f'[lakefs]\nendpoint = "{settings.lakefs_endpoint}"\n'
    )
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    module = write_module(root, STEPS, seconds="0", response="600", retries="0", name="o01")
    params = {"counter": str(root / "counter"), "steps": [{"step": "1"}, {"step": "2"}]}
    data = {"workspace": place.given.to_json(), "params": params}
    (root / "input.json").write_text(json.dumps(data))
    return ("task", "run", module, "--input", "input.json", "--task-key", "k")


def _check_audit(store: Store, place: Place, operation: str, *, outcome: str) -> None:
    """Check the operation and actor of the owner, and the head of the branch."""
    [audit] = store.recoveries()
    assert (audit["operation"], audit["original_actor"]) == (operation, OWNER)
    assert audit["kind"] == f"workspace {outcome}"
    assert audit["outcomes"] == [
        {
            "target": {"repository": place.given.repository, "branch": place.given.branch},
            "outcome": outcome,
            "head": place.head(store),
        }
    ]


def _check_next_attempt(store: Store, place: Place) -> None:
    """Check that the next attempt replaces the work of the dead one."""
    last = place.work(store, {"last": "y"})
    assert place.files(store) == {**OLD, "last": "y"}
    assert place.maker(store, place.head(store)) == last.ref
    assert_store_sound(store)
