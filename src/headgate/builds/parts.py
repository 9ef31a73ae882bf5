"""What a build works with, handed in by the store."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.attempts.committing import Contents
from headgate.catalog.database import Database
from headgate.model.ports import ObjectStore
from headgate.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Parts:
    settings: Settings
    database: Database
    objects: ObjectStore
    contents: Contents
