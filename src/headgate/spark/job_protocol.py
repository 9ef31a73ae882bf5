"""The orders of jobs, and the messages between a build, its job processes and their fork server."""

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
class InputOrder:
    """A pinned input; of files, the roots of its tree and of the tree that was read last."""

    dataset: str
    branch: str
    transaction: str
    # The Iceberg snapshot that was read last, where only newer rows are read.
    since_snapshot: int | None = None
    root: str | None = None
    since_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutputOrder:
    """An output, and its earlier content: an Iceberg snapshot, or the root of a tree."""

    dataset: str
    is_files: bool
    base_snapshot: int | None = None
    base_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """One attempt by ids and digests; the token opens only this attempt's own context."""

    key: str
    epoch: int
    token: str
    module: str
    # Digest of the code bundle.
    bundle: str
    inputs: Mapping[str, InputOrder]
    outputs: Mapping[str, OutputOrder]
    branch: str
    fallback: tuple[str, ...] = ()
    incremental: bool = False
    # Full or incremental, and the reason; for the log.
    extent: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    allowed_run_seconds: float | None = None

    @property
    def id(self) -> str:
        """Return the id of the attempt, as in the context `job:<id>`."""
        return f"{self.key}:{self.epoch}"

    @property
    def name(self) -> str:
        """Return the id in the form of a file name and of a Spark job tag."""
        return f"{self.key.replace('/', '-')}-{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        inputs, outputs = document["inputs"].items(), document["outputs"].items()
        fields = dict(document)
        fields["inputs"] = {name: InputOrder(**given) for name, given in inputs}
        fields["outputs"] = {name: OutputOrder(**given) for name, given in outputs}
        fields["fallback"] = tuple(document["fallback"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class JobDocument:
    """An order as one process on this machine does it."""

    order: JobOrder
    # Directory of the unpacked bundle.
    bundle: str
    # The directories of each input or output of files, by read mode. The build creates a missing
    # one when the job sends a `needs` event.
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Settings of the session, above all its catalog, which is bound to this job alone.
    conf: Mapping[str, str]
    # Of this attempt alone: a cancelled tag stays cancelled.
    tag: str
    # The working directory of the process, and the file that it prints to.
    directory: str | None = None
    log: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        return cls(**{**data, "order": JobOrder.from_json(data["order"])})
