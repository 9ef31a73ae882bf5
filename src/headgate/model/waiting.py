"""How long to wait before doing something again that others were quicker at."""

from __future__ import annotations

import random

_FIRST_SECONDS = 0.005
_LONGEST_SECONDS = 0.5


def wait_seconds(losses: int) -> float:
    """A random wait, longer after each loss: those who lost together do not meet again."""
    longest: float = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2**losses)
    return random.uniform(0.2, 1) * longest
