"""Contract of object stores, on local disk and on a real S3-compatible server."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.errors import FileChanged, ObjectNotFound, StorageUnavailable, UnsafePath
from headgate.model.object_store import ObjectStore
from headgate.storage.address import open_store
from tests.support.s3 import S3Server, running_s3

_SMALL = b"orders"
# Larger than one request, so that an upload to S3 has several parts.
_LARGE = b"0123456789abcdef" * (9 * 1024 * 1024 // 16)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return open_store(f"file://{tmp_path}/warehouse")
    server: S3Server = request.getfixturevalue("s3")
    return open_store(f"s3://{server.create_bucket()}/warehouse", server.options)


def _file(directory: Path, data: bytes) -> Path:
    path = directory / "source"
    path.write_bytes(data)
    return path


def test_put_new_key_is_written(store: ObjectStore) -> None:
    assert store.put("a/b", _SMALL) is True
    assert store.get("a/b") == _SMALL


def test_put_taken_key_changes_nothing(store: ObjectStore) -> None:
    store.put("a/b", _SMALL)
    assert store.put("a/b", b"other") is False
    assert store.get("a/b") == _SMALL


def test_put_empty_object_is_found(store: ObjectStore) -> None:
    assert store.put("empty", b"") is True
    assert store.get("empty") == b""


@pytest.mark.parametrize("data", [_SMALL, _LARGE, b""])
def test_put_hashed_is_found_under_the_key_of_its_digest(
    store: ObjectStore, tmp_path: Path, data: bytes
) -> None:
    digest = hashlib.sha256(data).hexdigest()
    for _ in range(2):
        assert store.put_hashed(_file(tmp_path, data), lambda found: f"at/{found}") == (
            digest,
            len(data),
        )
    assert store.get(f"at/{digest}") == data
    assert [found.key for found in store.list()] == [f"at/{digest}"]


@pytest.mark.parametrize("what", ["nothing", "link"])
def test_put_hashed_of_what_is_no_file_any_more_stores_nothing(
    store: ObjectStore, tmp_path: Path, what: str
) -> None:
    source = tmp_path / "gone"
    if what == "link":
        source.symlink_to(_file(tmp_path, _SMALL))
    with pytest.raises(FileChanged, match="gone"):
        store.put_hashed(source, str)
    assert list(store.list()) == []


def _race(store: ObjectStore, key: str, creators: int) -> list[bytes]:
    """Create one key from several threads, each with its own bytes; return the winning bytes."""
    start = threading.Barrier(creators)

    def create(data: bytes) -> bool:
        start.wait()
        return store.put(key, data)

    contents = [bytes([creator]) * 1000 for creator in range(creators)]
    with ThreadPoolExecutor(creators) as pool:
        return [
            data for data, first in zip(contents, pool.map(create, contents), strict=True) if first
        ]


def test_put_racing_creators_exactly_one_wins(store: ObjectStore, rounds: int) -> None:
    for number in range(rounds):
        won = _race(store, f"race/{number}", creators=6)
        assert len(won) == 1
        assert store.get(f"race/{number}") == won[0]


@pytest.mark.parametrize("data", [b"", _SMALL, _LARGE], ids=["empty", "small", "large"])
def test_put_file_streams_back_the_same_bytes(
    store: ObjectStore, tmp_path: Path, data: bytes
) -> None:
    source = _file(tmp_path, data)
    assert store.put_file("x/file", source, sha256=hashlib.sha256(data).hexdigest()) is True
    assert b"".join(store.stream("x/file")) == data
    assert store.put_file("x/file", _file(tmp_path, data + b"other")) is False
    assert b"".join(store.stream("x/file")) == data


@pytest.mark.parametrize("data", [_SMALL, _LARGE], ids=["small", "large"])
def test_put_file_changed_since_hashed_stores_nothing(
    store: ObjectStore, tmp_path: Path, data: bytes
) -> None:
    source = _file(tmp_path, data)
    with pytest.raises(FileChanged, match="source"):
        store.put_file("x/file", source, sha256=hashlib.sha256(b"before").hexdigest())
    assert store.find("x/file") is None
    assert list(store.list()) == []


def test_put_file_missing_source_is_named(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="nowhere"):
        store.put_file("x/file", tmp_path / "nowhere")
    assert store.find("x/file") is None


def test_replace_taken_key_has_the_new_bytes(store: ObjectStore) -> None:
    store.replace("pointer", b"one")
    store.replace("pointer", b"two")
    assert store.get("pointer") == b"two"


def test_get_missing_key_names_its_location(store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound, match="warehouse/no/such"):
        store.get("no/such")
    with pytest.raises(ObjectNotFound, match="warehouse/no/such"):
        next(store.stream("no/such"))


def test_find_key_tells_size_and_time(store: ObjectStore) -> None:
    before = time.time() - 2
    store.put("a/b", _SMALL)
    found = store.find("a/b")
    assert found is not None
    assert (found.key, found.size) == ("a/b", len(_SMALL))
    assert before * 1e6 <= found.modified_at <= (time.time() + 2) * 1e6


def test_find_directory_is_none(store: ObjectStore) -> None:
    store.put("a/b", _SMALL)
    assert store.find("a") is None
    assert store.find("a/b/c") is None


def test_list_directory_has_what_is_below_it_alone(store: ObjectStore) -> None:
    for key in ("a/b/1", "a/b/c/2", "a/bc/3", "z"):
        store.put(key, _SMALL)
    assert {found.key for found in store.list("a/b")} == {"a/b/1", "a/b/c/2"}
    assert {found.key for found in store.list("a/b/")} == {"a/b/1", "a/b/c/2"}
    assert {found.key for found in store.list()} == {"a/b/1", "a/b/c/2", "a/bc/3", "z"}
    assert list(store.list("nothing/here")) == []


@pytest.mark.parametrize("key", ["day=1/a%2Fb.parquet", "sp ace/é", "tab#1/q?x=1&y", "c:d/~e*"])
def test_key_as_spark_writes_it_is_listed_read_and_deleted(store: ObjectStore, key: str) -> None:
    store.put(key, _SMALL)
    assert [found.key for found in store.list()] == [key]
    assert store.get(key) == _SMALL
    store.delete([key])
    assert list(store.list()) == []


def test_sync_of_objects_keeps_them_as_they_are(store: ObjectStore) -> None:
    for key in ("a/b", "a/c/d", "e"):
        store.put(key, _SMALL)
    store.sync(["a/b", "a/c/d", "e"])
    store.sync([])
    assert {info.key: info.size for info in store.list()} == dict.fromkeys(
        ("a/b", "a/c/d", "e"), len(_SMALL)
    )


@pytest.mark.parametrize("keys", [["gone"], ["a/b", "a/gone"]])
def test_sync_of_a_missing_file_names_it(tmp_path: Path, keys: list[str]) -> None:
    local = open_store(f"file://{tmp_path}/warehouse")
    local.put("a/b", _SMALL)
    with pytest.raises(ObjectNotFound, match="gone"):
        local.sync(keys)


def test_delete_several_keys_leaves_the_others(store: ObjectStore) -> None:
    for number in range(5):
        store.put(f"k/{number}", _SMALL)
    store.delete(["k/1", "k/missing", "k/3"])
    assert sorted(found.key for found in store.list()) == ["k/0", "k/2", "k/4"]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../out", "a/../../out", "a//b", "a/", ".", "a\0b", ".incoming/x"]
)
def test_key_that_could_leave_the_store_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(UnsafePath):
        store.put(key, _SMALL)
    with pytest.raises(UnsafePath):
        store.get(key)
    with pytest.raises(UnsafePath):
        store.delete([key])
    assert list(store.list()) == []


def test_bucket_missing_is_unavailable_rather_than_not_found(s3: S3Server) -> None:
    store = open_store("s3://no-such-bucket/x", s3.options)
    with pytest.raises(StorageUnavailable, match="the bucket does not exist"):
        store.get("a")
    with pytest.raises(StorageUnavailable, match="no-such-bucket"):
        store.put("a", _SMALL)
    with pytest.raises(StorageUnavailable, match="the bucket does not exist"):
        list(store.list())
