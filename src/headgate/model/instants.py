"""Moments as people and programs read them: ISO 8601 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from headgate.model.ids import Instant


def instant_text(instant: Instant) -> str:
    """With microseconds, so that two publications never look alike."""
    seconds, micros = divmod(instant, 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
