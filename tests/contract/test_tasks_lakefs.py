"""Workspaces in lakeFS: our side of the protocol on the test double, all of it on a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headgate.catalog.attempts import end_attempt
from headgate.catalog.recovery import list_intents
from headgate.catalog.workspaces import Action, PlannedMove, announce_move, clear_intent, find_maker
from headgate.errors import LakeFSUnavailable
from headgate.lakefs.endpoint import connect
from headgate.model.failpoints import Failpoint
from headgate.model.nouns import AttemptState
from headgate.store.embedded import Store
from headgate.tasks import WorkspaceSpec
from headgate.tasks.lakefs_store import staging_name
from headgate.tasks.messages import Outcome, Status
from headgate.tasks.ports import WorkspaceRef
from headgate.testing.failpoints import calling_at, reached_points
from tests.support.lakefs_double import LakeFSDouble
from tests.support.lakefs_harness import LakeFSHarness, lakefs_harness
from tests.support.lakefs_tasks import REPOSITORY, double_store
from tests.support.proxy import Cut, proxy_before
from tests.support.publication_cases import CASES, FilesHarness, try_case
from tests.support.skips import NO_LAKEFS
from tests.support.stores import expire_leases, new_settings
from tests.support.task_runs import wait_for
from tests.support.tasks import Attempt, defined, writes

_FILES = {"a": "1", "dir/b": "2", "dirt": "3"}


@pytest.fixture
def double() -> LakeFSDouble:
    return LakeFSDouble()


@pytest.fixture
def store(double: LakeFSDouble, made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with double_store(double, made_catalog_url, tmp_path) as opened:
        yield opened


def _input(ref: str) -> dict[str, object]:
    workspace = {"repository": REPOSITORY, "branch": "main", "refType": "commit", "ref": ref}
    return {"workspace": workspace, "params": {}}


def _attempt(store: Store, tmp_path: Path, key: str = "k") -> Attempt:
    return Attempt(store=store, root=tmp_path / "tasks", key=key)


def _ref(outcome: Outcome) -> str:
    assert outcome.output is not None, outcome
    ref: str = outcome.output["workspace"]["ref"]
    return ref


@pytest.mark.parametrize("name", CASES)
def test_protocol_case_holds_on_files(made_catalog_url: str, tmp_path: Path, name: str) -> None:
    with Store(new_settings(made_catalog_url, tmp_path)) as store:
        try_case(FilesHarness(store), name)


@pytest.mark.parametrize("name", CASES)
def test_protocol_case_holds_over_the_double(store: Store, double: LakeFSDouble, name: str) -> None:
    double.make_repository(REPOSITORY, {})
    try_case(LakeFSHarness(store, connect(store.settings), REPOSITORY), name)


@pytest.mark.skipif("HEADGATE_LAKEFS_ENDPOINT" not in os.environ, reason=NO_LAKEFS)
@pytest.mark.parametrize("name", CASES)
def test_protocol_case_holds_on_a_lakefs_server(
    made_sqlite_url: str, tmp_path: Path, name: str
) -> None:
    settings = replace(
        new_settings(made_sqlite_url, tmp_path),
        lakefs_endpoint=os.environ["HEADGATE_LAKEFS_ENDPOINT"],
        environ=dict(os.environ),
    )
    storage = os.environ.get("HEADGATE_LAKEFS_STORAGE")
    with Store(settings) as store, lakefs_harness(store, storage) as harness:
        try_case(harness, name)


def test_attempt_touching_one_file_moves_one_and_leaves_the_others_identity(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    before = double.addresses(REPOSITORY, "main")
    task = defined(writes(a="new"))
    done = _attempt(store, tmp_path).run(task, _input(given))
    assert done.status is Status.COMPLETED, done.traceback
    assert double.show(REPOSITORY, "main") == {**_FILES, "a": "new"}
    after = double.addresses(REPOSITORY, "main")
    assert {path for path in after if after[path] != before[path]} == {"a"}
    assert double.calls.count("upload") == 1 and "delete_objects" not in double.calls
    assert list(double.branches) == [(REPOSITORY, "main")]
    double.calls.clear()
    again = _attempt(store, tmp_path).run(defined(), _input(_ref(done)))
    assert _ref(again) == _ref(done)
    assert double.calls.count("get_object") == 1


def test_attempt_sees_only_its_prefix_and_not_a_sibling_that_begins_alike(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)

    def work(workspace: Path) -> None:
        assert [path.name for path in workspace.iterdir()] == ["b"]
        (workspace / "b").unlink()

    task = defined(work, workspace=WorkspaceSpec(prefix="dir"))
    assert _attempt(store, tmp_path).run(task, _input(given)).status is Status.COMPLETED
    assert double.show(REPOSITORY, "main") == {"a": "1", "dirt": "3"}


def test_protected_branch_that_needs_a_reset_is_explained(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    _attempt(store, tmp_path).run(defined(writes(a="lost")), _input(given))
    double.protected.add("main")
    done = _attempt(store, tmp_path).run(defined(writes(a="kept")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, "lakefs_denied")
    assert "protected branch" in str(done.reason)
    assert double.show(REPOSITORY, "main")["a"] == "lost"
    assert store.database.read(list_intents) == []


@pytest.mark.parametrize("step", ["upload", "make_commit", "merge"])
def test_server_that_fails_leaves_no_staging_and_no_secret(
    store: Store, double: LakeFSDouble, tmp_path: Path, step: str
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    double.refuse.add(step)
    done = _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, LakeFSUnavailable.code)
    assert "s3cret" not in f"{done.reason}{done.traceback}"
    assert list(double.branches) == [(REPOSITORY, "main")]
    assert double.branches[(REPOSITORY, "main")].commit == given


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        ("upload", 400, "lakefs_rejected"),
        ("make_commit", 400, "lakefs_rejected"),
        ("make_commit", 412, "lakefs_conflict"),
        ("merge", 409, "lakefs_conflict"),
        ("merge", 429, "lakefs_unavailable"),
        ("create_branch", 401, "lakefs_denied"),
    ],
)
def test_client_error_is_typed_and_has_the_message_of_the_server(
    store: Store, double: LakeFSDouble, tmp_path: Path, step: str, status: int, code: str
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    double.reject[step] = (status, "hook songs/check.yaml failed")
    done = _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, code)
    assert f"{status} hook songs/check.yaml failed" in str(done.reason)
    assert list(double.branches) == [(REPOSITORY, "main")]
    # The server is to be tried again: recovery finds out later that nothing landed.
    assert len(store.database.read(list_intents)) == (status == 429)


def _commit_theirs(store: Store, **files: str) -> None:
    """Make another writer's commit on top of main."""
    main = WorkspaceRef(repository=REPOSITORY, branch="main", ref="-")
    LakeFSHarness(store, connect(store.settings), REPOSITORY).commit(main, files)


