"""A bar for long copies, where a person is watching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from headgate.files.progress import Progress as Report

# Less than this is copied before a bar could be read.
_LONG_BYTES = 16 * 1024 * 1024
_LONG_FILES = 200


@contextmanager
def copying(what: str, *, files: int, total_bytes: int) -> Iterator[Report | None]:
    """Gives what reports progress; None off a terminal, and for what is copied at once."""
    console = Console(stderr=True)
    if not console.is_terminal or (total_bytes < _LONG_BYTES and files < _LONG_FILES):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done, size: bar.update(
            task, completed=size, description=f"{what} {done}/{files} files"
        )
