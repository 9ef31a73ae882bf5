"""What handles and verbs work with; the store is one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from headgate.attempts import Contents
from headgate.catalog.database import Database
from headgate.files.trees import FileTrees
from headgate.model.ports import ObjectStore
from headgate.settings import Settings

if TYPE_CHECKING:
    from headgate.spark.workplace import SparkSession


class StoreParts(Protocol):
    """A store as its handles see it."""

    @property
    def settings(self) -> Settings: ...

    @property
    def database(self) -> Database: ...

    @property
    def contents(self) -> Contents: ...

    @property
    def trees(self) -> FileTrees: ...

    @property
    def may_write_protected(self) -> bool:
        """Whether the actor is an admin, to whom protected branches are open."""
        ...


class Verbs(ABC):
    """What a set of a store's verbs is made of; the store says what the parts are."""

    settings: Settings
    database: Database
    may_write_protected: bool

    @property
    @abstractmethod
    def contents(self) -> Contents: ...

    @property
    @abstractmethod
    def trees(self) -> FileTrees: ...

    @property
    @abstractmethod
    def objects(self) -> ObjectStore: ...

    @abstractmethod
    def spark(self, context: str) -> SparkSession: ...
