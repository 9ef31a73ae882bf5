"""Queries of Git repositories, on real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.builds.project import find_repository, without_credentials
from headgate.errors import GitUnusable
from tests.support.repositories import Work, new_repository


@pytest.fixture
def work(tmp_path: Path) -> Work:
    made = new_repository(tmp_path / "work")
    made.write(pipeline="from headgate.transforms import Input\n", plain="x = 1\n")
    made.commit()
    return made


def test_repository_is_found_from_a_directory_inside_it(work: Work) -> None:
    (work.root / "deep" / "er").mkdir(parents=True)
    assert find_repository(work.root / "deep" / "er").root == work.root


def test_directory_outside_any_repository_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GitUnusable, match=r"not in a Git working tree.*git init"):
        find_repository(tmp_path)
    for name in ("nowhere", "n" * 5_000):
        with pytest.raises(GitUnusable, match=r"does not exist\. Name the repository with"):
            find_repository(tmp_path / name)


def test_repository_without_commits_says_so(tmp_path: Path) -> None:
    with pytest.raises(GitUnusable, match="no commit yet"):
        new_repository(tmp_path / "empty").repository.head()


def test_detached_head_asks_for_a_branch(work: Work) -> None:
    work.git("checkout", "--quiet", "--detach")
    with pytest.raises(GitUnusable, match=r"HEAD is detached at .* --branch"):
        work.repository.branch()


def test_branch_and_head_are_those_checked_out(work: Work) -> None:
    work.git("checkout", "--quiet", "-b", "feature/x")
    assert work.repository.branch() == "feature/x"
    assert work.repository.head() == work.git("rev-parse", "HEAD")


@pytest.mark.parametrize("names", [["main"], ["master"], ["other"], ["main", "master"]])
def test_default_branch_without_a_remote_is_main_or_master(
    tmp_path: Path, names: list[str]
) -> None:
    made = new_repository(tmp_path / "work", branch=names[0])
    made.commit()
    for more in names[1:]:
        made.git("branch", more)
    expected = None if names == ["other"] else names[0]
    assert made.repository.default_branch() == expected


def test_default_branch_of_a_clone_is_its_origins(tmp_path: Path) -> None:
    origin = new_repository(tmp_path / "origin", branch="trunk")
    origin.commit()
    origin.git("clone", "--quiet", str(origin.root), str(tmp_path / "clone"))
    assert find_repository(tmp_path / "clone").default_branch() == "trunk"


def test_changes_are_tracked_files_and_new_python_files_only(work: Work) -> None:
    assert work.repository.changes() == ()
    work.write_file("notes.txt", "untracked, not code")
    assert work.repository.changes() == ()
    work.write(plain="x = 2\n", new="y = 1\n")
    assert work.repository.changes() == ("new.py", "plain.py")
    work.git("add", "--all")
    assert "notes.txt" in work.repository.changes()


def test_export_has_the_committed_files_not_the_changed_ones(work: Work, tmp_path: Path) -> None:
    work.write(plain="x = 2\n", new="y = 1\n")
    work.repository.export(work.repository.head(), tmp_path / "out")
    assert (tmp_path / "out" / "plain.py").read_text() == "x = 1\n"
    assert not (tmp_path / "out" / "new.py").exists()


def test_export_leaves_out_links_that_lead_outside(work: Work, tmp_path: Path) -> None:
    (work.root / "outside").symlink_to("/etc/passwd")
    (work.root / "inside.py").symlink_to("plain.py")
    work.repository.export(work.commit(), tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"inside.py", "pipeline.py", "plain.py"}


def test_tree_of_changes_has_the_files_as_they_are_and_leaves_the_index(
    work: Work, tmp_path: Path
) -> None:
    work.write(plain="x = 2\n", new="y = 1\n")
    (work.root / "pipeline.py").unlink()
    before = work.git("status", "--porcelain")
    work.repository.export(work.repository.tree_of_changes(), tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"new.py", "plain.py"}
    assert (tmp_path / "out" / "plain.py").read_text() == "x = 2\n"
    assert work.git("status", "--porcelain") == before


def test_only_python_files_that_name_the_transforms_are_listed(work: Work) -> None:
    work.write(deep__ünï="from headgate import transforms\n", other="import headgate\n")
    work.write_file("README.md", "headgate.transforms")
    commit = work.commit()
    assert work.repository.files_naming_transforms(commit) == ("deep/ünï.py", "pipeline.py")


def test_repository_of_a_hook_does_not_answer_for_another(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_repository(tmp_path / "other", branch="elsewhere")
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.root / ".git" / "index"))
    assert find_repository(work.root).branch() == "master"


def test_clones_share_their_identity_and_it_holds_no_secret(work: Work) -> None:
    assert work.repository.identity() == work.git("rev-list", "--max-parents=0", "HEAD")
    work.git("remote", "add", "origin", "https://me:secret@Example.com/team/pipe.git")
    assert work.repository.identity() == "example.com/team/pipe"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("git@example.com:team/pipe.git", "example.com/team/pipe"),
        ("ssh://git@example.com:22/team/pipe", "example.com/team/pipe"),
        ("https://example.com/team/pipe.git/", "example.com/team/pipe"),
        ("../origin", "../origin"),
        ("file:///srv/git/pipe.git", "srv/git/pipe"),
    ],
)
def test_remote_is_known_by_host_and_path(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
