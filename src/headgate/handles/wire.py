"""Nouns as servers send them: their JSON, with what a client needs to have them again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from headgate.files.entries import Entry, Mode
from headgate.files.objects import Digest
from headgate.handles.nouns import (
    Json,
    branch_json,
    dataset_json,
    file_json,
    publication_json,
    transaction_json,
    unpublished_json,
)
from headgate.model.changes import Receipt
from headgate.model.ids import (
    BranchId,
    ContentId,
    DatasetId,
    Instant,
    OperationId,
    PublicationNumber,
    TransactionId,
    UnitId,
    VersionId,
)
from headgate.model.instants import instant_text
from headgate.model.names import parse_dataset_name
from headgate.model.nouns import (
    Branch,
    Dataset,
    DatasetKind,
    MoveRecord,
    Publication,
    PublicationKind,
    Tag,
    Transaction,
    TransactionState,
    TransactionType,
    Version,
)

# --- to be sent -----------------------------------------------------------------------------


def dataset_wire(dataset: Dataset, branches: Iterable[Branch]) -> Json:
    return dataset_json(dataset, branches) | {
        "id": dataset.id,
        "owned": dataset.owned,
        "created_at": instant_text(dataset.created_at),
    }


def branch_wire(branch: Branch) -> Json:
    return branch_json(branch) | {
        "id": branch.id,
        "dataset_id": branch.dataset_id,
        "parent_id": branch.parent_id,
        "remembered_chain": list(branch.remembered_chain),
    }


def transaction_wire(transaction: Transaction) -> Json:
    version = transaction.version
    return transaction_json(transaction) | {
        "dataset_id": transaction.dataset_id,
        "branch_id": transaction.branch_id,
        "depth": transaction.depth,
        "unit": transaction.unit,
        "publication": transaction.publication,
        "content": version.content_id if version else None,
        "location": version.location if version else None,
        "lease_until": _text(transaction.lease_until),
        "lease_seconds": transaction.lease_seconds,
        "condemned": transaction.condemned,
        "provenance": dict(transaction.provenance),
    }


def publication_wire(publication: Publication) -> Json:
    noun = publication_json(publication)
    for move, sent in zip(publication.moves, noun["moves"], strict=True):
        sent["branch_id"] = move.branch_id
    return noun


def receipt_wire(receipt: Receipt, *, kind: PublicationKind, actor: str) -> Json:
    """Of an operation that published nothing."""
    return unpublished_json(receipt, kind=kind, actor=actor)


def entry_wire(entry: Entry) -> Json:
    return file_json(entry) | {"executable": entry.mode is Mode.EXECUTABLE}


# --- as they arrive -------------------------------------------------------------------------


def to_dataset(sent: Json) -> Dataset:
    return Dataset(
        id=DatasetId(sent["id"]),
        name=parse_dataset_name(sent["dataset"]),
        kind=DatasetKind(sent["kind"]),
        owned=sent["owned"],
        created_at=to_instant(sent["created_at"]),
    )


def to_branch(sent: Json) -> Branch:
    return Branch(
        id=BranchId(sent["id"]),
        dataset_id=DatasetId(sent["dataset_id"]),
        dataset=parse_dataset_name(sent["dataset"]),
        name=sent["name"],
        parent_id=sent["parent_id"],
        parent=sent["parent"],
        head=sent["head"],
        view=sent["view"],
        remembered_chain=tuple(sent["remembered_chain"]),
    )


def to_transaction(sent: Json) -> Transaction:
    """All but what only the catalog itself uses: its jump pointer, attempt and keys."""
    return Transaction(
        id=TransactionId(sent["transaction"]),
        dataset_id=DatasetId(sent["dataset_id"]),
        dataset=parse_dataset_name(sent["dataset"]),
        branch_id=BranchId(sent["branch_id"]),
        branch=sent["branch"],
        parent=sent["parent"],
        depth=sent["depth"],
        jump=None,
        type=TransactionType(sent["type"]),
        state=TransactionState(sent["state"]),
        version=_to_version(sent),
        actor=sent["actor"],
        opened_at=to_instant(sent["opened_at"]),
        closed_at=_instant(sent["closed_at"]),
        lease_until=_instant(sent["lease_until"]),
        lease_seconds=sent["lease_seconds"],
        attempt=None,
        unit=UnitId(sent["unit"]) if sent["unit"] else None,
        publication=_number(sent["publication"]),
        condemned=sent["condemned"],
        provenance=sent["provenance"],
    )


def to_publication(sent: Json) -> Publication:
    return Publication(
        number=PublicationNumber(sent["publication"]),
        at=to_instant(sent["at"]),
        actor=sent["actor"],
        kind=PublicationKind(sent["kind"]),
        operation=OperationId(sent["operation"]),
        moves=tuple(
            MoveRecord(
                dataset=parse_dataset_name(move["dataset"]),
                branch_id=BranchId(move["branch_id"]),
                branch=move["branch"],
                from_transaction=move["from"],
                to_transaction=move["to"],
            )
            for move in sent["moves"]
        ),
    )


def to_receipt(sent: Json, *, replayed: bool) -> Receipt:
    return Receipt(
        operation=OperationId(sent["operation"]),
        publication=_number(sent["publication"]),
        at=to_instant(sent["at"]),
        transactions={move["branch_id"]: move["to"] for move in sent["moves"]},
        replayed=replayed,
    )


def to_tag(sent: Json) -> Tag:
    return Tag(
        dataset=parse_dataset_name(sent["dataset"]),
        name=sent["name"],
        transaction=TransactionId(sent["transaction"]),
    )


def to_entry(sent: Json) -> Entry:
    path = str(sent["path"])
    if path.endswith("/"):
        return Entry(path=path[:-1], mode=Mode.DIRECTORY, size=0, digest=Digest(""))
    mode = Mode.EXECUTABLE if sent["executable"] else Mode.FILE
    return Entry(path=path, mode=mode, size=sent["size"], digest=Digest(sent["digest"]))


def to_instant(text: str) -> Instant:
    """What `instant_text` wrote."""
    moment = datetime.fromisoformat(text)
    whole = moment.replace(microsecond=0)
    return Instant(int(whole.timestamp()) * 1_000_000 + moment.microsecond)


def _instant(text: str | None) -> Instant | None:
    return to_instant(text) if text is not None else None


def _text(instant: Instant | None) -> str | None:
    return instant_text(instant) if instant is not None else None


def _number(number: Any) -> PublicationNumber | None:
    return PublicationNumber(number) if number is not None else None


def _to_version(sent: Json) -> Version | None:
    if sent["version"] is None:
        return None
    return Version(
        id=VersionId(sent["version"]),
        location=sent["location"],
        content_id=ContentId(sent["content"]),
    )
