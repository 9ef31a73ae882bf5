"""What an attempt needs from a store, a catalog and an orchestrator, as Protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from headgate.errors import InvalidTaskInput, InvalidTaskResult
from headgate.files.private_copy import Changes, PrivateCopy
from headgate.files.transfer import Progress
from headgate.model.changes import Change
from headgate.model.nouns import AttemptRef, AttemptState
from headgate.tasks.declare import PARAMS, WORKSPACE, TaskDefinition

# What goes into an attempt and what comes out: read strictly, written as it was spelled.

_COMMIT = "commit"
_SPELLINGS = ("ref_type", "refType")
_WORDS = ("repository", "branch", "ref")


@dataclass(frozen=True, kw_only=True)
class WorkspaceRef:
    """Where a workspace comes from and goes to: an immutable input, and the branch to move."""

    repository: str
    branch: str
    ref: str
    # How the input spelled the type of its ref; the output is spelled alike.
    spelling: str = "ref_type"

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
    # Keys at the top that mean nothing here; they are told, not refused, unless that was asked.
    ignored: tuple[str, ...] = ()


def read_input(definition: TaskDefinition, data: object) -> TaskInput:
    """The input as the task declares it; says what is wrong with any other."""
    if not isinstance(data, Mapping):
        raise InvalidTaskInput(reason=f"it is {_kind(data)}, not an object")
    wanted = [PARAMS] if definition.workspace is None else [WORKSPACE, PARAMS]
    for key in wanted:
        if key not in data:
            raise InvalidTaskInput(reason=f"{key!r} is missing")
    ignored = tuple(sorted(str(key) for key in data if key not in wanted))
    if ignored and definition.strict_input:
        raise InvalidTaskInput(reason=f"unknown keys {', '.join(map(repr, ignored))}")
    workspace = None if definition.workspace is None else read_workspace(data[WORKSPACE])
    return TaskInput(workspace=workspace, params=_params(definition, data[PARAMS]), ignored=ignored)


def read_workspace(data: object) -> WorkspaceRef:
    """A workspace reference; the type of its ref may be spelled either way, but is a commit."""
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
    if unknown := sorted(str(key) for key in data if key not in {*_WORDS, *spelled}):
        raise InvalidTaskInput(reason=f"workspace has unknown keys {', '.join(unknown)}")
    for word in _WORDS:
        if not isinstance(data.get(word), str) or not data[word].strip():
            raise InvalidTaskInput(reason=f"workspace.{word} is missing or empty")
    return WorkspaceRef(
        repository=data["repository"],
        branch=data["branch"],
        ref=data["ref"],
        spelling=spelled[0],
    )


def find_target(definition: TaskDefinition, data: object) -> str | None:
    """The branch that an attempt of this input may move; None where there is none, or no telling.

    What is wrong with an input is for the attempt to say.
    """
    spec = definition.workspace
    if spec is None or (spec.read_only and definition.tables is None):
        return None
    try:
        return read_workspace(data.get(WORKSPACE)).branch if isinstance(data, Mapping) else None
    except InvalidTaskInput:
        return None


def write_output(workspace: WorkspaceRef | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """A COMPLETED attempt's output."""
    if workspace is None:
        return {"result": dict(result)}
    return {"workspace": workspace.to_json(), "result": dict(result)}


def read_result(definition: TaskDefinition, returned: object) -> dict[str, Any]:
    """What a body returned, validated and as JSON: aliases and computed fields as promised."""
    model = definition.result_model
    try:
        if isinstance(returned, BaseModel):
            # By name and without computed fields: what the constructor takes, whatever the aliases.
            plain = returned.model_dump(round_trip=True, by_alias=False, warnings="none")
            valid = model.model_validate(plain, by_name=True, by_alias=True, extra="forbid")
        elif isinstance(returned, Mapping):
            valid = model.model_validate(
                dict(returned), by_name=True, by_alias=True, extra="forbid"
            )
        else:
            reason = f"it is {_kind(returned)}, not a {model.__name__}"
            raise InvalidTaskResult(task=definition.name, reason=reason)
        dumped: dict[str, Any] = valid.model_dump(mode="json", by_alias=True)
        return dumped
    except ValidationError as error:
        raise InvalidTaskResult(task=definition.name, reason=_told(error)) from error


def _params(definition: TaskDefinition, data: object) -> BaseModel:
    if not isinstance(data, Mapping):
        raise InvalidTaskInput(reason=f"params is {_kind(data)}, not an object")
    try:
        if definition.strict_params:
            return definition.params_model.model_validate(data, extra="forbid")
        return definition.params_model.model_validate(data)
    except ValidationError as error:
        raise InvalidTaskInput(reason=f"params: {_told(error)}") from error


