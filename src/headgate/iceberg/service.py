"""The parts that every handler works with."""

from __future__ import annotations

import base64
import enum
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import unquote
from uuid import UUID

import orjson

from headgate import errors
from headgate.errors import Denied, MalformedRequest
from headgate.model.contexts import Context
from headgate.model.ids import ContentId, DatasetId, TransactionId
from headgate.model.names import DatasetName, check_name_part
from headgate.model.nouns import AttemptRef, TransactionType
from headgate.tables.shape import Json, Metadata, as_object, read_object, read_str, read_strings
from headgate.tables.versions import StoredVersion, TableVersions, WeighedCache

# What the endpoint needs from the truth: who may act, what names mean, and one way to write.

Namespace = tuple[str, ...]


class Action(enum.StrEnum):
    """What a request wants to do in its context."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who acts: the name that history records, and the attempt that the fence compares."""

    actor: str
    attempt: AttemptRef | None = None
    # An admin: allowed on protected branches.
    may_write_protected: bool = False


# Raises `Denied` where the token is unknown, revoked or not enough for the action.
Authorize = Callable[[str | None, Context, Action], Principal]


@dataclass(frozen=True, kw_only=True)
class ServedTable:
    """A name, resolved in a context: the version that the context shows for it."""

    name: DatasetName
    dataset_id: DatasetId
    # Where in the context's chain it was found; for a unit or job, the branch that it writes to.
    branch: str
    # None where a unit or job has only a working version so far.
    transaction: TransactionId | None
    location: str
    content_id: ContentId


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One table's step to a new version that is already stored but not yet visible."""

    name: DatasetName
    dataset_id: DatasetId
    # What the context showed when the change was prepared; None: no table of that name.
    base: ServedTable | None
    location: str
    content_id: ContentId
    type: TransactionType
    # False for a registered table: its earlier files are somebody else's.
    owned: bool = True


@dataclass(frozen=True, kw_only=True)
class Idempotency:
    """A client's key for one request, with a digest of what it asked."""

    key: str
    request_hash: str


class TableCatalog(Protocol):
    """The truth as the endpoint sees it; every method may block and is called from a thread.

    Writes are atomic, are refused with an error of `headgate.errors`, and have happened once they
    return. One that may or may not have happened raises `OutcomeUnknown`. A write whose
    idempotency key is on record changes nothing and returns what it returned then.
    """

    def resolve(self, context: Context, name: DatasetName) -> ServedTable | None:
        """The version that a name means in a context, or None."""
        ...

    def find_dataset_id(self, name: DatasetName) -> DatasetId | None:
        """The dataset of that name on any branch, or None where there has never been one."""
        ...

    def list_tables(self, context: Context, namespace: Namespace) -> Sequence[str]:
        """Names of the tables that the context shows in a namespace."""
        ...

    def commit(
        self,
        principal: Principal,
        context: Context,
        changes: Sequence[TableChange],
        idempotency: Idempotency | None,
    ) -> Sequence[ServedTable]:
        """Makes all changes visible together, in the same order, or none.

        A base that the context no longer shows is `ViewConflict`.
        """
        ...

    def drop(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        idempotency: Idempotency | None,
    ) -> None:
        """Puts a tombstone on the context's branch."""
        ...

    def rename(
        self,
        principal: Principal,
        context: Context,
        table: ServedTable,
        to: DatasetName,
        idempotency: Idempotency | None,
    ) -> None:
        """A tombstone, and a new dataset with the same version, together."""
        ...

    def recall(
        self, principal: Principal, context: Context, idempotency: Idempotency
    ) -> Sequence[ServedTable] | None:
        """The tables that a write with this key made, or None where none has happened.

        Another request under the key is `IdempotencyKeyReused`.
        """
        ...

    def list_namespaces(self) -> Sequence[Namespace]:
        """All namespaces; they are the same in every context."""
        ...

    def find_namespace(self, namespace: Namespace) -> Mapping[str, str] | None:
        """A namespace's properties, or None."""
        ...

    def create_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        properties: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> None:
        """Makes a namespace, or raises `NamespaceExists`."""
        ...

    def update_namespace(
        self,
        principal: Principal,
        namespace: Namespace,
        removals: Sequence[str],
        updates: Mapping[str, str],
        idempotency: Idempotency | None,
    ) -> frozenset[str]:
        """Removes and sets properties, or raises `NamespaceNotFound`; which could be removed."""
        ...

    def drop_namespace(
        self, principal: Principal, namespace: Namespace, idempotency: Idempotency | None
    ) -> None:
        """Removes a namespace without datasets, or raises `NamespaceNotEmpty`."""
        ...


