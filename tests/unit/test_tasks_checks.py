"""Checks of a workspace: the first failure is reported, with its message."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import WorkspaceCheckFailed
from headgate.tasks import forbid_glob, require_dir, require_file, require_glob
from headgate.tasks.declare import Check, Phase, check_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.json").write_text("{}")
    (tmp_path / "data" / "b.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    return tmp_path


def test_checks_that_hold_say_nothing(workspace: Path) -> None:
    checks: list[Check] = [
        require_file("data/a.json"),
        require_dir("data"),
        require_glob("data/*.json", min_count=2, max_count=2),
        require_glob("none/*", min_count=0),
        forbid_glob("**/*.tmp"),
        lambda root: (root / "data").is_dir(),
        lambda root: None,
    ]
    check_workspace(checks, workspace, Phase.PRE)


def _raises(root: Path) -> None:
    raise ValueError("odd")


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (require_file("data"), "no file 'data'"),
        (require_dir("data/a.json"), "no directory"),
        (require_dir("link"), "no directory"),
        (require_glob("data/*.json", min_count=3), "2 files match; at least 3 are required"),
        (require_glob("data/*.json", max_count=1), "at most 1 are allowed"),
        (require_glob("*"), "0 files match"),
        (forbid_glob("**/b.*"), "'data/b.json' matches"),
        (lambda root: False, "returned False"),
        (lambda root: "too few", "too few"),
        (_raises, "it raised ValueError: odd"),
    ],
)
def test_check_that_fails_says_what_and_when(workspace: Path, check: Check, said: str) -> None:
    with pytest.raises(WorkspaceCheckFailed) as failed:
        check_workspace([require_dir("data"), check], workspace, Phase.POST)
    assert said in failed.value.message
    assert failed.value.facts["phase"] == "post"
