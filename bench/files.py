"""Trees of files: what a small change of a large tree costs."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.cases import Bench, Scale, Tell, Timed
from bench.filling import ACTOR, NAMESPACE, ROOT
from headgate.catalog.database import Database
from headgate.catalog.datasets import create_dataset
from headgate.catalog.migrate import ensure_schema
from headgate.files.entries import Entry, Mode
from headgate.files.trees import FileTrees
from headgate.files.writing import FileEdit, publish_edit
from headgate.model.names import DatasetName
from headgate.model.nouns import Dataset, DatasetKind
from headgate.storage.local import LocalStore

_CHANGES = 10


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A files dataset with so many files on its root branch."""

    database: Database
    trees: FileTrees
    dataset: Dataset
    files: int
    numbers: Iterator[int] = field(default_factory=itertools.count)


@contextmanager
def _folders(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Folder]]:
    sizes = {"100 files": 100, "100,000 files": scale.of(100_000, 20_000)}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        with closing(Database(f"sqlite:///{root / 'catalog.db'}")) as database:
            ensure_schema(database, create=True)
            trees = FileTrees(LocalStore(root / "warehouse"))
            yield {
                label: _folder(database, trees, number, files, tell)
                for number, (label, files) in enumerate(sizes.items())
            }


def _folder(database: Database, trees: FileTrees, number: int, files: int, tell: Tell) -> Folder:
    start = time.monotonic()
    name = DatasetName(namespace=(NAMESPACE,), name=f"tree-{number}")
    dataset = create_dataset(database, name, kind=DatasetKind.FILES, branch=ROOT, actor=ACTOR)
    # One content for all: what is measured is the tree, whose entries do not tell.
    first = [_entry(trees, at, b"content") for at in range(files)]
    publish_edit(database, trees, dataset, ROOT, FileEdit(put=first), actor=ACTOR)
    tell(f"files: a tree of {files:,} files in {time.monotonic() - start:.1f} s")
    return Folder(database=database, trees=trees, dataset=dataset, files=files)


def _entry(trees: FileTrees, at: int, content: bytes) -> Entry:
    path = f"year={2000 + at % 20}/month={at % 12:02d}/part-{at:06d}.bin"
    return Entry(path=path, mode=Mode.FILE, size=len(content), digest=trees.store(content))


FILES: Bench[Folder] = Bench("files", _folders, repetitions=30, quick_repetitions=10, warm_ups=3)


@FILES.case(f"a transaction with {_CHANGES} changes", target_ms=1000)
def _change(folder: Folder) -> Timed:
    """New contents for files all over the tree, stored and published."""
    content = f"changed {next(folder.numbers)}".encode()
    places = range(0, folder.files, folder.files // _CHANGES)

    def work() -> None:
        edit = FileEdit(put=[_entry(folder.trees, at, content) for at in places])
        publish_edit(folder.database, folder.trees, folder.dataset, ROOT, edit, actor=ACTOR)

    return work
