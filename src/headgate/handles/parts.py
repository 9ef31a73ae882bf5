"""What handles work with; the store is one."""

from __future__ import annotations

from typing import Protocol

from headgate.attempts.committing import Contents
from headgate.catalog.database import Database
from headgate.files.trees import FileTrees
from headgate.settings import Settings


class StoreParts(Protocol):
    """A store as its handles see it."""

    @property
    def settings(self) -> Settings: ...

    @property
    def database(self) -> Database: ...

    @property
    def trees(self) -> FileTrees: ...

    @property
    def contents(self) -> Contents: ...
