"""The command line in a process of its own, as from a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_SOURCES = str(Path(__file__).parents[2] / "src")


def run_headgate(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `headgate …`, and return the completed process, also after a failure."""
    return subprocess.run(
        [sys.executable, "-m", "headgate", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": _SOURCES, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def headgate_json(*words: str, cwd: Path) -> Any:
    """Run `headgate … --json`, which must succeed, and return its one document."""
    done = run_headgate(*words, "--json", cwd=cwd)
    assert done.returncode == 0, f"headgate {' '.join(words)}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)
