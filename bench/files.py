"""Trees of files: the cost of a small change in a large tree."""

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
from headgate.files.edits import FileEdit, publish_edit
from headgate.files.objects import Digest
from headgate.files.tree import Entry, Mode
from headgate.files.tree_store import FileTrees
from headgate.model.changes import Caller
from headgate.model.names import DatasetName
from headgate.model.nouns import Dataset, DatasetKind
from headgate.storage.local import LocalStore

_CHANGES = 10


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A files dataset with this many files on its root branch."""

    database: Database
    trees: FileTrees
    dataset: Dataset
    files: int
    numbers: Iterator[int] = field(default_factory=itertools.count)


@contextmanager
def _folders(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Folder]]:
    sizes = [100, scale.of(100_000, 20_000)]
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        with closing(Database(f"sqlite:///{root / 'catalog.db'}")) as database:
            ensure_schema(database, create=True)
            trees = FileTrees(LocalStore(root / "warehouse"))
            yield {f"{files:,} files": _folder(database, trees, files, tell) for files in sizes}


def _folder(database: Database, trees: FileTrees, files: int, tell: Tell) -> Folder:
    start = time.monotonic()
    name = DatasetName(namespace=(NAMESPACE,), name=f"tree-{files}")
    dataset = create_dataset(
        database, name, kind=DatasetKind.FILES, branch=ROOT, caller=Caller(actor=ACTOR)
    )
    # One content for all files: the case measures the tree, whose entries do not depend on it.
    content = b"content"
    digest = trees.store(content)
    first = [_entry(at, content, digest) for at in range(files)]
    publish_edit(database, trees, dataset, ROOT, FileEdit(put=first), caller=Caller(actor=ACTOR))
    tell(f"files: a tree of {files:,} files in {time.monotonic() - start:.1f} s")
    return Folder(database=database, trees=trees, dataset=dataset, files=files)


def _entry(at: int, content: bytes, digest: Digest) -> Entry:
    path = f"year={2000 + at % 20}/month={at % 12:02d}/part-{at:06d}.bin"
    return Entry(path=path, mode=Mode.FILE, size=len(content), digest=digest)


FILES: Bench[Folder] = Bench("files", _folders, repetitions=30, quick_repetitions=10, warm_ups=3)


@FILES.case(f"a transaction with {_CHANGES} changes", target_ms=1000)
def _change(folder: Folder) -> Timed:
    """Store and publish new contents for files all over the tree."""
    number = next(folder.numbers)
    places = range(0, folder.files, folder.files // _CHANGES)
    contents = {at: f"change {number} of file {at}".encode() for at in places}

    def work() -> None:
        store = folder.trees.store
        put = [_entry(at, content, store(content)) for at, content in contents.items()]
        edit = FileEdit(put=put)
        publish_edit(
            folder.database, folder.trees, folder.dataset, ROOT, edit, caller=Caller(actor=ACTOR)
        )

    return work
