"""T09: the next workflow on the same input may replace the head of a workflow that ended.

A workflow is a task key here. `test_p_conductor.py` has the same case on a real Conductor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.catalog.log import list_publications
from headgate.errors import OrchestratorUnavailable
from headgate.store.embedded import Store
from headgate.tasks import WorkspaceSpec
from headgate.tasks.messages import Outcome, Status
from tests.support.cli import new_cli
from tests.support.lakefs_double import LakeFSDouble
from tests.support.lakefs_tasks import REPOSITORY, double_store
from tests.support.oracle import assert_store_sound
from tests.support.stores import load
from tests.support.task_modules import STEPS, write_module
from tests.support.tasks import (
    SONG,
    Attempt,
    Body,
    attempt,
    defined,
    input_of,
    new_workshop,
    nothing,
    put_files,
    shown,
    view_of,
    writes,
)

_ENDED = "conductor:ended:only:0"
_NEXT = "conductor:next:only:0"
_OLD = {"a": "1"}


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_workshop(made_catalog_url, tmp_path).open() as opened:
        yield opened
        assert_store_sound(opened)


def _run(
    store: Store,
    tmp_path: Path,
    key: str,
    body: Body,
    given: str,
    *,
    has_ended: Callable[[str], bool] | None = None,
    replaces: str | None = None,
) -> Outcome:
    one = Attempt(store=store, root=tmp_path / "tasks", key=key)
    identity = replace(one.identity(), replaces=replaces)
    return one.run(defined(body), input_of(given), has_ended=has_ended, identity=identity)


def _abandon(store: Store, tmp_path: Path) -> tuple[str, str]:
    """Publish as a workflow that ends afterwards; return its input and its head."""
    given = put_files(store, a="1")
    assert _run(store, tmp_path, _ENDED, writes(lost="x"), given).status is Status.COMPLETED
    return given, str(view_of(store))


@pytest.mark.parametrize(("body", "after"), [(writes(kept="y"), {"kept": "y"}), (nothing, {})])
def test_t09_head_of_an_ended_workflow_is_replaced_by_the_next_on_the_same_input(
    store: Store, tmp_path: Path, body: Body, after: dict[str, str]
) -> None:
    given, head = _abandon(store, tmp_path)
    asked: list[str] = []

    def has_ended(key: str) -> bool:
        asked.append(key)
        return True

    done = _run(store, tmp_path, _NEXT, body, given, has_ended=has_ended)
    assert done.status is Status.COMPLETED, done.traceback
    assert asked == [_ENDED]
    assert shown(store) == {**_OLD, **after}
    assert done.output and done.output["workspace"]["ref"] == view_of(store)
    made = load(store, str(view_of(store)))
    if after:
        assert (made.parent, made.provenance["replaced"]) == (given, head)
    [publication, *_] = store.database.read(lambda c: list_publications(c))
    assert publication.kind == "replace"


@pytest.mark.parametrize("has_ended", [None, lambda key: False])
@pytest.mark.parametrize("body", [writes(mine="y"), nothing])
def test_t09_head_of_a_workflow_that_has_not_ended_stays(
    store: Store, tmp_path: Path, body: Body, has_ended: Callable[[str], bool] | None
) -> None:
    given, head = _abandon(store, tmp_path)
    done = _run(store, tmp_path, _NEXT, body, given, has_ended=has_ended)
    assert (done.status, done.code) == (Status.FAILED, "publish_fence")
    assert f"--replace {head}" in str(done.reason)
    assert view_of(store) == head


def test_t09_orchestrator_that_does_not_answer_confirms_nothing(
    store: Store, tmp_path: Path
) -> None:
    given, head = _abandon(store, tmp_path)

    def silent(key: str) -> bool:
        raise OrchestratorUnavailable(url="http://conductor", reason="no answer")

    done = _run(store, tmp_path, _NEXT, writes(mine="y"), given, has_ended=silent)
    assert (done.status, done.code) == (Status.FAILED, "orchestrator_unavailable")
    assert view_of(store) == head


def test_t09_head_that_another_writer_built_upon_stays(store: Store, tmp_path: Path) -> None:
    given, head = _abandon(store, tmp_path)
    theirs = put_files(store, theirs="1")
    for replaces in (None, head, theirs):
        done = _run(
            store,
            tmp_path,
            _NEXT,
            writes(mine="y"),
            given,
            has_ended=lambda key: True,
            replaces=replaces,
        )
        assert (done.status, done.code) == (Status.FAILED, "publish_fence")
        assert view_of(store) == theirs


def test_t09_head_that_moves_after_the_confirmation_stays(store: Store, tmp_path: Path) -> None:
    given, _ = _abandon(store, tmp_path)

    def revive(workspace: Path) -> None:
        again = _run(store, tmp_path, _ENDED, writes(revived="x"), given)
        assert again.status is Status.COMPLETED
        (workspace / "mine").write_text("y")

    done = _run(store, tmp_path, _NEXT, revive, given, has_ended=lambda key: True)
    assert (done.status, done.code) == (Status.FAILED, "publish_fence")
    assert shown(store) == {**_OLD, "revived": "x"}


def test_t09_publication_of_a_person_is_not_replaced_by_name_either(
    store: Store, tmp_path: Path
) -> None:
    given = put_files(store, a="1")
    theirs = put_files(store, theirs="1")
    done = _run(store, tmp_path, _NEXT, writes(mine="y"), given, replaces=theirs)
    assert (done.status, done.code) == (Status.FAILED, "publish_fence")
    assert view_of(store) == theirs


def test_t09_read_only_attempt_looks_at_no_target(store: Store, tmp_path: Path) -> None:
    given = put_files(store, a="1")
    store.dataset(SONG).branch("master").delete(force=True)
    one = Attempt(store=store, root=tmp_path / "tasks")
    task = defined(workspace=WorkspaceSpec(read_only=True))

    def has_ended(key: str) -> bool:
        raise AssertionError("a read-only attempt has no head to replace")

    done = one.run(task, input_of(given), has_ended=has_ended)
    assert done.output and done.output["workspace"]["ref"] == given


@pytest.mark.parametrize("has_ended", [lambda key: True, lambda key: False])
def test_t09_lakefs_head_of_an_ended_workflow_is_replaced_and_no_other(
    made_catalog_url: str, tmp_path: Path, has_ended: Callable[[str], bool]
) -> None:
    double = LakeFSDouble()
    with double_store(double, made_catalog_url, tmp_path) as store:
        given = double.make_repository(REPOSITORY, _OLD)
        workspace = {"repository": REPOSITORY, "branch": "main", "ref_type": "commit", "ref": given}
        data = {"workspace": workspace, "params": {}}
        for key, body in ((_ENDED, writes(lost="x")), (_NEXT, writes(kept="y"))):
            one = Attempt(store=store, root=tmp_path / "tasks", key=key)
            done = one.run(defined(body), data, has_ended=has_ended)
    replaced = has_ended(_ENDED)
    assert done.code == (None if replaced else "publish_fence")
    expected = {"kept": "y"} if replaced else {"lost": "x"}
    assert double.show(REPOSITORY, "main") == {**_OLD, **expected}


def test_t09_command_replaces_the_named_publication_only(
    made_catalog_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workshop = new_workshop(made_catalog_url, tmp_path)
    module = write_module(
        tmp_path, STEPS, seconds="0", response="600", retries="3", name="t09_steps"
    )
    with workshop.open() as store:
        given = put_files(store, a="1")
        assert attempt(workshop, store).run(defined(writes(lost="x")), input_of(given)).output
        head = str(view_of(store))
    params = {"counter": str(tmp_path / "counter"), "steps": [{"kept": "y"}] * 3}
    (tmp_path / "input.json").write_text(json.dumps(input_of(given, params=params)))
    cli = new_cli(tmp_path, monkeypatch, capsys)
    run = ("task", "run", module, "--input", "input.json")
    for more in ((), ("--replace", given)):
        refused = cli.json(*run, *more, code=1)
        # Another attempt would meet the same head.
        assert (refused["code"], refused["attempts"]) == ("publish_fence", 1)
    assert cli.json(*run, "--replace", head)["status"] == "COMPLETED"
    with workshop.open() as store:
        assert shown(store) == {**_OLD, "kept": "y"}
        assert load(store, str(view_of(store))).provenance["replaced"] == head
