"""Client of a lakeFS server over its published SDK: the requests that workspaces need."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import urllib3
from lakefs_sdk import BranchCreation, CommitCreation, Configuration, Merge, PathList
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException

from headgate import errors
from headgate.model.recovery import WorkspaceHead

# Key in the metadata of a commit: the execution that made it. Recovery reads it.
_EXECUTION = "headgate_execution"
_PAGE = 1000
_CHUNK_BYTES = 1024 * 1024
_DENIED = (401, 403)
_NOT_FOUND, _CONFLICT, _PRECONDITION = 404, 409, 412
_CLIENT_ERRORS = range(400, 500)
# Client errors that say nothing about the request: it timed out, or there were too many.
_PASSING = (408, 429)
# Not PUT: a hard reset that is sent again could remove a publication that came in between.
_REPEATED = frozenset({"GET", "HEAD", "DELETE"})


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """One object in a listing."""

    path: str
    size: int
    checksum: str
    # The location of the bytes: equal addresses have equal content.
    address: str


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit of a lakeFS repository."""

    id: str
    parents: tuple[str, ...]
    # The execution that made the commit; None on a commit of another writer.
    execution: str | None

    @property
    def parent(self) -> str | None:
        """First parent of the commit; None on the first commit of a repository."""
        return self.parents[0] if self.parents else None

    def as_head(self) -> WorkspaceHead:
        return WorkspaceHead(commit=self.id, execution=self.execution)


