"""Handles of transactions and units, and the parts of a store that handles use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headgate.attempts import CommitOptions, Contents, commit_transactions
from headgate.catalog import records
from headgate.catalog.database import Database
from headgate.catalog.operations import do_once
from headgate.catalog.records import check_kept, list_unit_transactions
from headgate.catalog.transactions import abort_transactions, renew_transactions
from headgate.catalog.units import abort_unit, close_empty_unit, open_in_unit, open_unit, renew_unit
from headgate.errors import FileNotInView, HeadgateError, Invalid
from headgate.files import edits
from headgate.files.objects import Objects
from headgate.files.transfer import Progress, scan, upload
from headgate.files.tree import Entry, Mode
from headgate.files.tree_store import FileTrees
from headgate.model import names
from headgate.model.changes import Caller, OperationKey, Receipt, operation_key
from headgate.model.ids import UnitId
from headgate.model.nouns import Transaction, TransactionState
from headgate.model.object_store import ObjectStore
from headgate.settings import Settings
from headgate.store.documents import TRANSACTION, Json, unit_json

if TYPE_CHECKING:
    from headgate.model.access import ReadPolicy
    from headgate.rows.evaluator_pool import EvaluatorPool
    from headgate.rows.outcome import Interrupt
    from headgate.spark.session import SparkSession
    from headgate.tables.versions import TableVersions

T = TypeVar("T")


class StoreBase(ABC):
    """Base of the classes that `Store` is composed of, as its handles use it.

    `Store` supplies the parts.
    """

    settings: Settings
    # The catalog, limited to what the actor may read, and the whole.
    database: Database
    full_database: Database
    policy: ReadPolicy | None
    # True where the actor is an admin, who may write protected branches.
    may_write_protected: bool
    # Raises unless the actor may write this branch of this dataset. None: all of them.
    check_write: Callable[[str, object], None] | None
    # In a server: the processes that run scripts and loads, and the end of the client's request.
    evaluators: EvaluatorPool | None = None
    interrupt: Interrupt | None = None

    @property
    def caller(self) -> Caller:
        return Caller(
            actor=self.settings.actor,
            may_write_protected=self.may_write_protected,
            check_write=self.check_write,
        )

    @property
    @abstractmethod
    def contents(self) -> Contents: ...

    @property
    @abstractmethod
    def trees(self) -> FileTrees: ...

    @property
    @abstractmethod
    def objects(self) -> ObjectStore: ...

    @property
    @abstractmethod
    def tables(self) -> TableVersions: ...

    @abstractmethod
    def spark(self, context: str) -> SparkSession: ...

    @abstractmethod
    def opened(self, id: str) -> TransactionHandle | UnitHandle: ...

    @property
    def file_contents(self) -> Objects:
        """Contents of files, by digest."""
        return self.trees.objects

    def once(
        self,
        key: str | None,
        kind: str,
        branch: str,
        request: Mapping[str, Any],
        act: Callable[..., T],
    ) -> T | Receipt:
        """Act once for an idempotency key; a repeat must be the same request.

        :param act: called with the `caller` and the `operation`.
        """
        caller = self.caller
        operation = operation_key(
            key, actor=caller.actor, kind=kind, branch=branch, request=request
        )
        return do_once(self.database, operation, lambda: act(caller=caller, operation=operation))


@dataclass(frozen=True, kw_only=True)
class ShownFiles:
    """The tree of files that a transaction shows; empty where there is no transaction."""

    store: StoreBase
    dataset: names.DatasetName
    transaction: Transaction | None

    @property
    def where(self) -> str:
        """Name of the transaction for error messages."""
        return self.transaction.id if self.transaction else "an empty branch"

    def entries(self, path: str = "") -> list[Entry]:
        """Return the entries at or below a path; raise `FileNotInView` if a given path has none."""
        found = list(self._walk(path))
        if path and not found:
            raise self._no_file(path)
        return found

    def find(self, path: str) -> Entry:
        """Return the entry of the file with exactly this path, or raise `FileNotInView`."""
        names.check_file_path(path)
        entry = next(self._walk(path), None)
        if entry is None or entry.path != path or entry.is_directory:
            raise self._no_file(path)
        return entry

    def _no_file(self, path: str) -> FileNotInView:
        near = edits.nearest_path(path, self._walk(""))
        return FileNotInView(dataset=str(self.dataset), path=path, where=self.where, near=near)

    def download(self, target: Path, path: str = "", *, progress: Progress | None = None) -> None:
        """Download the files at or below a path into a directory, and verify their digests.

        A path that is a file is written under its last name.
        """
        root = edits.root_of(self.transaction.version if self.transaction else None)
        self.store.trees.download(root, target, path, progress=progress)

    def _walk(self, path: str) -> Iterator[Entry]:
        return view_files(self.store, self.transaction, path)


def view_files(
    store: StoreBase, transaction: Transaction | None, prefix: str = ""
) -> Iterator[Entry]:
    """Return the files that a transaction shows; raise `VersionExpired` if they are condemned."""
    if transaction is None:
        return iter(())
    check_kept(transaction)
    return store.trees.walk(edits.root_of(transaction.version), prefix)


def store_bytes(store: StoreBase, path: str, content: bytes) -> Entry:
    """Store the content of one file, and return its entry."""
    names.check_file_path(path)
    if not isinstance(content, bytes):
        raise Invalid(
            f"{path!r} is given a {type(content).__name__}: files hold bytes; encode a text, as in "
            '`text.encode("utf-8")`.',
            path=path,
        )
    digest = store.file_contents.put(content)
    return Entry(path=path, mode=Mode.FILE, size=len(content), digest=digest)


class CommitsAtExit(ABC):
    """Context manager that commits at the end of its block, and aborts on an exception.

    If the commit fails, it aborts and raises the error of the commit.
    """

    _aborted = False

    @abstractmethod
    def commit(self, *, idempotency_key: str | None = None) -> Receipt: ...

    def abort(self) -> Sequence[str]:
        """Abort the OPEN transactions of the handle, and return their ids.

        The end of the block commits nothing afterwards.
        """
        ended = self._abort()
        self._aborted = True
        return ended

    @abstractmethod
    def _abort(self) -> Sequence[str]: ...

    @abstractmethod
    def _state(self) -> TransactionState:
        """Return the state that the catalog has now."""

    def _belongs_to_unit(self) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._aborted or self._belongs_to_unit():
            return
        if error is not None:
            self._abort_quietly()
            return
        if self._state() is TransactionState.COMMITTED:
            return
        try:
            # Raises where the transaction was taken over: the writes of the block are lost.
            self.commit()
        except BaseException:
            self._abort_quietly()
            raise

    def _abort_quietly(self) -> None:
        """Abort after a failed block.

        A transaction that stays OPEN would block its branches until its lease ends. An error of the
        abort is suppressed, so that the caller receives the error that made the block fail.
        """
        with suppress(HeadgateError):
            if self._state() is TransactionState.OPEN:
                self.abort()


@dataclass
class TransactionHandle(CommitsAtExit):
    """An OPEN transaction on one dataset.

    As a context manager it commits at the end of the block, and aborts on an exception. A
    transaction of a unit does neither: the unit ends it.
    """

    store: StoreBase
    transaction: Transaction

    @classmethod
    def load(cls, store: StoreBase, id: str) -> Self:
        """Return the handle of an existing transaction, in any state, by its id."""
        return cls(store, store.database.read(lambda c: records.load_transaction(c, id)))

    @property
    def id(self) -> str:
        """Id of the transaction."""
        return self.transaction.id

    @property
    def branch(self) -> str:
        """Name of the branch that the transaction writes."""
        return self.transaction.branch

    def put(self, source: Path | str, path: str = "", *, progress: Progress | None = None) -> None:
        """Upload a local file or directory into the working version of a files dataset.

        :param source: local file or directory.
        :param path: path of the file in the dataset, or directory that receives the content of a
            local directory. Empty: the root of the dataset.
        :param progress: called as files are uploaded.
        """
        edits.write_uploaded(
            lambda: upload(self.store.file_contents, scan(Path(source), path), progress), self.edit
        )

    def write(self, path: str, content: bytes) -> None:
        """Write one file of a files dataset from bytes in memory."""
        edits.write_uploaded(lambda: [store_bytes(self.store, path, content)], self.edit)

    def remove(self, *paths: str) -> None:
        """Remove files, or everything below a directory, from the working version."""
        self.edit(edits.FileEdit(remove=paths))

    def edit(self, edit: edits.FileEdit) -> None:
        """Put entries whose contents are already stored, and remove paths.

        Renews the lease of the transaction.
        """
        self._check_is_files()
        self.transaction = edits.stage_edit(
            self.store.database, self.store.trees, self.transaction, edit, caller=self.store.caller
        )

    def files(self, prefix: str = "") -> list[Entry]:
        """Return the files at or below a prefix, as this transaction shows them."""
        self._check_is_files()
        return list(view_files(self.store, self.transaction, prefix))

    def noun(self) -> Json:
        """Read the transaction from the catalog, and return its JSON document."""
        return TRANSACTION.json(TransactionHandle.load(self.store, self.id).transaction)

    def renew(self) -> None:
        """Renew the lease. Every use of the handle renews it as well."""
        renew_transactions(self.store.database, [self.transaction.id])

    def commit(self, *, idempotency_key: str | None = None) -> Receipt:
        """Publish the transaction, and return the receipt of its publication.

        Raises `Invalid` for a transaction of a unit: commit the unit instead.

        :param idempotency_key: a repeated call with the same key returns the first receipt.
        """
        request = {"transaction": self.id}
        return self.store.once(idempotency_key, "txn-commit", self.branch, request, self._commit)

    def _abort(self) -> Sequence[str]:
        self._check_stands_alone()
        abort_transactions(self.store.database, [self.transaction.id], caller=self.store.caller)
        return [self.id]

    def _commit(self, **how: Any) -> Receipt:
        self._check_stands_alone()
        store, ids = self.store, [self.transaction.id]
        return commit_transactions(store.database, store.contents, ids, CommitOptions(**how))

    def _state(self) -> TransactionState:
        return self.store.database.read(lambda c: records.load_transaction(c, self.id)).state

    def _belongs_to_unit(self) -> bool:
        return self.transaction.unit is not None

    def _check_is_files(self) -> None:
        edits.check_is_files(
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
class UnitHandle(CommitsAtExit):
    """A unit: OPEN transactions of several datasets on one branch, published together.

    As a context manager it commits at the end of the block, and aborts on an exception.
    """

    store: StoreBase
    id: UnitId
    branch: str
    actor: str

    @classmethod
    def open(
        cls, store: StoreBase, branch: str, *, lease_seconds: int, actor: str, create: bool = False
    ) -> Self:
        """Open a unit on a branch name. Each dataset joins at its first use."""
        names.check_lease_seconds(lease_seconds)
        unit = open_unit(
            store.database, branch, actor=actor, lease_seconds=lease_seconds, create=create
        )
        return cls(store, unit.id, unit.branch, actor)

    @classmethod
    def load(cls, store: StoreBase, id: str) -> Self:
        """Return the handle of an existing unit, in any state, by its id.

        The handle acts in the name of the actor of this store, also on a unit of another actor.
        """
        unit = store.database.read(lambda c: records.load_unit(c, id))
        return cls(store, unit.id, unit.branch, store.settings.actor)

    @property
    def context(self) -> str:
        """Context for Spark and other engines that write inside this unit: `txn:<id>`."""
        return f"txn:{self.id}"

    def dataset(self, name: str) -> TransactionHandle:
        """Return the transaction of this unit on a dataset; open it at the first use.

        A missing branch is created on the dataset.
        """
        parsed = names.parse_dataset_name(name)
        self.renew()
        return TransactionHandle(
            self.store,
            self.store.database.write(
                lambda c: open_in_unit(
                    c,
                    records.load_unit(c, self.id),
                    records.load_dataset(c, parsed),
                    caller=self.store.caller,
                )
            ),
        )

    def noun(self) -> Json:
        """Read the unit and its transactions from the catalog, and return the JSON document."""
        return self.store.database.read(
            lambda c: unit_json(records.load_unit(c, self.id), list_unit_transactions(c, self.id))
        )

    def renew(self) -> None:
        """Renew the lease of the unit and of its transactions. Every use does so as well."""
        renew_unit(self.store.database, self.id)

    def commit(self, *, idempotency_key: str | None = None) -> Receipt:
        """Publish all transactions of the unit in one publication, and return its receipt.

        A unit without transactions closes without a publication.

        :param idempotency_key: a repeated call with the same key returns the first receipt.
        """
        request = {"transaction": self.id}
        return self.store.once(idempotency_key, "txn-commit", self.branch, request, self._commit)

    def _commit(self, *, caller: Caller, operation: OperationKey | None) -> Receipt:
        unit = self.store.database.read(lambda c: records.load_open_unit(c, self.id))
        receipt = commit_transactions(
            self.store.database,
            self.store.contents,
            [t.id for t in unit.transactions],
            CommitOptions(caller=replace(caller, actor=self.actor), operation=operation),
        )
        if not unit.transactions:
            close_empty_unit(self.store.database, self.id)
        return receipt

    def _state(self) -> TransactionState:
        return self.store.database.read(lambda c: records.load_unit(c, self.id)).state

    def _abort(self) -> Sequence[str]:
        caller = replace(self.store.caller, actor=self.actor)
        return abort_unit(self.store.database, self.id, caller=caller)
