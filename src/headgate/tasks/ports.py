"""Input and output of an attempt, and its interfaces to stores, catalog and orchestrator.

The Protocols have one implementation at the catalog and one over HTTP; workspaces may also be in
lakeFS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ValidationError

from headgate.errors import InvalidTaskInput, InvalidTaskResult
from headgate.files.private_copy import Changes, PrivateCopy
from headgate.files.transfer import Progress
from headgate.model.changes import Caller, Change, OperationKey, ReadView
from headgate.model.nouns import AttemptRef, AttemptState
from headgate.tasks.declare import PARAMS, WORKSPACE, TaskDefinition

_COMMIT = "commit"
_SPELLINGS = ("ref_type", "refType")
_REF_FIELDS = ("repository", "branch", "ref")


@dataclass(frozen=True, kw_only=True)
class WorkspaceRef:
    """A workspace: the immutable input ref, and the branch that a publication moves."""

    repository: str
    branch: str
    ref: str
    # Key of the ref type in the input; the output uses the same key.
    spelling: str = "ref_type"
    # The directory that is copied; empty for all of the repository.
    prefix: str = ""
    # Nothing will be published, so the target branch may be missing.
    read_only: bool = False

    def at(self, ref: str) -> WorkspaceRef:
        return replace(self, ref=ref)

    def to_json(self) -> dict[str, str]:
        return {
            "repository": self.repository,
            "branch": self.branch,
            self.spelling: _COMMIT,
            "ref": self.ref,
        }


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    workspace: WorkspaceRef | None
    params: BaseModel
    # Unknown top-level keys; logged, or rejected by `strict_input`.
    ignored: tuple[str, ...] = ()


def read_input(definition: TaskDefinition, data: object) -> TaskInput:
    if not isinstance(data, Mapping):
        raise InvalidTaskInput(reason=f"it is {_kind(data)}, not an object")
    expected = [PARAMS] if definition.workspace is None else [WORKSPACE, PARAMS]
    for key in expected:
        if key not in data:
            raise InvalidTaskInput(reason=f"{key!r} is missing")
    ignored = tuple(sorted(str(key) for key in data if key not in expected))
    if ignored and definition.strict_input:
        raise InvalidTaskInput(reason=f"unknown keys {', '.join(map(repr, ignored))}")
    workspace = None if definition.workspace is None else read_workspace(data[WORKSPACE])
    return TaskInput(workspace=workspace, params=_params(definition, data[PARAMS]), ignored=ignored)


def read_workspace(data: object) -> WorkspaceRef:
    """Validate a workspace reference; its ref must be a commit."""
    if not isinstance(data, Mapping):
        raise InvalidTaskInput(reason=f"workspace is {_kind(data)}, not an object")
    spelled = [key for key in _SPELLINGS if key in data]
    if len(spelled) != 1:
        raise InvalidTaskInput(
            reason="workspace has both ref_type and refType"
            if spelled
            else "workspace.ref_type is missing"
        )
    if data[spelled[0]] != _COMMIT:
        raise InvalidTaskInput(
            reason=f"workspace.{spelled[0]} is {data[spelled[0]]!r}; it must be 'commit', an "
            "immutable ref"
        )
    if unknown := sorted(str(key) for key in data if key not in {*_REF_FIELDS, *spelled}):
        raise InvalidTaskInput(reason=f"workspace has unknown keys {', '.join(unknown)}")
    for name in _REF_FIELDS:
        if not isinstance(data.get(name), str) or not data[name].strip():
            raise InvalidTaskInput(reason=f"workspace.{name} is missing or empty")
    return WorkspaceRef(
        repository=data["repository"], branch=data["branch"], ref=data["ref"], spelling=spelled[0]
    )


def find_target_branch(definition: TaskDefinition, data: object) -> str | None:
    """Return the branch that an attempt with this input may move; None if there is none.

    An invalid input has no branch here; the attempt reports the error.
    """
    spec = definition.workspace
    if spec is None or (spec.read_only and definition.tables is None):
        return None
    try:
        return read_workspace(data.get(WORKSPACE)).branch if isinstance(data, Mapping) else None
    except InvalidTaskInput:
        return None


def write_output(workspace: WorkspaceRef | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output of a completed attempt."""
    if workspace is None:
        return {"result": dict(result)}
    return {"workspace": workspace.to_json(), "result": dict(result)}


def read_result(definition: TaskDefinition, returned: object) -> dict[str, Any]:
    """Return the validated result of a function as JSON, with aliases and computed fields."""
    model = definition.result_model
    try:
        if isinstance(returned, BaseModel):
            # By name and without computed fields, as the constructor accepts it.
            plain = returned.model_dump(round_trip=True, by_alias=False, warnings="none")
        elif isinstance(returned, Mapping):
            plain = dict(returned)
        else:
            reason = f"it is {_kind(returned)}, not a {model.__name__}"
            raise InvalidTaskResult(task=definition.name, reason=reason)
        valid = model.model_validate(plain, by_name=True, by_alias=True, extra="forbid")
        dumped: dict[str, Any] = valid.model_dump(mode="json", by_alias=True)
        return dumped
    except ValidationError as error:
        raise InvalidTaskResult(task=definition.name, reason=_describe(error)) from error


