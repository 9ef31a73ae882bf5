"""The nouns as JSON, one shape each, wherever an entrance prints them or sends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.catalog.recovery import Recovered
from headgate.catalog.units import Unit
from headgate.files.entries import Entry
from headgate.model.changes import Receipt
from headgate.model.ids import Instant
from headgate.model.instants import instant_text
from headgate.model.nouns import (
    Branch,
    Dataset,
    Publication,
    PublicationKind,
    Tag,
    Transaction,
)

Json = dict[str, Any]


def dataset_json(dataset: Dataset, branches: Iterable[Branch]) -> Json:
    return {
        "dataset": str(dataset.name),
        "kind": dataset.kind.value,
        "branches": [branch.name for branch in branches if branch.dataset_id == dataset.id],
    }


def branch_json(branch: Branch) -> Json:
    return {
        "dataset": str(branch.dataset),
        "name": branch.name,
        "parent": branch.parent,
        "head": branch.head,
        "view": branch.view,
        "open": branch.is_open,
    }


def transaction_json(transaction: Transaction) -> Json:
    return {
        "transaction": transaction.id,
        "dataset": str(transaction.dataset),
        "branch": transaction.branch,
        "type": transaction.type.value,
        "state": transaction.state.value,
        "parent": transaction.parent,
        "actor": transaction.actor,
        "opened_at": instant_text(transaction.opened_at),
        "closed_at": _text(transaction.closed_at),
        "version": transaction.version.id if transaction.version else None,
    }


def unit_json(unit: Unit, transactions: Iterable[Transaction]) -> Json:
    return {
        "unit": unit.id,
        "branch": unit.branch,
        "transactions": [transaction_json(transaction) for transaction in transactions],
        "state": unit.state.value,
        "actor": unit.actor,
    }


def publication_json(publication: Publication) -> Json:
    return {
        "publication": publication.number,
        "kind": publication.kind.value,
        "actor": publication.actor,
        "at": instant_text(publication.at),
        "operation": publication.operation,
        "moves": [
            {
                "dataset": str(move.dataset),
                "branch": move.branch,
                "from": move.from_transaction,
                "to": move.to_transaction,
            }
            for move in publication.moves
        ],
    }


def unpublished_json(receipt: Receipt, *, kind: PublicationKind, actor: str) -> Json:
    """An operation that changed nothing, in the shape of a publication."""
    return {
        "publication": None,
        "kind": kind.value,
        "actor": actor,
        "at": instant_text(receipt.at),
        "operation": receipt.operation,
        "moves": [],
    }


def event_json(event: Mapping[str, Any]) -> Json:
    """What is recorded without a publication, in the shape of one and with its own facts."""
    facts = {key: value for key, value in event.items() if key != "at"}
    return {
        **facts,
        "publication": event.get("publication"),
        "at": instant_text(event["at"]),
        "operation": event.get("operation"),
        "moves": [],
    }


def tag_json(tag: Tag) -> Json:
    return {"dataset": str(tag.dataset), "name": tag.name, "transaction": tag.transaction}


def file_json(entry: Entry) -> Json:
    """A file; an empty directory has a slash at its end and no digest."""
    if entry.is_directory:
        return {"path": f"{entry.path}/", "size": 0, "digest": None}
    return {"path": entry.path, "size": entry.size, "digest": entry.digest}


def recovery_json(done: Recovered) -> Json:
    return {
        "rolled_forward": done.rolled_forward,
        "rolled_back": done.rolled_back,
        "aborted_transactions": done.aborted_transactions,
        "kept": done.kept,
    }


def _text(instant: Instant | None) -> str | None:
    return instant_text(instant) if instant is not None else None
