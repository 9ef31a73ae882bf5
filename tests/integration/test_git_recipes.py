"""The hooks that `jobspecs install-hook` writes, and the report of docs/git.md, executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import Cli, new_cli
from tests.support.repositories import Work, new_repository
from tests.support.shell import headgate_json
from tests.support.source import ROOT

_PIPELINE = """\
from headgate.transforms import Output, transform_df

@transform_df(Output("shop.numbers"))
def numbers(ctx):
    return ctx.spark_session.range(3)
"""


def _script(name: str) -> str:
    """Return the block of the page whose second line names this file."""
    page = (ROOT / "docs" / "git.md").read_text()
    blocks = re.findall(r"^```sh\n(#!/bin/sh\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    [found] = [block for block in blocks if block.splitlines()[1].startswith(f"# {name}:")]
    return str(found)


def _install(work: Work, name: str) -> Path:
    file = work.root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_script(name))
    file.chmod(0o755)
    return file


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """A repository with a store, `headgate` on the path, and a Git author."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "headgate").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headgate "$@"\n')
    (programs / "headgate").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    made = new_repository(tmp_path / "project")
    made.write_file(".gitignore", ".headgate/\nheadgate.toml\n__pycache__/\n")
    made.write(pipeline=_PIPELINE)
    made.commit("a pipeline")
    headgate_json("init", cwd=made.root)
    return made


def test_hook_after_a_commit_has_published_it_in_spite_of_other_changes(work: Work) -> None:
    headgate_json("jobspecs", "install-hook", cwd=work.root)
    work.write_file("unfinished.py", "this is no Python\n")
    work.write_file("pipeline.py", _PIPELINE.replace("range(3)", "range(4)"))
    work.git("commit", "--quiet", "--message", "more", "pipeline.py")
    [found] = headgate_json("jobspecs", "list", cwd=work.root)
    assert (found["branch"], found["commit"]) == ("master", work.git("rev-parse", "HEAD"))
    assert found["clean"] is True
    # The store is gone: the commit is made, and the reason is shown.
    (work.root / "headgate.toml").unlink()
    said = work.git("commit", "--quiet", "--allow-empty", "--message", "x", stderr=True)
    assert "headgate init" in said and work.git("log", "-1", "--format=%s") == "x"


@dataclass(frozen=True, kw_only=True)
class Hooked:
    """A repository whose hooks call a program that records its calls."""

    work: Work
    cli: Cli
    record: Path

    def calls(self) -> list[str]:
        """Return the directories of the calls since the last time, relative to the root."""
        found = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return [os.path.relpath(line, self.work.root) for line in found]

    def hook(self, name: str = "post-commit") -> Path:
        return self.work.root / ".git" / "hooks" / name


