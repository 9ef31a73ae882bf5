"""Transfers of files between a served store and its client: many small ones, batched and single."""

from __future__ import annotations

import itertools
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bench.cases import Bench, Scale, Tell, Timed
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.client.contents import RemoteObjects
from headgate.client.http import HttpClient
from headgate.files.objects import Digest
from headgate.files.private_copy import ContentCache
from headgate.files.tree import EMPTY
from headgate.files.tree_store import FileTrees
from headgate.model.access import Role
from headgate.model.object_store import ObjectStore
from headgate.settings import load_settings
from headgate.store.embedded import Store
from headgate.tasks.files_store import WorkspaceBytes
from headgate.tasks.ports import WorkspaceRef
from tests.support.serving import ServerProcess

_FILE_BYTES = 1024
_PER_DIRECTORY = 200
_TOGETHER = {"find_missing", "get_many", "put_many"}
_WORKSPACE = WorkspaceRef(repository="bench.tree", branch="master", ref="t-0")


class _OneByOne:
    """A server's objects without the methods that transfer many at once."""

    def __init__(self, objects: RemoteObjects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        if name in _TOGETHER:
            raise AttributeError(name)
        return getattr(self._objects, name)


@dataclass(frozen=True, kw_only=True)
class Afar:
    """A tree on a client's disk, and the same tree on a server."""

    home: Path
    tree: Path
    root: Digest
    files: int
    together: FileTrees
    one_by_one: FileTrees
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def place(self, name: str) -> Path:
        """Return a new directory; earlier ones of this name are removed."""
        for old in self.home.glob(f"{name}-*"):
            shutil.rmtree(old)
        return self.home / f"{name}-{next(self.numbers)}"


@contextmanager
def _afar(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Afar]]:
    files = scale.of(2000, 200)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as temporary:
        home = Path(temporary)
        store = home / "store"
        store.mkdir()
        (store / "headgate.toml").write_text('[store]\ncatalog = "c.db"\nwarehouse = "bytes"\n')
        settings = load_settings(store)
        database = Database(settings.catalog)
        ensure_schema(database, create=True)
        database.close()
        with Store(settings) as opened:
            token = opened.create_token(actor="bench", role=Role.ADMIN)["token"]
        with ServerProcess(store) as server:
            http = HttpClient(server.url, token)
            objects = RemoteObjects(http)
            together = FileTrees(objects)
            tree = grow(home / "tree", files)
            root = together.edit(EMPTY, put=together.upload(tree)).root
            one_by_one = FileTrees(cast(ObjectStore, _OneByOne(objects)))
            yield {
                f"{files:,} files of 1 KiB": Afar(
                    home=home,
                    tree=tree,
                    root=root,
                    files=files,
                    together=together,
                    one_by_one=one_by_one,
                )
            }
            http.close()


def grow(tree: Path, files: int) -> Path:
    for number in range(files):
        directory = tree / f"d{number // _PER_DIRECTORY:04d}"
        if number % _PER_DIRECTORY == 0:
            directory.mkdir(parents=True)
        (directory / f"f{number:06d}").write_bytes(secrets.token_bytes(_FILE_BYTES))
    return tree


_COPY = "cp -r of the same tree on one disk"

SERVED: Bench[Afar] = Bench(
    "files at a client",
    _afar,
    repetitions=5,
    quick_repetitions=3,
    warm_ups=1,
    floor=_COPY,
    counts_sql=False,
)


@SERVED.case(_COPY)
def _copy(afar: Afar) -> Timed:
    words = ["cp", "-r", str(afar.tree), str(afar.place("copy"))]
    return lambda: subprocess.run(words, check=True)


@SERVED.case("a workspace, cold")
def _cold(afar: Afar) -> Timed:
    return _download(afar, afar.together, afar.place("cache"))


@SERVED.case("a workspace, cold, one by one")
def _cold_one_by_one(afar: Afar) -> Timed:
    return _download(afar, afar.one_by_one, afar.place("cache"))


@SERVED.case("a workspace, warm")
def _warm(afar: Afar) -> Timed:
    kept = afar.home / "kept"
    if not kept.exists():
        _download(afar, afar.together, kept)()
    return _download(afar, afar.together, kept)


@SERVED.case("files get")
def _get(afar: Afar) -> Timed:
    target = afar.place("got")
    return lambda: afar.together.download(afar.root, target)


@SERVED.case("files put")
def _put(afar: Afar) -> Timed:
    tree = grow(afar.place("new"), afar.files)
    return lambda: afar.together.upload(tree)


@SERVED.case("files put, one by one")
def _put_one_by_one(afar: Afar) -> Timed:
    tree = grow(afar.place("new"), afar.files)
    return lambda: afar.one_by_one.upload(tree)


def _download(afar: Afar, trees: FileTrees, cache: Path) -> Timed:
    workspace = WorkspaceBytes(trees, ContentCache(cache))
    target = afar.place("copy-of-workspace")
    return lambda: workspace.download(_WORKSPACE, afar.root, target, None)
