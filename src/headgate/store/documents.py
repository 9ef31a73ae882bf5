"""JSON documents of the nouns.

A `Document` is the one definition of a noun's JSON: `--json` prints it, the HTTP API sends and
describes it, and the client rebuilds the noun from it.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, fields
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from headgate.catalog.tokens import TokenRecord
from headgate.files.objects import Digest
from headgate.files.tree import Entry, Mode
from headgate.model import nouns
from headgate.model.changes import Receipt
from headgate.model.ids import Instant, OperationId, PublicationNumber, instant_text
from headgate.model.names import parse_dataset_name

if TYPE_CHECKING:
    from headgate.catalog.builds import BuildRecord
    from headgate.catalog.records import Unit
    from headgate.catalog.recovery import Recovered
    from headgate.model.jobspecs import PublishedJobSpec

T = TypeVar("T")

Json = dict[str, Any]

_AT = "2026-11-15T09:30:00.000001Z"
_T = "t-01m7f8gggmxzttp51zc67s"


def to_instant(text: str) -> Instant:
    """Parse a timestamp that `instant_text` formatted."""
    moment = datetime.fromisoformat(text)
    whole = moment.replace(microsecond=0)
    return Instant(int(whole.timestamp()) * 1_000_000 + moment.microsecond)


class _Codec:
    """JSON type of a value, by its type annotation, and the functions from the value and back."""

    def __init__(
        self,
        type: Any,
        encode: Callable[[Any], Any] = lambda value: value,
        decode: Callable[[Any], Any] = lambda value: value,
        show: Callable[[Any], Any] | None = None,
    ) -> None:
        self.type, self.encode, self.decode = type, encode, decode
        # Without the fields that only a client needs.
        self.show = show or encode

    @classmethod
    def of(cls, hint: Any) -> _Codec:
        if hint is Instant:
            return cls(str, instant_text, to_instant)
        if hint is nouns.DatasetName:
            return cls(str, str, parse_dataset_name)
        if hint is nouns.MoveRecord:
            return cls(Json, MOVE.wire, MOVE.parse, MOVE.json)
        if get_origin(hint) in (Union, types.UnionType):
            some = cls.of(_present(hint))
            return cls(
                some.type | None,
                lambda value: None if value is None else some.encode(value),
                lambda value: None if value is None else some.decode(value),
            )
        if get_origin(hint) is tuple:
            one = cls.of(get_args(hint)[0])
            return cls(
                list[one.type],  # type: ignore[name-defined]
                lambda value: [one.encode(item) for item in value],
                lambda value: tuple(one.decode(item) for item in value),
                lambda value: [one.show(item) for item in value],
            )
        if get_origin(hint) is not None:
            return cls(Json, dict)
        if hasattr(hint, "__supertype__"):
            return cls.of(hint.__supertype__)
        if issubclass(hint, enum.Enum):
            return cls(hint, lambda member: member.value, hint)
        return cls(hint)


def _present(hint: Any) -> Any:
    """Return the annotation without None."""
    return next((one for one in get_args(hint) if one is not types.NoneType), hint)


_hints = cache(get_type_hints)


def _hint(kind: type, path: str) -> Any:
    """Return the annotation of an attribute or property; inner ones are optional if outer are."""
    outer, _, inner = path.partition(".")
    found = getattr(kind, outer, None)
    hint = _hints(found.fget)["return"] if isinstance(found, property) else _hints(kind)[outer]
    if not inner:
        return hint
    within = _hint(_present(hint), inner)
    return within if _present(hint) is hint else within | None


class Document(Generic[T]):
    """The JSON of a noun.

    :param name: name of the model in the OpenAPI document.
    :param shown: names of the public fields.
    :param sent: names of the fields that only a client needs to rebuild the noun.
    :param attributes: attributes of fields that have another name, nested ones as `outer.inner`.
        Attributes without a field are None in the client.
    """

    def __init__(
        self,
        kind: type[T],
        name: str,
        *,
        shown: str,
        sent: str = "",
        attributes: Mapping[str, str] = types.MappingProxyType({}),
        example: Json,
    ) -> None:
        self.kind, self.name, self.example = kind, name, example
        self._shown = shown.split()
        self._paths = {name: attributes.get(name, name) for name in (*self._shown, *sent.split())}

    @cached_property
    def _codecs(self) -> dict[str, _Codec]:
        return {name: _Codec.of(_hint(self.kind, path)) for name, path in self._paths.items()}

    @cached_property
    def _own(self) -> dict[str, Field[Any]]:
        return {field.name: field for field in fields(self.kind)}  # type: ignore[arg-type]

    def types(self) -> Json:
        """Return the JSON types of the public fields."""
        return {name: self._codecs[name].type for name in self._shown}

    def json(self, noun: T) -> Json:
        """Return the public fields, as `--json` prints them."""
        return {name: self._codecs[name].show(self._value(noun, name)) for name in self._shown}

    def wire(self, noun: T) -> Json:
        """Return all fields, from which a client rebuilds the noun."""
        codecs = self._codecs.items()
        return {name: codec.encode(self._value(noun, name)) for name, codec in codecs}

    def _value(self, noun: T, name: str) -> Any:
        value: Any = noun
        for attribute in self._paths[name].split("."):
            value = getattr(value, attribute) if value is not None else None
        return value

    def parse(self, document: Json) -> T:
        """Return the noun of a document that `wire` made."""
        values: Json = {
            name: None
            for name, field in self._own.items()
            if field.default is MISSING and field.default_factory is MISSING
        }
        nested: dict[str, Json] = {}
        for name, path in self._paths.items():
            outer, _, inner = path.partition(".")
            if outer in self._own:
                into = nested.setdefault(outer, {}) if inner else values
                into[inner or outer] = self._codecs[name].decode(document[name])
        for outer, found in nested.items():
            whole = _present(_hint(self.kind, outer))
            values[outer] = whole(**found) if any(found.values()) else None
        return self.kind(**values)


BRANCH = Document(
    nouns.Branch,
    "BranchModel",
    shown="dataset name parent head view open",
    sent="id dataset_id parent_id remembered_chain",
    attributes={"open": "is_open"},
    example={
        "dataset": "sales.orders",
        "name": "feature",
        "parent": "master",
        "head": _T,
        "view": _T,
        "open": False,
    },
)

TAG = Document(
    nouns.Tag,
    "TagModel",
    shown="dataset name transaction",
    example={"dataset": "sales.orders", "name": "2026-q3", "transaction": _T},
)

TRANSACTION = Document(
    nouns.Transaction,
    "TransactionModel",
    shown="transaction dataset branch type state parent actor opened_at closed_at version",
    sent="dataset_id branch_id depth unit publication content location lease_until lease_seconds"
    " condemned provenance",
    attributes={
        "transaction": "id",
        "version": "version.id",
        "content": "version.content_id",
        "location": "version.location",
    },
    example={
        "transaction": _T,
        "dataset": "raw.scans",
        "branch": "master",
        "type": "APPEND",
        "state": "OPEN",
        "parent": None,
        "actor": "ana",
        "opened_at": _AT,
        "closed_at": None,
        "version": None,
    },
)

MOVE = Document(
    nouns.MoveRecord,
    "MoveModel",
    shown="dataset branch from to",
    sent="branch_id",
    attributes={"from": "from_transaction", "to": "to_transaction"},
    example={"dataset": "sales.orders", "branch": "master", "from": None, "to": _T},
)

PUBLICATION = Document(
    nouns.Publication,
    "PublicationModel",
    shown="publication kind actor at operation moves",
    attributes={"publication": "number"},
    example={
        "publication": 12,
        "kind": "commit",
        "actor": "ana",
        "at": _AT,
        "operation": "o-01m7f8gggmxzttp51zc67s",
        "moves": [MOVE.example],
    },
)

DATASET = Document(
    nouns.Dataset,
    "DatasetModel",
    shown="dataset kind",
    sent="id owned created_at",
    attributes={"dataset": "name"},
    example={"dataset": "sales.orders", "kind": "table", "branches": ["master"]},
)


def dataset_json(dataset: nouns.Dataset, branches: Iterable[nouns.Branch]) -> Json:
    return DATASET.json(dataset) | {
        "branches": [branch.name for branch in branches if branch.dataset_id == dataset.id]
    }


def dataset_wire(dataset: nouns.Dataset, branches: Iterable[nouns.Branch]) -> Json:
    return dataset_json(dataset, branches) | DATASET.wire(dataset)


def unit_json(unit: Unit, transactions: Iterable[nouns.Transaction]) -> Json:
    return {
        "unit": unit.id,
        "branch": unit.branch,
        "transactions": [TRANSACTION.json(transaction) for transaction in transactions],
        "state": unit.state.value,
        "actor": unit.actor,
    }


def unpublished_json(receipt: Receipt, *, kind: nouns.PublicationKind, actor: str) -> Json:
    """Return the document of an operation that changed nothing, in the shape of a publication."""
    return {
        "publication": None,
        "kind": kind.value,
        "actor": actor,
        "at": instant_text(receipt.at),
        "operation": receipt.operation,
        "moves": [],
    }


def to_receipt(sent: Json, *, replayed: bool) -> Receipt:
    """Return the receipt of a publication, or of an operation that changed nothing."""
    number = sent["publication"]
    return Receipt(
        operation=OperationId(sent["operation"]),
        publication=PublicationNumber(number) if number is not None else None,
        at=to_instant(sent["at"]),
        transactions={move["branch_id"]: move["to"] for move in sent["moves"]},
        replayed=replayed,
    )


def event_json(event: Mapping[str, Any]) -> Json:
    """Return the document of an event: the shape of a publication, with the facts of the event."""
    return {
        **{key: value for key, value in event.items() if key != "at"},
        "publication": event.get("publication"),
        "at": instant_text(event["at"]),
        "operation": event.get("operation"),
        "moves": [],
    }


def audit_json(row: Mapping[str, Any]) -> Json:
    """Return a row of the audit log of recovery."""
    return {**row, "at": instant_text(row["at"])}


def recovery_json(done: Recovered) -> Json:
    return asdict(done)


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


def logic_text(job: Json) -> str:
    """Return the branch name and the commit of a job's logic; old builds recorded no commit."""
    marked = "" if job.get("jobspec_clean", True) else " +changes"
    return f"{job['jobspec_branch']} {job.get('jobspec_commit', '')[:10]}{marked}".rstrip()


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


