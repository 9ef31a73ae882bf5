"""Transfer of work from a job to its build, and abort of attempts, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.attempts import CommitOptions, commit_transactions
from headgate.catalog.attempts import (
    abort_attempt,
    dispatch_attempt,
    find_attempt_state,
    heartbeat,
    transfer_to_build,
)
from headgate.catalog.transactions import Opener, Opening, open_transactions
from headgate.errors import AttemptSuperseded, TransactionNotOpen
from headgate.files.edits import FileEdit, stage_edit
from headgate.model.changes import Caller
from headgate.model.nouns import (
    AttemptRef,
    AttemptState,
    Transaction,
    TransactionState,
    TransactionType,
)
from headgate.store.datasets import BranchHandle
from headgate.store.embedded import Store
from headgate.store.transactions import store_bytes
from tests.support.oracle import assert_store_sound
from tests.support.stores import content, files_branch, load, new_store


@dataclass(frozen=True, kw_only=True)
class World:
    """A build with one job, which opened a transaction on a branch and staged a file."""

    store: Store
    branch: BranchHandle
    build: AttemptRef
    job: AttemptRef
    opened: Transaction

    def stage(self, text: str) -> Transaction:
        """Stage a file as the job's process does, in time or too late."""
        store = self.store
        edit = FileEdit(put=[store_bytes(store, "made", text.encode())])
        now = load(store, self.opened.id)
        return stage_edit(store.database, store.trees, now, edit, attempt=self.job)

    def commit(self, attempt: AttemptRef) -> None:
        options = CommitOptions(caller=Caller(actor="ana", attempt=attempt))
        commit_transactions(self.store.database, self.store.contents, [self.opened.id], options)

    def state(self, ref: AttemptRef) -> AttemptState | None:
        return self.store.database.read(lambda c: find_attempt_state(c, ref))


def _dispatch(store: Store, key: str, parent: AttemptRef | None = None) -> AttemptRef:
    made = dispatch_attempt(store.database, key, actor="ana", lease_seconds=60, parent=parent)
    return made.ref


def _world(store: Store) -> World:
    branch = files_branch(store)
    build = _dispatch(store, "build")
    job = _dispatch(store, "build/0", build)
    opening = Opening(branch=branch.load().id, type=TransactionType.SNAPSHOT)
    opener = Opener(caller=Caller(actor="ana", attempt=job), lease_seconds=60)
    [opened] = open_transactions(store.database, [opening], opener)
    world = World(store=store, branch=branch, build=build, job=job, opened=opened)
    world.stage("mine")
    return world


def test_transaction_handed_over_is_the_builds_and_refuses_the_jobs_zombie(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        world = _world(store)
        transfer_to_build(store.database, world.job, [world.opened.id])
        assert world.state(world.job) is AttemptState.SUCCEEDED
        assert content(world.branch) == {}
        late: list[Callable[[], object]] = [
            lambda: world.stage("late"),
            lambda: world.commit(world.job),
            lambda: transfer_to_build(store.database, world.job, [world.opened.id]),
            lambda: heartbeat(store.database, world.job),
        ]
        for act in late:
            with pytest.raises(AttemptSuperseded):
                act()
        heartbeat(store.database, world.build)
        world.commit(world.build)
        assert content(world.branch) == {"made": "mine"}
        assert_store_sound(store)


def test_hand_over_by_a_job_whose_build_was_superseded_changes_nothing(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        world = _world(store)
        _dispatch(store, "build")
        with pytest.raises(AttemptSuperseded):
            transfer_to_build(store.database, world.job, [world.opened.id])
        assert load(store, world.opened.id).attempt == world.job
        assert load(store, world.opened.id).state is TransactionState.ABORTED
        assert_store_sound(store)


def test_hand_over_of_what_is_no_longer_open_is_refused(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        world = _world(store)
        world.commit(world.job)
        with pytest.raises(TransactionNotOpen):
            transfer_to_build(store.database, world.job, [world.opened.id])
        assert world.state(world.job) is AttemptState.RUNNING


@pytest.mark.parametrize("handed", [False, True])
def test_build_given_up_aborts_what_it_and_its_jobs_hold(
    made_catalog_url: str, tmp_path: Path, handed: bool
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        world = _world(store)
        if handed:
            transfer_to_build(store.database, world.job, [world.opened.id])
        assert abort_attempt(store.database, world.build, AttemptState.CANCELED, actor="bob")
        assert load(store, world.opened.id).state is TransactionState.ABORTED
        assert world.state(world.build) is AttemptState.CANCELED
        expected = AttemptState.SUCCEEDED if handed else AttemptState.CANCELED
        assert world.state(world.job) is expected
        assert not abort_attempt(store.database, world.build, AttemptState.FAILED, actor="bob")
        with pytest.raises((AttemptSuperseded, TransactionNotOpen)):
            world.stage("late")
        assert_store_sound(store)


def test_job_given_up_leaves_its_build_and_the_other_jobs_alone(
    made_catalog_url: str, tmp_path: Path
) -> None:
    with new_store(made_catalog_url, tmp_path) as store:
        world = _world(store)
        other = _dispatch(store, "build/1", world.build)
        abort_attempt(store.database, world.job, AttemptState.FAILED, actor="ana")
        assert world.state(world.build) is world.state(other) is AttemptState.RUNNING
        assert world.branch.load().is_open is False
        assert_store_sound(store)
