"""The endpoint's service and its authorization, and the requests and replies of its handlers."""

from __future__ import annotations

import base64
import enum
import hashlib
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus
from uuid import UUID

import orjson

from headgate import errors
from headgate.catalog.attempts import find_attempt_by_token
from headgate.catalog.database import Connection, Database, Turns
from headgate.catalog.records import check_newest
from headgate.errors import Denied, MalformedRequest, TokenRefused
from headgate.iceberg import table_catalog
from headgate.model.changes import Caller
from headgate.model.contexts import Context, JobContext
from headgate.model.ids import DatasetId
from headgate.model.names import DatasetName, check_name_part
from headgate.model.nouns import DatasetKind
from headgate.model.rules import RowRules
from headgate.tables.metadata import (
    Json,
    Metadata,
    as_object,
    check_document,
    read_object,
    read_str,
    read_strings,
)
from headgate.tables.versions import StoredVersion, TableVersions, WeighedCache

if TYPE_CHECKING:
    from headgate.iceberg.delegation import Delegation
    from headgate.model.access import ReadPolicy


class Action(enum.StrEnum):
    """The effect of a request on its context."""

    READ = "read"
    WRITE = "write"


# Raises `Denied` where the token is unknown, revoked or does not allow the action.
Authorize = Callable[[str | None, Context, Action], Caller]


class EmbeddedTokens:
    """Tokens of one loopback endpoint: a session's acts for a person, a job's for an attempt."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sessions: dict[str, str] = {}

    def issue(self, actor: str) -> str:
        """Return a token for one session of this process; it is kept in memory only."""
        token = secrets.token_urlsafe(32)
        self._sessions[token] = actor
        return token

    def __call__(self, token: str | None, context: Context, action: Action) -> Caller:
        if token is None:
            raise TokenRefused(reason="the request has none")
        actor = self._sessions.get(token)
        if actor is None:
            return self._database.read(lambda c: job_caller(c, token, context))
        refuse_job(context)
        return Caller(actor=actor)


def refuse_job(context: Context) -> None:
    """Raise for a job's context: only the job's own attempt may use it, whatever the role."""
    if isinstance(context, JobContext):
        raise TokenRefused(reason=f"{context} is open to its own attempt only", is_good=True)


def job_caller(connection: Connection, token: str, context: Context) -> Caller:
    """Return the attempt of a job's token, which must be the newest, in its own job's context."""
    found = find_attempt_by_token(connection, token)
    if found is None:
        raise TokenRefused(reason="it is unknown here")
    attempt, _ = found
    own = job_id(attempt.ref.key, attempt.ref.epoch)
    if not isinstance(context, JobContext) or context.id != own:
        raise TokenRefused(reason=f"it is for another context than {context}", is_good=True)
    check_newest(connection, attempt.ref)
    return Caller(actor=attempt.actor, attempt=attempt.ref)


def job_id(key: str, epoch: int) -> str:
    """Return the id of an attempt's context, `job:<key>:<epoch>`."""
    return f"{key}:{epoch}"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An HTTP response, ready to be sent."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


