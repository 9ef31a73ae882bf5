"""What an attempt needs from a store, a catalog and an orchestrator, as Protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headgate.files.copying import PrivateCopy
from headgate.files.looking import Changes
from headgate.files.progress import Progress
from headgate.model.changes import Change
from headgate.model.nouns import AttemptRef, AttemptState
from headgate.tasks.inputs import WorkspaceRef


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
