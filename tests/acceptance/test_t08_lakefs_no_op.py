"""T08: on lakeFS, a body that changes nothing that lakeFS keeps is a no-op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.store.embedded import Store
from tests.support.lakefs_double import LakeFSDouble
from tests.support.lakefs_tasks import REPOSITORY, double_store
from tests.support.tasks import Attempt, defined, writes

_FILES = {"a": "1", "dir/b": "2"}


@pytest.fixture
def double() -> LakeFSDouble:
    return LakeFSDouble()


@pytest.fixture
def store(double: LakeFSDouble, made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with double_store(double, made_catalog_url, tmp_path) as opened:
        yield opened


def _run(store: Store, root: Path, body: Callable[[Path], object], ref: str) -> str:
    workspace = {"repository": REPOSITORY, "branch": "main", "ref_type": "commit", "ref": ref}
    done = Attempt(store=store, root=root / "tasks").run(
        defined(body), {"workspace": workspace, "params": {}}
    )
    assert done.output is not None, done
    made: str = done.output["workspace"]["ref"]
    return made


def _make_directory(workspace: Path) -> None:
    (workspace / "new" / "empty").mkdir(parents=True)


def _change_mode(workspace: Path) -> None:
    (workspace / "a").chmod(0o755)


def _rewrite(workspace: Path) -> None:
    (workspace / "dir" / "b").write_text("2")


_BODIES = [_make_directory, _change_mode, _rewrite]


@pytest.mark.parametrize("body", _BODIES)
def test_t08_body_that_changes_nothing_that_lakefs_keeps_is_a_no_op(
    store: Store, double: LakeFSDouble, tmp_path: Path, body: Callable[[Path], object]
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    assert _run(store, tmp_path, body, given) == given
    assert double.branches[(REPOSITORY, "main")].commit == given
    assert {"create_branch", "upload", "make_commit", "merge"}.isdisjoint(double.calls)


@pytest.mark.parametrize("body", _BODIES)
def test_t08_no_op_after_a_lost_completion_removes_the_abandoned_publication(
    store: Store, double: LakeFSDouble, tmp_path: Path, body: Callable[[Path], object]
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)
    assert _run(store, tmp_path, writes(lost="x"), given) != given
    assert _run(store, tmp_path, body, given) == given
    assert double.show(REPOSITORY, "main") == _FILES


def test_t08_directory_or_mode_beside_a_changed_file_sends_the_file_only(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)

    def body(workspace: Path) -> None:
        _make_directory(workspace)
        _change_mode(workspace)
        (workspace / "new" / "c").write_text("3")

    assert _run(store, tmp_path, body, given) != given
    assert double.show(REPOSITORY, "main") == {**_FILES, "new/c": "3"}
    assert double.calls.count("upload") == 1


def test_t08_file_replaced_by_an_empty_directory_is_removed(
    store: Store, double: LakeFSDouble, tmp_path: Path
) -> None:
    given = double.make_repository(REPOSITORY, _FILES)

    def body(workspace: Path) -> None:
        (workspace / "a").unlink()
        (workspace / "a").mkdir()

    assert _run(store, tmp_path, body, given) != given
    assert double.show(REPOSITORY, "main") == {"dir/b": "2"}