def _told(error: ValidationError) -> str:
    """Where and why, without the values: an input may hold what must not get into a log."""
    told = [
        f"{'.'.join(str(part) for part in found['loc']) or 'it'}: {found['msg']}"
        for found in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "; ".join(told)


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a kind of store can keep and promise."""

    # The head is compared and moved in one step, by everybody.
    hard_fence: bool
    keeps_executable_bit: bool
    keeps_empty_directories: bool
    # Staging can be seen from outside, and has to be removed.
    stages_visibly: bool


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """Where a served store is, and what lets this machine in."""

    url: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Held:
    """An attempt as whoever holds it knows it."""

    ref: AttemptRef
    # Of a served store: what shows it that a request is this attempt's.
    secret: str | None = field(default=None, repr=False)


class Attempts(Protocol):
    """Who mints epochs and knows the newest: the catalog, on this machine or behind a server."""

    def dispatch(self, key: str, *, branch: str | None = None) -> Held:
        """A new epoch of the key; every older attempt of it is superseded from this moment.

        The branch is the one that its publication is going to move, where that is known.
        """
        ...

    def renew(self, held: Held) -> None:
        """Renews its lease; one that was superseded, or has ended, learns it."""
        ...

    def check(self, held: Held) -> None:
        """The attempt fence: refuses one that was superseded or has ended."""
        ...

    def end(self, held: Held, state: AttemptState) -> None:
        """Closes it; one that was superseded meanwhile stays so."""
        ...


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which attempt this is, for the fence, for names of what it makes, and for people."""

    attempt: AttemptRef
    # One per dispatch, and different from every other.
    execution: str
    actor: str
    task: str
    # What the orchestrator calls it: workflow, reference task, iteration, retry.
    labels: Mapping[str, str] = field(default_factory=dict)
    # As in `Held`.
    secret: str | None = field(default=None, repr=False)

    @property
    def held(self) -> Held:
        return Held(ref=self.attempt, secret=self.secret)


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What is ready to be published, known by where it is and not by who holds it."""

    repository: str
    ref: str
    # The staging branch, where the store has such a thing.
    branch: str | None = None
    # Objects that the door has to make sure of.
    objects: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Together:
    """Changes of tables that are published with the workspace, or not at all."""

    changes: tuple[Change, ...] = ()
    # Which those are, the store knows itself: it has them open.
    at_the_store: bool = False

    def __bool__(self) -> bool:
        return self.at_the_store or bool(self.changes)


class WorkspaceStore(Protocol):
    """Where workspaces come from and go to."""

    @property
    def capabilities(self) -> Capabilities: ...

    def download(
        self, workspace: WorkspaceRef, prefix: str, target: Path, progress: Progress | None
    ) -> PrivateCopy:
        """A private copy of what is below the prefix at the input ref, in an empty directory."""
        ...

    def stage(
        self,
        workspace: WorkspaceRef,
        prefix: str,
        changes: Changes,
        identity: Identity,
        progress: Progress | None = None,
    ) -> Staged:
        """Makes the changed tree, from the input ref, visible to nobody; leaves nothing on error.

        Costs follow the change: what was not touched is neither read nor sent.
        """
        ...

    def publish(
        self,
        workspace: WorkspaceRef,
        staged: Staged,
        identity: Identity,
        *,
        timeout_seconds: float | None = None,
        together: Together | None = None,
    ) -> str:
        """Moves the target branch to what was staged, if it may be moved; the published ref.

        From the input ref, or from an abandoned publication on it; else `PublishFenceRefused`.
        """
        ...

    def keep(
        self,
        workspace: WorkspaceRef,
        identity: Identity,
        *,
        timeout_seconds: float | None = None,
        together: Together | None = None,
    ) -> str:
        """For an attempt that changed nothing: the target shows the input ref, or it is refused."""
        ...

    def discard(self, staged: Staged) -> None:
        """Removes what staging left behind; safe to repeat."""
        ...


class Fence(Protocol):
    """Asks whether the orchestrator still waits for exactly this attempt."""

    def __call__(self) -> None:
        """Raises where it does not, or where nobody can say."""
        ...


# What a task's tables are to its attempt: a session, and changes to publish with the files.


class TableWork(Protocol):
    """The tables of one attempt, opened for it alone."""

    @property
    def session(self) -> Any:
        """The Spark session that the body gets."""
        ...

    def finish(self) -> Together:
        """What was written, ready to be published; nothing can be written after this."""
        ...

    def publish(self, together: Together) -> None:
        """Publishes it alone, where there is no workspace to publish it with."""
        ...

    def close(self) -> None:
        """Ends the session; what was not published is aborted."""
        ...
