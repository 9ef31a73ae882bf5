"""An attempt's process with a failpoint armed, in place of the usual entry point."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from headgate.model.failpoints import Failpoint, arm
from headgate.testing.failpoints import go_file, reached_file
from headgate.worker.attempt import main
from tests.support.source import ROOT

_START = (
    "import sys; sys.path[:0] = {paths!r}; "
    "from tests.support.task_process import start; raise SystemExit(start())"
)


def armed_command(what: str, point: Failpoint, flags: Path) -> tuple[str, ...]:
    """Kill or pause only the first process that reaches the failpoint."""
    code = _START.format(paths=[str(ROOT), str(ROOT / "src")])
    return (sys.executable, "-c", code, what, point.value, str(flags))


def start() -> int:
    what, point, flags = sys.argv[1], Failpoint(sys.argv[2]), Path(sys.argv[3])

    def hook(reached: Failpoint) -> None:
        if reached is not point or not _is_first(reached_file(flags, point)):
            return
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        elif what == "stop":
            # SIGSTOP pauses every thread, as on a machine that hangs, until SIGCONT.
            (flags / "pid.part").write_text(str(os.getpid()))
            (flags / "pid.part").rename(flags / "pid")
            os.kill(os.getpid(), signal.SIGSTOP)
        while what == "pause" and not go_file(flags, point).exists():
            time.sleep(0.01)

    arm(hook)
    sys.argv = [sys.argv[0], sys.argv[4]]
    return main()


def _is_first(path: Path) -> bool:
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True
