"""Executes a page of the docs: its `sh` blocks as one script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.source import ROOT

_WHO = ("GIT_AUTHOR", "GIT_COMMITTER")


def follow(page: Path, directory: Path, *, bin: Path, below: str = "") -> str:
    """Run a page's commands, or those `below` a heading, up to the first that fails."""
    text = page.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text[text.index(below) :], re.DOTALL)
    assert blocks, f"{page} has no commands"
    done = subprocess.run(
        ["sh", "-c", "set -eu\n" + "\n".join(blocks)],
        cwd=directory,
        env=_environ(bin),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environ(bin: Path) -> dict[str, str]:
    """Return an environment with this checkout's `headgate` and tools, and a Git author."""
    bin.mkdir()
    command = bin / "headgate"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headgate "$@"\n')
    command.chmod(0o755)
    tools = Path(sys.executable).parent
    return {
        **os.environ,
        **{f"{who}_NAME": "Ana" for who in _WHO},
        **{f"{who}_EMAIL": "ana@example.com" for who in _WHO},
        "PATH": os.pathsep.join([str(bin), str(tools), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
    }
