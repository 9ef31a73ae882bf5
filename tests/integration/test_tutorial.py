"""The tutorial does what it says: its commands are run, in order, in an empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.store import open as open_store
from tests.support.tables import read_table

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def _commands() -> str:
    """Every block marked `sh` of the tutorial, as one script that stops at the first failure."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    return "set -eu\n" + "\n".join(blocks)


def test_tutorial_followed_to_the_letter_promotes_the_branch(tmp_path: Path) -> None:
    shell = tmp_path / "bin"
    shell.mkdir()
    command = shell / "headgate"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headgate "$@"\n')
    command.chmod(0o755)
    project = tmp_path / "project"
    project.mkdir()
    environ = {
        **os.environ,
        "PATH": f"{shell}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }

    done = subprocess.run(
        ["sh", "-c", _commands()],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "adopted" in done.stdout
    with open_store(project) as store:
        rows = read_table(store, "master", "shop.totals")
    assert sorted((row["region"], row["largest"]) for row in rows) == [("north", 30), ("south", 20)]
