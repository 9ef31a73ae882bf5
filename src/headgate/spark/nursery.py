"""The process that job processes are forked from: `python -m headgate.spark.nursery SOCKET_FD`.

It has loaded what every job needs and does nothing else, so that a fork of it is ready at once.
On its socket a byte with three descriptors asks for a fork; births and deaths are reported there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import warnings

from headgate.spark import job
from headgate.spark.job_processes import BORN, DIED, MESSAGE

# PySpark loads them sooner or later in every driver; they take longer than all the rest.
_HEAVY = ("pandas", "pyarrow")


def main() -> None:
    """Serves until the other end of the socket is closed."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # What is loaded now is shared with all forks: the collector must not touch their copies.
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([asked.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_deaths(asked)
        if asked.fileno() in ready:
            byte, given, _, _ = socket.recv_fds(asked, 1, 3)
            if not byte:
                return
            _fork(asked, given, (woken, wake))


def _fork(asked: socket.socket, given: list[int], own: tuple[int, int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Libraries may have started threads of their own; nothing here has used them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            _become_job(asked, given, own)
        finally:
            # Whatever happened: a second nursery must never come of it.
            os._exit(1)
    for descriptor in given:
        os.close(descriptor)
    asked.sendall(MESSAGE.pack(BORN, pid, 0))


def _become_job(asked: socket.socket, given: list[int], own: tuple[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked.close()
    for descriptor in own:
        os.close(descriptor)
    # A group of its own, so that one signal reaches all that it starts.
    os.setsid()
    stdin, log, events = given
    for source, target in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(stdin)
    os.close(log)
    if "numpy" in sys.modules:
        # Python seeds its own generator anew after a fork; numpy's would repeat itself.
        sys.modules["numpy"].random.seed()
    job.main(events)


def _report_deaths(asked: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            asked.sendall(MESSAGE.pack(DIED, pid, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
