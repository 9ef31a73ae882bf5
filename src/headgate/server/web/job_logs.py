"""The end of what a job printed, where this machine still has it."""

from __future__ import annotations

from pathlib import Path

_TAIL_BYTES = 16_384


def read_log_tail(root: Path, build: str, log: str | None) -> str | None:
    """The last lines of a job's log; None where it ran elsewhere, or it is gone."""
    if log is None:
        return None
    home = (root / ".headgate" / "work" / "builds" / build).resolve()
    path = Path(log).resolve()
    # The path is what a build wrote down of itself: nothing else on this machine is read for it.
    if not path.is_relative_to(home) or not path.is_file():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read().decode(errors="replace")
    if size > _TAIL_BYTES:
        tail = "…\n" + tail.partition("\n")[2]
    return tail.strip() or None
