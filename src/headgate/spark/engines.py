"""Where jobs compute: a JVM that this process started, or a Spark Connect server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headgate.spark.gateway import GatewayAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class ConnectAddress:
    """Where a Spark Connect server listens: `sc://host:port`, with what it wants to be told."""

    url: str


Address: TypeAlias = GatewayAddress | ConnectAddress


class Engine(Protocol):
    """Computes for many job processes at once."""

    @property
    def address(self) -> Address: ...

    @property
    def alive(self) -> bool: ...

    def cancel(self, tags: Iterable[str]) -> None:
        """Ends all that runs under these tags, for good: a tag is never used again."""
        ...

    def stop(self) -> None:
        """Ends the engine, if it is ours."""
        ...


@dataclass(frozen=True, kw_only=True)
class StageProgress:
    """Of the Spark jobs that run now: their stages, and the tasks of the stages at work."""

    stages_done: int
    stages: int
    tasks_done: int
    tasks: int


class Attached(Protocol):
    """A job's session in an engine, and the tags that all it computes carries."""

    @property
    def session(self) -> SparkSession: ...

    @property
    def tags(self) -> tuple[str, ...]: ...

    def spark_jobs(self) -> int | None:
        """How much was computed for this job; None if the engine does not answer any more."""
        ...

    def stage_progress(self) -> StageProgress | None:
        """How far what runs now has come; None if nothing runs."""
        ...


def write_address(address: Address) -> str:
    """An address as the line that a job process is told."""
    return json.dumps(asdict(address))


def read_address(line: str) -> Address:
    """The address in such a line."""
    told = json.loads(line)
    return ConnectAddress(**told) if "url" in told else GatewayAddress(**told)
