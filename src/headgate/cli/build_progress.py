"""How a build goes: a live tree where a person watches, a line for each change elsewhere."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from headgate.builds.outcome import ShownJob
from headgate.builds.report import JobState
from headgate.cli.formatting import count_text
from headgate.cli.jobs_view import live_tree, plain_line

# Lines of the terminal that the tree leaves alone: its own title and summary, and the prompt's.
_LEFT_ALONE = 5
_PER_SECOND = 8
_QUIET = {JobState.WAITING, JobState.SKIPPED, JobState.ADOPTED}


class BuildProgress:
    """Shows a build's jobs on stderr for the length of a `with` block; stdout is for results."""

    def __init__(self, chain: str, console: Console | None = None) -> None:
        self._chain = chain
        self._console = console or Console(stderr=True, highlight=False)
        self._jobs: Sequence[ShownJob] = ()
        self._told: dict[int, tuple[JobState, int]] = {}
        # Jobs report from threads of their own.
        self._lock = threading.Lock()
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._draw,
                refresh_per_second=_PER_SECOND,
                transient=True,
            )

    def show(self, jobs: Sequence[ShownJob]) -> None:
        """Takes in how the jobs are doing now."""
        with self._lock:
            if self._live is None:
                self._tell(jobs)
            self._jobs = jobs

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _draw(self) -> RenderableType:
        """Called by the clock too, so that times go on while nothing else changes."""
        if not self._jobs:
            return Text("planning", style="dim")
        room = max(self._console.height - _LEFT_ALONE, 1)
        return live_tree(self._chain, self._jobs, room=room)

    def _tell(self, jobs: Sequence[ShownJob]) -> None:
        if not self._told:
            counted = Counter(job.state for job in jobs)
            adopted, fresh = counted[JobState.ADOPTED], counted[JobState.SKIPPED]
            todo = len(jobs) - adopted - fresh
            self._write(f"{count_text(todo, 'job')} to do, {adopted} adopted, {fresh} fresh")
        for position, job in enumerate(jobs):
            now = (job.state, job.attempts)
            if self._told.get(position) != now and job.state not in _QUIET:
                self._write(plain_line(job.to_live_json()))
            self._told[position] = now

    def _write(self, line: str) -> None:
        self._console.file.write(f"{line}\n")
        self._console.file.flush()
