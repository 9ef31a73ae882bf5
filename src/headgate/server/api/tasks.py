"""Routes of client-run workspace tasks: attempts, their tables and their workspaces.

The client runs the attempts; the catalog is on this server.
"""

import enum
from dataclasses import asdict, replace
from typing import Annotated

from fastapi import Query
from pydantic import Field, StringConstraints
from starlette.responses import Response

from headgate.attempts import LEASE_SECONDS
from headgate.catalog import attempts
from headgate.catalog.records import check_newest
from headgate.errors import AttemptNotFound, AttemptOfAnother, Invalid
from headgate.files.objects import TREE_HEADER, Digest
from headgate.files.private_copy import ContentCache
from headgate.model.names import check_task_key, parse_dataset_name
from headgate.model.nouns import Attempt, AttemptState
from headgate.server.api import conventions as api
from headgate.server.api.models import Asked, Branch, Name, Reply, Sha256, eg
from headgate.store.documents import Json
from headgate.store.embedded import Store
from headgate.tasks.client_publications import ClientPublication, publish_for_client
from headgate.tasks.files_store import FilesWorkspaces, attempt_scope
from headgate.tasks.ports import Identity, WorkspaceRef
from headgate.tasks.table_work import AttemptTables

# Bodies

_KEY = "task:render_song:k-01m7f8gggmxzttp51zc67s"
_SECRET = "of-this-attempt-alone-made-by-the-client-43"
_SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_T = "t-01m7f8gggmxzttp51zc67s"
_MOST_LABELS = 50
_MOST_TABLES = 1000

