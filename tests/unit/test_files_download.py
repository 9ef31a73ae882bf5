"""Downloads stay in their target, whatever the target or the tree contains."""

from __future__ import annotations

import stat
from pathlib import Path

import orjson
import pytest

from headgate.errors import Invalid, StorageUnavailable, UnsafePath
from headgate.files.objects import Digest
from headgate.files.tree import EMPTY, Entry, Mode, empty_directory
from headgate.files.tree_store import FileTrees
from headgate.storage.local import LocalStore


@pytest.fixture
def trees(tmp_path: Path) -> FileTrees:
    return FileTrees(LocalStore(tmp_path / "store"))


def _tree(trees: FileTrees, contents: dict[str, bytes]) -> Digest:
    entries = [
        Entry(path=path, mode=Mode.FILE, size=len(data), digest=trees.store(data))
        for path, data in contents.items()
    ]
    return trees.edit(EMPTY, put=entries).root


def _forged(trees: FileTrees, path: str) -> Digest:
    """A tree that no edit would make, with correct digests."""
    content = trees.store(b"forged")
    leaf = trees.store(orjson.dumps([[path, 0o644, 6, content]]))
    return trees.store(orjson.dumps({"tree": 1, "leaves": [[path, leaf, 1, 6]]}))


def test_download_link_in_place_of_a_directory_is_not_followed(
    trees: FileTrees, tmp_path: Path
) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (target / "a").symlink_to(outside)
    with pytest.raises(UnsafePath, match=r"'a'.*symbolic link"):
        trees.download(_tree(trees, {"a/b": b"one"}), target)
    assert list(outside.iterdir()) == []


def test_download_link_in_place_of_a_file_is_replaced(trees: FileTrees, tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.write_bytes(b"untouched")
    target.mkdir()
    (target / "a").symlink_to(outside)
    trees.download(_tree(trees, {"a": b"one"}), target)
    assert outside.read_bytes() == b"untouched"
    assert (target / "a").read_bytes() == b"one"
    assert not (target / "a").is_symlink()


@pytest.mark.parametrize("path", ["../escaped", "/escaped", "a/../../escaped", "."])
def test_download_forged_tree_writes_nothing_outside(
    trees: FileTrees, tmp_path: Path, path: str
) -> None:
    target = tmp_path / "deep" / "target"
    with pytest.raises(UnsafePath):
        trees.download(_forged(trees, path), target)
    assert list(tmp_path.rglob("escaped")) == []
    assert list(target.iterdir()) == []


def test_download_directory_in_place_of_a_file_is_named(trees: FileTrees, tmp_path: Path) -> None:
    (tmp_path / "target" / "a").mkdir(parents=True)
    with pytest.raises(StorageUnavailable, match="target/a"):
        trees.download(_tree(trees, {"a": b"one"}), tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").rglob("*")] == ["a"]


def test_download_over_older_files_replaces_and_keeps_others(
    trees: FileTrees, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"older and longer")
    (tmp_path / "other").write_bytes(b"other")
    trees.download(_tree(trees, {"a": b"new"}), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "other").read_bytes() == b"other"


def test_download_prefix_is_seen_from_that_directory(trees: FileTrees, tmp_path: Path) -> None:
    root = _tree(trees, {"a/b/c": b"1", "a/bc": b"2", "a/b-d": b"3"})
    trees.download(root, tmp_path / "directory", "a/b/")
    trees.download(root, tmp_path / "file", "a/bc")
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("[df]*/*")}
    assert found == {"directory/c", "file/bc"}


def test_download_modes_are_set_exactly(trees: FileTrees, tmp_path: Path) -> None:
    tool = Entry(path="tool", mode=Mode.EXECUTABLE, size=1, digest=trees.store(b"1"))
    plain = Entry(path="plain", mode=Mode.FILE, size=1, digest=trees.store(b"2"))
    root = trees.edit(EMPTY, put=[tool, plain, empty_directory("empty/inside")]).root
    trees.download(root, tmp_path)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("tool", "plain")}
    assert modes == {"tool": 0o755, "plain": 0o644}
    assert (tmp_path / "empty" / "inside").is_dir()


def test_walk_file_content_taken_for_a_tree_is_refused(trees: FileTrees) -> None:
    for content in (b"hello", b"[1, 2]", b'{"tree": 2, "leaves": []}', b"{}"):
        with pytest.raises(Invalid, match="not part of a file tree"):
            list(trees.walk(trees.store(content)))