class LakeFS:
    """Client of a lakeFS server. Raises `NotFound`, `Exists` and the `LakeFS…` errors."""

    def __init__(self, endpoint: str, *, access_key_id: str, secret_access_key: str) -> None:
        settings = Configuration(endpoint, username=access_key_id, password=secret_access_key)
        settings.retries = urllib3.Retry(3, allowed_methods=_REPEATED)
        self._api = LakeFSClient(settings)

    def load_head(self, repository: str, branch: str) -> Commit:
        """Return the commit that a branch points to."""
        with _errors(f"read branch {branch!r} of {repository!r}"):
            found = self._api.branches_api.get_branch(repository, branch)
        return self.load_commit(repository, found.commit_id)

    def load_commit(self, repository: str, id: str) -> Commit:
        with _errors(f"read commit {id} of {repository!r}"):
            found = self._api.commits_api.get_commit(repository, id)
        execution = (found.metadata or {}).get(_EXECUTION)
        return Commit(id=found.id, parents=tuple(found.parents), execution=execution)

    def list_objects(self, repository: str, ref: str, prefix: str) -> Iterator[StoredObject]:
        """Yield every object below a prefix, in pages of the largest size that the server has."""
        after = ""
        while True:
            with _errors(f"list {prefix!r} of {repository!r} at {ref}"):
                page = self._api.objects_api.list_objects(
                    repository, ref, prefix=prefix, after=after, amount=_PAGE, user_metadata=False
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
        """Yield the bytes of an object in chunks, from one request."""
        with _errors(f"read {path!r} of {repository!r} at {ref}"):
            response = self._api.objects_api.get_object_with_http_info(
                repository, ref, path, _preload_content=False
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
        """Create a branch at a ref; raise `Exists` if the name is taken."""
        with _errors(f"create branch {name!r} of {repository!r}"):
            self._api.branches_api.create_branch(
                repository, BranchCreation(name=name, source=source)
            )

    def upload(self, repository: str, branch: str, path: str, source: Path) -> None:
        with _errors(f"upload {path!r} to {repository!r}"):
            # By path: the SDK does not send a file that it receives as empty bytes.
            self._api.objects_api.upload_object(repository, branch, path, content=str(source))

    def delete(self, repository: str, branch: str, paths: Sequence[str]) -> None:
        for at in range(0, len(paths), _PAGE):
            part = list(paths[at : at + _PAGE])
            with _errors(f"delete {len(part)} objects of {repository!r}"):
                answer = self._api.objects_api.delete_objects(
                    repository, branch, PathList(paths=part)
                )
            if answer.errors:
                first = answer.errors[0]
                reason = f"{first.status_code} {first.message}"
                raise errors.LakeFSRejected(doing=f"delete {first.path!r}", reason=reason)

    def commit(self, repository: str, branch: str, message: str, execution: str) -> str:
        """Commit the staged changes of a branch, and return the id of the commit."""
        commit = CommitCreation(message=message, metadata={_EXECUTION: execution})
        with _errors(f"commit branch {branch!r} of {repository!r}"):
            made = self._api.commits_api.commit(repository, branch, commit)
        return str(made.id)

    def merge(
        self,
        repository: str,
        source: str,
        target: str,
        *,
        message: str,
        execution: str,
        timeout_seconds: float | None,
    ) -> str:
        """Squash-merge into the target, and return the id of the one commit.

        The parent of the commit is the head of the target. lakeFS accepts no expected head, so the
        parent may be a commit that another writer made just before.
        """
        merge = Merge(message=message, metadata={_EXECUTION: execution}, squash_merge=True)
        with _errors(f"merge {source!r} into {target!r} of {repository!r}"):
            made = self._api.refs_api.merge_into_branch(
                repository, source, target, merge=merge, **_within(timeout_seconds)
            )
        return str(made.reference)

    def hard_reset(
        self, repository: str, branch: str, ref: str, *, timeout_seconds: float | None
    ) -> None:
        """Point the branch at a commit, without a check of its present head."""
        with _errors(f"hard-reset branch {branch!r} of {repository!r} to {ref}"):
            self._api.experimental_api.hard_reset_branch(
                repository, branch, ref, force=False, **_within(timeout_seconds)
            )

    def delete_branch(self, repository: str, name: str) -> None:
        """Delete a branch; a missing branch is not an error."""
        with suppress(errors.NotFound), _errors(f"delete branch {name!r} of {repository!r}"):
            self._api.branches_api.delete_branch(repository, name)

    def list_branches(self, repository: str, prefix: str) -> list[str]:
        names: list[str] = []
        after = ""
        while True:
            with _errors(f"list branches of {repository!r}"):
                page = self._api.branches_api.list_branches(
                    repository, prefix=prefix, after=after, amount=_PAGE
                )
            names += [branch.id for branch in page.results]
            if not page.pagination.has_more:
                return names
            after = page.pagination.next_offset


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    """Raise the errors of the SDK as Headgate's own."""
    try:
        yield
    except ApiException as error:
        reason = f"{error.status} {_message(error)}"
        if error.status == _NOT_FOUND:
            raise errors.NotFound(f"lakeFS cannot {doing}: {_message(error)}.") from error
        if error.status in _DENIED:
            raise errors.LakeFSDenied(doing=doing, reason=reason) from error
        if error.status == _CONFLICT and doing.startswith("create"):
            raise errors.Exists(f"lakeFS cannot {doing}: {_message(error)}.") from error
        if error.status in (_CONFLICT, _PRECONDITION):
            raise errors.LakeFSConflict(doing=doing, reason=reason) from error
        if error.status in _CLIENT_ERRORS and error.status not in _PASSING:
            raise errors.LakeFSRejected(doing=doing, reason=reason) from error
        raise errors.LakeFSUnavailable(doing=doing, reason=reason) from error
    except urllib3.exceptions.HTTPError as error:
        raise errors.LakeFSUnavailable(doing=doing, reason=type(error).__name__) from error


def _message(error: ApiException) -> str:
    """Return the server's own message, or the name of the status."""
    try:
        return str(orjson.loads(error.body)["message"]).rstrip(".")
    except (TypeError, KeyError, orjson.JSONDecodeError):
        return str(error.reason)


def _within(seconds: float | None) -> dict[str, Any]:
    return {} if seconds is None else {"_request_timeout": seconds}
