"""The messages between a build, its job processes and the fork server that starts them."""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

# From the fork server: what happened to a process, its id, and the exit code if it ended.
FORK_STARTED, FORK_ENDED = b"S", b"E"
FORK_MESSAGE = struct.Struct("<cii")


class EventKind(enum.StrEnum):
    """The events of a job process, one JSON object a line."""

    STARTED = "started"
    PROGRESS = "progress"
    WRITTEN = "written"
    NEEDS = "needs"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The content of an input: a table by its name, or directories with a tree of files."""

    dataset: str
    # By read mode. The build creates a missing directory when the job sends a `needs` event.
    files: Mapping[str, str] | None = None
    branch: str | None = None
    transaction: str | None = None
    # The Iceberg snapshot that was read last; rows of later snapshots are the added rows.
    since_snapshot: int | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """The destination of an output: a table by its name, or directories for its files."""

    dataset: str
    # By read mode; the job writes into the current one.
    files: Mapping[str, str] | None = None
    branch: str | None = None
    # The Iceberg snapshot that an incremental job adds to.
    base_snapshot: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobDocument:
    """One attempt of one job: everything that its process needs."""

    module: str
    bundle: str
    inputs: Mapping[str, Source]
    outputs: Mapping[str, Target]
    # Settings of the session, above all its catalog, which is bound to this job alone.
    conf: Mapping[str, str]
    # Of this attempt alone: a cancelled tag stays cancelled.
    tag: str
    branch: str | None = None
    fallback: tuple[str, ...] = ()
    incremental: bool = False
    # The extent and its reason, for the log.
    extent: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # The working directory of the process, and the file that it prints to.
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
