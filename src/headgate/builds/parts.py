"""What a build works with, handed in by the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.attempts.committing import Contents
from headgate.builds.happening import Listen, nobody
from headgate.catalog.database import Database
from headgate.model.ports import ObjectStore
from headgate.settings import Settings

if TYPE_CHECKING:
    # Slow to load: it brings the HTTP server.
    from headgate.spark.workplace import Workplace


@dataclass(frozen=True, kw_only=True)
class Parts:
    settings: Settings
    database: Database
    objects: ObjectStore
    contents: Contents
    workplace: Workplace
    listen: Listen = nobody
