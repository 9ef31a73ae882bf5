"""The process that forks others: `python -m headgate.spark.fork_server SOCKET_FD PROGRAM LIBRARY…`.

It has loaded the program, a module with a function `main`, and its libraries, and does nothing
else, so that a fork of it is ready at once. A byte with three descriptors on its socket requests a
fork. It sends a message there when a process has started, and when one has ended.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import warnings
from types import ModuleType

from headgate.spark.job_protocol import FORK_ENDED, FORK_MESSAGE, FORK_STARTED


def main() -> None:
    """Serve until the other end of the socket is closed."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    program = importlib.import_module(sys.argv[2])
    for name in sys.argv[3:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # All forks share what is loaded now: a garbage collection would copy its pages into each.
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(requests)
        if requests.fileno() in ready:
            byte, given, _, _ = socket.recv_fds(requests, 1, 3)
            if not byte:
                return
            _fork(program, requests, given, (woken, wake))


def _fork(
    program: ModuleType, requests: socket.socket, given: list[int], own: tuple[int, int]
) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Libraries may have started threads of their own; nothing here has used them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            _leave_server(requests, given, own)
            program.main(given[2])
        finally:
            # Whatever was raised, the child must not go on as a second fork server.
            os._exit(1)
    for descriptor in given:
        os.close(descriptor)
    requests.sendall(FORK_MESSAGE.pack(FORK_STARTED, pid, 0))


def _leave_server(requests: socket.socket, given: list[int], own: tuple[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    for descriptor in own:
        os.close(descriptor)
    # A group of its own, so that one signal reaches it and its children.
    os.setsid()
    stdin, log, _ = given
    for source, target in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(stdin)
    os.close(log)
    if "numpy" in sys.modules:
        # Python reseeds its own generator after a fork; numpy's would repeat its numbers.
        sys.modules["numpy"].random.seed()


def _report_ended(requests: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            requests.sendall(FORK_MESSAGE.pack(FORK_ENDED, pid, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
    # At once: nothing is left to close, and DuckDB would report what it never frees.
    os._exit(0)
