"""An OPEN transaction, and a unit of them, in somebody's hands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.attempts.committing import CommitOptions, commit_transactions
from headgate.catalog.find import find_transaction, load_dataset, load_transaction
from headgate.catalog.operations import do_once
from headgate.catalog.transactions import abort_transactions, renew_transactions
from headgate.catalog.units import (
    close_unit,
    load_open_unit,
    load_unit,
    open_in_unit,
    open_unit,
    renew_unit,
)
from headgate.errors import Invalid
from headgate.files.entries import Entry
from headgate.files.progress import Progress
from headgate.files.writing import FileEdit, check_is_files, stage_edit, write_uploaded
from headgate.handles.files import store_bytes, view_files
from headgate.handles.parts import StoreParts
from headgate.model.changes import OperationKey, Receipt
from headgate.model.ids import UnitId
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import Transaction, TransactionState


@dataclass
class TransactionHandle:
    """An OPEN transaction in somebody's hands."""

    store: StoreParts
    transaction: Transaction

    @classmethod
    def load(cls, store: StoreParts, id: str) -> Self:
        return cls(store, store.database.read(lambda c: load_transaction(c, id)))

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

    def renew(self) -> None:
        """Any use renews the lease."""
        renew_transactions(self.store.database, [self.transaction.id])

    def commit(self, *, operation: OperationKey | None = None) -> Receipt:
        """One publication of its own."""
        return do_once(self.store.database, operation, lambda: self._commit(operation))

    def abort(self) -> None:
        self._check_stands_alone()
        abort_transactions(
            self.store.database, [self.transaction.id], actor=self.store.settings.actor
        )

    def _commit(self, operation: OperationKey | None) -> Receipt:
        self._check_stands_alone()
        return commit_transactions(
            self.store.database,
            self.store.contents,
            [self.transaction.id],
            CommitOptions(actor=self.store.settings.actor, operation=operation),
        )

    def _check_is_files(self) -> None:
        check_is_files(
            self.store.database.read(lambda c: load_dataset(c, self.transaction.dataset))
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        found = self.store.database.read(lambda c: find_transaction(c, self.id))
        # One that belongs to a unit ends with the unit.
        if found is None or found.state is not TransactionState.OPEN or found.unit is not None:
            return
        if error is None:
            self.commit()
        else:
            self.abort()


@dataclass
class UnitHandle:
    """A unit of transactions in somebody's hands."""

    store: StoreParts
    id: UnitId
    branch: str
    actor: str

    @classmethod
    def open(cls, store: StoreParts, branch: str, *, lease_seconds: int, actor: str) -> Self:
        unit = open_unit(store.database, branch, actor=actor, lease_seconds=lease_seconds)
        return cls(store, unit.id, unit.branch, actor)

    @classmethod
    def load(cls, store: StoreParts, id: str) -> Self:
        """A unit that somebody opened, to go on with it under one's own name."""
        unit = store.database.read(lambda c: load_unit(c, id))
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
                lambda c: open_in_unit(c, load_unit(c, self.id), load_dataset(c, parsed))
            ),
        )

    def renew(self) -> None:
        """Any use renews the lease, and those of its transactions."""
        renew_unit(self.store.database, self.id)

    def commit(self, *, operation: OperationKey | None = None) -> Receipt:
        """Commits all of its transactions in one publication, or in none where it has none."""
        return do_once(self.store.database, operation, lambda: self._commit(operation))

    def _commit(self, operation: OperationKey | None) -> Receipt:
        unit = self.store.database.read(lambda c: load_open_unit(c, self.id))
        receipt = commit_transactions(
            self.store.database,
            self.store.contents,
            [t.id for t in unit.transactions],
            CommitOptions(actor=self.actor, operation=operation),
        )
        if not unit.transactions:
            # The door closes a unit with its transactions; there was none to close it with.
            close_unit(self.store.database, self.id, TransactionState.COMMITTED)
        return receipt

    def abort(self) -> Sequence[str]:
        """Aborts all of its transactions and says which they were."""
        unit = self.store.database.read(lambda c: load_open_unit(c, self.id))
        ids = [t.id for t in unit.transactions]
        if ids:
            abort_transactions(self.store.database, ids, actor=self.actor)
        close_unit(self.store.database, unit.id, TransactionState.ABORTED)
        return ids

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unit = self.store.database.read(lambda c: load_unit(c, self.id))
        if unit.state is not TransactionState.OPEN:
            return
        if error is None:
            self.commit()
        else:
            self.abort()