# 32 random bytes in URL-safe base64: hard to guess, and a client cannot choose a short one.
Secret = Annotated[
    str,
    StringConstraints(pattern="^[A-Za-z0-9_-]{43}$"),
    Field(description="Of this attempt: 32 random bytes in URL-safe base64; stored as a hash."),
]
Key = Annotated[
    str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Word = Annotated[str, StringConstraints(max_length=500)]
Replaces = Annotated[
    Name | None,
    Field(description="Publication of another task, on top of the input, that may be replaced."),
]


class Ending(enum.StrEnum):
    """State that the holder of an attempt can report at its end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class NewAttempt(Asked):
    key: Key = eg(_KEY, description="The identity of the work across its attempts.")
    secret: Secret = eg(_SECRET)
    branch: Branch | None = eg("master", None, description="The branch that the attempt will move.")


class AttemptToRenew(Asked):
    secret: Secret = eg(_SECRET)


class AttemptToEnd(Asked):
    secret: Secret = eg(_SECRET)
    state: Ending = eg("succeeded")


class TablesToOpen(Asked):
    secret: Secret = eg(_SECRET)
    repository: Name = eg("work.songs", description="The dataset of the workspace.")
    branch: Branch = eg("master")
    ref: Name = eg(_T)
    inputs: list[Name] = eg(["sales.orders"], default_factory=list, max_length=_MOST_TABLES)
    outputs: list[Name] = eg(["sales.totals"], default_factory=list, max_length=_MOST_TABLES)
    replaces: Replaces = None


class WorkspaceToPublish(Asked):
    secret: Secret = eg(_SECRET)
    branch: Branch = eg("master", description="The target.")
    ref: Name = eg(_T, description="The input: a committed transaction.")
    root: Sha256 | None = eg(
        _SHA,
        description="The tree that the attempt made, whose contents were sent; null: no change.",
    )
    read_only: bool = Field(False, description="Only the tables of the attempt are published.")
    task: Word = eg("render_song", "")
    execution: Word = eg("render_song-1-5f0c2b7a9d3e4f10", "")
    labels: dict[Word, Word] = eg(
        {"orchestrator": "local"}, default_factory=dict, max_length=_MOST_LABELS
    )
    replaces: Replaces = None


class AttemptModel(Reply):
    key: str = eg(_KEY)
    epoch: int = eg(1)
    state: AttemptState = eg("running")
    actor: str = eg("ana")
    lease_seconds: int = eg(60)


class HeadModel(Reply):
    ref: str = eg(_T)
    parent: str | None = eg(_T)
    key: str | None = eg(_KEY, description="Task key of its attempt; null for other writers.")


class WorkspaceModel(Reply):
    repository: str = eg("work.songs")
    branch: str = eg("master")
    ref: str = eg(_T)
    root: str = eg(_SHA)
    head: HeadModel | None = eg(None, description="The view of the branch; null if read-only.")


class PublishedWorkspaceModel(Reply):
    repository: str = eg("work.songs")
    branch: str = eg("master")
    ref: str = eg(_T)


# Routes

task_routes = api.router("tasks")

NameQuery = Annotated[str, Query(min_length=1, max_length=200)]


@task_routes.post("/tasks/attempts", **api.documented(AttemptModel, status=201))
def dispatch_attempt(caller: api.CallerDependency, body: NewAttempt) -> api.JsonReply:
    """Start an attempt of a task key: a new epoch, which supersedes every older one.

    A repeated request with the same secret returns the same attempt.
    """
    named = () if body.branch is None else (body.branch,)
    with caller.writing(*named) as store:
        made = attempts.dispatch_once(
            store.database,
            check_task_key(body.key),
            actor=caller.grant.actor,
            lease_seconds=LEASE_SECONDS,
            token=body.secret,
            scope=attempt_scope(body.branch),
            check_holder=caller.check_holder,
        )
        if (made.ref.key, made.actor) != (body.key, caller.grant.actor):
            raise Invalid("this secret belongs to another attempt: make a new one for each.")
        return api.JsonReply(_attempt_wire(made), status_code=201)


@task_routes.post("/tasks/attempts/renew", **api.documented(AttemptModel))
def renew_attempt(caller: api.CallerDependency, body: AttemptToRenew) -> api.JsonReply:
    """Renew the lease of an attempt; return an error if it was superseded or has ended."""
    with caller.writing() as store:
        attempt = _own(caller, store, body.secret)
        attempts.heartbeat(store.database, attempt.ref)
        return _attempt_reply(store, attempt)


@task_routes.post("/tasks/attempts/end", **api.documented(AttemptModel))
def end_attempt(caller: api.CallerDependency, body: AttemptToEnd) -> api.JsonReply:
    """End an attempt and abort its OPEN transactions; one that has ended stays as it is."""
    with caller.writing() as store:
        attempt = _own(caller, store, body.secret)
        _tables(store, _identity(store, attempt)).close()
        attempts.end_attempt(store.database, attempt.ref, AttemptState(body.state))
        return _attempt_reply(store, attempt)


@task_routes.post("/tasks/attempts/tables", **api.documented(AttemptModel))
def open_attempt_tables(caller: api.CallerDependency, body: TablesToOpen) -> api.JsonReply:
    """Open tables to an attempt: its secret is then the token of its context at `/iceberg`.

    What it writes there is published with its workspace, or aborted when the attempt ends.
    """
    workspace = WorkspaceRef(repository=body.repository, branch=body.branch, ref=body.ref)
    with caller.writing(body.branch) as store:
        attempt = _own(caller, store, body.secret, moving=body.branch)
        read, written = (
            [parse_dataset_name(name) for name in names] for names in (body.inputs, body.outputs)
        )
        store.database.read(lambda c: check_newest(c, attempt.ref))
        identity = replace(_identity(store, attempt), replaces=body.replaces)
        _tables(store, identity).open(read, written, workspace, body.secret)
        return _attempt_reply(store, attempt)


@task_routes.get("/tasks/workspaces/{dataset:dataset}", **api.documented(WorkspaceModel))
def show_workspace(
    caller: api.CallerDependency,
    dataset: str,
    branch: NameQuery,
    ref: NameQuery,
    read_only: Annotated[
        bool, Query(description="Do not look up the target branch.", examples=[True])
    ] = False,
) -> api.JsonReply:
    """Return the input of an attempt, the root of its tree as a digest, and the head of its target.

    With read_only, the target is not looked up and may be missing.
    """
    workspace = WorkspaceRef(repository=dataset, branch=branch, ref=ref, read_only=read_only)
    workspaces = _workspaces(caller.reading())
    root = workspaces.find_root(workspace)
    head = None if read_only else workspaces.find_head(workspace)
    found = {"root": root, "head": None if head is None else asdict(head)}
    reply = api.JsonReply(_workspace_wire(workspace) | found)
    reply.headers[TREE_HEADER] = root
    return reply


@task_routes.post("/tasks/workspaces/{dataset:dataset}", **api.documented(PublishedWorkspaceModel))
def publish_workspace(
    caller: api.CallerDependency, dataset: str, body: WorkspaceToPublish
) -> Response:
    """Publish the result of an attempt once, replacing an abandoned publication, or reject it.

    The client sends the contents of the tree before. A repeated request returns the first result.
    """
    workspace = WorkspaceRef(
        repository=dataset, branch=body.branch, ref=body.ref, read_only=body.read_only
    )
    with caller.writing(body.branch) as store:
        attempt = _own(caller, store, body.secret, moving=body.branch)
        identity = replace(
            _identity(store, attempt),
            execution=body.execution,
            task=body.task,
            labels=body.labels,
            replaces=body.replaces,
        )
        if body.root is not None:
            caller.contents.check_tree(store, caller.grant, Digest(body.root), caller.trees)
        publication = ClientPublication(
            workspace=workspace,
            identity=identity,
            root=Digest(body.root) if body.root is not None else None,
        )
        done = publish_for_client(
            store.database, _workspaces(store), _tables(store, identity), publication
        )
        return api.JsonReply(_workspace_wire(workspace.at(done.ref)), replayed=done.replayed)


def _own(caller: api.Caller, store: Store, secret: str, *, moving: str | None = None) -> Attempt:
    """Return the attempt of a secret; raise unless it is the caller's, and for this branch."""
    found = store.database.read(lambda c: attempts.find_attempt_by_token(c, secret))
    if found is None:
        raise AttemptNotFound
    attempt, scope = found
    if attempt.actor != caller.grant.actor:
        raise AttemptOfAnother(key=attempt.ref.key, actor=attempt.actor)
    if moving is not None and scope.get("branch") != moving:
        raise Invalid(
            f"attempt {attempt.ref.epoch} of {attempt.ref.key!r} was not dispatched for branch "
            f"{moving!r}: name it at the dispatch.",
            branch=moving,
        )
    return attempt


def _identity(store: Store, attempt: Attempt) -> Identity:
    return Identity(
        attempt=attempt.ref,
        execution="",
        actor=attempt.actor,
        task="",
        may_write_protected=store.may_write_protected,
        check_write=store.check_write,
    )


def _tables(store: Store, identity: Identity) -> AttemptTables:
    return AttemptTables(store.database, store.contents, identity)


def _workspaces(store: Store) -> FilesWorkspaces:
    cache = ContentCache(store.settings.cache / "contents")
    return FilesWorkspaces(store.database, store.trees, cache)


def _attempt_reply(store: Store, attempt: Attempt) -> api.JsonReply:
    found = store.database.read(lambda c: attempts.load_attempt(c, attempt.ref))
    return api.JsonReply(_attempt_wire(found))


def _attempt_wire(attempt: Attempt) -> Json:
    return {
        "key": attempt.ref.key,
        "epoch": attempt.ref.epoch,
        "state": attempt.state,
        "actor": attempt.actor,
        "lease_seconds": attempt.lease_seconds,
    }


def _workspace_wire(workspace: WorkspaceRef) -> Json:
    return {"repository": workspace.repository, "branch": workspace.branch, "ref": workspace.ref}
