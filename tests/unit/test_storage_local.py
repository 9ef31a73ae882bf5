"""The local store when a writer dies, has no permission, or the disk is full."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.errors import StorageUnavailable
from headgate.storage.local import LocalStore

_NOBODY = 65534
_PUT_FILE = """
import sys
from pathlib import Path
from headgate.storage.local import LocalStore
LocalStore(Path(sys.argv[1])).put_file("objects/large", Path(sys.argv[2]))
"""


def _temporary_files(root: Path) -> list[Path]:
    return list((root / ".incoming").iterdir())


@contextmanager
def _without_privileges() -> Iterator[None]:
    """Run as an ordinary user: to root, no directory is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def _files_no_larger_than(limit: int) -> Iterator[None]:
    """Limit the size of files for this process, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def test_put_file_writer_killed_halfway_is_never_visible(tmp_path: Path) -> None:
    pipe, root = tmp_path / "pipe", tmp_path / "store"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", _PUT_FILE, str(root), str(pipe)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment) as writer, pipe.open("wb", buffering=0) as feed:
        for _ in range(48):
            feed.write(b"x" * 65536)
        writer.send_signal(signal.SIGKILL)
        writer.wait(30)
    store = LocalStore(root)
    assert len(_temporary_files(root)) == 1
    assert list(store.list()) == []
    assert store.find("objects/large") is None
    assert store.put("objects/large", b"whole") is True


def test_put_is_synced_before_it_has_a_name_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, steps = LocalStore(tmp_path), list[str | int]()
    store.put("objects/first", b"first")

    def note_sync(descriptor: int, sync: Callable[[int], None] = os.fsync) -> None:
        steps.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def note_link(old: Path, new: Path, link: Callable[[Path, Path], None] = os.link) -> None:
        steps.append("named")
        link(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    store.put("objects/second", b"second")
    file, directory = (tmp_path / "objects/second").stat(), (tmp_path / "objects").stat()
    assert steps == [file.st_ino, "named", directory.st_ino]
    store.put("objects/second", b"second")
    assert steps[3:] == [directory.st_ino]


def test_put_disk_full_names_the_path_and_leaves_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with (
        _files_no_larger_than(1024 * 1024),
        pytest.raises(StorageUnavailable, match=r"incoming.*File too large"),
    ):
        store.put("objects/large", b"x" * (2 * 1024 * 1024))
    assert _temporary_files(tmp_path) == []
    assert list(store.list()) == []


def test_put_read_only_directory_is_refused_and_reads_go_on(open_directory: Path) -> None:
    store = LocalStore(open_directory)
    store.put("objects/one", b"one")
    (open_directory / "objects" / "one").chmod(0o444)
    for path in (open_directory, open_directory / "objects", open_directory / ".incoming"):
        path.chmod(0o555)
    with _without_privileges():
        with pytest.raises(StorageUnavailable, match=f"{open_directory}.*Permission denied"):
            store.put("objects/two", b"two")
        with pytest.raises(StorageUnavailable, match="Permission denied"):
            store.delete(["objects/one"])
        assert store.get("objects/one") == b"one"
        assert [found.key for found in store.list()] == ["objects/one"]
    for path in (open_directory, open_directory / "objects", open_directory / ".incoming"):
        path.chmod(0o755)


def test_get_file_that_may_not_be_read_is_unavailable(open_directory: Path) -> None:
    store = LocalStore(open_directory)
    store.put("secret", b"one")
    (open_directory / "secret").chmod(0o000)
    with _without_privileges(), pytest.raises(StorageUnavailable, match=r"secret.*Permission"):
        store.get("secret")


def test_put_name_of_a_directory_is_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"one")
    with pytest.raises(StorageUnavailable, match="not an object"):
        store.put("a", b"two")
    with pytest.raises(StorageUnavailable, match="Not a directory"):
        store.put("a/b/c", b"three")
    assert [found.key for found in store.list()] == ["a/b"]


def test_first_write_abandoned_temporary_files_are_removed(tmp_path: Path) -> None:
    incoming = tmp_path / ".incoming"
    incoming.mkdir()
    for name, age_seconds in (("dead", 25 * 3600), ("alive", 3600)):
        (incoming / name).write_bytes(b"half")
        os.utime(incoming / name, (time.time() - age_seconds,) * 2)
    LocalStore(tmp_path).put("a", b"one")
    assert [path.name for path in _temporary_files(tmp_path)] == ["alive"]


def test_list_symbolic_link_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"outside")
    store = LocalStore(tmp_path / "store")
    store.put("a", b"one")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "store" / "directory").symlink_to(tmp_path)
    assert [found.key for found in store.list()] == ["a"]