def _params(definition: TaskDefinition, data: object) -> BaseModel:
    if not isinstance(data, Mapping):
        raise InvalidTaskInput(reason=f"params is {_kind(data)}, not an object")
    extra: Literal["forbid"] | None = "forbid" if definition.strict_params else None
    try:
        return definition.params_model.model_validate(data, extra=extra)
    except ValidationError as error:
        raise InvalidTaskInput(reason=f"params: {_describe(error)}") from error


def _describe(error: ValidationError) -> str:
    """Return locations and reasons without values, which may be secret."""
    problems = [
        f"{'.'.join(str(part) for part in found['loc']) or 'it'}: {found['msg']}"
        for found in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "; ".join(problems)


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """URL of a served store and the token of this machine."""

    url: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class AttemptHandle:
    """An attempt of this process."""

    ref: AttemptRef
    # Authenticates requests of this attempt to a served store.
    secret: str | None = field(default=None, repr=False)


class Attempts(Protocol):
    """Dispatches attempts and fences superseded ones; backed by the catalog."""

    def dispatch(self, key: str, *, branch: str | None = None) -> AttemptHandle:
        """Start a new attempt with the next epoch of the key; older attempts are superseded.

        :param branch: the branch that the attempt will move, if known.
        """

    def renew(self, handle: AttemptHandle) -> None:
        """Renew the lease; raise if the attempt is superseded or has ended."""

    def check(self, handle: AttemptHandle) -> None:
        """Raise if the attempt is superseded or has ended (the attempt fence)."""

    def end(self, handle: AttemptHandle, state: AttemptState) -> None:
        """End the attempt; a superseded one stays superseded."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of an attempt, for the fence, provenance and logs."""

    attempt: AttemptRef
    # Unique per dispatch.
    execution: str
    actor: str
    task: str
    # Names at the orchestrator: workflow, reference task, iteration, retry.
    labels: Mapping[str, str] = field(default_factory=dict)
    secret: str | None = field(default=None, repr=False)
    # Publication of another task on top of the input, which this attempt may replace.
    replaces: str | None = None
    may_write_protected: bool = False
    check_write: Callable[[str, object], None] | None = field(default=None, compare=False)

    @property
    def caller(self) -> Caller:
        return Caller(
            actor=self.actor,
            attempt=self.attempt,
            may_write_protected=self.may_write_protected,
            check_write=self.check_write,
        )

    @property
    def handle(self) -> AttemptHandle:
        return AttemptHandle(ref=self.attempt, secret=self.secret)


@dataclass(frozen=True, kw_only=True)
class Head:
    """Ref that the target branch shows."""

    ref: str
    parent: str | None
    # Task key of the attempt that published it; None for other writers.
    key: str | None


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A staged tree, ready to be published."""

    repository: str
    ref: str
    # The staging branch (lakeFS).
    branch: str | None = None
    # Objects whose existence the publication checks.
    objects: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TableChanges:
    """Changes of tables that are published with the workspace."""

    changes: tuple[Change, ...] = ()
    # Views that validation of their rows read.
    reads: tuple[ReadView, ...] = ()
    # The server has the transactions open and determines the changes itself.
    open_at_server: bool = False

    def __bool__(self) -> bool:
        return self.open_at_server or bool(self.changes)


@dataclass(frozen=True, kw_only=True)
class Publication:
    """The result of an attempt on its workspace; without a staged tree, no file changed."""

    staged: Staged | None
    identity: Identity
    table_changes: TableChanges = TableChanges()
    timeout_seconds: float | None = None
    operation: OperationKey | None = None


class WorkspaceStore(Protocol):
    """Downloads workspaces and publishes their changes."""

    def find_head(self, workspace: WorkspaceRef) -> Head | None:
        """Return the head of the target branch; None if the branch is empty."""

    def download(
        self, workspace: WorkspaceRef, target: Path, progress: Progress | None
    ) -> PrivateCopy:
        """Copy the files below the prefix at the input ref to an empty directory."""

    def stage(
        self,
        workspace: WorkspaceRef,
        changes: Changes,
        identity: Identity,
        progress: Progress | None = None,
    ) -> Staged:
        """Store the changed tree without publishing it; leave nothing behind on an error.

        The cost is proportional to the change: unchanged files are neither read nor sent.
        """

    def publish(self, workspace: WorkspaceRef, made: Publication) -> str:
        """Move the target branch to the staged tree and return the published ref.

        Without a staged tree, the branch shows the input ref then.

        The branch must be at the input ref, or at an abandoned publication on top of it: one of an
        earlier attempt, or the one that the identity may replace. Otherwise `PublishFenceRefused`
        is raised.
        """

    def discard(self, staged: Staged) -> None:
        """Remove the staged tree; idempotent."""


# Raises unless the orchestrator still waits for this attempt.
Fence = Callable[[], None]


class TableWork(Protocol):
    """Tables of one attempt."""

    @property
    def session(self) -> Any:
        """The Spark session for the task's function."""

    def finish(self) -> TableChanges:
        """Return the changes to publish; no writes are possible afterwards."""

    def publish(self, table_changes: TableChanges) -> None:
        """Publish the changes alone, for a read-only workspace."""

    def close(self) -> None:
        """End the session and abort unpublished transactions."""
