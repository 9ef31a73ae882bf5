"""P09: content that a private copy keeps, rejects, and detects as changed."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.files.private_copy import PrivateCopy, changes_of
from headgate.model.failpoints import Failpoint
from headgate.store.embedded import Store
from headgate.tasks import WorkspaceSpec, forbid_glob, require_glob
from headgate.tasks.messages import Status
from headgate.testing.failpoints import reached_points
from tests.support.tasks import (
    Workshop,
    attempt,
    defined,
    input_of,
    put_files,
    ref_of,
    shown,
    view_of,
)


def _copied(store: Store, target: Path, ref: str, prefix: str = "") -> PrivateCopy:
    given = replace(ref_of(ref), prefix=prefix)
    return store.workspaces(given).download(given, target, None)


def test_p09_what_a_task_wrote_is_what_the_next_one_reads(workshop: Workshop, store: Store) -> None:
    given = put_files(store, a="1")

    def make(workspace: Path) -> None:
        (workspace / ".hidden").write_text("h")
        (workspace / "empty" / "inner").mkdir(parents=True)
        (workspace / "Grüße 🎵.txt").write_text("ü")
        (workspace / "tool").write_text("#!/bin/sh\n")
        (workspace / "tool").chmod(0o755)

    def look(workspace: Path) -> None:
        assert (workspace / ".hidden").read_text() == "h"
        assert (workspace / "empty" / "inner").is_dir()
        assert (workspace / "Grüße 🎵.txt").read_text() == "ü"
        assert os.access(workspace / "tool", os.X_OK) and not os.access(workspace / "a", os.X_OK)

    attempt(workshop, store).run(defined(make), input_of(given))
    done = attempt(workshop, store).run(defined(look), input_of(str(view_of(store))))
    assert done.status is Status.COMPLETED, done.traceback
    assert done.output is not None and done.output["workspace"]["ref"] == view_of(store)


@pytest.mark.parametrize("kind", ["link", "pipe", "backslash"])
def test_p09_unsafe_thing_is_refused_by_its_path_before_anything_is_stored(
    workshop: Workshop, store: Store, kind: str
) -> None:
    given = put_files(store, a="1")

    def make(workspace: Path) -> None:
        (workspace / "first").write_text("new")
        if kind == "link":
            (workspace / "odd").symlink_to("a")
        elif kind == "pipe":
            os.mkfifo(workspace / "odd")
        else:
            (workspace / "odd\\name").write_text("x")

    with reached_points() as reached:
        done = attempt(workshop, store).run(defined(make), input_of(given))
    assert (done.status, done.code) == (Status.FAILED, "unsafe_path")
    assert "odd" in str(done.reason)
    assert Failpoint.FILES_OBJECT_STORED not in reached
    assert view_of(store) == given


def test_p09_marker_is_seen_by_no_glob(workshop: Workshop, store: Store) -> None:
    given = put_files(store, a="1")
    spec = WorkspaceSpec(pre=[forbid_glob("**/*.json"), require_glob("**/*", max_count=1)])

    def look(workspace: Path) -> None:
        assert [path.name for path in workspace.rglob("*")] == ["a"]
        assert list(workspace.parent.glob("workspace/*.json")) == []

    done = attempt(workshop, store).run(defined(look, workspace=spec), input_of(given))
    assert done.status is Status.COMPLETED, done.reason


def test_task_sees_and_changes_nothing_outside_its_prefix(workshop: Workshop, store: Store) -> None:
    given = put_files(store, render__a="1", render__b="2", rendered="3", other__c="4")

    def work(workspace: Path) -> None:
        assert sorted(path.name for path in workspace.iterdir()) == ["a", "b"]
        (workspace / "a").unlink()
        (workspace / "other").mkdir()
        (workspace / "other" / "c").write_text("mine")

    task = defined(work, workspace=WorkspaceSpec(prefix="/render"))
    assert attempt(workshop, store).run(task, input_of(given)).status is Status.COMPLETED
    assert shown(store) == {
        "render/b": "2",
        "render/other/c": "mine",
        "rendered": "3",
        "other/c": "4",
    }


def test_workspace_that_a_body_removed_is_never_published(workshop: Workshop, store: Store) -> None:
    given = put_files(store, a="1")

    def vanish(workspace: Path) -> None:
        (workspace / "a").unlink()
        workspace.rename(workspace.parent / "elsewhere")

    done = attempt(workshop, store).run(defined(vanish), input_of(given))
    assert done.status is Status.FAILED
    assert shown(store) == {"a": "1"}


def test_private_copy_shares_no_inode_with_the_store(
    workshop: Workshop, store: Store, tmp_path: Path
) -> None:
    given = put_files(store, a="1")
    copy = _copied(workshop.doing(store), tmp_path / "copy", given)
    assert (copy.directory / "a").stat().st_nlink == 1
    (copy.directory / "a").write_text("2")
    assert shown(store) == {"a": "1"}


@pytest.mark.parametrize("change", ["same size", "mode", "older time", "replaced", "nothing"])
def test_private_copy_notices_every_touch(
    workshop: Workshop, store: Store, tmp_path: Path, change: str
) -> None:
    given = put_files(store, a="1", b="2")
    copy = _copied(workshop.doing(store), tmp_path / "copy", given)
    file = copy.directory / "a"
    before = file.stat()
    if change == "same size":
        file.write_text("3")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "mode":
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    elif change == "older time":
        os.utime(file, ns=(1, 1))
    elif change == "replaced":
        (copy.directory / "new").write_text("9")
        (copy.directory / "new").rename(file)
    found = changes_of(copy)
    expected = [] if change in {"older time", "nothing"} else ["a"]
    assert [put.entry.path for put in found.put] == expected
