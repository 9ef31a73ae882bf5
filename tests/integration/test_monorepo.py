"""Several projects in one Git repository, each published separately."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.builds.project import find_project
from headgate.errors import GitUnusable, HeadgateError
from headgate.store.embedded import Store
from tests.support.repositories import Work, new_repository
from tests.support.stores import new_store

_TRANSFORM = """\
from headgate.transforms import Output, transform_df
from lib.names import NAME

@transform_df(Output("{dataset}"))
def made(ctx):
    return ctx.spark_session.sql(f"select '{{NAME}}' as name")
"""


def _monorepo(root: Path) -> Work:
    """Create two projects with a module of the same name, and an unrelated directory."""
    work = new_repository(root)
    for project, dataset in (("one", "s.one"), ("teams/two", "s.two")):
        work.write_file(f"{project}/pyproject.toml", "")
        work.write_file(f"{project}/src/lib/__init__.py", "")
        work.write_file(f"{project}/src/lib/names.py", f"NAME = {project!r}\n")
        work.write_file(f"{project}/src/pipeline.py", _TRANSFORM.format(dataset=dataset))
    work.write_file("tools/script.py", "x = 1\n")
    work.commit()
    return work


def _published(store: Store, directory: Path) -> tuple[list[str], tuple[str, ...], str]:
    found = store.publish_jobspecs(directory)
    outputs = [name for spec in found.published for name in spec.body["outputs"]]
    return outputs, found.removed, found.source.repository


def test_project_is_found_from_below_and_the_repository_where_there_is_none(tmp_path: Path) -> None:
    work = _monorepo(tmp_path / "mono")
    assert find_project(work.root / "teams/two/src/lib").project == "teams/two"
    assert find_project(work.root / "tools").project == ""
    assert find_project(work.root).project == ""


def test_projects_are_published_apart_and_do_not_remove_each_other(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    work = _monorepo(tmp_path / "mono")
    with new_store(made_sqlite_url, tmp_path) as store:
        outputs, removed, one = _published(store, work.root / "one")
        assert (outputs, removed) == (["s.one"], ())
        outputs, removed, two = _published(store, work.root / "teams/two/src")
        assert (outputs, removed) == (["s.two"], ())
        assert one.rpartition("//")[2] == "one"
        assert two == one.replace("//one", "//teams/two")


def test_changes_elsewhere_in_the_repository_do_not_make_a_project_dirty(
    made_sqlite_url: str, tmp_path: Path
) -> None:
    work = _monorepo(tmp_path / "mono")
    work.write_file("one/src/lib/names.py", "NAME = 'changed'\n")
    with new_store(made_sqlite_url, tmp_path) as store:
        assert store.publish_jobspecs(work.root / "teams/two").source.clean
        with pytest.raises(GitUnusable, match=r"one/src/lib/names\.py"):
            store.publish_jobspecs(work.root / "one")
        assert not store.publish_jobspecs(work.root / "one", allow_dirty=True).source.clean


def test_project_that_is_not_committed_is_refused(made_sqlite_url: str, tmp_path: Path) -> None:
    work = _monorepo(tmp_path / "mono")
    work.write_file("three/pyproject.toml", "")
    with (
        new_store(made_sqlite_url, tmp_path) as store,
        pytest.raises(GitUnusable, match="'three' is not in the commit"),
    ):
        store.publish_jobspecs(work.root / "three")


def test_two_projects_cannot_own_one_dataset(made_sqlite_url: str, tmp_path: Path) -> None:
    work = _monorepo(tmp_path / "mono")
    work.write_file("one/src/pipeline.py", _TRANSFORM.format(dataset="s.two"))
    work.commit()
    with new_store(made_sqlite_url, tmp_path) as store:
        store.publish_jobspecs(work.root / "teams/two")
        with pytest.raises(HeadgateError, match="teams/two"):
            store.publish_jobspecs(work.root / "one")