# Replies, and the one table that says how each error looks to an Iceberg client.


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An HTTP response, ready to be sent."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


# What Spark does with a status decides it (403: fails at once and deletes its staged files;
# 409: tries again for two seconds, then cleans up; 5xx: asks whether the commit has landed).
# The nearest class in an error's ancestry counts.
_FORBIDDEN = (403, "ForbiddenException")
_NO_TABLE = (404, "NoSuchTableException")
_COMMIT_FAILED = (409, "CommitFailedException")
ERROR_TABLE: dict[type[errors.HeadgateError], tuple[int, str]] = {
    errors.Invalid: (400, "BadRequestException"),
    errors.Denied: _FORBIDDEN,
    # A superseded attempt and a closed transaction never succeed later: no retries, clean up.
    errors.AttemptSuperseded: _FORBIDDEN,
    errors.TransactionNotOpen: _FORBIDDEN,
    errors.NotFound: (404, "NotFoundException"),
    errors.TableNotFound: _NO_TABLE,
    errors.DatasetNotFound: _NO_TABLE,
    errors.NamespaceNotFound: (404, "NoSuchNamespaceException"),
    errors.Exists: (409, "AlreadyExistsException"),
    errors.Conflict: _COMMIT_FAILED,
    errors.NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    errors.Unavailable: (503, "ServiceUnavailableException"),
    errors.OutcomeUnknown: (500, "CommitStateUnknownException"),
    errors.CommitInterrupted: (500, "CommitStateUnknownException"),
    errors.WorkFailed: (500, "InternalServerError"),
    errors.HeadgateError: (500, "InternalServerError"),
}


def status_of(error: errors.HeadgateError) -> tuple[int, str]:
    """HTTP status and Iceberg's exception name for an error."""
    for kind in type(error).__mro__:
        if kind in ERROR_TABLE:
            return ERROR_TABLE[kind]
    return ERROR_TABLE[errors.HeadgateError]


def error_reply(error: errors.HeadgateError, *, authenticated: bool = True) -> Reply:
    """The protocol's error body; the stable code ends the message, where Spark shows it too."""
    status, kind = status_of(error)
    if status == 403 and not authenticated:
        status, kind = 401, "NotAuthorizedException"
    facts = orjson.loads(orjson.dumps(error.to_json(), default=str))
    return problem(status, kind, f"{error.message} [{error.code}]", facts=facts)


def problem(status: int, kind: str, message: str, *, facts: Any = None) -> Reply:
    """An error body as the protocol words it."""
    model = {"message": message, "type": kind, "code": status, "stack": []}
    if facts is not None:
        model["headgate"] = facts
    return json_reply({"error": model}, status=status)


def json_reply(value: Any, *, status: int = 200) -> Reply:
    """A JSON document."""
    return Reply(
        status=status, body=orjson.dumps(value), headers={"content-type": "application/json"}
    )


NO_CONTENT = Reply(status=204)


# Table versions as clients get them: the stored metadata with the server's own settings on top.

# Makes clients refuse to expire snapshots, remove orphans and purge: branches share files.
OVERLAY = {"gc.enabled": "false"}
_ALL, _REFS = "all", "refs"


