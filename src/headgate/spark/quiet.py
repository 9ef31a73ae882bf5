"""Errors that PySpark raises are told once: by whoever catches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def told_once() -> Iterator[None]:
    """Within the block PySpark does not also log its errors, a screenful of JSON for each."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415  (optional, and slow)

    # PySpark's own way to get at them: made otherwise they could not take what it says.
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
