"""What a job process is told on its stdin, and the words in which it answers."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


class EventKind(enum.StrEnum):
    """What a job process reports, one JSON object a line."""

    STARTED = "started"
    PROGRESS = "progress"
    WRITTEN = "written"
    NEEDS = "needs"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Source:
    """What an input stands for: a table's name, or directories that hold a tree of files."""

    dataset: str
    # By read mode. One that does not exist is made by the build when it hears of the need.
    files: Mapping[str, str] | None = None
    branch: str | None = None
    transaction: str | None = None
    # The Iceberg snapshot that was read last; rows of later ones are the added ones.
    since_snapshot: int | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """What an output stands for: a table's name, or directories for its files."""

    dataset: str
    # By read mode; what is written goes to the current one.
    files: Mapping[str, str] | None = None
    branch: str | None = None
    # The Iceberg snapshot that the job adds to, where it does.
    base_snapshot: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobDocument:
    """One attempt of one job, as its process needs to know it."""

    module: str
    bundle: str
    inputs: Mapping[str, Source]
    outputs: Mapping[str, Target]
    # Settings of the session, first of all its catalog, which is bound to this job alone.
    conf: Mapping[str, str]
    # Of this attempt alone: what was cancelled under a tag stays cancelled.
    tag: str
    branch: str | None = None
    fallback: tuple[str, ...] = ()
    incremental: bool = False
    # How much it reads and why, for the log.
    extent: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Where a process that has been waiting goes to work, and the file that it prints to.
    directory: str | None = None
    log: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        data["inputs"] = {name: Source(**given) for name, given in data["inputs"].items()}
        data["outputs"] = {name: Target(**given) for name, given in data["outputs"].items()}
        data["fallback"] = tuple(data["fallback"])
        return cls(**data)
