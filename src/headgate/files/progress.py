"""How long work tells what it has done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from headgate.files.entries import Entry

# Called with the files and the bytes done so far, by one thread at a time.
Progress = Callable[[int, int], None]


class Tally:
    """Adds up what several threads have done, and tells whoever wants to know."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._files = self._bytes = 0

    def add(self, *, files: int = 0, bytes: int = 0) -> None:
        if self._progress is None:
            return
        with self._lock:
            self._files += files
            self._bytes += bytes
            self._progress(self._files, self._bytes)


def counted(entries: Iterable[Entry], progress: Progress | None) -> list[Entry]:
    """The entries as they get done, each reported once it is."""
    done: list[Entry] = []
    files = total_bytes = 0
    for entry in entries:
        done.append(entry)
        files += not entry.is_directory
        total_bytes += entry.size
        if progress:
            progress(files, total_bytes)
    return done