TOKEN = Document(
    TokenRecord,
    "TokenModel",
    shown="id actor role branches reads datasets created_by created_at expires_at revoked_at",
    attributes={
        name: f"grant.{name}" for name in ("actor", "role", "branches", "reads", "datasets")
    },
    example={
        "id": "tok-01m7f8gggmxzttp51zc67s",
        "actor": "ana",
        "role": "writer",
        "branches": ["ana/*"],
        "reads": ["main", "ana/*"],
        "datasets": ["gold.*"],
        "created_by": "root",
        "created_at": _AT,
        "expires_at": _AT,
        "revoked_at": None,
    },
)


def history_json(transaction: nouns.Transaction) -> Json:
    """Return the transaction, its number in the history, and the facts that its build recorded."""
    facts = transaction.provenance
    incremental = dict(facts.get("incremental") or {})
    incremental.pop("snapshots", None)
    return {
        **TRANSACTION.json(transaction),
        "number": transaction.depth + 1,
        "build": facts.get("build"),
        "adopted_from": facts.get("adopted_from"),
        "incremental": incremental or None,
        "checks": list(facts.get("checks") or ()),
    }


def file_json(entry: Entry) -> Json:
    """Return a file; the path of an empty directory ends in a slash, and it has no digest."""
    if entry.is_directory:
        return {"path": f"{entry.path}/", "size": 0, "digest": None}
    return {"path": entry.path, "size": entry.size, "digest": entry.digest}


def entry_wire(entry: Entry) -> Json:
    return file_json(entry) | {"executable": entry.mode is Mode.EXECUTABLE}


def to_entry(sent: Json) -> Entry:
    path = str(sent["path"])
    if path.endswith("/"):
        return Entry(path=path[:-1], mode=Mode.DIRECTORY, size=0, digest=Digest(""))
    mode = Mode.EXECUTABLE if sent["executable"] else Mode.FILE
    return Entry(path=path, mode=mode, size=sent["size"], digest=Digest(sent["digest"]))
