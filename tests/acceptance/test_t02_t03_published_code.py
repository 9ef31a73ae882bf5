"""T02: code that is not published is reported. T03: removed transforms follow the Git tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.cli.init import settings_text
from headgate.connection import open as open_store
from tests.support.api import served_to_the_command_line
from tests.support.cli import Cli, new_cli
from tests.support.iceberg import Front
from tests.support.pipelines import build
from tests.support.repositories import Work, new_repository
from tests.support.stores import new_settings

_TRANSFORM = """\
from headgate.transforms import Output, transform

@transform(out=Output("{dataset}", kind="files"))
def compute(out):
    out.filesystem().open("{text}", "w").close()
"""


def transform(dataset: str, text: str = "x") -> str:
    return _TRANSFORM.format(dataset=dataset, text=text)


@pytest.fixture(params=["sqlite", "postgresql", "served"])
def cli(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Cli]:
    """Command line in a Git repository with a store: on either database, and served."""
    work = new_repository(tmp_path / "shop")
    url = "postgres_url" if request.param == "postgresql" else "sqlite_url"
    catalog = str(request.getfixturevalue(url))
    new_settings(catalog, tmp_path)
    text = settings_text(catalog=catalog, warehouse=str(tmp_path / "data"), branch="master")
    work.write_file("headgate.toml", text)
    work.write_file(".gitignore", ".headgate/\n")
    work.write(kept=transform("s.kept"), dropped=transform("s.dropped"))
    work.commit()
    made = new_cli(work.root, monkeypatch, capsys)
    if request.param != "served":
        yield made
        return
    front: Front = request.getfixturevalue("front")
    with served_to_the_command_line(work.root, front, monkeypatch):
        yield made


@pytest.fixture
def work(cli: Cli) -> Work:
    return Work(root=cli.directory)


def warning(cli: Cli, *words: str) -> str:
    """Plan s.kept, and return the warning, which is equal for people and programs."""
    plain = cli.ok("plan", "s.kept", *words)
    found = cli.json("plan", "s.kept", *words).get("unpublished", {}).get("message", "")
    lines = [line for line in plain.err.splitlines() if line.startswith("warning")]
    assert lines == ([f"warning: {found}"] if found else [])
    return str(found)


def short(commit: str) -> str:
    return commit[:10]


def test_t02_misspelled_branch_is_published_nowhere(cli: Cli, work: Work) -> None:
    cli.ok("jobspecs", "publish")
    refused = cli.json("jobspecs", "publish", "--branch", "mastr", code=3)
    assert refused["code"] == "no_such_branch" and "did you mean 'master'?" in refused["error"]
    assert {spec["branch"] for spec in cli.json("jobspecs", "list")} == {"master"}
    # A name is new on purpose if Git has the branch, or with its fallback.
    work.git("branch", "topic")
    cli.ok("jobspecs", "publish", "--branch", "topic")
    cli.ok("jobspecs", "publish", "--branch", "ci", "--fallback", "master")
    cli.ok("jobspecs", "publish", "--branch", "ci")


def test_t02_commit_that_is_not_published_is_named_until_build_publishes_it(
    cli: Cli, work: Work
) -> None:
    cli.ok("jobspecs", "publish")
    first = work.git("rev-parse", "HEAD")
    assert warning(cli) == ""
    with open_store(work.root) as store:
        build(store, "s.kept")
    work.git("checkout", "-q", "-b", "feature")
    work.write(more=transform("s.more"))
    head = work.commit()
    assert f"HEAD {short(head)} is not published on feature; nothing is published" in warning(cli)

    missing = cli("plan", "s.more")
    assert missing.code == 3 and f"HEAD {short(head)} is not published" in missing.err

    # The output is fresh: the build starts no Spark.
    done = cli.json("build", "s.kept", "--publish")
    assert (done["jobspecs"]["commit"], "unpublished" in done) == (head, False)
    assert warning(cli) == ""

    work.write(more=transform("s.more", "changed"))
    newer = work.commit()
    told = f"HEAD {short(newer)} is not published on feature; published: {short(head)} by ana"
    assert told in warning(cli)
    said = cli.ok("build", "s.kept")
    assert told in said.err and "--publish" in said.err
    found = cli.json("build", "s.kept")["unpublished"]
    assert (found["commit"], found["published"], found["changes"]) == (newer, head, [])
    assert told in warning(cli, "-b", "feature")
    # Another Git branch is checked out: its tip counts, not HEAD.
    assert warning(cli, "-b", "master") == ""
    work.git("update-ref", "refs/heads/master", newer)
    assert f"Git branch master is at {short(newer)}, which is not published" in warning(
        cli, "-b", "master"
    )
    work.git("update-ref", "refs/heads/master", first)
    assert warning(cli, "-b", "other", "--create") == ""


def test_changed_lock_file_alone_makes_jobs_stale_by_their_environment(
    cli: Cli, work: Work
) -> None:
    def publish(lock: str, text: str) -> str:
        work.write_file("uv.lock", lock)
        work.write(kept=transform("s.kept", text))
        work.commit()
        cli.ok("jobspecs", "publish")
        return str(cli.json("plan", "s.kept")["jobs"][0]["reason"])

    assert publish("a 1", "x") == "never-built"
    with open_store(work.root) as store:
        build(store, "s.kept")
    assert publish("a 1  # as before", "x") == "fresh"
    assert publish("a 2", "x") == "stale-environment"
    assert publish("a 1", "y") == publish("a 2", "y") == "stale-logic"
    assert publish("a 1", "x") == "fresh"


@pytest.mark.parametrize("cli", ["sqlite", "served"], indirect=True)
def test_t02_dirty_tree_and_detached_head_are_reported(cli: Cli, work: Work) -> None:
    cli.ok("jobspecs", "publish")
    head = work.git("rev-parse", "HEAD")
    work.write(kept=transform("s.kept", "changed"))
    told = warning(cli)
    assert "uncommitted changes (kept.py) are not published on master" in told
    assert "--allow-dirty" in told
    assert cli("build", "s.kept", "--publish").code == 2
    assert cli("build", "s.kept", "--allow-dirty").code == 2
    cli.ok("jobspecs", "publish", "--allow-dirty")
    assert f"may differ from those on master; published: {short(head)} with" in warning(cli)
    work.git("checkout", "-q", ".")
    told = f"HEAD {short(head)} is not published on master; published: {short(head)} with"
    assert told in warning(cli)
    cli.ok("jobspecs", "publish")
    assert warning(cli) == ""
    work.git("checkout", "-q", "--detach")
    newer = work.commit()
    assert f"HEAD {short(newer)} is not published on master" in warning(cli, "-b", "master")


@pytest.mark.parametrize("cli", ["sqlite"], indirect=True)
def test_t02_project_of_a_larger_repository_is_compared_alone(
    cli: Cli, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        work.write_file(f"{name}/pyproject.toml", "")
        work.write_file(f"{name}/{name}.py", transform(f"s.{name}"))
    work.commit()
    for name in ("one", "two"):
        cli.ok("jobspecs", "publish", "--repo", name)
    monkeypatch.chdir(work.root / "one")
    work.write_file("two/two.py", transform("s.two", "changed"))
    assert cli.json("plan", "s.one").get("unpublished") is None
    work.commit()
    assert cli.json("plan", "s.one").get("unpublished") is None
    monkeypatch.chdir(work.root / "two")
    assert "is not published on master" in cli.json("plan", "s.one")["unpublished"]["message"]


@pytest.mark.parametrize("cli", ["sqlite"], indirect=True)
def test_t02_directory_without_transforms_or_git_is_silent(
    cli: Cli, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("jobspecs", "publish")
    other = new_repository(tmp_path / "other")
    for directory in (other.root, tmp_path):
        (directory / "headgate.toml").write_text((work.root / "headgate.toml").read_text())
        monkeypatch.chdir(directory)
        assert warning(cli, "-b", "master") == ""
    monkeypatch.chdir(other.root)
    other.commit()
    assert warning(cli, "-b", "master") == ""


@pytest.mark.parametrize("cli", ["sqlite", "served"], indirect=True)
def test_t02_plan_and_build_name_the_commit_and_branch_of_the_logic(cli: Cli, work: Work) -> None:
    cli.ok("jobspecs", "publish")
    head = work.git("rev-parse", "HEAD")
    [job] = cli.json("plan", "s.kept")["jobs"]
    assert (job["jobspec_branch"], job["jobspec_commit"], job["jobspec_clean"]) == (
        "master",
        head,
        True,
    )
    told = f"master {short(head)}"
    assert f"logic {told}" in cli.ok("plan", "s.kept").out
    with open_store(work.root) as store:
        id = build(store, "s.kept").id
    assert told in cli.ok("builds", "show", id).out
    [job] = cli.json("builds", "show", id)["jobs"]
    assert job["jobspec_commit"] == head


ONCE = pytest.mark.parametrize("cli", ["sqlite"], indirect=True)


def removed(cli: Cli, *words: str) -> list[str]:
    """Publish, and return the datasets that are marked as removed."""
    return list(cli.json("jobspecs", "publish", *words)["removed"])


def plannable(cli: Cli, *datasets: str, branch: str = "feature") -> list[str]:
    """Return those of the datasets that a build of the branch has a JobSpec for."""
    return [name for name in datasets if cli("plan", name, "-b", branch).code == 0]


def test_t03_transform_removed_before_the_first_publish_is_refused_and_others_still_build(
    cli: Cli, work: Work, tmp_path: Path
) -> None:
    cli.ok("jobspecs", "publish")
    bank = new_repository(tmp_path / "bank")
    bank.write(bank=transform("s.bank"))
    bank.commit()
    cli.ok("jobspecs", "publish", "--repo", str(bank.root))
    work.git("checkout", "-q", "-b", "feature")
    work.git("rm", "-q", "dropped.py")
    work.commit()
    work.git("checkout", "-q", "master")
    work.write(gained=transform("s.gained"))
    work.commit()
    cli.ok("jobspecs", "publish")
    work.git("checkout", "-q", "feature")

    every = ("s.kept", "s.dropped", "s.gained", "s.bank")
    assert removed(cli) == ["s.dropped"]
    assert plannable(cli, *every) == ["s.kept", "s.gained", "s.bank"]
    assert "was removed on 'feature'" in cli("plan", "s.dropped").err
    # A transform that only the branch has, and has no longer, leaves no mark.
    work.write(passing=transform("s.passing"))
    work.commit()
    assert (removed(cli), plannable(cli, "s.passing")) == (["s.dropped"], ["s.passing"])
    work.git("rm", "-q", "passing.py")
    work.commit()
    assert removed(cli) == ["s.dropped"]
    assert "no JobSpec makes 's.passing'" in cli("plan", "s.passing").err

    work.git("merge", "-q", "--no-edit", "master")
    assert removed(cli) == ["s.dropped"]
    assert plannable(cli, *every) == ["s.kept", "s.gained", "s.bank"]
    # Brought back: the mark goes with the commit that removed it.
    work.write(dropped=transform("s.dropped"))
    work.commit()
    assert removed(cli) == []
    work.git("reset", "-q", "--hard", "HEAD~1")
    work.git("checkout", "-q", "master")
    work.git("merge", "-q", "--no-edit", "feature")
    assert removed(cli) == ["s.dropped"]
    assert plannable(cli, *every, branch="master") == ["s.kept", "s.gained", "s.bank"]


@ONCE
def test_t03_merge_base_that_was_never_published_is_read_from_its_tree(
    cli: Cli, work: Work
) -> None:
    work.write(late=transform("s.late"))
    work.commit()
    work.git("checkout", "-q", "-b", "feature")
    work.git("rm", "-q", "late.py")
    work.git("mv", "kept.py", "renamed.py")
    work.commit()
    work.git("checkout", "-q", "master")
    work.write(more=transform("s.more"))
    work.commit()
    cli.ok("jobspecs", "publish")
    work.git("checkout", "-q", "feature")
    assert removed(cli) == ["s.late"]
    assert plannable(cli, "s.kept", "s.more", "s.late") == ["s.kept", "s.more"]
    # A working tree with changes is compared in the same way.
    (work.root / "dropped.py").unlink()
    assert removed(cli, "--allow-dirty") == ["s.dropped", "s.late"]
    work.git("checkout", "-q", ".")
    # Rebased: the merge base is the published commit, and nothing old is imported.
    work.git("rebase", "-q", "master")
    assert removed(cli) == ["s.late"]


@ONCE
def test_t03_old_code_that_cannot_be_imported_any_more_is_named(cli: Cli, work: Work) -> None:
    work.write(broken="import gone_since\nfrom headgate.transforms import Output\n")
    work.commit()
    work.git("checkout", "-q", "-b", "feature")
    work.git("rm", "-q", "broken.py")
    work.commit()
    work.git("checkout", "-q", "master")
    work.git("rm", "-q", "broken.py")
    work.commit("mended")
    cli.ok("jobspecs", "publish")
    work.git("checkout", "-q", "feature")
    said = cli("jobspecs", "publish")
    assert said.code == 2 and "gone_since" in said.err and "Rebase on" in said.err
    work.git("rebase", "-q", "master")
    assert removed(cli) == []


@ONCE
def test_t03_clone_without_the_published_commit_is_told_to_fetch(
    cli: Cli, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.git("remote", "add", "origin", "https://git.example.org/shop.git")
    cli.ok("jobspecs", "publish")
    work.git("checkout", "-q", "-b", "feature")
    work.git("rm", "-q", "dropped.py")
    work.commit()
    clone = Work(root=tmp_path / "clone")
    source = ("--depth", "1", "--branch", "feature", f"file://{work.root}")
    work.git("clone", "-q", *source, str(clone.root))
    clone.git("remote", "set-url", "origin", "https://git.example.org/shop.git")
    monkeypatch.chdir(clone.root)
    said = cli("jobspecs", "publish")
    assert said.code == 2 and "git fetch --unshallow" in said.err
    assert {spec["branch"] for spec in cli.json("jobspecs", "list")} == {"master"}
    clone.git("fetch", "-q", "--unshallow", f"file://{work.root}")
    assert removed(cli) == ["s.dropped"]
    # Published on master from a commit that was never pushed: the clone's own branch stands in.
    monkeypatch.chdir(work.root)
    work.git("checkout", "-q", "master")
    work.commit("not pushed")
    cli.ok("jobspecs", "publish")
    monkeypatch.chdir(clone.root)
    said = cli("jobspecs", "publish")
    assert said.code == 2 and "git fetch origin master" in said.err
    work.git("push", "-q", str(clone.root), "master~1:refs/remotes/origin/master")
    assert removed(cli) == ["s.dropped"]


@ONCE
def test_t03_moves_between_projects_of_one_repository_remove_nothing(cli: Cli, work: Work) -> None:
    for name in ("one", "two"):
        work.write_file(f"{name}/pyproject.toml", "")
        work.write_file(f"{name}/{name}.py", transform(f"s.{name}"))
        work.write_file(f"{name}/{name}_moved.py", transform(f"s.{name}_moved"))
    work.commit()
    for name in ("one", "two"):
        cli.ok("jobspecs", "publish", "--repo", name)
    work.git("checkout", "-q", "-b", "feature")
    # A transform moves from one to two, and two moves to a directory of its own.
    work.git("mv", "one/one_moved.py", "two/one_moved.py")
    work.git("rm", "-q", "two/two_moved.py")
    work.git("mv", "two", "team")
    work.commit()
    every = ("s.one", "s.one_moved", "s.two", "s.two_moved")
    assert removed(cli, "--repo", "team") == ["s.two_moved"]
    assert removed(cli, "--repo", "one") == []
    assert plannable(cli, *every) == ["s.one", "s.one_moved", "s.two"]
    assert plannable(cli, *every, branch="master") == list(every)

    work.git("checkout", "-q", "master")
    work.git("merge", "-q", "feature")
    said = cli("jobspecs", "publish", "--repo", "team")
    assert said.code != 0 and "//one" in said.err and "publish that first" in said.err
    assert removed(cli, "--repo", "one") == ["s.one_moved"]
    assert removed(cli, "--repo", "team") == ["s.two_moved"]
    assert removed(cli, "--repo", "one") == []
    assert plannable(cli, *every, branch="master") == ["s.one", "s.one_moved", "s.two"]


@ONCE
def test_t03_second_engineer_on_a_branch_leaves_no_mark_of_the_first(
    cli: Cli, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("jobspecs", "publish")
    work.git("checkout", "-q", "-b", "feature")
    other = Work(root=tmp_path / "other")
    work.git("worktree", "add", "-q", "--detach", str(other.root))
    work.write(mine=transform("s.mine"))
    work.commit()
    cli.ok("jobspecs", "publish")
    other.write(theirs=transform("s.theirs"))
    other.commit()
    monkeypatch.chdir(other.root)
    assert removed(cli, "--branch", "feature") == []
    assert plannable(cli, "s.mine", "s.theirs", "s.kept") == ["s.theirs", "s.kept"]
