"""Handles of a served store: datasets and branches by name, OPEN transactions and units.

A handle by name is valid before the dataset or branch exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from headgate.client.contents import RemoteShownFiles
from headgate.client.http import HttpClient, path_of, segment
from headgate.errors import Invalid
from headgate.files.edits import FileEdit
from headgate.files.tree import Entry
from headgate.model import nouns
from headgate.model.changes import Receipt
from headgate.model.contexts import is_plain
from headgate.model.ids import OperationId
from headgate.model.names import parse_member
from headgate.store.datasets import LEASE_SECONDS, BranchHandle, DatasetHandle
from headgate.store.documents import BRANCH, DATASET, TAG, TRANSACTION, Json, to_entry, to_instant
from headgate.store.transactions import CommitsAtExit, ShownFiles, TransactionHandle, UnitHandle


class _RemoteOpened(CommitsAtExit):
    """Verbs that are the same requests for a transaction and for a unit."""

    id: Any
    http: HttpClient

    @property
    def _path(self) -> str:
        return f"/transactions/{segment(self.id)}"

    def noun(self) -> Json:
        """Read the unit or transaction, and return its JSON document."""
        sent = self.http.get(self._path)
        is_unit = "transactions" in sent
        return sent if is_unit else TRANSACTION.json(TRANSACTION.parse(sent))

    def renew(self) -> None:
        self.http.request("POST", f"{self._path}/renew")

    def commit(self, *, idempotency_key: str | None = None) -> Receipt:
        reply = self.http.publish("POST", f"{self._path}/commit", idempotency_key)
        sent = reply.document
        return Receipt(
            operation=OperationId(sent["operation"]),
            publication=sent["publication"],
            at=to_instant(sent["at"]),
            transactions=sent["receipt"],
            replayed=reply.replayed,
        )

    def _abort(self) -> Sequence[str]:
        sent = self.http.request("POST", f"{self._path}/abort").document
        return [one["transaction"] for one in sent.get("transactions", (sent,))]

    def _state(self) -> nouns.TransactionState:
        return nouns.TransactionState(self.http.get(self._path)["state"])


@dataclass
class RemoteTransactionHandle(_RemoteOpened, TransactionHandle):
    """Handle of an OPEN transaction of a served store."""

    http: HttpClient

    def edit(self, edit: FileEdit) -> None:
        where = f"/files/{segment(str(self.transaction.dataset))}"
        sent = self.http.post(where, txn=self.id, **edit_json(edit))
        self.transaction = TRANSACTION.parse(sent)

    def files(self, prefix: str = "") -> list[Entry]:
        where = f"/files/{segment(str(self.transaction.dataset))}"
        return [to_entry(e) for e in self.http.pages(where, txn=self.id, path=prefix or None)]


@dataclass
class RemoteUnitHandle(_RemoteOpened, UnitHandle):
    """Handle of a unit of a served store."""

    http: HttpClient

    def dataset(self, name: str) -> TransactionHandle:
        sent = self.http.post(f"/units/{segment(self.id)}/transactions", dataset=name)
        return RemoteTransactionHandle(self.store, TRANSACTION.parse(sent), self.http)


def edit_json(edit: FileEdit) -> Json:
    """Return an edit as JSON."""
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


@dataclass(frozen=True)
class RemoteDatasetHandle(DatasetHandle):
    """Handle of a dataset of a served store."""

    http: HttpClient

    @property
    def where(self) -> str:
        return segment(str(self.name))

    def load(self) -> nouns.Dataset:
        return DATASET.parse(self.http.get(f"/datasets/{self.where}"))

    def create(
        self,
        kind: str = "table",
        *,
        branch: str | None = None,
        create: bool = False,
        idempotency_key: str | None = None,
    ) -> Self:
        body = {
            "dataset": str(self.name),
            "kind": parse_member(nouns.DatasetKind, kind, what="kind of dataset"),
            "branch": branch,
            "create": create,
        }
        self.http.publish("POST", "/datasets", idempotency_key, body=body)
        return self

    def branch(self, name: str) -> BranchHandle:
        return RemoteBranchHandle(self, name, self.http)

    def branches(self) -> list[nouns.Branch]:
        found = self.http.pages("/branches", dataset=str(self.name))
        return [BRANCH.parse(sent) for sent in found]

    def show(self, context: str | None = None, *, rows: int = 0) -> Json:
        return self.http.get(f"/datasets/{self.where}/content", context=context, rows=rows)

    def register(
        self,
        location: str,
        *,
        branch: str,
        create: bool = False,
        idempotency_key: str | None = None,
    ) -> None:
        if "://" not in location and not location.startswith(("/", "file:")):
            raise Invalid(
                f"the server looks for {location!r}: write the whole path, as it is there, or an "
                "s3:// address.",
                location=location,
            )
        body = {"metadata_location": location, "branch": branch, "create": create}
        self.http.publish("POST", f"/datasets/{self.where}/register", idempotency_key, body=body)

    def tag(self, name: str, *, at: str) -> nouns.Tag:
        return TAG.parse(self.http.post("/tags", dataset=str(self.name), name=name, at=at))

    def untag(self, name: str) -> None:
        self.http.request("DELETE", f"/tags/{self.where}/{path_of(name)}")

    def shown(
        self, *, branch: str | None = None, txn: str | None = None, at: str | None = None
    ) -> ShownFiles:
        transaction = None
        if txn is None:
            name = branch or self.store.settings.builds.branch
            chosen = self.branch(name)
            if is_plain(name):
                transaction = chosen.view(at=at)
            elif (id := self.show(name)["transaction"]) is not None:
                transaction = chosen._load_transaction(id)
        elif branch is not None or at is not None:
            raise Invalid("a transaction excludes a branch and a moment: leave these out.")
        return RemoteShownFiles(
            store=self.store,
            dataset=self.name,
            transaction=transaction,
            http=self.http,
            branch=branch,
            txn=txn,
            at=at,
        )


@dataclass(frozen=True)
class RemoteBranchHandle(BranchHandle):
    """Handle of a branch of a served store's dataset."""

    http: HttpClient

    @property
    def _dataset(self) -> str:
        return str(self.dataset.name)

    @property
    def _path(self) -> str:
        return f"/branches/{segment(self._dataset)}/{path_of(self.name)}"

    def load(self) -> nouns.Branch:
        return BRANCH.parse(self.http.get(self._path))

    def create(
        self,
        parent: str | None = None,
        *,
        at: str | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        body = {"dataset": self._dataset, "name": self.name, "parent": parent, "at": at}
        self.http.publish("POST", "/branches", idempotency_key, body=body)
        return self

    def delete(self, *, force: bool = False, idempotency_key: str | None = None) -> Receipt:
        params = {"force": True} if force else None
        return self.http.publish("DELETE", self._path, idempotency_key, params=params).receipt

    def restore(self, *, idempotency_key: str | None = None) -> Receipt:
        body = {"dataset": self._dataset, "branch": self.name}
        return self.http.publish("POST", "/branches/restore", idempotency_key, body=body).receipt

    def reset(self, to: str, *, idempotency_key: str | None = None) -> Receipt:
        body = {"dataset": self._dataset, "branch": self.name, "to": to}
        return self.http.publish("POST", "/branches/reset", idempotency_key, body=body).receipt

    def reparent(self, under: str | None) -> nouns.Branch:
        body = {"dataset": self._dataset, "branch": self.name, "under": under}
        return BRANCH.parse(self.http.post("/branches/reparent", **body))

    def history(
        self, *, aborted: bool = False, limit: int | None = None
    ) -> list[nouns.Transaction]:
        found = self.http.pages(
            f"/history/{segment(self._dataset)}", limit=limit, branch=self.name, all=aborted
        )
        return [TRANSACTION.parse(sent) for sent in found]

    def transaction(
        self, type: str = "UPDATE", *, lease_seconds: int = LEASE_SECONDS
    ) -> TransactionHandle:
        sent = self.http.post(
            "/transactions",
            dataset=self._dataset,
            branch=self.name,
            type=parse_member(nouns.TransactionType, type, what="type"),
            lease_seconds=lease_seconds,
        )
        return RemoteTransactionHandle(self.store, TRANSACTION.parse(sent), self.http)

    def edit(self, edit: FileEdit, *, idempotency_key: str | None = None) -> Receipt:
        body = {"branch": self.name, **edit_json(edit)}
        where = f"/files/{segment(self._dataset)}"
        return self.http.publish("POST", where, idempotency_key, body=body).receipt

    def read(self, path: str, *, at: str | None = None) -> bytes:
        where = f"/files/{segment(self._dataset)}/{path_of(path)}"
        return b"".join(self.http.stream(where, branch=self.name, at=at))

    def _load_transaction(self, id: str) -> nouns.Transaction:
        return TRANSACTION.parse(self.http.get(f"/transactions/{segment(id)}"))
