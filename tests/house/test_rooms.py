"""The order of the rooms holds, and its contract detects a breach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import PACKAGE, ROOT


@pytest.fixture
def copied_source(tmp_path: Path) -> Path:
    """A copy of the package that a test may change."""
    shutil.copytree(PACKAGE, tmp_path / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_rooms_as_they_are_keep_their_order() -> None:
    result = _lint_imports(PACKAGE.parent)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("errors.py", "import headgate.model.ids"),
        ("model/ids.py", "import headgate.catalog"),
        ("tables/__init__.py", "import headgate.files"),
        ("iceberg/__init__.py", "import headgate.spark"),
        ("cli/__init__.py", "import headgate.testing"),
        ("server/web/page.py", "import headgate.catalog.records"),
    ],
)
def test_rooms_with_an_import_upwards_sideways_or_past_the_store_break_a_contract(
    copied_source: Path, module: str, line: str
) -> None:
    with (copied_source / "headgate" / module).open("a") as source:
        source.write(f"\n{line}\n")
    result = _lint_imports(copied_source)
    assert result.returncode == 1, result.stdout


def test_rooms_with_a_new_one_that_has_no_floor_break_the_contract(copied_source: Path) -> None:
    (copied_source / "headgate" / "attic.py").touch()
    result = _lint_imports(copied_source)
    assert result.returncode == 1, result.stdout


def _lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(
        [*command, "--config", str(ROOT / "pyproject.toml")],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
