"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
ORPHANED = 70


def die_with_parent(parent: int) -> None:
    """From here on the system kills this process as soon as the thread that started it is gone.

    The pipe from the parent does the same where the system does not.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        # It was gone before the wish was known.
        os._exit(ORPHANED)
