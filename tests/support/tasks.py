"""Attempts of tasks for tests: in this process step by step, or in processes of their own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headgate.model.nouns import AttemptRef
from headgate.settings import load_settings
from headgate.store.embedded import Store
from headgate.tasks import TaskControls, WorkspaceSpec, task
from headgate.tasks.attempt_directory import AttemptLog
from headgate.tasks.declare import DEFINITION, TaskDefinition
from headgate.tasks.lifecycle import AttemptEnvironment, run_attempt
from headgate.tasks.messages import Outcome
from headgate.tasks.ports import Identity, WorkspaceRef
from tests.support.catalogs import make_catalog
from tests.support.stores import files_branch, put

SONG = "work.song"


class Params(BaseModel):
    word: str = "la"


class Result(BaseModel):
    count: int = 0


Body = Callable[[Path], object]


def nothing(workspace: Path) -> None:
    """A body that changes nothing."""


def defined(body: Body = nothing, **more: Any) -> TaskDefinition:
    """Return a task around a function of the workspace."""
    spec = more.pop("workspace", None) or WorkspaceSpec()
    controls = more.pop("controls", None) or TaskControls()

    @task(name="sing", owner_email="a@b.c", workspace=spec, controls=controls, **more)
    def sing(workspace: Path, params: Params) -> Result:
        returned = body(workspace)
        return returned if isinstance(returned, Result) else Result()

    found: TaskDefinition = getattr(sing, DEFINITION)
    return found


def writes(**files: str) -> Body:
    """Return a body that writes these files, by name."""

    def body(workspace: Path) -> None:
        for name, text in files.items():
            (workspace / name).write_text(text)

    return body


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """A store on disk with one workspace, and a root for attempts."""

    directory: Path
    # Client of the store's server, where attempts go through one.
    client: Store | None = None

    def open(self) -> Store:
        return Store(load_settings(self.directory, environ={}), recover_first=False)

    def doing(self, store: Store) -> Store:
        """The store that attempts use: itself, or the client of its server."""
        return self.client or store

    @property
    def root(self) -> Path:
        return self.directory / ".headgate" / "tasks"

    def attempts_left(self) -> list[Path]:
        return list((self.root / "attempts").glob("*"))


def new_workshop(catalog_url: str, directory: Path, *, made: bool = True) -> Workshop:
    """Create a store that other processes can open, with the empty workspace `SONG`."""
    if not made:
        make_catalog(catalog_url)
    text = f'[store]\ncatalog = "{catalog_url}"\nwarehouse = "warehouse"\n'
    (directory / "headgate.toml").write_text(text)
    workshop = Workshop(directory=directory)
    with workshop.open() as store:
        files_branch(store, SONG)
    return workshop


def put_files(store: Store, *, dataset: str = SONG, **files: str) -> str:
    """Publish files, and return the new transaction. Two underscores are a slash."""
    named = {name.replace("__", "/"): text for name, text in files.items()}
    return put(store.dataset(dataset).branch("master"), **named)


def input_of(ref: str, *, dataset: str = SONG, **more: Any) -> dict[str, Any]:
    workspace = {"repository": dataset, "branch": "master", "ref_type": "commit", "ref": ref}
    return {"workspace": workspace, "params": {}, **more}


def ref_of(ref: str) -> WorkspaceRef:
    return WorkspaceRef(repository=SONG, branch="master", ref=ref)


def shown(store: Store, dataset: str = SONG) -> dict[str, str]:
    """Return the files on the target branch."""
    master = store.dataset(dataset).branch("master")
    if master.load().view is None:
        return {}
    return {e.path: master.read(e.path).decode() for e in master.files() if not e.is_directory}


def view_of(store: Store) -> str | None:
    return store.dataset(SONG).branch("master").load().view


@dataclass(kw_only=True)
class Attempt:
    """One attempt in this process, dispatched when it is created."""

    store: Store
    root: Path
    key: str = "k"
    fences: Sequence[Callable[[], None]] = ()
    said: list[Any] | None = None

    def __post_init__(self) -> None:
        self.held = self.store.task_attempts.dispatch(self.key, branch="master")
        self.said = []

    @property
    def ref(self) -> AttemptRef:
        return self.held.ref

    def identity(self, task: str = "sing") -> Identity:
        return Identity(
            attempt=self.ref,
            execution=secrets.token_hex(8),
            actor="ana",
            task=task,
            secret=self.held.secret,
        )

    def run(self, definition: TaskDefinition, data: object, **changed: Any) -> Outcome:
        assert self.said is not None
        identity = self.identity(definition.name)
        log = AttemptLog(self.root / "logs" / f"{identity.execution}.jsonl", {}, self.said.append)
        around = AttemptEnvironment(
            identity=identity,
            root=self.root,
            log=log,
            fence=partial(self.store.task_attempts.check, self.held),
            store_for=self.store.workspaces,
        )
        return run_attempt(definition, data, replace(around, **changed))

    @property
    def steps(self) -> list[str]:
        """Return the steps that were begun, in order."""
        assert self.said is not None
        return [line["step"] for line in self.said if line["event"] == "step"]


def attempt(workshop: Workshop, store: Store, key: str = "k") -> Attempt:
    return Attempt(store=workshop.doing(store), root=workshop.root, key=key)
