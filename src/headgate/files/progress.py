"""How long work tells what it has done."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headgate.files.entries import Entry

# Called with the files and the bytes done so far, always from the thread that began the work.
Progress = Callable[[int, int], None]


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
