"""One line of JSON for each thing that happens in an attempt: for people, and for programs."""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from headgate.errors import Exists, StorageUnavailable

# An attempt's directory: marked, held by a lock that dies with its owner, and always removed.

_ATTEMPTS = "attempts"
_MARKER = "attempt.json"
_WORKSPACE = "workspace"
# ioctl FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, and ext4's flag of a directory whose directories have
# nothing to do with each other.
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_UNRELATED = 0x00020000
# From so many files on, the system's own `rm` is worth its start.
_MANY = 2000


@dataclass(frozen=True, kw_only=True)
class AttemptDirectory:
    """The marker lies beside the workspace, where neither checks nor globs of the body see it."""

    path: Path

    @property
    def workspace(self) -> Path:
        return self.path / _WORKSPACE


@contextmanager
def attempt_directory(
    root: Path, execution: str, marker: Mapping[str, Any]
) -> Iterator[AttemptDirectory]:
    """A directory for one attempt, held until the block ends; removing it is the caller's."""
    path = root / _ATTEMPTS / execution
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _spread(path.parent)
        path.mkdir()
    except FileExistsError as error:
        raise Exists(
            f"there is a directory {path} already; an attempt never shares one.", path=str(path)
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(path), reason=reason) from error
    with (path / _MARKER).open("xb") as file:
        # Held by the open file: the system lets go when the process is gone, however it went.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(orjson.dumps(dict(marker)))
        file.flush()
        directory = AttemptDirectory(path=path)
        directory.workspace.mkdir()
        yield directory


def _spread(directory: Path) -> None:
    """Asks the disk to lay each directory in this one out in a region of its own.

    To make a file, ext4 looks at every inode of the region that was freed in the last minutes:
    where attempts come and go in one place, that takes longer than copying the file.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (flags,) = struct.unpack_from("i", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
        if not flags & _UNRELATED:
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i4x", flags | _UNRELATED))
    except OSError:
        # Another file system, which knows no such thing, or another owner's directory.
        pass
    finally:
        os.close(descriptor)


def remove_directory(directory: AttemptDirectory, *, file_count: int = 0) -> None:
    """Removes it with all that is in it."""
    _remove(directory.path, file_count)


def sweep_directories(root: Path) -> list[Path]:
    """Removes directories whose owner is gone; one whose owner lives is never touched."""
    removed = []
    for path in sorted((root / _ATTEMPTS).glob("*")):
        with _orphaned(path) as orphaned:
            if orphaned:
                _remove(path, _MANY)
                removed.append(path)
    return removed


@contextmanager
def _orphaned(path: Path) -> Iterator[bool]:
    """Whether nobody holds the directory; for the length of the block nobody can."""
    try:
        file = (path / _MARKER).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        # Made a moment ago and not marked yet, or none of ours.
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # An owner marks its directory before it holds the lock, with nothing in between but this.
        yield os.fstat(file.fileno()).st_size > 0


def _remove(path: Path, file_count: int) -> None:
    # The marker goes last: a directory that was removed in part is still found by the next sweep.
    workspace = path / _WORKSPACE
    try:
        if file_count >= _MANY and shutil.which("rm"):
            subprocess.run(["rm", "-rf", "--", str(workspace)], check=False, capture_output=True)
        if workspace.exists():
            shutil.rmtree(workspace, onerror=_make_writable)
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(error.filename or path), reason=reason) from error


def _make_writable(function: Any, name: str, _error: Any) -> None:
    """A body may have taken rights away from what it made."""
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(name), 0o700)  # noqa: PTH101, PTH120  (what rmtree hands over)
        os.chmod(name, 0o700)  # noqa: PTH101
    function(name)


Listener = Callable[[Mapping[str, Any]], None]

# Logs of attempts are kept this long after their last line.
_RETAIN_SECONDS = 30 * 24 * 3600


class AttemptLog:
    """Appends to one file; whoever listens hears each line too."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], listener: Listener = lambda line: None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._about = dict(about)
        self._listener = listener
        self._lock = threading.Lock()

    def say(self, event: str, *, level: str = "info", **facts: Any) -> None:
        """One thing that happened."""
        line = {"at": _now(), "level": level, "event": event, **self._about, **facts}
        with self._lock, self.path.open("ab") as file:
            file.write(orjson.dumps(line, default=str) + b"\n")
        self._listener(line)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """A step with its duration; what the block puts into the facts is told with its end."""
        facts: dict[str, Any] = {}
        began = time.perf_counter()
        self._listener({"event": "step", "step": name})
        try:
            yield facts
        except BaseException as error:
            seconds = round(time.perf_counter() - began, 3)
            self.say(
                "step failed",
                level="warning",
                step=name,
                seconds=seconds,
                error=type(error).__name__,
                **facts,
            )
            raise
        self.say("step done", step=name, seconds=round(time.perf_counter() - began, 3), **facts)

    def progress(self, step: str) -> Callable[[int, int], None]:
        """Reports of a long transfer, for whoever watches; they are not kept."""
        told = 0.0

        def report(files: int, done_bytes: int) -> None:
            nonlocal told
            if time.monotonic() - told >= 1.0:
                told = time.monotonic()
                self._listener(
                    {"event": "progress", "step": step, "files": files, "bytes": done_bytes}
                )

        return report


def forget_old_logs(directory: Path) -> None:
    """Deletes logs that nobody has written to for a month."""
    horizon = time.time() - _RETAIN_SECONDS
    for path in directory.glob("*.*"):
        try:
            if path.stat().st_mtime < horizon:
                path.unlink()
        except FileNotFoundError:
            continue


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
