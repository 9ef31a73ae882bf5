"""Every example is a self-contained project: its tests pass in a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.following import follow
from tests.support.source import ROOT

pytestmark = pytest.mark.timeout(900)

_EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/pyproject.toml"))


@pytest.mark.parametrize("name", _EXAMPLES)
def test_example_copied_by_a_newcomer_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    project = _copied(name, tmp_path)
    subprocess.run(["git", "init", "--quiet"], cwd=project, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("graph", "graph.person@master"),
        ("ingestion", "eleven"),
        ("incremental", "incremental: reads"),
        ("tpch", "until-1995"),
    ],
    ids=str,
)
def test_readme_of_an_example_followed_to_the_letter_works(
    name: str, said: str, tmp_path: Path
) -> None:
    project = _copied(name, tmp_path)
    assert said in follow(project / "README.md", project, bin=tmp_path / "bin")


def _copied(name: str, directory: Path) -> Path:
    left_out = shutil.ignore_patterns("__pycache__", ".*_cache")
    return Path(shutil.copytree(ROOT / "examples" / name, directory / name, ignore=left_out))


@pytest.mark.parametrize("name", _EXAMPLES)
def test_example_has_a_readme_that_the_list_of_examples_names(name: str) -> None:
    readme = (ROOT / "examples" / name / "README.md").read_text()
    assert "headgate build" in readme and "## Tests" in readme
    assert f"]({name}/README.md)" in (ROOT / "examples" / "README.md").read_text()
