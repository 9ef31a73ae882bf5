"""File trees on every kind of store: uploads, downloads and damaged objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import ObjectCorrupted, ObjectNotFound
from headgate.files.objects import Digest, digest_of, key_of
from headgate.files.tree import EMPTY
from headgate.files.tree_store import FileTrees
from headgate.model.nouns import TransactionType
from headgate.model.object_store import ObjectStore
from headgate.storage.address import open_store
from tests.support.s3 import S3Server, running_s3


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return open_store(str(tmp_path / "warehouse"))
    server: S3Server = request.getfixturevalue("s3")
    return open_store(f"s3://{server.create_bucket()}/warehouse", server.options)


@pytest.fixture
def trees(store: ObjectStore) -> FileTrees:
    return FileTrees(store)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Thirty small files in three directories, a large one, a tool and an empty directory."""
    source = tmp_path / "source"
    for number in range(30):
        path = source / f"d{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"number {number}")
    (source / "large").write_bytes(b"0123456789abcdef" * 600_000)
    (source / "tool").write_text("#!/bin/sh")
    (source / "tool").chmod(0o755)
    (source / "empty" / "inside").mkdir(parents=True)
    return source


def _picture(directory: Path) -> dict[str, tuple[bytes | None, bool]]:
    return {
        str(path.relative_to(directory)): (
            path.read_bytes() if path.is_file() else None,
            path.is_file() and bool(path.stat().st_mode & 0o100),
        )
        for path in directory.rglob("*")
    }


def test_upload_then_download_is_the_same_directory(
    trees: FileTrees, source: Path, tmp_path: Path
) -> None:
    root = trees.edit(EMPTY, put=trees.upload(source)).root
    written = trees.download(root, tmp_path / "target")
    assert _picture(tmp_path / "target") == _picture(source)
    assert len(written) == 33
    assert trees.measure(root).entries == 33


def test_upload_again_stores_nothing_new(
    trees: FileTrees, store: ObjectStore, source: Path
) -> None:
    first = trees.upload(source)
    before = {found.key: found.modified_at for found in store.list()}
    assert trees.upload(source) == first
    assert {found.key: found.modified_at for found in store.list()} == before
    assert len(before) == 32


def test_upload_and_download_report_their_progress(
    trees: FileTrees, source: Path, tmp_path: Path
) -> None:
    up: list[tuple[int, int]] = []
    down: list[tuple[int, int]] = []
    entries = trees.upload(source, progress=lambda files, size: up.append((files, size)))
    root = trees.edit(EMPTY, put=entries).root
    trees.download(root, tmp_path / "to", progress=lambda files, size: down.append((files, size)))
    assert up[-1] == down[-1] == (32, sum(entry.size for entry in entries))
    assert up == sorted(up)


def test_read_and_stream_give_the_content(trees: FileTrees, source: Path) -> None:
    root = trees.edit(EMPTY, put=trees.upload(source, "top")).root
    small, large = trees.find(root, "top/d1/1.txt"), trees.find(root, "top/large")
    assert small is not None and trees.read(small) == b"number 1"
    assert large is not None
    assert b"".join(trees.stream(large)) == (source / "large").read_bytes()


def _damage(store: ObjectStore, digest: Digest) -> None:
    store.replace(key_of(digest), store.get(key_of(digest))[:-1] + b"X")


def test_download_damaged_content_names_it_and_writes_no_file(
    trees: FileTrees, store: ObjectStore, source: Path, tmp_path: Path
) -> None:
    root = trees.edit(EMPTY, put=trees.upload(source / "large")).root
    entry = trees.find(root, "large")
    assert entry is not None
    _damage(store, entry.digest)
    with pytest.raises(ObjectCorrupted, match=f"{store.url}/{key_of(entry.digest)}"):
        trees.download(root, tmp_path / "target")
    with pytest.raises(ObjectCorrupted, match=entry.digest):
        trees.read(entry)
    assert list((tmp_path / "target").iterdir()) == []


def test_walk_damaged_tree_names_the_object(
    trees: FileTrees, store: ObjectStore, source: Path
) -> None:
    root = trees.edit(EMPTY, put=trees.upload(source)).root
    _damage(store, root)
    with pytest.raises(ObjectCorrupted, match=f"{store.url}/{key_of(root)}"):
        list(trees.walk(root))


def test_download_missing_content_names_it(
    trees: FileTrees, store: ObjectStore, source: Path, tmp_path: Path
) -> None:
    root = trees.edit(EMPTY, put=trees.upload(source / "tool")).root
    entry = trees.find(root, "tool")
    assert entry is not None
    store.delete([key_of(entry.digest)])
    with pytest.raises(ObjectNotFound, match=key_of(entry.digest)):
        trees.download(root, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_small_contents_are_read_together_without_those_that_cannot_be(
    store: ObjectStore, trees: FileTrees
) -> None:
    small, large, damaged = (trees.store(data) for data in (b"small", b"x" * 11, b"damaged"))
    store.replace(key_of(damaged), b"other")
    absent = Digest("0" * 64)
    asked = [damaged, large, absent, small]
    assert list(trees.objects.get_small(asked, most_bytes=10)) == [(small, b"small")]
    assert trees.objects.find_missing(asked) == [absent]
    assert trees.objects.put_each(iter([(digest_of(b"new"), b"new")])) == 1
    assert trees.objects.find_missing([digest_of(b"new")]) == []


def test_references_are_all_that_was_stored(
    trees: FileTrees, store: ObjectStore, source: Path
) -> None:
    root = trees.edit(EMPTY, put=trees.upload(source)).root
    assert {found.key for found in store.list()} == {key_of(d) for d in trees.references([root])}


def test_find_violation_first_commit_compares_with_nothing(trees: FileTrees, source: Path) -> None:
    root = trees.edit(EMPTY, put=trees.upload(source)).root
    less = trees.edit(root, remove=["tool"]).root
    assert trees.find_violation(TransactionType.APPEND, None, root) is None
    assert trees.find_violation(TransactionType.UPDATE, root, less) == (
        "it removes 'tool', which UPDATE does not allow"
    )