@pytest.fixture
def hooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Hooked:
    work = new_repository(tmp_path / "shop")
    work.commit()
    record, programs = tmp_path / "record", tmp_path / "bin"
    programs.mkdir()
    program = programs / "headgate"
    wanted = "jobspecs publish --committed"
    program.write_text(f'#!/bin/sh\n[ "$*" = "{wanted}" ] && pwd >> "{record}"\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    return Hooked(work=work, cli=new_cli(work.root, monkeypatch, capsys), record=record)


def test_hooks_publish_commits_merges_and_rebases_and_not_a_detached_head(hooked: Hooked) -> None:
    work = hooked.work
    assert hooked.cli.json("jobspecs", "install-hook")["installed"] is True
    text = hooked.hook().read_text()
    assert f'PATH="$PATH":{Path(sys.executable).parent} headgate' in text
    hooked.cli.ok("jobspecs", "install-hook")
    assert hooked.hook().read_text() == text
    work.commit()
    assert hooked.calls() == ["."]
    work.git("commit", "-q", "--amend", "--allow-empty", "-m", "amended")
    assert hooked.calls() == ["."]
    work.git("checkout", "-q", "-b", "feature", "HEAD~1")
    work.write_file("a.txt", "")
    work.commit()
    assert hooked.calls() == ["."]
    work.git("rebase", "-q", "master")
    assert hooked.calls() == ["."]
    work.git("checkout", "-q", "master")
    work.git("merge", "-q", "feature")
    assert hooked.calls() == ["."]
    work.git("checkout", "-q", "--detach")
    work.commit()
    assert hooked.calls() == []
    tree = work.root.parent / "tree"
    work.git("worktree", "add", "-q", "-b", "other", str(tree))
    Work(root=tree).commit()
    assert hooked.calls() == ["../tree"]
    hooked.cli.ok("jobspecs", "install-hook", "--uninstall")
    assert not hooked.hook().exists()
    hooked.cli.ok("jobspecs", "install-hook", "--uninstall")


def test_hooks_of_two_projects_publish_both_and_are_removed_apart(hooked: Hooked) -> None:
    for name in ("one", "two of'em"):
        hooked.work.write_file(f"{name}/pyproject.toml", "")
        hooked.cli.ok("jobspecs", "install-hook", "--repo", name)
    hooked.work.commit()
    assert sorted(hooked.calls()) == ["one", "two of'em"]
    hooked.cli.ok("jobspecs", "install-hook", "--uninstall", "--repo", "one")
    hooked.work.commit()
    assert hooked.calls() == ["two of'em"]
    # A branch without the project.
    hooked.work.git("rm", "-q", "-r", "two of'em")
    hooked.work.commit()
    assert hooked.calls() == []


def test_hook_of_another_tool_is_kept_and_joined_only_by_force(hooked: Hooked) -> None:
    hooked.hook().parent.mkdir(exist_ok=True)
    hooked.hook().write_text("#!/usr/bin/env bash\necho other > other\nexit 0\n")
    hooked.hook().chmod(0o755)
    said = hooked.cli("jobspecs", "install-hook")
    assert said.code == 2 and "headgate jobspecs publish --committed" in said.err
    assert not hooked.hook("post-merge").exists()
    hooked.cli.ok("jobspecs", "install-hook", "--force")
    hooked.work.commit()
    assert hooked.calls() == ["."] and (hooked.work.root / "other").exists()
    hooked.cli.ok("jobspecs", "install-hook")
    hooked.cli.ok("jobspecs", "install-hook", "--uninstall")
    assert hooked.hook().read_text() == "#!/usr/bin/env bash\necho other > other\nexit 0\n"
    hooked.hook().write_text("#!/usr/bin/env python3\n")
    assert "not a shell script" in hooked.cli("jobspecs", "install-hook", "--force").err


def test_hooks_path_of_the_repository_is_used_and_a_shared_one_is_refused(hooked: Hooked) -> None:
    work = hooked.work
    work.git("config", "core.hooksPath", ".githooks")
    hooked.cli.ok("jobspecs", "install-hook")
    text = (work.root / ".githooks" / "post-commit").read_text()
    # The file is committed for others, whose machines have other paths.
    assert "PATH=" not in text
    work.commit()
    assert hooked.calls() == ["."]
    work.git("config", "core.hooksPath", str(work.root.parent / "shared"))
    assert "shared with other repositories" in hooked.cli("jobspecs", "install-hook").err
    assert not (work.root.parent / "shared").exists()


@pytest.mark.timeout(900)
def test_report_of_a_branch_has_plan_and_differences_and_leaves_the_target(work: Work) -> None:
    headgate_json("jobspecs", "publish", cwd=work.root)
    headgate_json("build", "shop.numbers", "-b", "master", cwd=work.root)
    before = headgate_json("branch", "list", "shop.numbers", cwd=work.root)
    work.git("checkout", "--quiet", "-b", "more")
    work.write(pipeline=_PIPELINE.replace("range(3)", "range(5)"))
    work.commit("five of them")
    report = _install(work, "ci/report")
    work.commit("a report")
    command = [str(report), "more", "master", "shop.numbers"]
    done = subprocess.run(command, cwd=work.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (work.root / "report.md").read_text()
    assert "flowchart LR" in text and "waiting (stale-logic)" in text
    assert "<summary>shop.numbers</summary>" in text
    after = headgate_json("branch", "list", "shop.numbers", cwd=work.root)
    assert [b for b in after if b["name"] == "master"] == before
