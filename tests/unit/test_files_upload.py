"""Uploads: files that are rejected, and nothing stored if one is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headgate.errors import FileChanged, NotFound, UnsafePath
from headgate.files.transfer import scan, upload
from headgate.files.tree import EMPTY, Mode
from headgate.files.tree_store import FileTrees
from headgate.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with one valid file, to which tests add an invalid one."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "good").write_bytes(b"good")
    return source


def _assert_refused(store: LocalStore, source: Path, named: str) -> None:
    with pytest.raises(UnsafePath, match=named):
        FileTrees(store).upload(source)
    assert list(store.list()) == []


def test_upload_symbolic_link_is_refused_before_anything_is_stored(
    store: LocalStore, source: Path
) -> None:
    (source / "deep").mkdir()
    (source / "deep" / "link").symlink_to("/etc/passwd")
    _assert_refused(store, source, r"'deep/link'.*symbolic link")


def test_upload_symbolic_link_to_a_directory_is_refused(store: LocalStore, source: Path) -> None:
    (source / "link").symlink_to(source)
    _assert_refused(store, source, r"'link'.*symbolic link")


def test_upload_source_that_is_itself_a_link_is_refused(store: LocalStore, source: Path) -> None:
    link = source.parent / "link"
    link.symlink_to(source)
    _assert_refused(store, link, r"link'.*symbolic link")


def test_upload_pipe_is_refused(store: LocalStore, source: Path) -> None:
    os.mkfifo(source / "pipe")
    _assert_refused(store, source, r"'pipe'.*socket, pipe or device")


def test_upload_socket_is_refused(
    store: LocalStore, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The address of a socket is limited in length: a relative one fits in any directory.
    monkeypatch.chdir(source)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        _assert_refused(store, source, r"'socket'.*socket, pipe or device")


@pytest.mark.parametrize(
    "name", [b"not-utf8-\xff", "cafe\u0301".encode(), b"back\\slash", b"new\nline"]
)
def test_upload_name_that_deceives_is_refused(store: LocalStore, source: Path, name: bytes) -> None:
    (source / os.fsdecode(name)).write_bytes(b"bad")
    _assert_refused(store, source, "is not allowed")


@pytest.mark.parametrize("under", ["..", "/top", "a/../b", "a//b"])
def test_upload_under_an_unsafe_path_is_refused(
    store: LocalStore, source: Path, under: str
) -> None:
    with pytest.raises(UnsafePath):
        FileTrees(store).upload(source, under)
    assert list(store.list()) == []


def test_upload_missing_source_is_named(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        FileTrees(store).upload(tmp_path / "nowhere")


def test_scan_directory_has_files_and_empty_directories_in_order(source: Path) -> None:
    (source / "b" / "empty").mkdir(parents=True)
    (source / "b" / "tool").write_bytes(b"#!")
    (source / "b" / "tool").chmod(0o500)
    (source / "good").chmod(0o606)
    assert [(file.path, file.mode) for file in scan(source, "top/in")] == [
        ("top/in/b/empty", Mode.DIRECTORY),
        ("top/in/b/tool", Mode.EXECUTABLE),
        ("top/in/good", Mode.FILE),
    ]


def test_scan_file_takes_the_path_given_or_keeps_its_name(source: Path) -> None:
    assert [file.path for file in scan(source / "good", "x/better")] == ["x/better"]
    assert [file.path for file in scan(source / "good")] == ["good"]


def test_scan_empty_directory_is_an_entry_unless_it_is_the_top(tmp_path: Path) -> None:
    assert scan(tmp_path) == []
    assert [file.path for file in scan(tmp_path, "a")] == ["a"]


def test_upload_file_written_to_meanwhile_is_not_stored(tmp_path: Path, source: Path) -> None:
    class Meddling(LocalStore):
        """Appends to the file after it was hashed and before it is copied."""

        def put_file(self, key: str, source: Path, *, sha256: str | None = None) -> bool:
            with source.open("ab") as file:
                file.write(b" no more")
            return super().put_file(key, source, sha256=sha256)

    store = Meddling(tmp_path / "store")
    with pytest.raises(FileChanged, match="good"):
        FileTrees(store).upload(source)
    assert list(store.list()) == []


def test_upload_files_chosen_from_a_scan_are_those_alone(store: LocalStore, source: Path) -> None:
    (source / "new").write_bytes(b"new")
    trees = FileTrees(store)
    chosen = [file for file in scan(source) if file.path == "new"]
    root = trees.edit(EMPTY, put=upload(trees.objects, chosen)).root
    assert [entry.path for entry in trees.walk(root)] == ["new"]
    assert len(list(store.list("objects"))) == 3  # the content, a leaf, the index
