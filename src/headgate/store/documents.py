"""JSON documents of the nouns.

The `_json` functions return what `--json`, the HTTP API and the pages show. The `_wire` functions
add the fields from which a client rebuilds the noun with a `to_` function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headgate.files.objects import Digest
from headgate.files.tree import Entry, Mode
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
    instant_text,
)
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

if TYPE_CHECKING:
    from headgate.catalog.builds import BuildRecord
    from headgate.catalog.jobspecs import PublishedJobSpec
    from headgate.catalog.records import Unit
    from headgate.catalog.recovery import Recovered
    from headgate.catalog.tokens import TokenRecord


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
    """Return the document of an operation that changed nothing, in the shape of a publication."""
    return {
        "publication": None,
        "kind": kind.value,
        "actor": actor,
        "at": instant_text(receipt.at),
        "operation": receipt.operation,
        "moves": [],
    }


def event_json(event: Mapping[str, Any]) -> Json:
    """Return the document of an event: the shape of a publication, with the facts of the event."""
    facts = {key: value for key, value in event.items() if key != "at"}
    return {
        **facts,
        "publication": event.get("publication"),
        "at": instant_text(event["at"]),
        "operation": event.get("operation"),
        "moves": [],
    }


def audit_json(row: Mapping[str, Any]) -> Json:
    """Return a row of the audit log of recovery."""
    return {**row, "at": instant_text(row["at"])}


def tag_json(tag: Tag) -> Json:
    return {"dataset": str(tag.dataset), "name": tag.name, "transaction": tag.transaction}


def file_json(entry: Entry) -> Json:
    """Return a file; the path of an empty directory ends in a slash, and it has no digest."""
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


def jobspec_json(spec: PublishedJobSpec) -> Json:
    """Return a JobSpec, or the record of its removal."""
    data: Json = {
        "jobspec": spec.id,
        "branch": spec.branch,
        "outputs": spec.body["outputs"],
        "removed": spec.removed,
        "repository": spec.repository,
        "commit": spec.commit,
        "clean": spec.clean,
        "actor": spec.actor,
        "published_at": instant_text(spec.published_at),
    }
    if not spec.removed:
        body = spec.body["jobspec"]
        declared = body["declaration"]
        data |= {
            "inputs": [given["dataset"] for given in declared["inputs"]],
            "entry": f"{declared['module']}.{declared['function']}",
            "bundle": body["bundle"],
            "logic_hash": body["logic_hash"],
        }
    return data


def build_json(build: BuildRecord) -> Json:
    """Return a build without its jobs."""
    return {
        "build": build.id,
        "branch": build.branch,
        "fallback": build.body["fallback"],
        "targets": build.body["targets"],
        "state": build.state,
        "actor": build.actor,
        "started_at": instant_text(build.started_at),
        "ended_at": instant_text(build.ended_at) if build.ended_at is not None else None,
    }


def build_with_jobs_json(build: BuildRecord) -> Json:
    """Return a build with the state of each of its jobs."""
    return build_json(build) | {"jobs": [dict(job.body) for job in build.jobs]}


def token_json(record: TokenRecord) -> Json:
    """Return the actor, rights and times of a token; never the token itself."""
    return {
        "id": record.id,
        "actor": record.grant.actor,
        "role": record.grant.role.value,
        "branches": list(record.grant.branches),
        "created_by": record.created_by,
        "created_at": instant_text(record.created_at),
        "expires_at": instant_text(record.expires_at) if record.expires_at else None,
        "revoked_at": instant_text(record.revoked_at) if record.revoked_at else None,
    }


def history_json(transaction: Transaction) -> Json:
    """Return the transaction, its number in the history, and the facts that its build recorded."""
    facts = transaction.provenance
    return {
        **transaction_json(transaction),
        "number": transaction.depth + 1,
        "build": facts.get("build"),
        "adopted_from": facts.get("adopted_from"),
        "incremental": _without_snapshots(facts.get("incremental")),
        "checks": list(facts.get("checks") or ()),
    }


def _without_snapshots(incremental: Mapping[str, Any] | None) -> Json | None:
    if incremental is None:
        return None
    return {name: value for name, value in incremental.items() if name != "snapshots"}


# --- sent by the server ---------------------------------------------------------------------


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
    """Return the receipt of an operation that published nothing."""
    return unpublished_json(receipt, kind=kind, actor=actor)


def entry_wire(entry: Entry) -> Json:
    return file_json(entry) | {"executable": entry.mode is Mode.EXECUTABLE}


# --- received by the client -----------------------------------------------------------------


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
    """Return the transaction without its jump pointer, attempt and keys.

    Only the catalog uses those, and they are not sent.
    """
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
    """Parse a timestamp that `instant_text` formatted."""
    moment = datetime.fromisoformat(text)
    whole = moment.replace(microsecond=0)
    return Instant(int(whole.timestamp()) * 1_000_000 + moment.microsecond)


def _instant(text: str | None) -> Instant | None:
    return to_instant(text) if text is not None else None


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
