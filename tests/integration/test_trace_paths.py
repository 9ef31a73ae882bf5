"""Number of modules that a reader has to know to follow a write."""

from __future__ import annotations

import subprocess
import sys


def test_writes_execute_no_more_modules_than_their_goals() -> None:
    command = (sys.executable, "-m", "tools.trace_paths", "--verbose")
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
