"""Access to storage that clients get with a table: temporary keys, or signatures of requests.

A client writes below a directory of its own in the table's location, which the replies to it name
as `write.data.path` and `write.metadata.path`. No other client can write there, and it cannot write
elsewhere. An attempt that was superseded gets neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import quote

from headgate import errors
from headgate.iceberg.service import CLIENT_PLACE, Reply, Request, Service, TableAccess, json_reply
from headgate.model.ids import DatasetId
from headgate.model.names import DatasetName
from headgate.settings import REMOTE_SIGNING, VENDED_CREDENTIALS, Settings
from headgate.storage.address import canonical, client_properties
from headgate.storage.delegation import (
    LIFETIME_SECONDS,
    POLICY_LETTERS,
    Rights,
    Site,
    TemporaryKeys,
    assume_role,
    policy_document,
    read_request,
)
from headgate.tables.metadata import Json, Metadata, read_str
from headgate.tables.referenced_files import check_location, open_manifests, references_of
from headgate.tables.versions import StoredVersion, TableVersions, WeighedCache

DELEGATION_HEADER = "x-iceberg-access-delegation"
# A client that gets a key that was made earlier has at least this time until it must refresh it.
_REUSED = timedelta(seconds=600)
_FILES_BYTES = 64 * 1024 * 1024
_S3 = "s3://"


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """Access that a store gives its clients to its bucket."""

    site: Site
    modes: tuple[str, ...]
    role: str | None
    # Endpoint, region and addressing style.
    properties: Mapping[str, str]
    # By session and policy, so that each is of one client.
    _keys: WeighedCache[TemporaryKeys] = field(default_factory=partial(WeighedCache, limit=10_000))
    # Addresses of the files that a version names.
    _files: WeighedCache[frozenset[str]] = field(
        default_factory=partial(WeighedCache, limit=_FILES_BYTES)
    )

    @classmethod
    def open(cls, settings: Settings) -> Delegation | None:
        """Return what the settings name; None if clients use keys of their own."""
        if not settings.access_delegation:
            return None
        return cls(
            site=Site.open(settings.environ, token_service=settings.sts_endpoint),
            modes=settings.access_delegation,
            role=settings.sts_role_arn,
            properties=client_properties(settings.environ),
        )

    def find_access(
        self,
        service: Service,
        request: Request,
        name: DatasetName,
        dataset: DatasetId,
        metadata: Metadata,
        *,
        staged: bool,
    ) -> TableAccess | None:
        """Return the access that a client asks for; None if it asks for none that it may have."""
        named = request.headers.get(DELEGATION_HEADER, "").lower().split(",")
        accepted = [mode for mode in self.modes if mode in map(str.strip, named)]
        if not accepted:
            return None
        rights = _rights(service, request, name, dataset, metadata)
        given = (m for m in accepted if m == REMOTE_SIGNING or self.can_vend(request, rights))
        if (mode := next(given, None)) is None:
            return None
        properties = {
            f"write.{what}.path": f"{place}{what}"
            for place in rights.writes
            for what in ("data", "metadata")
        }
        path = f"v1/{request.prefix}/{_path(name)}"
        if mode == REMOTE_SIGNING:
            signing = {
                **self.properties,
                "s3.remote-signing-enabled": "true",
                # Clients take the address of the catalog as `s3.signer.uri`: it may be a proxy's.
                "s3.signer.endpoint": f"{path}/sign",
                "signer.endpoint": f"{path}/sign",
                # The name of the same for PyIceberg.
                "s3.signer": "S3V4RestSigner",
            }
            return TableAccess(properties=properties, config=signing)
        credential = self.vend(request, rights)
        refresh = f"{path}/credentials"
        if staged:
            # The table does not exist before the commit, which may come after the keys expire.
            refresh += f"?location={quote(metadata['location'], safe='')}"
        config = {**credential["config"], "client.refresh-credentials-endpoint": refresh}
        return TableAccess(properties=properties, config=config, credentials=(credential,))

    def can_vend(self, request: Request, rights: Rights) -> bool:
        """Return whether one policy can allow these rights to a client, and nothing else."""
        # A policy cannot name single files, and a table's directory has those of all branches.
        is_limited = request.caller.policy is not None
        return not is_limited and len(self._policy(rights, _until(request))) <= POLICY_LETTERS

    def _policy(self, rights: Rights, until: datetime | None) -> str:
        assert self.role is not None, "the settings have a role"
        return policy_document(rights, partition=self.role.split(":")[1], until=until)

    def vend(self, request: Request, rights: Rights) -> Json:
        """Return a temporary key for these rights, one for all places: clients refresh only one."""
        moment, until = datetime.now(UTC), _until(request)
        assert self.role is not None, "the settings have a role"
        policy = self._policy(rights, until)
        session = f"headgate-{_directory(request)}"
        known = self._keys.find(key := f"{session} {policy}")
        if known is None or (until is None and known.expires < moment + _REUSED):
            known = assume_role(self.site, self.role, policy, session=session)
            self._keys.put(key, known, weight=1)
        ends = known.expires if until is None else min(known.expires, until)
        config = {
            **self.properties,
            "s3.access-key-id": known.keys.id,
            "s3.secret-access-key": known.keys.secret,
            "s3.session-token": known.keys.session_token or "",
            "s3.session-token-expires-at-ms": str(int(ends.timestamp() * 1000)),
        }
        return {"prefix": _common({one.rstrip("/") for one in rights.readable}), "config": config}

    def files_of(self, versions: TableVersions, version: StoredVersion) -> frozenset[str]:
        """Return the addresses of all files that a version and its history name."""
        listed = [str(one["snapshot-id"]) for one in version.metadata.get("snapshots") or []]
        key = f"{version.location} {len(listed)}"
        if (known := self._files.find(key)) is not None:
            return known
        references = references_of(version.metadata)
        found = {version.location, *references.manifest_lists, *references.statistics}
        reader = open_manifests(versions.fetch)
        manifests = {
            one.path: one for lists in references.manifest_lists for one in reader.manifests(lists)
        }
        found.update(manifests)
        found.update(file.path for one in manifests.values() for file in reader.files(one))
        files = frozenset(map(canonical, found))
        self._files.put(key, files, weight=sum(map(len, files)))
        return files


def load_credentials(service: Service, request: Request) -> Reply:
    """Return new temporary keys for a table."""
    delegation = _check_offered(service, VENDED_CREDENTIALS)
    rights, _ = _rights_now(service, request, request.query.get("location"))
    if not delegation.can_vend(request, rights):
        raise errors.SigningRefused(
            method="GET",
            address=request.path,
            reason="a token whose reading is limited, and a table in very many places, get remote "
            "signing only",
        )
    return _private({"storage-credentials": [delegation.vend(request, rights)]})


def sign_request(service: Service, request: Request) -> Reply:
    """Sign one request to the bucket, if the client may make it now."""
    delegation = _check_offered(service, REMOTE_SIGNING)
    body = request.json
    headers = body.get("headers") or {}
    if not isinstance(headers, dict) or not all(
        isinstance(v, list) and all(isinstance(one, str) for one in v) for v in headers.values()
    ):
        raise errors.MalformedRequest(what="'headers'", reason="it is not a map of lists of texts")
    wanted = read_request(delegation.site, read_str(body, "method"), read_str(body, "uri"), headers)
    # Of a table that is only staged, the location is in the address.
    place, found, _ = wanted.address.partition(f"/{_directory(request)}/")
    rights, version = _rights_now(service, request, place if found else None)
    named: frozenset[str] = frozenset()
    if version is not None and not wanted.is_allowed(rights):
        named = delegation.files_of(service.versions, version)
    wanted.check(rights, named)
    return _private(wanted.signed(delegation.site, datetime.now(UTC)))


def _private(document: Json) -> Reply:
    reply = json_reply(document)
    # As the protocol has it; Spark would keep a signature marked as private, and use it again.
    return replace(reply, headers={**reply.headers, "cache-control": "no-cache, no-store"})


def _check_offered(service: Service, mode: str) -> Delegation:
    if service.delegation is None or mode not in service.delegation.modes:
        raise errors.NotFound(
            f"this store offers no {mode}: clients use keys of their own. Set [store] "
            f'access_delegation = ["{mode}"] where the warehouse is in S3.',
            mode=mode,
        )
    return service.delegation


def _common(addresses: set[str]) -> str:
    """Return the longest address of a directory that all of these are below."""
    first, last = min(addresses).split("/"), max(addresses).split("/")
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    return "/".join(first[:same]) + "/"


def _path(name: DatasetName) -> str:
    levels = "%1F".join(quote(level, safe="") for level in name.namespace)
    return f"namespaces/{levels}/tables/{quote(name.name, safe='')}"


def _rights_now(
    service: Service, request: Request, staged_at: str | None
) -> tuple[Rights, StoredVersion | None]:
    """Return the rights to the table in the path, as it is now or as the client staged it."""
    name = request.table
    if (table := service.catalog.resolve(request.context, name)) is not None:
        version = service.versions.read(table.location)
        return _rights(service, request, name, table.dataset_id, version.metadata), version
    dataset = service.versions.find_dataset(staged_at or "") or service.catalog.find_dataset_id(
        name
    )
    owner = service.catalog.find_name(dataset) if dataset is not None else None
    own = _own_place(service, request, name, staged_at) if staged_at is not None else ()
    if staged_at is None or not own or owner not in (None, name):
        raise errors.TableNotFound(table=str(name), context=str(request.context))
    check_location(staged_at, service.versions.roots(dataset or DatasetId("")))
    return Rights(writes=own, lists=request.caller.policy is None), None


def _rights(
    service: Service, request: Request, name: DatasetName, dataset: DatasetId, metadata: Metadata
) -> Rights:
    """Return the rights of a client: to read what the version names, to write its own place."""
    writes = _own_place(service, request, name, metadata["location"])
    if request.caller.policy is not None:
        # It reads the files that the version names, each by its address.
        return Rights(writes=writes, lists=False)
    return Rights(reads=_places(service.versions, dataset, metadata), writes=writes)


def _own_place(
    service: Service, request: Request, name: DatasetName, location: str
) -> tuple[str, ...]:
    place = f"{canonical(location.rstrip('/'))}/{_directory(request)}/"
    may_write = service.catalog.may_write(request.caller, request.context, name)
    return (place,) if may_write and place.startswith(_S3) else ()


def _until(request: Request) -> datetime | None:
    """Return when the client's token expires, if that is before a new temporary key does."""
    until = request.caller.until
    later = datetime.now(UTC) + timedelta(seconds=LIFETIME_SECONDS)
    return until if until is not None and until <= later else None


