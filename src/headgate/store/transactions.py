"""An OPEN transaction, and a unit of them, in somebody's hands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from headgate.attempts import CommitOptions, Contents, commit_transactions
from headgate.catalog import records
from headgate.catalog.database import Database
from headgate.catalog.operations import do_once
from headgate.catalog.records import list_unit_transactions
from headgate.catalog.transactions import abort_transactions, renew_transactions
from headgate.catalog.units import abort_unit, close_empty_unit, open_in_unit, open_unit, renew_unit
from headgate.errors import FileNotInView, HeadgateError, Invalid, VersionExpired
from headgate.files.edits import FileEdit, check_is_files, root_of, stage_edit, write_uploaded
from headgate.files.transfer import Progress
from headgate.files.tree import Entry, Mode
from headgate.files.tree_store import FileTrees
from headgate.model.changes import OperationKey, Receipt
from headgate.model.ids import UnitId
from headgate.model.names import (
    DatasetName,
    check_file_path,
    check_lease_seconds,
    parse_dataset_name,
)
from headgate.model.nouns import Transaction, TransactionState
from headgate.model.object_store import ObjectStore
from headgate.settings import Settings
from headgate.store.documents import Json, transaction_json, unit_json

if TYPE_CHECKING:
    from headgate.spark.session import SparkSession


# What handles and verbs work with; the store is one.


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


# The files that a transaction shows.


@dataclass(frozen=True, kw_only=True)
class ShownFiles:
    """The tree of files that a transaction shows; none shows none."""

    store: StoreParts
    dataset: DatasetName
    transaction: Transaction | None

    @property
    def where(self) -> str:
        return self.transaction.id if self.transaction else "an empty branch"

    def entries(self, path: str = "") -> list[Entry]:
        """What is at or below a path; an error where a path is named and nothing is there."""
        found = list(view_files(self.store, self.transaction, path))
        if path and not found:
            raise FileNotInView(dataset=str(self.dataset), path=path, where=self.where)
        return found

    def find(self, path: str) -> Entry:
        """The file with exactly this path."""
        check_file_path(path)
        entry = next((e for e in view_files(self.store, self.transaction, path)), None)
        if entry is None or entry.path != path or entry.is_directory:
            raise FileNotInView(dataset=str(self.dataset), path=path, where=self.where)
        return entry

    def download(self, target: Path, path: str = "", *, progress: Progress | None = None) -> None:
        """Writes what is below a path into a directory; a file under its last name. Verified."""
        root = root_of(self.transaction.version if self.transaction else None)
        self.store.trees.download(root, target, path, progress=progress)


def view_files(
    store: StoreParts, transaction: Transaction | None, prefix: str = ""
) -> Iterator[Entry]:
    """The files that a transaction shows; `VersionExpired` once cleanup has condemned them."""
    if transaction is None:
        return iter(())
    _check_alive(transaction)
    return store.trees.walk(root_of(transaction.version), prefix)


def check_is_bytes(path: str, content: bytes) -> None:
    if not isinstance(content, bytes):
        raise Invalid(
            f"{path!r} is given a {type(content).__name__}: files hold bytes; encode a text, as in "
            '`text.encode("utf-8")`.',
            path=path,
        )


def store_bytes(store: StoreParts, path: str, content: bytes) -> Entry:
    check_file_path(path)
    check_is_bytes(path, content)
    return Entry(path=path, mode=Mode.FILE, size=len(content), digest=store.trees.store(content))


def _check_alive(transaction: Transaction) -> None:
    if transaction.condemned:
        raise VersionExpired(what=f"transaction {transaction.id}")


# How a block of Python ends what it had OPEN.


class EndsWithItsBlock(ABC):
    """A context manager: commits at the block's end, or aborts where that cannot be."""

    _given_up = False

    @abstractmethod
    def commit(self, *, operation: OperationKey | None = None) -> Receipt: ...

    def abort(self) -> Sequence[str]:
        """Aborts all that is OPEN in it and says which transactions they were."""
        ended = self._abort()
        self._given_up = True
        return ended

    @abstractmethod
    def _abort(self) -> Sequence[str]: ...

    @abstractmethod
    def _state(self) -> TransactionState:
        """As the catalog has it now."""

    def _ends_with_another(self) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._given_up or self._ends_with_another():
            return
        if error is not None:
            self._let_go()
            return
        if self._state() is TransactionState.COMMITTED:
            return
        try:
            # One that was taken over says so here: what the block wrote is not there.
            self.commit()
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Nobody holds it after its block: left OPEN, it would keep its branches until its lease
        ends. What is said is why the block failed, not what followed from it."""
        with suppress(HeadgateError):
            if self._state() is TransactionState.OPEN:
                self.abort()


@dataclass
class TransactionHandle(EndsWithItsBlock):
    """An OPEN transaction in somebody's hands."""

    store: StoreParts
    transaction: Transaction

    @classmethod
    def load(cls, store: StoreParts, id: str) -> Self:
        return cls(store, store.database.read(lambda c: records.load_transaction(c, id)))

    @property
    def id(self) -> str:
        return self.transaction.id

    @property
    def branch(self) -> str:
        return self.transaction.branch

    def put(self, source: Path | str, path: str = "", *, progress: Progress | None = None) -> None:
        write_uploaded(
            lambda: self.store.trees.upload(Path(source), path, progress=progress), self.edit
        )

    def write(self, path: str, content: bytes) -> None:
        """One file from memory."""
        write_uploaded(lambda: [store_bytes(self.store, path, content)], self.edit)

    def remove(self, *paths: str) -> None:
        self.edit(FileEdit(remove=paths))

    def edit(self, edit: FileEdit) -> None:
        """Changes the working tree, from contents that are stored already; renews the lease."""
        self._check_is_files()
        self.transaction = stage_edit(self.store.database, self.store.trees, self.transaction, edit)

    def files(self, prefix: str = "") -> list[Entry]:
        self._check_is_files()
        return list(view_files(self.store, self.transaction, prefix))

    def noun(self) -> Json:
        """As the catalog has it now."""
        return transaction_json(TransactionHandle.load(self.store, self.id).transaction)

    def renew(self) -> None:
        """Any use renews the lease."""
        renew_transactions(self.store.database, [self.transaction.id])

    def commit(self, *, operation: OperationKey | None = None) -> Receipt:
        """One publication of its own."""
        return do_once(self.store.database, operation, lambda: self._commit(operation))

    def _abort(self) -> Sequence[str]:
        self._check_stands_alone()
        abort_transactions(
            self.store.database, [self.transaction.id], actor=self.store.settings.actor
        )
        return [self.id]

    def _commit(self, operation: OperationKey | None) -> Receipt:
        self._check_stands_alone()
        return commit_transactions(
            self.store.database,
            self.store.contents,
            [self.transaction.id],
            CommitOptions(
                actor=self.store.settings.actor,
                operation=operation,
                may_write_protected=self.store.may_write_protected,
            ),
        )

    def _state(self) -> TransactionState:
        return self.store.database.read(lambda c: records.load_transaction(c, self.id)).state

    def _ends_with_another(self) -> bool:
        return self.transaction.unit is not None

    def _check_is_files(self) -> None:
        check_is_files(
            self.store.database.read(lambda c: records.load_dataset(c, self.transaction.dataset))
        )

    def _check_stands_alone(self) -> None:
        unit = self.transaction.unit
        if unit is not None:
            raise Invalid(
                f"transaction {self.id} belongs to unit {unit}, whose transactions commit and "
                f"abort together: name the unit instead.",
                transaction=self.id,
                unit=unit,
            )


