"""Which branch and fallback a command means when nobody said."""

from __future__ import annotations

from pathlib import Path

from headgate.builds.git import find_repository
from headgate.errors import GitUnusable
from headgate.settings import Settings


def choose_chain(
    settings: Settings, branch: str | None, fallback: str | None, directory: Path
) -> tuple[str, tuple[str, ...]]:
    """The branch given, else the one checked out; the fallback given, else configured.

    Without either the fallback is the primary branch, unless that is being built.
    """
    chosen = branch or _checked_out(directory) or settings.builds.branch
    if fallback is not None:
        names = tuple(name.strip() for name in fallback.split(",") if name.strip())
    elif settings.builds.fallback is not None:
        names = tuple(name for name in settings.builds.fallback if name != chosen)
    else:
        names = () if chosen == settings.builds.branch else (settings.builds.branch,)
    return chosen, names


def _checked_out(directory: Path) -> str | None:
    try:
        return find_repository(directory).branch()
    except GitUnusable:
        return None