def _directory(request: Request) -> str:
    """Return the name of the directories in which this client writes, and no other."""
    caller = request.caller
    whole = f"{caller.actor}\n{caller.token}\n{request.prefix}"
    return f"{CLIENT_PLACE}{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


def _places(versions: TableVersions, dataset: DatasetId, metadata: Metadata) -> tuple[str, ...]:
    """Return the directories that a version names files in."""
    location = metadata["location"]
    # A renamed table stays where it is.
    lies_in = versions.find_dataset(location)
    roots = [versions.table_location(dataset)]
    roots.append(versions.table_location(lies_in) if lies_in else location)
    found = [f"{canonical(root.rstrip('/'))}/" for root in roots]
    references = references_of(metadata)
    allowed = versions.roots(dataset)
    for address in map(canonical, sorted(references.manifest_lists | references.statistics)):
        directory = address.rpartition("/")[0]
        # Of a registered table: the directory that has `metadata` in it. Never a whole bucket, or a
        # directory around the warehouse or an allowed location.
        for place in (f"{directory.removesuffix('/metadata')}/", f"{directory}/"):
            if place.count("/") > 3 and not any(root.startswith(place) for root in allowed):
                if not place.startswith(tuple(found)):
                    found.append(place)
                break
    return tuple(place for place in dict.fromkeys(found) if place.startswith(_S3))
