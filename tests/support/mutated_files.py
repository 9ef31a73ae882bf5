"""Readers of files and forms that a store, its user or a client has written, for mutated inputs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import orjson
from pydantic import BaseModel

from headgate.catalog import warehouse
from headgate.errors import (
    CleanupHeld,
    FileDamaged,
    HeadgateError,
    StorageUnavailable,
    WarehouseOccupied,
)
from headgate.files.objects import digest_of, key_of
from headgate.files.tree import EMPTY
from headgate.files.tree_store import FileTrees
from headgate.server import oauth
from headgate.settings import load_settings
from headgate.spark.warm import Record, describe_warm
from headgate.storage.local import LocalStore
from headgate.store.embedded import Store
from headgate.tasks.client_publications import _received_tree
from headgate.tasks.declare import WorkspaceSpec, task
from headgate.tasks.definitions import load_task, parse_target
from headgate.tasks.ports import WorkspaceRef, read_input
from headgate.upkeep.backup import check_backup
from tests.support.catalogs import make_catalog
from tests.support.stores import DATASET, files_branch, new_settings, put

Reader = Callable[[bytes], None]

SETTINGS = (
    b"""[store]
catalog = "catalog.db"
warehouse = "warehouse"
allowed_locations = ["s3://other/place"]
retain = "30d"

[spark]
conf = {"spark.sql.shuffle.partitions" = "4"}

[builds]
branch = "master"
fallback = ["master"]

[server]
statements = 4
header_seconds = 10
""",
)
SETTINGS_WORDS = (
    b"[[store]]",
    b'"30d"',
    b"-1",
    b"1e400",
    b"inf",
    b"true",
    b"1979-05-27T07:32:00Z",
    b"99999999999999999999",
    b'"postgresql://u@h/d"',
    b'"sqlite:///\\u0000"',
    b'"s3://"',
    b"[builds]",
    b"\xff",
)
FORM_WORDS = (b"&", b"%", b"%00", b"%ff", b"client_secret=", b"subject_token=", b"+", b"=", b";")


@contextmanager
def _store(directory: Path) -> Iterator[Store]:
    url = f"sqlite:///{directory}/catalog.db"
    make_catalog(url)
    with Store(new_settings(url, directory)) as store:
        put(files_branch(store), a="1", b="2")
        yield store


@contextmanager
def read_settings(directory: Path) -> Iterator[Reader]:
    def read(data: bytes) -> None:
        (directory / "headgate.toml").write_bytes(data)
        load_settings(directory, {})

    yield read


def marker_samples() -> list[bytes]:
    return [orjson.dumps({"number": 1, "store": "s", "incarnation": "i", "publication": 0})]


@contextmanager
def read_markers(directory: Path) -> Iterator[Reader]:
    """Read the marker of a warehouse: one that is read belongs to this store, or is rejected."""
    with _store(directory) as store:
        place = directory / "warehouse" / warehouse.MARKERS / f"marker-{999:012d}.json"
        own = warehouse.find_marker(store.objects)
        assert own is not None

        def read(data: bytes) -> None:
            mine = data.replace(b'"s"', b'"%s"' % own.store.encode())
            place.write_bytes(mine.replace(b'"i"', b'"%s"' % own.incarnation.encode()))
            with suppress(CleanupHeld, WarehouseOccupied):
                store.database.read(lambda c: warehouse._load_own(c, store.objects))

        yield read


def tree_samples() -> list[bytes]:
    digest = digest_of(b"x")
    leaf = orjson.dumps([["a/b", 0o644, 1, digest], ["c", 0o755, 1, digest]])
    index = {"tree": 1, "leaves": [["c", digest_of(leaf), 2, 2]]}
    return [orjson.dumps(index), leaf]


@contextmanager
def read_trees(directory: Path) -> Iterator[Reader]:
    """Receive an object as the index of a task's tree, and as the leaf of another."""
    objects = LocalStore(directory / "warehouse")
    trees = FileTrees(objects)
    for content in (b"x", tree_samples()[1]):
        objects.put(key_of(digest_of(content)), content)
    workspace = WorkspaceRef(repository=DATASET, branch="master", ref="t")

    def read(data: bytes) -> None:
        index = orjson.dumps({"tree": 1, "leaves": [["c", digest_of(data), 2, 2]]})
        refusals = []
        # The index of the second is stored after its leaf, as a client sends it.
        for root in (data, index):
            objects.put(key_of(digest_of(root)), root)
            try:
                list(trees.walk(digest_of(root)))
                # It rejects also a tree that is not written as Headgate writes it.
                with suppress(HeadgateError):
                    _received_tree(trees, workspace, EMPTY, digest_of(root))
            except HeadgateError as error:
                refusals.append(error)
        if len(refusals) == 2:
            raise refusals[0]

    yield read


