"""Headgate: branches, transactions and fenced publication for Spark data pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.connection import open
    from headgate.store.embedded import Store

__version__ = "0.1.0"
__all__ = ["Store", "__version__", "open"]


def __getattr__(name: str) -> Any:
    # Lazy: `headgate --help` and a user's transform module must load no SQL and no Spark.
    if name == "open":
        from headgate import connection  # noqa: PLC0415  (lazy on purpose)

        return connection.open
    if name == "Store":
        from headgate.store import embedded  # noqa: PLC0415  (lazy on purpose)

        return embedded.Store
    raise AttributeError(f"module 'headgate' has no attribute {name!r}")