@dataclass
class UnitHandle(EndsWithItsBlock):
    """A unit of transactions in somebody's hands."""

    store: StoreParts
    id: UnitId
    branch: str
    actor: str

    @classmethod
    def open(cls, store: StoreParts, branch: str, *, lease_seconds: int, actor: str) -> Self:
        check_lease_seconds(lease_seconds)
        unit = open_unit(store.database, branch, actor=actor, lease_seconds=lease_seconds)
        return cls(store, unit.id, unit.branch, actor)

    @classmethod
    def load(cls, store: StoreParts, id: str) -> Self:
        """A unit that somebody opened, to go on with it under one's own name."""
        unit = store.database.read(lambda c: records.load_unit(c, id))
        return cls(store, unit.id, unit.branch, store.settings.actor)

    @property
    def context(self) -> str:
        """What Spark and other engines bind to, to write inside this unit."""
        return f"txn:{self.id}"

    def dataset(self, name: str) -> TransactionHandle:
        """This unit's transaction on a dataset, opened at its first use."""
        parsed = parse_dataset_name(name)
        self.renew()
        return TransactionHandle(
            self.store,
            self.store.database.write(
                lambda c: open_in_unit(
                    c,
                    records.load_unit(c, self.id),
                    records.load_dataset(c, parsed),
                    may_write_protected=self.store.may_write_protected,
                )
            ),
        )

    def noun(self) -> Json:
        """As the catalog has it now, with all of its transactions."""
        return self.store.database.read(
            lambda c: unit_json(records.load_unit(c, self.id), list_unit_transactions(c, self.id))
        )

    def renew(self) -> None:
        """Any use renews the lease, and those of its transactions."""
        renew_unit(self.store.database, self.id)

    def commit(self, *, operation: OperationKey | None = None) -> Receipt:
        """Commits all of its transactions in one publication, or in none where it has none."""
        return do_once(self.store.database, operation, lambda: self._commit(operation))

    def _commit(self, operation: OperationKey | None) -> Receipt:
        unit = self.store.database.read(lambda c: records.load_open_unit(c, self.id))
        receipt = commit_transactions(
            self.store.database,
            self.store.contents,
            [t.id for t in unit.transactions],
            CommitOptions(
                actor=self.actor,
                operation=operation,
                may_write_protected=self.store.may_write_protected,
            ),
        )
        if not unit.transactions:
            close_empty_unit(self.store.database, self.id)
        return receipt

    def _state(self) -> TransactionState:
        return self.store.database.read(lambda c: records.load_unit(c, self.id)).state

    def _abort(self) -> Sequence[str]:
        return abort_unit(self.store.database, self.id, actor=self.actor)


def load_opened(store: StoreParts, id: str) -> TransactionHandle | UnitHandle:
    """What an id stands for, in any state: a unit, or a transaction."""
    if store.database.read(lambda c: records.find_unit(c, id)) is not None:
        return UnitHandle.load(store, id)
    return TransactionHandle.load(store, id)
