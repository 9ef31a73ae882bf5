"""What an intent says: the publication it is for, and the effects outside, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headgate.errors import Invalid
from headgate.model.changes import AddTransaction, MoveBranch, Provenance
from headgate.model.ids import BranchId, ContentId, Epoch, TransactionId, VersionId
from headgate.model.nouns import AttemptRef, PublicationKind, TransactionType, Version


@dataclass(frozen=True, kw_only=True)
class OutsideTarget:
    """Where an effect goes, the head it was prepared on, and the effect once it is known."""

    target: Mapping[str, str]
    expected: str
    effect: str | None = None


@dataclass(frozen=True, kw_only=True)
class IntentBody:
    kind: PublicationKind
    changes: tuple[AddTransaction | MoveBranch, ...]
    outside: tuple[OutsideTarget, ...]
    attempt: AttemptRef | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "changes": [_change_to_json(change) for change in self.changes],
            "outside": [asdict(target) for target in self.outside],
            "attempt": asdict(self.attempt) if self.attempt else None,
        }


def body_from_json(data: Mapping[str, Any]) -> IntentBody:
    """Reads what `to_json` wrote; anything else is refused as a whole."""
    try:
        attempt = data["attempt"]
        return IntentBody(
            kind=PublicationKind(data["kind"]),
            changes=tuple(_change_from_json(change) for change in data["changes"]),
            outside=tuple(OutsideTarget(**target) for target in data["outside"]),
            attempt=AttemptRef(key=attempt["key"], epoch=Epoch(attempt["epoch"]))
            if attempt
            else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"an intent cannot be read: {error!r}.") from error


def _change_to_json(change: AddTransaction | MoveBranch) -> dict[str, Any]:
    data = asdict(change)
    if isinstance(change, AddTransaction):
        data["objects"] = sorted(change.objects)
    return {"change": type(change).__name__, **data}


def _change_from_json(data: Mapping[str, Any]) -> AddTransaction | MoveBranch:
    common: dict[str, Any] = {
        "branch": BranchId(data["branch"]),
        "expected_head": _transaction(data["expected_head"]),
        "expected_view": _transaction(data["expected_view"]),
    }
    if data["change"] == "MoveBranch":
        return MoveBranch(**common, to=_transaction(data["to"]))
    version = data["version"]
    return AddTransaction(
        **common,
        parent=_transaction(data["parent"]),
        type=TransactionType(data["type"]),
        version=Version(
            id=VersionId(version["id"]),
            location=version["location"],
            content_id=ContentId(version["content_id"]),
        )
        if version
        else None,
        objects=frozenset(data["objects"]),
        provenance=Provenance(**data["provenance"]),
    )


def _transaction(id: str | None) -> TransactionId | None:
    return TransactionId(id) if id is not None else None