def backup_samples() -> list[bytes]:
    """Return the manifest of a backup whose parts do not exist."""
    digest = digest_of(b"x")
    manifest = {
        "complete": True,
        "store": "s",
        "warehouse": "file:///lake",
        "headgate": "0.1.0",
        "incarnation": "i",
        "publication": 3,
        "schema": 10,
        "catalog": ["catalog.db", 1, digest],
        "objects": {key_of(digest): [1, digest]},
        "missing": {"objects/xx": "lost"},
    }
    return [orjson.dumps(manifest)]


@contextmanager
def read_backups(directory: Path) -> Iterator[Reader]:
    def read(data: bytes) -> None:
        (directory / "backup.json").write_bytes(data)
        try:
            check_backup(directory)
        except FileDamaged:
            raise
        except StorageUnavailable:
            # The manifest was read: the files that it names do not exist.
            return

    yield read


def warm_samples() -> list[bytes]:
    record = Record(
        pid=1, port=2, secret="s", fingerprint="f", since=1.5, idle_seconds=60, log="/log"
    )
    return [orjson.dumps(asdict(record))]


@contextmanager
def read_warm_records(directory: Path) -> Iterator[Reader]:
    settings = load_settings(directory, {"HEADGATE_STORE_CATALOG": "unused.db"})

    def read(data: bytes) -> None:
        (directory / "spark.json").write_bytes(data)
        found = describe_warm(settings, directory)
        assert found["state"] in {"none", "stopped"}
        json.dumps(found)

    yield read


TASK_INPUTS = (
    orjson.dumps(
        {
            "workspace": {
                "repository": DATASET,
                "branch": "master",
                "ref_type": "commit",
                "ref": "t-01",
            },
            "params": {"count": 1, "names": ["a"]},
        }
    ),
)


class _Params(BaseModel):
    count: int
    names: list[str]


class _Result(BaseModel):
    count: int


@task(name="count", owner_email="a@b.c", workspace=WorkspaceSpec())
def _count(workspace: Path, params: _Params) -> _Result:
    return _Result(count=params.count)


@contextmanager
def read_task_inputs(_: Path) -> Iterator[Reader]:
    definition = load_task(parse_target(f"{__name__}:count"), Path())

    def read(data: bytes) -> None:
        read_input(definition, _parsed(data))

    yield read


def _parsed(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise HeadgateError(str(error)) from error


FORMS = (
    b"grant_type=client_credentials&client_id=a&client_secret=b&scope=catalog",
    b"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&subject_token=t",
    b"grant_type=client_credentials\nid%3A:secret",
)


@contextmanager
def read_forms(_: Path) -> Iterator[Reader]:
    """Read the form of a token request; a second line is the pair of a Basic header."""

    def read(data: bytes) -> None:
        form, _, pair = data.partition(b"\n")
        header = f"Basic {base64.b64encode(pair).decode()}"
        try:
            id, secret = oauth._read_credential(form, {"authorization": header} if pair else {})
        except oauth._Refused as error:
            raise HeadgateError(str(error)) from error
        assert isinstance(secret, str) and (id is None or isinstance(id, str))

    yield read