# Chosen by what Spark does with a status: at 403 it fails at once and deletes its staged files, at
# 409 it retries for two seconds and then deletes them, at 5xx it checks whether the commit landed.
# The nearest class in an error's ancestry counts.
_FORBIDDEN = (403, "ForbiddenException")
_NO_TABLE = (404, "NoSuchTableException")
_NO_VIEW = (404, "NoSuchViewException")
_COMMIT_FAILED = (409, "CommitFailedException")
ERROR_TABLE: dict[type[errors.HeadgateError], tuple[int, str]] = {
    errors.Invalid: (400, "BadRequestException"),
    errors.InvalidViewVersion: (400, "IllegalArgumentException"),
    errors.Denied: _FORBIDDEN,
    # A superseded attempt and a closed transaction never succeed later: no retries.
    errors.AttemptSuperseded: _FORBIDDEN,
    errors.TransactionNotOpen: _FORBIDDEN,
    errors.NotFound: (404, "NotFoundException"),
    errors.TableNotFound: _NO_TABLE,
    errors.ViewNotFound: _NO_VIEW,
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
    """Return the HTTP status and Iceberg's exception name for an error."""
    return next(ERROR_TABLE[kind] for kind in type(error).__mro__ if kind in ERROR_TABLE)


def error_reply(error: errors.HeadgateError, *, authenticated: bool = True) -> Reply:
    """Return the protocol's error body; the stable code ends the message, where Spark prints it."""
    status, kind = status_of(error)
    if status == 403 and not authenticated:
        status, kind = 401, "NotAuthorizedException"
    facts = orjson.loads(orjson.dumps(error.to_json(), default=str))
    return problem(status, kind, f"{error.message} [{error.code}]", facts=facts)


def problem(status: int, kind: str, message: str, *, facts: Any = None) -> Reply:
    """Return an error body of the protocol."""
    model = {"message": message, "type": kind, "code": status, "stack": []}
    if facts is not None:
        model["headgate"] = facts
    return json_reply({"error": model}, status=status)


def json_reply(value: Any, *, status: int = 200) -> Reply:
    return Reply(
        status=status, body=orjson.dumps(value), headers={"content-type": "application/json"}
    )


NO_CONTENT = Reply(status=204)


# Table versions as clients get them: the stored metadata with the server's own properties on top

# Clients then refuse to expire snapshots, remove orphan files and purge: branches share files.
OVERLAY = {"gc.enabled": "false"}
_ALL, _REFS = "all", "refs"


# Directories of clients that get access to storage with the table begin so.
CLIENT_PLACE = "by-"
_CLIENT_PLACES = re.compile(rf"s3://.*/{CLIENT_PLACE}[0-9a-f]{{16}}/(data|metadata)")


@dataclass(frozen=True, kw_only=True)
class TableAccess:
    """A client's access to the storage of a table, which no other reply may have."""

    # Overlaid on the table's own: where the client writes.
    properties: Mapping[str, str]
    config: Mapping[str, str]
    credentials: Sequence[Json] = ()


class RenderedTables:
    """Response bodies by version, which never changes but for the snapshots that cleanup drops."""

    def __init__(self, *, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self._bodies: WeighedCache[bytes] = WeighedCache(limit=cache_bytes)

    def reply(
        self,
        version: StoredVersion,
        *,
        snapshots: str = _ALL,
        known_etag: str | None = None,
        access: TableAccess | None = None,
    ) -> Reply:
        """Return the version as a load or commit result; 304 where the client has it already.

        A reply with access is neither kept nor 304: the client may have it with expired keys.
        """
        if access is not None:
            reply = json_reply(table_result(_listed(version, snapshots), version.location, access))
            return replace(reply, headers={**reply.headers, "cache-control": "no-store"})
        listed = len(version.metadata.get("snapshots") or [])
        digest = hashlib.sha256(f"{snapshots} {listed} {version.location}".encode()).hexdigest()
        etag = f'"{digest[:32]}"'
        if known_etag == etag:
            return Reply(status=304, headers={"etag": etag})
        body = self._bodies.find(etag)
        if body is None:
            body = orjson.dumps(table_result(_listed(version, snapshots), version.location))
            self._bodies.put(etag, body, weight=len(body))
        return Reply(
            status=200, body=body, headers={"content-type": "application/json", "etag": etag}
        )


def table_result(
    metadata: Metadata, location: str | None, access: TableAccess | None = None
) -> Json:
    """Return a load result; without a location for a table that is only staged."""
    properties = {**(metadata.get("properties") or {}), **OVERLAY}
    result: Json = {"metadata": {**metadata, "properties": properties}, "config": {}}
    if access is not None:
        properties.update(access.properties)
        result["config"] = access.config
        if access.credentials:
            result["storage-credentials"] = access.credentials
    return {"metadata-location": location, **result} if location else result


def without_overlay(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the server's own properties, which clients send back with those of the table."""
    return {
        key: value
        for key, value in properties.items()
        if key not in OVERLAY and not _CLIENT_PLACES.fullmatch(str(value))
    }


def _listed(version: StoredVersion, snapshots: str) -> Metadata:
    """Return the metadata with all snapshots, or with those that branches and tags refer to."""
    if snapshots == _ALL:
        return version.to_encode()
    metadata = version.metadata
    wanted = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    kept = [item for item in metadata.get("snapshots") or [] if item["snapshot-id"] in wanted]
    return {**metadata, "snapshots": kept}


# The versions that clients have read, to reject a replacement prepared on an older one


@dataclass(frozen=True, kw_only=True)
class LastRead:
    """The version that a client's statement last started from."""

    location: str
    # True if the client marks its statements' loads: an unmarked one is a refresh in a commit.
    marks_loads: bool
    # A rejected snapshot stays rejected, however often the client refreshes and sends it again.
    refused: frozenset[int] = frozenset()


class ServedVersions:
    """Records, for each client and table, the version that the client's statement started from.

    Spark loads a table with `?snapshots=…` when it plans a statement, and again without it just
    before it commits. Only the first is the version that the statement read. It may have been sent
    to another server, or before a restart, so a load without the parameter counts only for clients
    that were configured here and are not of Iceberg's Java library.
    """

    def __init__(self, *, limit: int = 50_000) -> None:
        self._limit = limit
        self._id = secrets.token_hex(8)
        self._last: OrderedDict[tuple[str, DatasetName], LastRead] = OrderedDict()
        self._lock = threading.Lock()

    def new_client(self, version: str = "") -> str:
        """Return the last part of the prefix of a client, by the version that it sends."""
        marks_loads = version.startswith("Apache Iceberg")
        return ("" if marks_loads else self._id) + secrets.token_hex(8)

    def note_load(self, client: str, name: DatasetName, location: str, *, marked: bool) -> None:
        """Record that a client loaded this version."""
        with self._lock:
            known = self._last.get((client, name))
            if not marked and (self._id not in client or (known and known.marks_loads)):
                return
            self._keep(client, name, LastRead(location=location, marks_loads=marked))

    def note_commit(self, client: str, name: DatasetName, location: str) -> None:
        """Record that a client made this version."""
        with self._lock:
            known = self._last.get((client, name))
            marks = known is not None and known.marks_loads
            self._keep(client, name, LastRead(location=location, marks_loads=marks))

    def note_refusal(
        self, client: str, name: DatasetName, location: str, snapshots: frozenset[int]
    ) -> None:
        """Record that a client's snapshots are stale; a later statement may start from here."""
        with self._lock:
            known = self._last.get((client, name))
            if known is None or not snapshots:
                return
            refused = known.refused | snapshots
            self._keep(client, name, replace(known, location=location, refused=refused))

    def find(self, client: str, name: DatasetName) -> LastRead | None:
        """Return what the client last read, if it is still on record."""
        with self._lock:
            return self._last.get((client, name))

    def _keep(self, client: str, name: DatasetName, read: LastRead) -> None:
        self._last[client, name] = read
        self._last.move_to_end((client, name))
        while len(self._last) > self._limit:
            self._last.popitem(last=False)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One endpoint: its catalog, its table versions, and what it keeps of its clients."""

    catalog: table_catalog.TableCatalog
    versions: TableVersions
    authorize: Authorize
    # Validates the rows of commits, before their publication.
    rules: RowRules
    # Reads a metadata file outside the warehouse, to register it; raises `NotFound` or
    # `StorageUnavailable`. None where clients must not make the server read files for them.
    read_outside: Callable[[str], bytes] | None = None
    # Records what was refused to an authorized client, for example by a branch's protection; an
    # embedded endpoint keeps no audit log.
    refused: Callable[[Caller, Action, Denied], None] = lambda caller, action, refusal: None
    # Whether errors name addresses and paths of this machine; its own processes may see them.
    shows_addresses: bool = True
    # Properties that every client gets, such as the address of S3.
    client_defaults: Mapping[str, str] = field(default_factory=dict)
    # None where clients have keys of their own for the storage.
    delegation: Delegation | None = None
    rendered: RenderedTables = field(default_factory=RenderedTables)
    served: ServedVersions = field(default_factory=ServedVersions)
    # Turns of the clients whose appends met others.
    appends: Turns = field(default_factory=Turns)
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def limited_to(self, policy: ReadPolicy | None) -> Service:
        """Return the endpoint as a token with this policy sees it."""
        if policy is None:
            return self
        return replace(self, catalog=self.catalog.limited_to(policy))

    def find_access(
        self,
        request: Request,
        name: DatasetName,
        dataset: DatasetId,
        metadata: Metadata,
        *,
        staged: bool = False,
    ) -> TableAccess | None:
        """Return the access to a table's storage that a client asks for; None if there is none."""
        if self.delegation is None:
            return None
        return self.delegation.find_access(self, request, name, dataset, metadata, staged=staged)


_LEVELS = "\x1f"
_PAGE_SIZE = 1000


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call on a context, by an authorized caller."""

    method: str
    path: str
    # The prefix as sent: a context and one of its clients.
    prefix: str
    context: Context
    caller: Caller
    # The path's variable segments, still percent-encoded.
    arguments: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def json(self) -> Json:
        """Return the body as a JSON object."""
        check_document(self.body)
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise MalformedRequest(what="the request body", reason="it is not JSON") from error
        return as_object(found, what="the request body")

    @property
    def namespace(self) -> table_catalog.Namespace:
        """Return the namespace in the path; `%1F` separates its levels."""
        return parse_levels(unquote_plus(self.arguments["namespace"]))

    @property
    def table(self) -> DatasetName:
        return self.name_of(DatasetKind.TABLE)

    def name_of(self, kind: DatasetKind) -> DatasetName:
        """Return the table or view in the path."""
        return checked_name(self.namespace, unquote_plus(self.arguments[kind]))

    @property
    def idempotency(self) -> table_catalog.Idempotency | None:
        """Return the client's key, if it sent one."""
        key = self.headers.get("idempotency-key")
        if key is None:
            return None
        try:
            canonical = str(UUID(key))
        except ValueError as error:
            raise MalformedRequest(what="the Idempotency-Key", reason="it is not a UUID") from error
        digest = hashlib.sha256(f"{self.method} {self.path}\n".encode() + self.body)
        return table_catalog.Idempotency(key=canonical, request_hash=digest.hexdigest())


def parse_levels(text: str) -> table_catalog.Namespace:
    """Parse a namespace from its levels in one text."""
    return checked_namespace(text.split(_LEVELS))


def checked_namespace(levels: Sequence[str]) -> table_catalog.Namespace:
    """Return a namespace, all levels of which Headgate allows; it has at least one."""
    for level in levels or ("",):
        check_name_part(level, what="namespace", whole=".".join(levels))
    return tuple(levels)


def checked_name(namespace: table_catalog.Namespace, name: str) -> DatasetName:
    """Return a dataset name, all parts of which Headgate allows."""
    found = DatasetName(namespace=namespace, name=name)
    for part in (*namespace, name):
        check_name_part(part, what="dataset", whole=".".join((*namespace, name)))
    if not namespace:
        raise MalformedRequest(what=f"table {name!r}", reason="it has no namespace")
    return found


def read_identifier(source: Mapping[str, Any], key: str) -> DatasetName:
    """Return a table identifier inside a body."""
    identifier = read_object(source, key)
    return checked_name(tuple(read_strings(identifier, "namespace")), read_str(identifier, "name"))


def page(request: Request, names: Sequence[str]) -> tuple[list[str], str | None]:
    """Return one page of sorted names and the token of the next; all if the request has no token.

    A token is the last name of its page, so names that come and go in between shift nothing.
    """
    ordered = sorted(names)
    token = request.query.get("pageToken")
    if token is None:
        return ordered, None
    try:
        after = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise MalformedRequest(
            what="the pageToken", reason="it is not one that this server returned"
        ) from error
    rest = [name for name in ordered if not token or name > after]
    wanted = request.query.get("pageSize", str(_PAGE_SIZE))
    if not wanted.isdecimal() or int(wanted[:9]) < 1:
        raise MalformedRequest(what="the pageSize", reason="it must be a positive integer")
    size = min(int(wanted[:9]), _PAGE_SIZE)
    shown = rest[:size]
    if len(rest) <= size:
        return shown, None
    return shown, base64.urlsafe_b64encode(shown[-1].encode()).decode()


# What tables and views have in common


def load_properties(
    service: Service, context: Context, namespace: table_catalog.Namespace
) -> Mapping[str, str]:
    """Return a namespace's properties, or raise."""
    properties = service.catalog.find_namespace(context, namespace)
    if properties is None:
        raise errors.NamespaceNotFound(namespace=".".join(namespace))
    return properties


def list_names(service: Service, request: Request, kind: DatasetKind) -> Reply:
    """Return the names of the tables or views that the context shows in a namespace."""
    namespace = request.namespace
    load_properties(service, request.context, namespace)
    names, token = page(request, service.catalog.list_names(request.context, namespace, kind))
    identifiers = [{"namespace": namespace, "name": name} for name in names]
    return json_reply({"identifiers": identifiers, "next-page-token": token})


def exists(service: Service, request: Request, kind: DatasetKind) -> Reply:
    """Return 204 if the context shows the table or view."""
    resolve_in_path(service, request, kind)
    return NO_CONTENT


def drop(service: Service, request: Request, kind: DatasetKind) -> Reply:
    """Remove a table or view from the context's branch; files stay, since branches share them."""
    # With `purgeRequested` too: other branches may show the table, and retention deletes its files.
    service.catalog.drop(request, resolve(service, request, request.name_of(kind), kind))
    return NO_CONTENT


def rename(service: Service, request: Request, kind: DatasetKind) -> Reply:
    """Give a table or view another name, on this context's branch only."""
    found = resolve(service, request, read_identifier(request.json, "source"), kind)
    target = read_identifier(request.json, "destination")
    load_properties(service, request.context, target.namespace)
    for other in (DatasetKind.TABLE, DatasetKind.VIEW):
        if service.catalog.resolve(request.context, target, other):
            raise errors.RenameTargetExists(
                source=str(found.name), target=str(target), kind=other.capitalize()
            )
    service.catalog.rename(request, found, target)
    return NO_CONTENT


def resolve(
    service: Service, request: Request, name: DatasetName, kind: DatasetKind
) -> table_catalog.ServedTable:
    """Return the version that a name means in this context, or raise."""
    found = service.catalog.resolve(request.context, name, kind)
    if found is None:
        raise _not_found(kind, str(name), request)
    return found


def resolve_in_path(
    service: Service, request: Request, kind: DatasetKind
) -> table_catalog.ServedTable:
    """Return the table or view in the path; one of an impossible name is not found either.

    Spark first looks for the path in "select … from parquet.`/some/files`" as a table.
    """
    try:
        name = request.name_of(kind)
    except errors.InvalidName as error:
        raise _not_found(kind, error.facts["name"], request) from error
    return resolve(service, request, name, kind)


def _not_found(kind: DatasetKind, name: str, request: Request) -> errors.NotFound:
    if kind is DatasetKind.VIEW:
        return errors.ViewNotFound(view=name, context=str(request.context))
    return errors.TableNotFound(table=name, context=str(request.context))


def reply_applied(service: Service, request: Request, table: table_catalog.ServedTable) -> Reply:
    """Return the reply to a write that has happened: no error may read as if it had not."""
    version = read_applied(service, table)
    try:
        access = service.find_access(request, table.name, table.dataset_id, version.metadata)
    except errors.Unavailable as error:
        raise errors.OutcomeUnknown(operation=f"the commit to {table.name}") from error
    return service.rendered.reply(version, access=access)


def read_applied(service: Service, written: table_catalog.ServedTable) -> StoredVersion:
    """Return the version of a write that has happened: no error may read as if it had not."""
    try:
        return service.versions.read(written.location)
    except errors.Unavailable as error:
        raise errors.OutcomeUnknown(operation=f"the commit to {written.name}") from error
