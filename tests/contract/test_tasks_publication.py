"""Publication protocol on `files` datasets: A is the input, H the head, C the staged commit."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import StaleAttempt, StorageUnavailable, Unavailable
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import BuildState
from headgate.storage.local import LocalStore
from headgate.store.embedded import Store
from headgate.tasks import (
    PublishBudget,
    TaskControls,
    TaskFailed,
    TaskTerminalError,
    WorkspaceSpec,
    require_file,
)
from headgate.tasks.attempt_directory import remove_directory
from headgate.tasks.messages import Outcome, Status
from headgate.testing.failpoints import calling_at
from tests.support.pipelines import build, files_spec, publish
from tests.support.stores import load
from tests.support.tasks import (
    SONG,
    Body,
    Workshop,
    attempt,
    defined,
    input_of,
    nothing,
    put_files,
    ref_of,
    shown,
    view_of,
    writes,
)

_WHOLE = ["input", "download", "pre checks", "body", "result", "post checks", "compare"]


def _raising(error: BaseException) -> Any:
    def body(workspace: Path) -> None:
        raise error

    return body


def _ref(outcome: Outcome) -> str:
    assert outcome.output is not None, outcome
    ref: str = outcome.output["workspace"]["ref"]
    return ref


def test_attempt_at_the_input_publishes_on_top_of_it(workshop: Workshop, store: Store) -> None:
    given = put_files(store, a="1", b="2")
    first = attempt(workshop, store)
    done = first.run(defined(writes(a="new")), input_of(given))
    assert done.status is Status.COMPLETED and _ref(done) == view_of(store)
    assert shown(store) == {"a": "new", "b": "2"}
    made = load(store, _ref(done))
    assert (made.parent, made.attempt) == (given, first.ref)
    assert made.provenance["task"] == "sing"
    assert first.steps == [*_WHOLE, "first fence", "stage", "second fence", "publish"]


def test_attempt_after_a_lost_completion_replaces_it(workshop: Workshop, store: Store) -> None:
    given = put_files(store, a="1")
    lost = attempt(workshop, store).run(defined(writes(lost="x")), input_of(given))
    done = attempt(workshop, store).run(defined(writes(kept="y")), input_of(given))
    assert shown(store) == {"a": "1", "kept": "y"}
    assert load(store, _ref(done)).parent == given
    assert load(store, _ref(lost)).state == "COMMITTED"
    assert load(store, _ref(done)).provenance["replaced"] == _ref(lost)


def test_attempt_without_change_after_a_lost_completion_returns_to_the_input(
    workshop: Workshop, store: Store
) -> None:
    given = put_files(store, a="1")
    attempt(workshop, store).run(defined(writes(lost="x")), input_of(given))
    second = attempt(workshop, store)
    done = second.run(defined(), input_of(given))
    assert _ref(done) == given == view_of(store)
    assert shown(store) == {"a": "1"}
    assert second.steps[-2:] == ["first fence", "keep"]


def test_attempt_without_change_at_the_input_makes_no_publication(
    workshop: Workshop, store: Store
) -> None:
    given = put_files(store, a="1")

    def rewrite(workspace: Path) -> None:
        (workspace / "a").write_text("1")

    done = attempt(workshop, store).run(defined(rewrite), input_of(given))
    assert _ref(done) == given == view_of(store)


def _by_a_person(workshop: Workshop, store: Store, given: str) -> None:
    put_files(store, x="theirs")


def _by_a_build(workshop: Workshop, store: Store, given: str) -> None:
    publish(store, "master", files_spec(SONG))
    assert build(store, SONG).state is BuildState.SUCCEEDED


def _by_another_task(workshop: Workshop, store: Store, given: str) -> None:
    other = attempt(workshop, store, "another")
    other.run(defined(writes(x="theirs")), input_of(given))


@pytest.mark.parametrize("body", [writes(a="new"), nothing], ids=["change", "no change"])
@pytest.mark.parametrize("bystander", [_by_a_person, _by_a_build, _by_another_task])
def test_p03_attempt_beside_a_bystander_fails_closed(
    workshop: Workshop, store: Store, body: Body, bystander: Callable[[Workshop, Store, str], None]
) -> None:
    given = put_files(store, a="1")
    theirs: list[tuple[str | None, dict[str, str]]] = []

    def meanwhile(workspace: Path) -> None:
        body(workspace)
        bystander(workshop, store, given)
        theirs.append((view_of(store), shown(store)))

    done = attempt(workshop, store).run(defined(meanwhile), input_of(given))
    assert (done.status, done.code, done.output) == (Status.FAILED, "publish_fence", None)
    assert "that was published by" in str(done.reason)
    [(head, files)] = theirs
    assert load(store, str(head)).parent == given
    assert (view_of(store), shown(store)) == (head, files)


def test_attempt_on_an_older_input_fails_closed(workshop: Workshop, store: Store) -> None:
    given = put_files(store, a="1")
    put_files(store, b="2")
    head = put_files(store, c="3")
    done = attempt(workshop, store).run(defined(writes(a="new")), input_of(given))
    assert (done.status, done.code) == (Status.FAILED, "publish_fence")
    assert view_of(store) == head


def test_p04_attempts_that_pass_the_head_check_together_move_the_branch_once(
    workshop: Workshop, store: Store
) -> None:
    given = put_files(store, a="1")
    first = attempt(workshop, store, "first")

    def second() -> None:
        done = attempt(workshop, store, "second").run(defined(writes(b="2")), input_of(given))
        assert done.status is Status.COMPLETED

    with calling_at(Failpoint.TASK_HEAD_READ, second):
        done = first.run(defined(writes(c="3")), input_of(given))
    assert (done.status, done.code) == (Status.FAILED, "publish_fence")
    assert shown(store) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("point", [Failpoint.TASK_STAGED, Failpoint.TASK_HEAD_READ])
def test_attempt_that_was_superseded_is_refused_with_no_effect(
    workshop: Workshop, store: Store, point: Failpoint
) -> None:
    given = put_files(store, a="1")
    zombie = attempt(workshop, store)

    def newer() -> None:
        attempt(workshop, store).run(defined(writes(b="2")), input_of(given))

    with calling_at(point, newer):
        done = zombie.run(defined(writes(c="3")), input_of(given))
    assert (done.status, done.code) == (Status.FAILED, "attempt_superseded")
    assert shown(store) == {"a": "1", "b": "2"}


def test_p11_read_only_attempt_asks_nobody_and_drops_what_it_wrote(
    workshop: Workshop, store: Store
) -> None:
    given = put_files(store, a="1")
    head = put_files(store, b="moved since")

    def refuse() -> None:
        raise AssertionError("a read-only attempt has no fence")

    reader = attempt(workshop, store)
    task = defined(writes(c="dropped"), workspace=WorkspaceSpec(read_only=True))
    done = reader.run(task, input_of(given), fence=refuse)
    assert (_ref(done), view_of(store)) == (given, head)
    assert reader.steps == _WHOLE[:-1]


def test_t09_head_of_an_ended_workflow_is_replaced_by_the_next(
    workshop: Workshop, store: Store
) -> None:
    given = put_files(store, a="1")
    attempt(workshop, store, "ended").run(defined(writes(lost="x")), input_of(given))
    head = view_of(store)
    for ended in (False, True):
        done = attempt(workshop, store, "next").run(
            defined(writes(kept="y")), input_of(given), has_ended=lambda key, answer=ended: answer
        )
        assert done.code == (None if ended else "publish_fence"), done.traceback
    assert shown(store) == {"a": "1", "kept": "y"}
    assert load(store, str(view_of(store))).provenance["replaced"] == head


def test_t09_read_only_attempt_needs_no_target_branch(workshop: Workshop, store: Store) -> None:
    given = put_files(store, a="1")
    store.dataset(SONG).branch("master").delete(force=True)
    reader = attempt(workshop, store)
    task = defined(workspace=WorkspaceSpec(read_only=True))
    assert _ref(reader.run(task, input_of(given))) == given
    writer = attempt(workshop, store)
    assert writer.run(defined(), input_of(given)).code == "branch_not_found"
    assert "body" not in writer.steps


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (_raising(ValueError("odd")), Status.FAILED, "user_code"),
        (_raising(TaskFailed("later")), Status.FAILED, "task_failed"),
        (
            lambda w: (_ for _ in ()).throw(TaskTerminalError("no")),
            Status.TERMINAL,
            "task_terminal",
        ),
        (_raising(SystemExit(3)), Status.FAILED, "task_failed"),
    ],
)
def test_body_that_raises_publishes_nothing_and_says_why(
    workshop: Workshop, store: Store, body: Any, status: Status, code: str
) -> None:
    given = put_files(store, a="1")
    one = attempt(workshop, store)
    done = one.run(defined(body), input_of(given))
    assert (done.status, done.code, done.output) == (status, code, None)
    assert done.reason and done.traceback and "test_tasks_publication" in done.traceback
    assert view_of(store) == given
    assert one.said is not None and one.said[-1]["traceback"] == done.traceback


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        (WorkspaceSpec(pre=[require_file("no")]), Status.TERMINAL),
        (WorkspaceSpec(post=[require_file("no")]), Status.FAILED),
    ],
)
def test_check_that_fails_is_terminal_only_before_the_body(
    workshop: Workshop, store: Store, spec: WorkspaceSpec, status: Status
) -> None:
    given = put_files(store, a="1")
    done = attempt(workshop, store).run(defined(writes(a="2"), workspace=spec), input_of(given))
    assert (done.status, done.code) == (status, "workspace_check")
    assert view_of(store) == given


@pytest.mark.parametrize("asked", [1, 2])
@pytest.mark.parametrize("error", [StaleAttempt, Unavailable])
def test_fence_that_refuses_or_does_not_answer_fails_closed(
    workshop: Workshop, store: Store, asked: int, error: type[Exception]
) -> None:
    given = put_files(store, a="1")
    answers = iter(range(1, 9))

    def fence() -> None:
        if next(answers) == asked:
            if error is StaleAttempt:
                raise StaleAttempt(task="t", field="status", expected="a", actual="b")
            raise Unavailable("nobody answers.")

    done = attempt(workshop, store).run(defined(writes(a="2")), input_of(given), fence=fence)
    assert (done.status, done.output) == (Status.FAILED, None)
    assert view_of(store) == given


@pytest.mark.parametrize(
    "workspace",
    [
        {"repository": SONG, "branch": "master", "ref_type": "commit", "ref": "t-unknown"},
        {"repository": SONG, "branch": "nowhere", "ref_type": "commit", "ref": "{given}"},
        {"repository": "no.such", "branch": "master", "ref_type": "commit", "ref": "{given}"},
        {"repository": "dotless", "branch": "master", "ref_type": "commit", "ref": "{given}"},
        {"repository": SONG, "branch": "master", "ref_type": "branch", "ref": "{given}"},
    ],
)
def test_input_that_names_nothing_fails_before_the_body(
    workshop: Workshop, store: Store, workspace: dict[str, str]
) -> None:
    given = put_files(store, a="1")
    named = {key: value.replace("{given}", given) for key, value in workspace.items()}
    one = attempt(workshop, store)
    done = one.run(defined(writes(a="2")), {"workspace": named, "params": {}})
    assert done.status is Status.FAILED and done.reason
    assert "body" not in one.steps


def test_cleanup_that_fails_never_changes_the_result(
    workshop: Workshop, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = put_files(store, a="1")

    def broken(self: object, staged: object) -> None:
        raise StorageUnavailable(where="staging", reason="broken")

    workspaces = workshop.doing(store).workspaces(ref_of(given))
    monkeypatch.setattr(type(workspaces), "discard", broken)
    one = attempt(workshop, store)
    done = one.run(defined(writes(a="2")), input_of(given))
    assert done.status is Status.COMPLETED
    assert any(line["event"] == "staging not cleaned up" for line in one.said or ())


def test_workspace_that_cannot_be_removed_never_changes_the_result(
    workshop: Workshop, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = put_files(store, a="1")

    def broken(directory: Path, *, file_count: int) -> None:
        remove_directory(directory, file_count=file_count)
        raise StorageUnavailable(where="disk", reason="broken")

    monkeypatch.setattr("headgate.tasks.lifecycle.remove_directory", broken)
    one = attempt(workshop, store)
    assert one.run(defined(writes(a="2")), input_of(given)).status is Status.COMPLETED
    assert any(line["event"] == "workspace not cleaned up" for line in one.said or ())


def test_stage_that_fails_publishes_nothing(
    workshop: Workshop, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = put_files(store, a="1")

    def full(self: object, key: str, source: Path, *, sha256: str | None = None) -> bool:
        raise StorageUnavailable(where="disk", reason="no space left")

    monkeypatch.setattr(LocalStore, "put_file", full)
    done = attempt(workshop, store).run(defined(writes(a="2")), input_of(given))
    assert (done.status, done.code) == (Status.FAILED, StorageUnavailable.code)
    assert "no space left" in str(done.reason) and view_of(store) == given


def test_publication_past_its_budget_fails_with_the_time_it_had(
    workshop: Workshop, store: Store
) -> None:
    given = put_files(store, a="1")
    over = threading.Event()
    budget = PublishBudget(
        observed_merge_p99_seconds=1,
        safety_margin_seconds=0,
        lakefs_merge_timeout_seconds=1,
        conductor_completion_timeout_seconds=1,
        worker_shutdown_grace_seconds=1,
        heartbeat_interval_seconds=1,
    )

    def hang() -> None:
        assert over.wait(60)
        raise Unavailable("too late.")

    task = defined(writes(a="2"), controls=TaskControls(publish_budget=budget))
    with calling_at(Failpoint.TASK_HEAD_READ, hang):
        done = attempt(workshop, store).run(task, input_of(given))
        over.set()
    assert (done.status, done.code) == (Status.FAILED, "task_deadline")
    assert "publishing" in str(done.reason) and view_of(store) == given


def test_log_of_an_attempt_is_lines_of_json_without_the_input(
    workshop: Workshop, store: Store
) -> None:
    given = put_files(store, a="1")
    data = input_of(given, params={"word": "s3cret"}, more=1)
    attempt(workshop, store).run(defined(writes(a="2")), data)
    [path] = (workshop.root / "logs").glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["event"] == "attempt begins" and lines[-1]["status"] == "COMPLETED"
    assert {"event": "input has unknown keys", "level": "warning"}.items() <= lines[2].items()
    assert "s3cret" not in path.read_text()