def _recovered(store: Store) -> list[str]:
    """Return what recovery records after the leases of all intents have ended."""
    expire_leases(store)
    store.recover()
    return [row["kind"] for row in store.recoveries()]


def test_merge_that_conflicts_did_not_land_and_the_next_attempt_can_publish(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    with calling_at(Failpoint.INTENT_RECORDED, lambda: _commit_theirs(store, a="theirs")):
        done = _attempt(store, tmp_path).run(defined(writes(a="mine")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, "lakefs_conflict")
    assert store.database.read(list_intents) == [] and _recovered(store) == []
    head = double.branches[(REPOSITORY, "main")].commit
    last = _attempt(store, tmp_path).run(defined(writes(a="mine")), _input(head))
    assert _ref(last) == double.branches[(REPOSITORY, "main")].commit
    assert double.show(REPOSITORY, "main") == {**_FILES, "a": "mine"}


@pytest.mark.parametrize(
    ("request_name", "status", "recorded"),
    [
        *(("merge", status, []) for status in (400, 403, 404, 409, 412)),
        *(("merge", status, ["workspace unknown"]) for status in (408, 429, 504)),
        ("hard_reset", 403, []),
        ("hard_reset", 500, ["workspace unknown"]),
    ],
)
def test_move_below_a_foreign_head_is_unknown_only_without_a_certain_rejection(
    store: Store,
    double: LakeFSDouble,
    tmp_path: Path,
    request_name: str,
    status: int,
    recorded: list[str],
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    if request_name == "hard_reset":
        _attempt(store, tmp_path).run(defined(writes(a="lost")), _input(given))
    double.reject[request_name] = (status, "no")
    with calling_at(Failpoint.INTENT_RECORDED, lambda: _commit_theirs(store, x="theirs")):
        done = _attempt(store, tmp_path).run(defined(writes(a="mine")), _input(given))
    assert (done.status is Status.FAILED and f"{status} no" in str(done.reason)) or status == 404
    assert len(store.database.read(list_intents)) == len(recorded)
    assert _recovered(store) == recorded


@pytest.mark.parametrize(
    ("request_name", "cut", "recorded"),
    [
        ("merge", Cut.BEFORE, "workspace not landed"),
        ("merge", Cut.AFTER, None),
        ("hard_reset", Cut.BEFORE, "workspace not landed"),
        ("hard_reset", Cut.AFTER, None),
        ("hard_reset", Cut.LATE, "workspace landed"),
    ],
)
def test_move_whose_reply_is_lost_is_sent_once_and_recorded_as_it_ended(
    store: Store,
    double: LakeFSDouble,
    tmp_path: Path,
    request_name: str,
    cut: Cut,
    recorded: str | None,
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    if request_name == "hard_reset":
        _attempt(store, tmp_path).run(defined(writes(a="lost")), _input(given))
    before = double.branches[(REPOSITORY, "main")].commit
    matters = b"/merge/" if request_name == "merge" else b"/hard_reset"
    port = urlsplit(str(store.settings.lakefs_endpoint)).port
    assert port is not None
    with proxy_before(port, lambda data: matters in data) as proxy:
        settings = replace(store.settings, lakefs_endpoint=f"http://127.0.0.1:{proxy.port}")
        with Store(settings) as behind:
            proxy.cut = cut
            double.calls.clear()
            attempt = _attempt(behind, tmp_path)
            done = attempt.run(defined(writes(a="mine")), _input(given))
            assert (done.status, done.code) == (Status.FAILED, LakeFSUnavailable.code)
    # A late request arrives after its client has failed.
    wait_for(lambda: double.calls.count(request_name) == (cut is not Cut.BEFORE))
    head = double.branches[(REPOSITORY, "main")].commit
    assert (head == before) is (cut is Cut.BEFORE)
    assert len(store.database.read(list_intents)) == (recorded is not None)
    assert _recovered(store) == ([] if recorded is None else [recorded])
    assert double.calls.count(request_name) == (cut is not Cut.BEFORE)
    if cut is not Cut.BEFORE:
        assert store.database.read(lambda c: find_maker(c, REPOSITORY, head)) == attempt.ref
    last = _attempt(store, tmp_path).run(defined(writes(a="last")), _input(given))
    assert _ref(last) == double.branches[(REPOSITORY, "main")].commit
    assert double.show(REPOSITORY, "main") == {**_FILES, "a": "last"}


def test_failed_upload_keeps_its_reason_where_the_staging_branch_stays(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    double.reject["upload"] = (400, "quota of songs exceeded")
    double.refuse.add("delete_branch")
    done = _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, "lakefs_rejected")
    assert "quota of songs exceeded" in str(done.reason)
    assert len(double.branches) == 2
    double.reject.clear()
    double.refuse.clear()
    assert _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given)).output
    assert len(store.sweep_staging()) == 1
    assert list(double.branches) == [(REPOSITORY, "main")]


def test_target_with_uncommitted_changes_is_left_as_it_is(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    source = tmp_path / "theirs"
    source.write_text("not committed yet")
    connect(store.settings).upload(REPOSITORY, "main", "theirs", source)
    done = _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, "lakefs_rejected")
    assert "uncommitted changes" in str(done.reason)
    assert double.branches[(REPOSITORY, "main")].commit == given
    assert list(double.branches[(REPOSITORY, "main")].staged) == ["theirs"]


def test_server_that_cannot_be_reached_is_unavailable(made_sqlite_url: str, tmp_path: Path) -> None:
    double = LakeFSDouble()
    with double_store(double, made_sqlite_url, tmp_path) as store:
        given = double.make_repository(REPOSITORY, _FILES)

    with Store(store.settings) as alone:
        done = _attempt(alone, tmp_path).run(defined(writes(a="new")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, LakeFSUnavailable.code)


def test_staging_branches_are_listed_page_by_page(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    double.largest_page = 2
    lakefs = connect(store.settings)
    names = [f"one-{number}" for number in range(5)]
    for name in names:
        lakefs.create_branch(REPOSITORY, name, given)
    assert lakefs.list_branches(REPOSITORY, "one-") == names
    assert [one.path for one in lakefs.list_objects(REPOSITORY, given, "")] == sorted(_FILES)


def test_bystander_that_the_ledger_knows_is_never_replaced(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    theirs = _attempt(store, tmp_path, "another").run(defined(writes(x="t")), _input(given))
    done = _attempt(store, tmp_path).run(defined(writes(a="mine")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, "publish_fence")
    assert double.branches[(REPOSITORY, "main")].commit == _ref(theirs)


def test_staging_branch_of_that_name_makes_staging_fail_closed(
    store: Store, double: LakeFSDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    monkeypatch.setattr("headgate.tasks.lakefs_store.staging_name", lambda identity: "main")
    with reached_points() as reached:
        done = _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given))
    assert (done.status, done.code) == (Status.FAILED, "exists")
    assert Failpoint.TASK_STAGED not in reached
    assert double.show(REPOSITORY, "main") == _FILES


def test_cleanup_sweeps_staging_of_dead_attempts_and_leaves_the_living(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    dead, living = _attempt(store, tmp_path, "dead"), _attempt(store, tmp_path, "living")
    done = _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given))
    lakefs = connect(store.settings)
    names = [staging_name(one.identity()) for one in (dead, living)]
    for name in names:
        lakefs.create_branch(REPOSITORY, name, _ref(done))
    end_attempt(store.database, dead.ref, AttemptState.FAILED)
    assert store.sweep_staging(dry_run=True) == [f"{REPOSITORY}/{names[0]}"]
    assert store.sweep_staging() == [f"{REPOSITORY}/{names[0]}"]
    assert {name for _, name in double.branches} == {"main", names[1]}


def test_cleanup_keeps_the_staging_of_an_attempt_with_an_intent(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    _attempt(store, tmp_path).run(defined(writes(a="new")), _input(given))
    paused = _attempt(store, tmp_path, "paused")
    name = staging_name(paused.identity())
    connect(store.settings).create_branch(REPOSITORY, name, given)
    move = PlannedMove(
        repository=REPOSITORY,
        branch="main",
        expected=given,
        action=Action.MERGE,
        planned=None,
        key=paused.ref.key,
        epoch=paused.ref.epoch,
        execution="e",
    )
    announced = store.database.write(
        lambda c: announce_move(c, move, actor="ana", lease_seconds=60)
    )
    end_attempt(store.database, paused.ref, AttemptState.FAILED)
    assert store.sweep_staging() == []
    store.database.write(lambda c: clear_intent(c, announced))
    assert store.sweep_staging() == [f"{REPOSITORY}/{name}"]


def test_attempt_that_changes_nothing_does_not_become_the_maker_of_its_input(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    first = double.make_repository(REPOSITORY, _FILES)
    maker = _attempt(store, tmp_path, "before")
    given = _ref(maker.run(defined(writes(a="given")), _input(first)))
    _attempt(store, tmp_path).run(defined(writes(a="lost")), _input(given))
    done = _attempt(store, tmp_path).run(defined(), _input(given))
    assert (_ref(done), double.branches[(REPOSITORY, "main")].commit) == (given, given)
    assert store.database.read(lambda c: find_maker(c, REPOSITORY, given)) == maker.ref


def test_repository_without_a_configured_server_is_explained(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    with (
        Store(new_settings(made_sqlite_url, tmp_path)) as store,
        pytest.raises(Exception, match="no lakeFS is configured"),
    ):
        store.workspaces(WorkspaceRef(repository="songs", branch="main", ref="c"))
