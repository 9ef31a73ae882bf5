"""The hook and the report of docs/git.md, extracted from the page and executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    _install(work, ".githooks/publish")
    for name in ("post-commit", "post-merge"):
        (work.root / ".githooks" / name).symlink_to("publish")
    work.git("config", "core.hooksPath", ".githooks")
    work.write_file("unfinished.py", "this is no Python\n")
    work.git("add", ".githooks")
    work.git("commit", "--quiet", "--message", "hooks")
    [found] = headgate_json("jobspecs", "list", cwd=work.root)
    assert (found["branch"], found["commit"]) == ("master", work.git("rev-parse", "HEAD"))
    assert found["clean"] is True
    assert work.git("worktree", "list").count("\n") == 0


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
