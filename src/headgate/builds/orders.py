"""One attempt as it is ordered: all that whoever does it has to know, wherever that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class InputOrder:
    """An input, pinned; of files, the root of its tree and of the one that was read last."""

    dataset: str
    branch: str
    transaction: str
    # The Iceberg snapshot that was read last, where only what is newer is to be read.
    since_snapshot: int | None = None
    root: str | None = None
    since_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutputOrder:
    """An output, and what it held before: an Iceberg snapshot, or the root of a tree."""

    dataset: str
    is_files: bool
    base_snapshot: int | None = None
    base_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """Names everything by id and digest; the token opens this attempt's own context alone."""

    key: str
    epoch: int
    token: str
    module: str
    # Digest of the code.
    bundle: str
    inputs: Mapping[str, InputOrder]
    outputs: Mapping[str, OutputOrder]
    branch: str
    fallback: tuple[str, ...] = ()
    incremental: bool = False
    # How much it reads and why, for the log.
    extent: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    allowed_run_seconds: float | None = None

    @property
    def id(self) -> str:
        """The attempt's name, as in the context `job:<id>`."""
        return f"{self.key}:{self.epoch}"

    @property
    def name(self) -> str:
        """The same as a file may be called, and a Spark job tagged."""
        return f"{self.key.replace('/', '-')}-{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, sent: Mapping[str, Any]) -> Self:
        told = dict(sent)
        told["inputs"] = {name: InputOrder(**given) for name, given in sent["inputs"].items()}
        told["outputs"] = {name: OutputOrder(**given) for name, given in sent["outputs"].items()}
        told["fallback"] = tuple(sent["fallback"])
        return cls(**told)
