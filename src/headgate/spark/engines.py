"""Where jobs compute: a JVM that this process started, or a Spark Connect server."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias

from headgate.spark.jvm import GatewayAddress
from headgate.transforms.discovery import import_roots

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


# A bundle as a file for other machines: unpacked, or put on the path, under its own name.

_TOP = PurePosixPath(".")


def archive_of(bundle: Path) -> Path:
    """A zip beside an unpacked bundle, made once, whose root is where its modules are imported.

    Spark tells archives apart by their path, so the same bundle must always have the same one.
    """
    archive = bundle.with_name(f"{bundle.name}.zip")
    if not archive.is_file():
        handle, draft = tempfile.mkstemp(prefix=f".{bundle.name[:12]}-", dir=bundle.parent)
        with os.fdopen(handle, "wb") as file:
            _write(bundle, file)
        Path(draft).replace(archive)
    return archive


def _write(bundle: Path, file: IO[bytes]) -> None:
    # Later ones win: the `src` layout's modules come first on the path.
    entries = {
        path.relative_to(root).as_posix(): path
        for root in reversed(import_roots(bundle))
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(file, "w") as archive:
        # A package without `__init__.py` is found in a zip only by its directory's own entry.
        for parent in sorted({p for name in entries for p in PurePosixPath(name).parents} - {_TOP}):
            archive.mkdir(str(parent))
        for name, path in sorted(entries.items()):
            archive.write(path, name)
