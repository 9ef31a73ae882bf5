"""Attempts of workspace tasks: a round trip with one file changed, beside `cp -r` and `rm -r`."""

from __future__ import annotations

import itertools
import os
import resource
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from bench.cases import Bench, Scale, Tell, Timed
from bench.filling import ACTOR
from headgate.catalog.attempts import dispatch_attempt
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.tasks import WorkspaceSpec, task
from headgate.tasks.attempt_directory import AttemptLog
from headgate.tasks.declare import DEFINITION, TaskDefinition
from headgate.tasks.lifecycle import AttemptEnvironment, run_attempt
from headgate.tasks.messages import Outcome, Status
from headgate.tasks.ports import Identity

_FILE_BYTES = 1024
_PER_DIRECTORY = 200
_BRANCH = "master"
_MIB = 1024 * 1024
# Memory limit of an attempt.
_MIB_LIMIT = 300


class Which(BaseModel):
    """Path of the file to append to."""

    path: str


class Nothing(BaseModel):
    """Empty result."""


@task(name="touch", owner_email="bench@example.com", workspace=WorkspaceSpec())
def touch(workspace: Path, params: Which) -> Nothing:
    """Append to one file by its name, so that an attempt includes no search."""
    with (workspace / params.path).open("ab") as file:
        file.write(secrets.token_bytes(16))
    return Nothing()


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A tree on disk, and the same tree published in a dataset."""

    store: Store
    name: str
    tree: Path
    root: Path
    # File that an attempt changes.
    file: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def attempt(self) -> Outcome:
        """Run a whole attempt in this process, from its dispatch to its outcome."""
        view = self.store.dataset(self.name).branch(_BRANCH).load().view
        ref = dispatch_attempt(
            self.store.database, f"bench:{self.name}", actor=ACTOR, lease_seconds=60
        ).ref
        identity = Identity(attempt=ref, execution=secrets.token_hex(8), actor=ACTOR, task="touch")
        workspace = {"repository": self.name, "branch": _BRANCH, "ref_type": "commit", "ref": view}
        definition: TaskDefinition = getattr(touch, DEFINITION)
        around = AttemptEnvironment(
            identity=identity,
            root=self.root,
            log=AttemptLog(self.root / "logs" / "bench.jsonl", {}),
            fence=lambda: None,
            store_for=self.store.workspaces,
        )
        return run_attempt(
            definition, {"workspace": workspace, "params": {"path": self.file}}, around
        )

    def forget_pages(self) -> None:
        """Drop the page cache of all contents, so that the next read goes to the disk."""
        for folder in (self.tree, self.root / "warehouse"):
            for path in folder.rglob("*"):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)


@contextmanager
def _workspaces(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Workspace]]:
    sizes = [1000, scale.of(10_000, 2000), *([] if scale.quick else [50_000])]
    with _opened_store() as (store, root):
        made = {}
        for size in sizes:
            start = time.monotonic()
            tree = root / f"tree-{size}"
            for number in range(size):
                directory = tree / f"d{number // _PER_DIRECTORY:04d}"
                if number % _PER_DIRECTORY == 0:
                    directory.mkdir(parents=True)
                (directory / f"f{number:06d}").write_bytes(secrets.token_bytes(_FILE_BYTES))
            made[f"{size:,} files"] = _published(store, root, tree, f"bench.tree-{size}")
            tell(f"tasks: {size:,} files published in {time.monotonic() - start:.1f} s")
        yield made
        tell(f"tasks: peak memory {_peak_mib()} MiB of {_MIB_LIMIT}, the bench's own included")


@contextmanager
def _large_file(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Workspace]]:
    size = scale.of(2048, 64)
    with _opened_store() as (store, root):
        tree = root / "large"
        tree.mkdir()
        block = secrets.token_bytes(_MIB)
        with (tree / "large.bin").open("wb") as file:
            for _ in range(size):
                file.write(block)
        yield {f"{size:,} MiB": _published(store, root, tree, "bench.large")}
        tell(f"tasks: peak memory {_peak_mib()} MiB of {_MIB_LIMIT} with a file of {size:,} MiB")


@contextmanager
def _opened_store() -> Iterator[tuple[Store, Path]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        settings = Settings(
            root=root,
            catalog=f"sqlite:///{root / 'catalog.db'}",
            warehouse=str(root / "warehouse"),
            actor=ACTOR,
            cache=root / "cache",
        )
        database = Database(settings.catalog)
        ensure_schema(database, create=True)
        database.close()
        with Store(settings) as store:
            yield store, root


def _published(store: Store, root: Path, tree: Path, name: str) -> Workspace:
    branch = store.dataset(name).create(kind="files", branch=_BRANCH).branch(_BRANCH)
    branch.put(tree)
    [file, *_] = (path for path in tree.rglob("*") if path.is_file())
    relative = str(file.relative_to(tree))
    return Workspace(store=store, name=name, tree=tree, root=root, file=relative)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


_COPY = "cp -r and rm -r of the same tree"

TASKS: Bench[Workspace] = Bench(
    "tasks", _workspaces, repetitions=7, quick_repetitions=3, warm_ups=1, floor=_COPY
)
LARGE: Bench[Workspace] = Bench(
    "tasks, one large file",
    _large_file,
    repetitions=3,
    quick_repetitions=2,
    warm_ups=1,
    floor=_COPY,
)


def _copy(workspace: Workspace) -> Timed:
    copy = workspace.root / f"copy-{next(workspace.numbers)}"

    def work() -> None:
        subprocess.run(["cp", "-r", str(workspace.tree), str(copy)], check=True)
        subprocess.run(["rm", "-r", str(copy)], check=True)

    return work


def _warm(workspace: Workspace) -> Timed:
    def work() -> None:
        outcome = workspace.attempt()
        assert outcome.status is Status.COMPLETED, outcome.reason

    return work


def _cold(workspace: Workspace) -> Timed:
    shutil.rmtree(workspace.root / "cache", ignore_errors=True)
    workspace.forget_pages()
    return _warm(workspace)


for _bench, _target in ((TASKS, 1.5), (LARGE, None)):
    _bench.case(_COPY)(_copy)
    _bench.case("an attempt that changes one file, warm", target_floor=_target)(_warm)
    _bench.case("an attempt that changes one file, cold")(_cold)
