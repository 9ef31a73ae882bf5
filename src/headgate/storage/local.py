"""Objects as files below a directory, durable and never seen half-written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

from headgate.errors import FileChanged, ObjectNotFound, StorageUnavailable
from headgate.model.ids import Instant
from headgate.model.ports import ObjectInfo
from headgate.storage.keys import INCOMING, check_key, check_prefix

# Reading a local file that somebody else may be writing to.

CHUNK_BYTES = 1024 * 1024


def read_checked(source: Path, sha256: str | None) -> Iterator[bytes]:
    """The file in chunks; ends in `FileChanged` if a digest is given and they do not have it."""
    seen = hashlib.sha256()
    try:
        with source.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                seen.update(chunk)
                yield chunk
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnavailable(where=str(source), reason=reason) from error
    if sha256 is not None and seen.hexdigest() != sha256:
        raise FileChanged(path=str(source))


class HashedFile:
    """A local file in chunks that is hashed on the way; never one behind a link put in its place.

    A second thread hashes a chunk while whoever asked for it writes it, so that a large file
    takes as long as the slower of the two.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._seen = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """Of what has been read so far."""
        return self._seen.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        with (
            os.fdopen(self._open(), "rb", buffering=0) as file,
            ThreadPoolExecutor(1, thread_name_prefix="headgate-hash") as pool,
        ):
            while chunk := self._read(file):
                hashed = pool.submit(self._seen.update, chunk)
                yield chunk
                hashed.result()
                self.size += len(chunk)

    def _open(self) -> int:
        try:
            return os.open(self._source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ELOOP}:
                raise FileChanged(path=str(self._source)) from error
            raise self._unreadable(error) from error

    def _read(self, file: RawIOBase) -> bytes:
        try:
            return file.read(CHUNK_BYTES) or b""
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> StorageUnavailable:
        return StorageUnavailable(where=str(self._source), reason=error.strerror or str(error))


# A writer that was killed leaves its temporary file; one that lives writes to it now and then.
_ABANDONED_AFTER_SECONDS = 24 * 60 * 60


class LocalStore:
    """The `ObjectStore` of one machine: written aside, synced, then linked under its key."""

    def __init__(self, root: Path) -> None:
        # One name for one place, since locations are recorded in the catalog.
        self._root = root.resolve()
        self._incoming = self._root / INCOMING
        self._prepared = False

    @property
    def url(self) -> str:
        # Not percent-encoded: Iceberg's readers take what follows the scheme as it is.
        return f"file://{self._root}"

    def put(self, key: str, data: bytes) -> bool:
        return self._create(key, iter((data,)))

    def put_file(self, key: str, source: Path, *, sha256: str | None = None) -> bool:
        return self._create(key, read_checked(source, sha256))

    def put_hashed(self, source: Path, key_of: Callable[[str], str]) -> tuple[str, int]:
        file = HashedFile(source)
        with self._written_aside(iter(file)) as temporary:
            target = self._path(key_of(file.sha256))
            with _writing(target):
                _make_directories(target.parent)
                _link(temporary, target)
                _sync_directory(target.parent)
        return file.sha256, file.size

    def replace(self, key: str, data: bytes) -> None:
        target = self._path(key)
        with _writing(target), self._written_aside(iter((data,))) as temporary:
            _make_directories(target.parent)
            temporary.replace(target)
            _sync_directory(target.parent)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _reading(path):
            return path.read_bytes()

    def stream(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        with _reading(path), path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

    def find(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            with _reading(path):
                return _describe(key, path.lstat())
        except ObjectNotFound:
            return None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        pending = [check_prefix(prefix)]
        while pending:
            yield from _list_directory(self._root, pending.pop(), pending)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with contextlib.suppress(ObjectNotFound), _reading(path):
                path.unlink()

    def _create(self, key: str, chunks: Iterator[bytes]) -> bool:
        target = self._path(key)
        with _writing(target):
            if _is_taken(target):
                # Its creator may not have come to this yet, and the caller will rely on it.
                _sync_directory(target.parent)
                return False
            with self._written_aside(chunks) as temporary:
                _make_directories(target.parent)
                created = _link(temporary, target)
            _sync_directory(target.parent)
            return created

    @contextmanager
    def _written_aside(self, chunks: Iterator[bytes]) -> Iterator[Path]:
        """A synced file with these bytes that no key names yet; gone when the block ends."""
        self._prepare()
        temporary = self._incoming / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with _writing(temporary), temporary.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _prepare(self) -> None:
        """Once per store: the directory for temporary files, without those that were abandoned."""
        if self._prepared:
            return
        with _writing(self._incoming):
            _make_directories(self._incoming)
            horizon = time.time() - _ABANDONED_AFTER_SECONDS
            for path in self._incoming.iterdir():
                # Somebody else may tidy up at the same moment.
                with contextlib.suppress(FileNotFoundError):
                    if path.lstat().st_mtime < horizon:
                        path.unlink()
        self._prepared = True

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)


def _list_directory(root: Path, below: str, pending: list[str]) -> Iterator[ObjectInfo]:
    """The objects right in this directory; those further down are left to `pending`."""
    directory = root / below
    with (
        contextlib.suppress(ObjectNotFound),
        _reading(directory),
        os.scandir(directory) as entries,
    ):
        for entry in entries:
            key = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                if key != INCOMING:
                    pending.append(key)
                continue
            # It may be deleted between the listing and the look at it.
            with contextlib.suppress(FileNotFoundError):
                if info := _describe(key, entry.stat(follow_symlinks=False)):
                    yield info


def _describe(key: str, status: os.stat_result) -> ObjectInfo | None:
    if not stat.S_ISREG(status.st_mode):
        return None
    modified_at = Instant(status.st_mtime_ns // 1000)
    return ObjectInfo(key=key, size=status.st_size, modified_at=modified_at)


def _link(temporary: Path, target: Path) -> bool:
    """Names the file if the name is free; unlike a rename, it never replaces."""
    while True:
        try:
            os.link(temporary, target)
        except FileExistsError:
            # If it is gone by now, somebody deleted it in between: the name is free again.
            if _is_taken(target):
                return False
        else:
            return True


def _is_taken(target: Path) -> bool:
    """Whether an object is there; a directory of objects under that name is an error."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, "something that is not an object has that name")
    return True


def _make_directories(directory: Path) -> None:
    """The directory with its parents, each made durable in the parent that names it."""
    if directory.is_dir():
        return
    _make_directories(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(where=str(path), reason=_reason(error)) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectNotFound(location=str(path)) from error
    except OSError as error:
        raise StorageUnavailable(where=str(path), reason=_reason(error)) from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
