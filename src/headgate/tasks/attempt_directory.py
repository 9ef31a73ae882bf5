"""Directory and log of an attempt.

An attempt locks its directory; the operating system releases the lock when the process ends, so
that a later sweep removes directories of dead attempts. The log has one line of JSON per event.
"""

import contextlib
import datetime
import fcntl
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from headgate.errors import Exists, storage_error
from headgate.storage.local import make_private_directory, storage_errors

_ATTEMPTS = "attempts"
_MARKER = "attempt.json"
_WORKSPACE = "workspace"
# ioctl FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, and FS_TOPDIR_FL: ext4 spreads the subdirectories of
# such a directory over block groups.
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_TOP_DIRECTORY = 0x00020000
# From this number of files, `rm` is faster than shutil.rmtree despite its start.
_MANY_FILES = 2000


@contextmanager
def attempt_directory(root: Path, execution: str, marker: Mapping[str, Any]) -> Iterator[Path]:
    """Create and lock the directory of an attempt, and yield its workspace; the caller removes it.

    The marker is beside the workspace, hidden from checks and globs.
    """
    path = root / _ATTEMPTS / execution
    try:
        make_private_directory(path.parent)
        _spread(path.parent)
        path.mkdir(mode=0o700)
    except FileExistsError as error:
        raise Exists(
            f"directory already exists: {path}. Attempts do not share a directory.", path=str(path)
        ) from error
    except OSError as error:
        raise storage_error(error, path) from error
    workspace = path / _WORKSPACE
    with contextlib.ExitStack() as held:
        with storage_errors(path):
            file = held.enter_context((path / _MARKER).open("xb"))
            # The system releases the lock when the process ends, however it ends.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(orjson.dumps(dict(marker)))
            file.flush()
            workspace.mkdir()
        yield workspace


def _spread(directory: Path) -> None:
    """Spread the subdirectories over block groups (ext4).

    To create a file, ext4 skips every recently freed inode of the group; with many short attempts
    in one group, that takes longer than copying the file.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (flags,) = struct.unpack_from("i", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
        if not flags & _TOP_DIRECTORY:
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i4x", flags | _TOP_DIRECTORY))
    except OSError:
        # Not ext4, or a directory of another owner.
        pass
    finally:
        os.close(descriptor)


def sweep_directories(root: Path) -> list[Path]:
    """Remove the directories of dead attempts; return their paths."""
    removed = []
    for path in sorted((root / _ATTEMPTS).glob("*")):
        with _orphaned(path) as orphaned:
            if orphaned:
                remove_directory(path, file_count=_MANY_FILES)
                removed.append(path)
    return removed


@contextmanager
def _orphaned(path: Path) -> Iterator[bool]:
    """Yield True if no live process owns the directory, which stays locked in the block."""
    try:
        file = (path / _MARKER).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        # Just created and not marked yet, or not an attempt directory.
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # An owner creates the marker, locks it, then writes it: an empty one is being created.
        yield os.fstat(file.fileno()).st_size > 0


def remove_directory(path: Path, *, file_count: int = 0) -> None:
    """Remove an attempt's directory."""
    # The marker goes last, so that the next sweep finds a partially removed directory.
    workspace = path / _WORKSPACE
    try:
        if file_count >= _MANY_FILES and shutil.which("rm"):
            subprocess.run(["rm", "-rf", "--", str(workspace)], check=False, capture_output=True)
        if workspace.exists():
            shutil.rmtree(workspace, onerror=_make_writable)
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, error.filename or path) from error


def _make_writable(function: Any, name: str, _error: Any) -> None:
    """Retry with permissions that the task's function may have removed."""
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(name), 0o700)  # noqa: PTH101, PTH120  (arguments of rmtree)
        os.chmod(name, 0o700)  # noqa: PTH101
    function(name)


Listener = Callable[[Mapping[str, Any]], None]

# Retention of attempt logs after their last line.
_RETAIN_SECONDS = 30 * 24 * 3600


class AttemptLog:
    """Appends lines to a file and passes each to a listener."""

    def __init__(
        self, path: Path, fields: Mapping[str, Any], listener: Listener = lambda line: None
    ) -> None:
        with storage_errors(path):
            make_private_directory(path.parent)
        self.path = path
        self._fields = dict(fields)
        self._listener = listener
        self._lock = threading.Lock()

    def write(self, event: str, *, level: str = "info", **facts: Any) -> None:
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": level, "event": event, **self._fields, **facts}
        with storage_errors(self.path), self._lock, self.path.open("ab") as file:
            file.write(orjson.dumps(line, default=str) + b"\n")
        self._listener(line)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Log a step with its duration and the facts that the block adds."""
        facts: dict[str, Any] = {}
        began = time.perf_counter()
        self._listener({"event": "step", "step": name})
        try:
            yield facts
        except BaseException as error:
            self.write(
                "step failed",
                level="warning",
                step=name,
                seconds=round(time.perf_counter() - began, 3),
                error=type(error).__name__,
                **facts,
            )
            raise
        self.write("step done", step=name, seconds=round(time.perf_counter() - began, 3), **facts)

    def progress(self, step: str) -> Callable[[int, int], None]:
        """Return a callback that passes progress to the listener, at most once a second."""
        reported = 0.0

        def report(files: int, done_bytes: int) -> None:
            nonlocal reported
            if time.monotonic() - reported >= 1.0:
                reported = time.monotonic()
                self._listener(
                    {"event": "progress", "step": step, "files": files, "bytes": done_bytes}
                )

        return report


def delete_old_logs(directory: Path) -> None:
    """Delete logs whose retention has passed."""
    horizon = time.time() - _RETAIN_SECONDS
    for path in directory.glob("*.*"):
        try:
            if path.stat().st_mtime < horizon:
                path.unlink()
        except FileNotFoundError:
            continue