class RenderedTables:
    """Response bodies by version; a version never changes, but it may forget snapshots."""

    def __init__(self, *, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self._bodies: WeighedCache[bytes] = WeighedCache(limit=cache_bytes)

    def reply(
        self, version: StoredVersion, *, snapshots: str = _ALL, known_etag: str | None = None
    ) -> Reply:
        """The version as a load or commit result; 304 where the client has it already."""
        listed = len(version.metadata.get("snapshots") or [])
        etag = etag_of(version.location, f"{snapshots} {listed}")
        if known_etag == etag:
            return Reply(status=304, headers={"etag": etag})
        body = self._bodies.find(etag)
        if body is None:
            metadata = version.to_encode() if snapshots == _ALL else _only_refs(version.metadata)
            body = orjson.dumps(table_result(metadata, version.location))
            self._bodies.put(etag, body, weight=len(body))
        return Reply(
            status=200, body=body, headers={"content-type": "application/json", "etag": etag}
        )


def table_result(metadata: Metadata, location: str | None) -> Json:
    """A load result; without a location for a table that is only staged."""
    properties = {**(metadata.get("properties") or {}), **OVERLAY}
    result: Json = {"metadata": {**metadata, "properties": properties}, "config": {}}
    return {"metadata-location": location, **result} if location else result


def etag_of(location: str, snapshots: str) -> str:
    """A tag that differs wherever the body differs."""
    digest = hashlib.sha256(f"{snapshots} {location}".encode()).hexdigest()
    return f'"{digest[:32]}"'


def _only_refs(metadata: Metadata) -> Metadata:
    wanted = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    kept = [item for item in metadata.get("snapshots") or [] if item["snapshot-id"] in wanted]
    return {**metadata, "snapshots": kept}


# What each client has read: the memory that catches a replacement prepared on an older view.


@dataclass(frozen=True, kw_only=True)
class LastRead:
    """The version that a client last read on purpose."""

    location: str
    # The client marks its statements' loads, so an unmarked one is a refresh inside a commit.
    marks_loads: bool
    # A refused snapshot stays refused, however often its client refreshes and sends it again.
    refused: frozenset[int] = frozenset()


class ServedVersions:
    """Remembers, for each client and table, which version a statement was given to start from.

    Spark loads a table with `?snapshots=…` when it plans a statement, and again without it just
    before it commits. Only the first is what the statement's author saw.
    """

    def __init__(self, *, limit: int = 50_000) -> None:
        self._limit = limit
        self._last: OrderedDict[tuple[str, DatasetName], LastRead] = OrderedDict()
        self._lock = threading.Lock()

    def note_load(self, client: str, name: DatasetName, location: str, *, marked: bool) -> None:
        """A client was given this version."""
        with self._lock:
            known = self._last.get((client, name))
            if known is not None and known.marks_loads and not marked:
                return
            self._keep(client, name, LastRead(location=location, marks_loads=marked))

    def note_commit(self, client: str, name: DatasetName, location: str) -> None:
        """A client made this version, and so knows it."""
        with self._lock:
            known = self._last.get((client, name))
            marks = known is not None and known.marks_loads
            self._keep(client, name, LastRead(location=location, marks_loads=marks))

    def note_refusal(
        self, client: str, name: DatasetName, location: str, snapshots: frozenset[int]
    ) -> None:
        """A client was told that its snapshots are stale: a later statement may start from here."""
        with self._lock:
            known = self._last.get((client, name))
            if known is None or not snapshots:
                return
            refused = known.refused | snapshots
            self._keep(client, name, replace(known, location=location, refused=refused))

    def find(self, client: str, name: DatasetName) -> LastRead | None:
        """What the client last read, if it is still remembered."""
        with self._lock:
            return self._last.get((client, name))

    def _keep(self, client: str, name: DatasetName, read: LastRead) -> None:
        self._last[client, name] = read
        self._last.move_to_end((client, name))
        while len(self._last) > self._limit:
            self._last.popitem(last=False)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _keep_nothing(principal: Principal, action: Action, refusal: Denied) -> None:
    """An embedded endpoint has nobody who would look at an audit."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One endpoint: its truth, its versions, and what it remembers of its clients."""

    catalog: TableCatalog
    versions: TableVersions
    authorize: Authorize
    # Reads a metadata file that is being registered, from wherever it lies; `NotFound` or
    # `StorageUnavailable` where it cannot.
    read_outside: Callable[[str], bytes]
    # Hears of what was refused to somebody who had been let in, as by a branch's protection.
    refused: Callable[[Principal, Action, Denied], None] = _keep_nothing
    # Settings handed to every client, such as where S3 is.
    client_defaults: Mapping[str, str] = field(default_factory=dict)
    rendered: RenderedTables = field(default_factory=RenderedTables)
    served: ServedVersions = field(default_factory=ServedVersions)
    now_ms: Callable[[], int] = _now_ms


# Requests as the handlers see them: decoded once, checked as they are read.

_LEVELS = "\x1f"
_PAGE_SIZE = 1000
_DEPTH_LIMIT = 100


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call on a context, by a known principal."""

    method: str
    path: str
    # The prefix as sent: a context, and which of its clients asks.
    prefix: str
    context: Context
    principal: Principal
    # The path's variable segments, still percent-encoded.
    arguments: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def json(self) -> Json:
        """The body as a JSON object."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise MalformedRequest(what="the request body", reason="it is not JSON") from error
        _check_depth(found)
        return as_object(found, what="the request body")

    @property
    def namespace(self) -> Namespace:
        """The namespace in the path; `%1F` separates its levels."""
        return parse_levels(unquote(self.arguments["namespace"]))

    @property
    def table(self) -> DatasetName:
        """The table in the path."""
        return checked_name(self.namespace, unquote(self.arguments["table"]))

    @property
    def idempotency(self) -> Idempotency | None:
        """The client's key, if it sent one."""
        key = self.headers.get("idempotency-key")
        if key is None:
            return None
        try:
            canonical = str(UUID(key))
        except ValueError as error:
            raise MalformedRequest(what="the Idempotency-Key", reason="it is no UUID") from error
        digest = hashlib.sha256(f"{self.method} {self.path}\n".encode() + self.body)
        return Idempotency(key=canonical, request_hash=digest.hexdigest())


def _check_depth(value: Any) -> None:
    """What nests deeper could be stored but not be written out again with a reply around it."""
    level = [value]
    for _ in range(_DEPTH_LIMIT):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise MalformedRequest(what="the request body", reason="it is nested too deeply")


def parse_levels(text: str) -> Namespace:
    """A namespace from its levels in one text."""
    levels = tuple(text.split(_LEVELS))
    for level in levels:
        check_name_part(level, what="namespace", whole=".".join(levels))
    return levels


def checked_name(namespace: Namespace, name: str) -> DatasetName:
    """A dataset name whose every part is one that Headgate allows."""
    found = DatasetName(namespace=namespace, name=name)
    for part in (*namespace, name):
        check_name_part(part, what="dataset", whole=".".join((*namespace, name)))
    if not namespace:
        raise MalformedRequest(what=f"table {name!r}", reason="it has no namespace")
    return found


def read_identifier(source: Mapping[str, Any], key: str) -> DatasetName:
    """A table identifier inside a body."""
    identifier = read_object(source, key)
    return checked_name(tuple(read_strings(identifier, "namespace")), read_str(identifier, "name"))


def page(request: Request, names: Sequence[str]) -> tuple[list[str], str | None]:
    """One page of sorted names and the token of the next; all of them where none was asked for.

    A token is the last name of its page, so names that come and go in between shift nothing.
    """
    ordered = sorted(names)
    token = request.query.get("pageToken")
    if token is None:
        return ordered, None
    after = _decode_token(token)
    rest = [name for name in ordered if not token or name > after]
    size = _page_size(request)
    shown = rest[:size]
    if len(rest) <= size:
        return shown, None
    return shown, base64.urlsafe_b64encode(shown[-1].encode()).decode()


def _decode_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise MalformedRequest(
            what="the pageToken", reason="it is not one that was given out"
        ) from error


def _page_size(request: Request) -> int:
    text = request.query.get("pageSize", str(_PAGE_SIZE))
    if not text.isdecimal() or int(text[:9]) < 1:
        raise MalformedRequest(what="the pageSize", reason="it must be a positive integer")
    return min(int(text[:9]), _PAGE_SIZE)
