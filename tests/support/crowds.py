"""Results of many concurrent processes, reported through files."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path


def say(file: Path, text: str) -> None:
    """Write a word atomically."""
    file.with_suffix(".part").write_text(text)
    file.with_suffix(".part").rename(file)


def outcomes(flags: Path, count: int) -> Counter[str]:
    """Wait for this many processes; return how many won and how many were rejected."""
    deadline = time.monotonic() + 180
    while True:
        said = [f.suffix for f in flags.iterdir() if f.suffix in (".won", ".refused")]
        if len(said) >= count:
            return Counter(said)
        assert time.monotonic() < deadline, f"only {len(said)} of {count} ended"
        time.sleep(0.05)
