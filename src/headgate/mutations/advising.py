"""When Arrow is the wrong engine: how much is too much for one machine's memory."""

from __future__ import annotations

# Over so much the work is better done by Spark.
ARROW_BYTES = 2 * 1024**3
_GIB = 1024**3
_ELSEWHERE = "`--engine spark` does the same work in parts, on a cluster where there is one."


def advice_on_load(size_bytes: int) -> str | None:
    """A word for people whose files are better loaded by Spark; None where Arrow is right."""
    if size_bytes < ARROW_BYTES:
        return None
    return f"{size_bytes / _GIB:.1f} GiB are loaded on this machine, in memory. {_ELSEWHERE}"


def advice_on_optimize(dataset: str, size_bytes: int) -> str | None:
    """A word for people whose table is better rewritten by Spark; None where Arrow is right."""
    if size_bytes < ARROW_BYTES:
        return None
    return (
        f"{dataset} holds {size_bytes / _GIB:.1f} GiB, which are rewritten on this machine, in "
        f"memory, a partition at a time. {_ELSEWHERE}"
    )
