"""Transactions and units of a served store."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.files.entries import Entry
from headgate.files.progress import Progress
from headgate.files.upload import scan, upload
from headgate.files.writing import FileEdit, write_uploaded
from headgate.handles import TransactionHandle, UnitHandle
from headgate.handles.files import check_is_bytes
from headgate.handles.nouns import Json
from headgate.handles.wire import to_entry, to_instant, to_transaction
from headgate.model.changes import OperationKey, Receipt
from headgate.model.ids import OperationId
from headgate.model.names import check_file_path
from headgate.model.nouns import TransactionState
from headgate.remote.line import Line, Reply, segment
from headgate.remote.objects import remote_contents


@dataclass
class RemoteTransactionHandle(TransactionHandle):
    """An OPEN transaction of a served store in somebody's hands."""

    line: Line

    def put(self, source: Path | str, path: str = "", *, progress: Progress | None = None) -> None:
        contents = remote_contents(self.line)
        write_uploaded(lambda: upload(contents, scan(Path(source), path), progress), self.edit)

    def write(self, path: str, content: bytes) -> None:
        check_file_path(path)
        check_is_bytes(path, content)
        with tempfile.TemporaryDirectory(prefix="headgate-") as aside:
            source = Path(aside, "content")
            source.write_bytes(content)
            self.put(source, path)

    def remove(self, *paths: str) -> None:
        self.edit(FileEdit(remove=paths))

    def edit(self, edit: FileEdit) -> None:
        where = f"/files/{segment(str(self.transaction.dataset))}"
        sent = self.line.post(where, txn=self.id, **edit_body(edit))
        self.transaction = to_transaction(sent)

    def files(self, prefix: str = "") -> list[Entry]:
        where = f"/files/{segment(str(self.transaction.dataset))}"
        return [to_entry(e) for e in self.line.pages(where, txn=self.id, path=prefix or None)]

    def noun(self) -> Json:
        return noun_of(self.line, self.id)

    def renew(self) -> None:
        self.line.ask("POST", f"/transactions/{segment(self.id)}/renew")

    def commit(self, *, operation: OperationKey | None = None) -> Receipt:
        return commit(self.line, self.id, operation)

    def _abort(self) -> Sequence[str]:
        self.line.ask("POST", f"/transactions/{segment(self.id)}/abort")
        return [self.id]

    def _state(self) -> TransactionState:
        return state_of(self.line, self.id)


@dataclass
class RemoteUnitHandle(UnitHandle):
    """A unit of a served store's transactions in somebody's hands."""

    line: Line

    def dataset(self, name: str) -> TransactionHandle:
        sent = self.line.post(f"/units/{segment(self.id)}/transactions", dataset=name)
        return RemoteTransactionHandle(self.store, to_transaction(sent), self.line)

    def noun(self) -> Json:
        return noun_of(self.line, self.id)

    def renew(self) -> None:
        self.line.ask("POST", f"/transactions/{segment(self.id)}/renew")

    def commit(self, *, operation: OperationKey | None = None) -> Receipt:
        return commit(self.line, self.id, operation)

    def _abort(self) -> Sequence[str]:
        sent = self.line.ask("POST", f"/transactions/{segment(self.id)}/abort").document
        return [one["transaction"] for one in sent["transactions"]]

    def _state(self) -> TransactionState:
        return state_of(self.line, self.id)


def state_of(line: Line, id: str) -> TransactionState:
    return TransactionState(line.get(f"/transactions/{segment(id)}")["state"])


_NOUN = (
    *("transaction", "dataset", "branch", "type", "state", "parent", "actor"),
    *("opened_at", "closed_at", "version"),
)


def noun_of(line: Line, id: str) -> Json:
    """As the catalog has it now: a unit's noun, or a transaction's without what else was sent."""
    sent: Json = line.get(f"/transactions/{segment(id)}")
    return sent if "transactions" in sent else {name: sent[name] for name in _NOUN}


def commit(line: Line, id: str, operation: OperationKey | None) -> Receipt:
    """One publication of all that it holds."""
    reply: Reply = line.publish("POST", f"/transactions/{segment(id)}/commit", operation)
    sent = reply.document
    return Receipt(
        operation=OperationId(sent["operation"]),
        publication=sent["publication"],
        at=to_instant(sent["at"]),
        transactions=sent["receipt"],
        replayed=reply.replayed,
    )


def edit_body(edit: FileEdit) -> Json:
    """An edit as it is sent."""
    return {
        "put": [
            {
                "path": entry.path,
                "size": entry.size,
                "digest": None if entry.is_directory else entry.digest,
                "executable": entry.mode.name == "EXECUTABLE",
            }
            for entry in edit.put
        ],
        "remove": list(edit.remove),
    }
