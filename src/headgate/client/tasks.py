"""Workspace tasks of a served store: the client executes them, the server fences and publishes."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate.client.contents import RemoteObjects
from headgate.client.http import HttpClient, segment
from headgate.errors import ContentSwept, ObjectNotFound
from headgate.files.objects import Digest
from headgate.files.private_copy import Changes, ContentCache, PrivateCopy
from headgate.files.transfer import Progress
from headgate.files.tree_store import FileTrees
from headgate.model.ids import Epoch
from headgate.model.nouns import AttemptRef, AttemptState
from headgate.store.documents import Json
from headgate.tasks import ports
from headgate.tasks.declare import TableSpec
from headgate.tasks.files_store import WorkspaceBytes
from headgate.tasks.table_work import LazySession, OpenSession

# A network that drops requests must not block a supervisor while its lease expires.
_ANSWER_SECONDS = 20
_ATTEMPTS = "/tasks/attempts"


class RemoteAttempts:
    """Implements `Attempts` by requests, repeatable because the secret identifies the attempt."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def dispatch(self, key: str, *, branch: str | None = None) -> ports.AttemptHandle:
        # The client makes the secret, so that a request repeated after a lost reply is the same.
        secret = secrets.token_urlsafe(32)
        sent = self._post(_ATTEMPTS, {"key": key, "secret": secret, "branch": branch})
        return ports.AttemptHandle(
            ref=AttemptRef(key=key, epoch=Epoch(sent["epoch"])), secret=secret
        )

    def renew(self, held: ports.AttemptHandle) -> None:
        self._post(f"{_ATTEMPTS}/renew", {"secret": held.secret})

    def check(self, held: ports.AttemptHandle) -> None:
        # The server rejects the renewal of a lease that is lost.
        self.renew(held)

    def end(self, held: ports.AttemptHandle, state: AttemptState) -> None:
        self._post(f"{_ATTEMPTS}/end", {"secret": held.secret, "state": state})

    def _post(self, path: str, body: Json) -> Json:
        return self._http.call(
            "POST", path, body=body, repeatable=True, timeout_seconds=_ANSWER_SECONDS
        )


class RemoteWorkspaces:
    """Implements `WorkspaceStore`: the client transfers the bytes, the server publishes them."""

    def __init__(self, http: HttpClient, cache: ContentCache) -> None:
        self._http = http
        self._bytes = WorkspaceBytes(FileTrees(RemoteObjects(http)), cache)
        # By staged root: the function that sends it again.
        self._staging: dict[str, Callable[[], ports.Staged]] = {}

    def find_head(self, workspace: ports.WorkspaceRef) -> ports.Head | None:
        head = self._load(workspace)["head"]
        return None if head is None else ports.Head(**head)

    def download(
        self, workspace: ports.WorkspaceRef, target: Path, progress: Progress | None
    ) -> PrivateCopy:
        return self._bytes.download(workspace, self._root(workspace), target, progress)

    def stage(
        self,
        workspace: ports.WorkspaceRef,
        changes: Changes,
        identity: ports.Identity,
        progress: Progress | None = None,
    ) -> ports.Staged:
        root = self._root(workspace)

        def send() -> ports.Staged:
            return self._bytes.stage(workspace, root, changes, progress)

        staged = send()
        self._staging[staged.ref] = send
        return staged

    def publish(self, workspace: ports.WorkspaceRef, made: ports.Publication) -> str:
        # A caller with a time limit stops waiting by itself; a shorter timeout of the request
        # would only repeat it.
        root = made.staged.ref if made.staged is not None else None
        try:
            return publish_at_server(self._http, workspace, made.identity, root)
        except (ContentSwept, ObjectNotFound):
            if root is None:
                raise
            # Contents that were not sent, because the server had them, have been swept since.
            self._staging[root]()
            return publish_at_server(self._http, workspace, made.identity, root)

    def discard(self, staged: ports.Staged) -> None:
        """Forget a staged root; the server's cleanup sweeps contents that nothing references."""
        self._staging.pop(staged.ref, None)

    def _root(self, workspace: ports.WorkspaceRef) -> Digest:
        return Digest(self._load(workspace)["root"])

    def _load(self, workspace: ports.WorkspaceRef) -> Json:
        asked = {"branch": workspace.branch, "ref": workspace.ref}
        return self._http.get(_where(workspace), **asked, read_only=workspace.read_only or None)


class RemoteTables:
    """Implements `TableWork` with a session on this machine and transactions at the server."""

    def __init__(
        self,
        http: HttpClient,
        open_session: OpenSession,
        spec: TableSpec,
        workspace: ports.WorkspaceRef,
        identity: ports.Identity,
    ) -> None:
        assert identity.secret is not None
        body = {
            "secret": identity.secret,
            "repository": workspace.repository,
            "branch": workspace.branch,
            "ref": workspace.ref,
            "inputs": list(spec.inputs),
            "outputs": list(spec.outputs),
            "replaces": identity.replaces,
        }
        # Repeatable: the server opens no transaction twice.
        http.request("POST", f"{_ATTEMPTS}/tables", body=body, repeatable=True)
        self._http = http
        self._workspace = workspace
        self._identity = identity
        self._session = LazySession(open_session, spec, identity, identity.secret)

    @property
    def session(self) -> Any:
        return self._session.get()

    def finish(self) -> ports.TableChanges:
        """Leave the changes to the server, which inspects the tables when it publishes them."""
        return ports.TableChanges(open_at_server=True)

    def publish(self, table_changes: ports.TableChanges) -> None:
        publish_at_server(self._http, self._workspace, self._identity, None, read_only=True)

    def close(self) -> None:
        """Do nothing: the server aborts unpublished transactions when the attempt ends."""


def publish_at_server(
    http: HttpClient,
    workspace: ports.WorkspaceRef,
    identity: ports.Identity,
    root: str | None,
    *,
    read_only: bool = False,
) -> str:
    """Publish and return the new ref; repeatable, because an attempt publishes once."""
    body = {
        "secret": identity.secret,
        "branch": workspace.branch,
        "ref": workspace.ref,
        "root": root,
        "read_only": read_only,
        "task": identity.task,
        "execution": identity.execution,
        "labels": dict(identity.labels),
        "replaces": identity.replaces,
    }
    return str(http.request("POST", _where(workspace), body=body, repeatable=True).document["ref"])


def _where(workspace: ports.WorkspaceRef) -> str:
    return f"/tasks/workspaces/{segment(workspace.repository)}"
