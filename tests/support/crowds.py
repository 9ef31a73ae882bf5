"""Many processes at one moment: how they tell a test what became of them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path


def say(file: Path, text: str) -> None:
    """Writes a word that others see whole or not at all."""
    file.with_suffix(".part").write_text(text)
    file.with_suffix(".part").rename(file)


def outcomes(flags: Path, count: int) -> Counter[str]:
    """Once so many have ended: how many won, how many were refused."""
    deadline = time.monotonic() + 180
    while True:
        said = [f.suffix for f in flags.iterdir() if f.suffix in (".won", ".refused")]
        if len(said) >= count:
            return Counter(said)
        assert time.monotonic() < deadline, f"only {len(said)} of {count} ended"
        time.sleep(0.05)
