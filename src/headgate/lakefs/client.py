"""lakeFS over its published SDK: the few verbs that a workspace needs, and its errors in ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from lakefs.client import Client
from lakefs_sdk import BranchCreation, CommitCreation, Merge, PathList, RepositoryCreation
from lakefs_sdk.exceptions import ApiException

from headgate.errors import Exists, LakeFSDenied, LakeFSUnavailable, NotFound
from headgate.lakefs.endpoint import MARK

_PAGE = 1000
_CHUNK_BYTES = 1024 * 1024
_DENIED, _NOT_FOUND, _CONFLICT = 403, 404, 409

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """One object as a listing shows it."""

    path: str
    size: int
    checksum: str
    # Where its bytes are: the same address is the same content.
    address: str


@dataclass(frozen=True, kw_only=True)
class Commit:
    id: str
    parents: tuple[str, ...]
    metadata: Mapping[str, str]


class LakeFS:
    """One server."""

    def __init__(self, endpoint: str, *, access_key_id: str, secret_access_key: str) -> None:
        client = Client(host=endpoint, username=access_key_id, password=secret_access_key)
        self._api = client.sdk_client

    def load_head(self, repository: str, branch: str) -> Commit:
        """Where a branch is now."""
        found = self._call(
            f"read branch {branch!r} of {repository!r}",
            lambda: self._api.branches_api.get_branch(repository, branch),
        )
        return self.load_commit(repository, found.commit_id)

    def load_commit(self, repository: str, id: str) -> Commit:
        found = self._call(
            f"read commit {id} of {repository!r}",
            lambda: self._api.commits_api.get_commit(repository, id),
        )
        return Commit(
            id=found.id, parents=tuple(found.parents), metadata=dict(found.metadata or {})
        )

    def list_objects(self, repository: str, ref: str, prefix: str) -> Iterator[StoredObject]:
        """Every object below a prefix, in pages as large as the server gives."""
        after = ""
        while True:
            page = self._call(
                f"list {prefix!r} of {repository!r} at {ref}",
                lambda after=after: self._api.objects_api.list_objects(  # type: ignore[misc]
                    repository, ref, prefix=prefix, after=after, amount=_PAGE, user_metadata=False
                ),
            )
            for found in page.results:
                yield StoredObject(
                    path=found.path,
                    size=found.size_bytes or 0,
                    checksum=found.checksum,
                    address=found.physical_address,
                )
            if not page.pagination.has_more:
                return
            after = page.pagination.next_offset

    def read(self, repository: str, ref: str, path: str) -> Iterator[bytes]:
        """An object's bytes, in one request."""
        response = self._call(
            f"read {path!r} of {repository!r} at {ref}",
            lambda: self._api.objects_api.get_object_with_http_info(
                repository, ref, path, _preload_content=False
            ),
        )
        raw = getattr(response, "raw_data", None) or response
        if isinstance(raw, bytes | bytearray):
            yield bytes(raw)
            return
        try:
            yield from raw.stream(_CHUNK_BYTES)
        finally:
            raw.release_conn()

    def create_branch(self, repository: str, name: str, source: str) -> None:
        """A new branch; one of that name that is there already is an error."""
        self._call(
            f"make branch {name!r} of {repository!r}",
            lambda: self._api.branches_api.create_branch(
                repository, BranchCreation(name=name, source=source)
            ),
        )

    def upload(self, repository: str, branch: str, path: str, source: Path) -> None:
        self._call(
            f"upload {path!r} to {repository!r}",
            # By its name: the SDK leaves out a file that it is handed as no bytes.
            lambda: self._api.objects_api.upload_object(
                repository, branch, path, content=str(source)
            ),
        )

    def delete(self, repository: str, branch: str, paths: Sequence[str]) -> None:
        for at in range(0, len(paths), _PAGE):
            part = list(paths[at : at + _PAGE])
            answer = self._call(
                f"delete {len(part)} objects of {repository!r}",
                lambda part=part: self._api.objects_api.delete_objects(  # type: ignore[misc]
                    repository, branch, PathList(paths=part)
                ),
            )
            if answer.errors:
                first = answer.errors[0]
                raise LakeFSUnavailable(doing=f"delete {first.path!r}", reason=first.message)

    def commit(self, repository: str, branch: str, message: str, mark: str) -> str:
        made = self._call(
            f"commit branch {branch!r} of {repository!r}",
            lambda: self._api.commits_api.commit(
                repository, branch, CommitCreation(message=message, metadata={MARK: mark})
            ),
        )
        return str(made.id)

    def merge(
        self,
        repository: str,
        source: str,
        target: str,
        *,
        message: str,
        mark: str,
        timeout_seconds: float | None,
    ) -> str:
        """A squash merge: one commit on top of the target, whose only parent it is."""
        merge = Merge(message=message, metadata={MARK: mark}, squash_merge=True)
        made = self._call(
            f"merge {source!r} into {target!r} of {repository!r}",
            lambda: self._api.refs_api.merge_into_branch(
                repository, source, target, merge=merge, **_within(timeout_seconds)
            ),
        )
        return str(made.reference)

    def hard_reset(
        self, repository: str, branch: str, ref: str, *, timeout_seconds: float | None
    ) -> None:
        """Points the branch at a commit, whatever it showed."""
        self._call(
            f"hard-reset branch {branch!r} of {repository!r} to {ref}",
            lambda: self._api.experimental_api.hard_reset_branch(
                repository, branch, ref, force=False, **_within(timeout_seconds)
            ),
        )

    def delete_branch(self, repository: str, name: str) -> None:
        """Removes a branch; one that is not there is no error."""
        try:
            self._call(
                f"delete branch {name!r} of {repository!r}",
                lambda: self._api.branches_api.delete_branch(repository, name),
            )
        except NotFound:
            return

    def list_branches(self, repository: str, prefix: str) -> list[str]:
        found = self._call(
            f"list branches of {repository!r}",
            lambda: self._api.branches_api.list_branches(repository, prefix=prefix, amount=_PAGE),
        )
        return [branch.id for branch in found.results]

    def create_repository(self, name: str, storage: str, branch: str) -> None:
        """An empty repository whose objects are kept below an address of the server's storage."""
        wanted = RepositoryCreation(name=name, storage_namespace=storage, default_branch=branch)
        self._call(
            f"make repository {name!r}",
            lambda: self._api.repositories_api.create_repository(wanted),
        )

    def delete_repository(self, name: str) -> None:
        self._call(
            f"delete repository {name!r}",
            lambda: self._api.repositories_api.delete_repository(name),
        )

    def _call(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except ApiException as error:
            reason = f"{error.status} {error.reason}"
            if error.status == _NOT_FOUND:
                raise NotFound(f"lakeFS cannot {doing}: it is not there.") from error
            if error.status == _DENIED:
                raise LakeFSDenied(doing=doing, reason=reason) from error
            if error.status == _CONFLICT and doing.startswith("make"):
                raise Exists(f"lakeFS cannot {doing}: there is one already.") from error
            raise LakeFSUnavailable(doing=doing, reason=reason) from error
        except urllib3.exceptions.HTTPError as error:
            raise LakeFSUnavailable(doing=doing, reason=type(error).__name__) from error


def _within(seconds: float | None) -> dict[str, Any]:
    return {} if seconds is None else {"_request_timeout": seconds}
