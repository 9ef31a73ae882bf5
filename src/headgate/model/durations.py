"""How long things may last that a person gives a time to."""

from __future__ import annotations

from headgate.errors import Invalid

LONGEST_LEASE_SECONDS = 7 * 24 * 3600
LONGEST_SECONDS = 100 * 365 * 24 * 3600


def check_lease_seconds(seconds: int) -> int:
    """Of a transaction or unit: nobody else writes on its branches for so long."""
    return _within(seconds, LONGEST_LEASE_SECONDS, what="a lease", longest="a week")


def check_lifetime_seconds(seconds: int) -> int:
    """Of a token; one that never expires has none."""
    return _within(seconds, LONGEST_SECONDS, what="a token's lifetime", longest="a hundred years")


def _within(seconds: int, most: int, *, what: str, longest: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= most:
        raise Invalid(f"{what} of {seconds!r} seconds cannot be: give 1 second to {longest}.")
    return seconds
