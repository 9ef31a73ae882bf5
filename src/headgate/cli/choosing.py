"""Which branch and fallback a command means when nobody said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headgate.builds.git import find_repository
from headgate.errors import GitUnusable, Invalid
from headgate.model.names import listed
from headgate.settings import Settings


def choose_chain(
    settings: Settings, branch: str | None, fallback: Sequence[str] | None, directory: Path
) -> tuple[str, tuple[str, ...]]:
    """The branch given, else the one checked out; the fallback given, else configured.

    Without either the fallback is the primary branch, unless that is being built.
    """
    chosen = branch or _checked_out(directory) or settings.builds.branch
    if fallback:
        return chosen, listed(",".join(fallback))
    return chosen, settings.builds.fallback_of(chosen)


def choose_parameters(given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE`, as often as there are parameters to set."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Invalid(f"{text!r} sets no parameter: write NAME=VALUE.", given=text)
        if name.strip() in found:
            raise Invalid(f"parameter {name.strip()!r} is set twice.", given=text)
        found[name.strip()] = value
    return found


def _checked_out(directory: Path) -> str | None:
    """The branch of the repository here; none outside of one.

    With a commit checked out and no branch, as in CI, nobody said that the primary one is meant.
    """
    try:
        repository = find_repository(directory)
    except GitUnusable:
        return None
    return repository.branch()
