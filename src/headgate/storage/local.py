"""Objects as files below a directory, durable and never visible half-written.

Also the rules for object keys and the reading of local files, which every store shares.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

from headgate.errors import FileChanged, ObjectNotFound, UnsafePath, storage_error
from headgate.model.ids import Instant
from headgate.model.object_store import ObjectInfo

CHUNK_BYTES = 1024 * 1024
# The local store's directory for temporary files; no key may reach into it.
_INCOMING = ".incoming"
_SYNCS_AT_ONCE = 16
# A killed writer leaves its temporary file; a live one writes to it now and then.
_ABANDONED_AFTER_SECONDS = 24 * 60 * 60


class LocalStore:
    """The `ObjectStore` of one machine: written aside, synced, then linked under its key."""

    def __init__(self, root: Path) -> None:
        # Resolved, because locations are recorded in the catalog: one name for one place.
        self._root = root.resolve()
        self._incoming = self._root / _INCOMING
        self._prepared = False
        # Directories whose own names are durable.
        self._named: set[Path] = set()

    @property
    def url(self) -> str:
        # Not percent-encoded: Iceberg's readers take what follows the scheme as it is.
        return f"file://{self._root}"

    def put(self, key: str, data: bytes) -> bool:
        return self.put_stream(key, iter((data,)))

    def put_file(self, key: str, source: Path, *, sha256: str | None = None) -> bool:
        return self.put_stream(key, read_checked(source, sha256))

    def put_stream(self, key: str, chunks: Iterator[bytes]) -> bool:
        """Like `put`, from chunks; an exception while they are made leaves nothing."""
        target = self._path(key)
        with storage_errors(target):
            if _is_taken(target):
                # Its creator may not have synced it yet, and the caller relies on it.
                self._sync_with_parents(target.parent)
                return False
            with self._written_aside(chunks) as temporary:
                make_private_directory(target.parent)
                created = _link(temporary, target)
            self._sync_with_parents(target.parent)
            return created

    def put_hashed(self, source: Path, key_of: Callable[[str], str]) -> tuple[str, int]:
        file = HashedFile(source)
        with self._written_aside(iter(file)) as temporary:
            target = self._path(key_of(file.sha256))
            with storage_errors(target):
                make_private_directory(target.parent)
                _link(temporary, target)
                self._sync_with_parents(target.parent)
        return file.sha256, file.size

    def replace(self, key: str, data: bytes) -> None:
        target = self._path(key)
        with storage_errors(target), self._written_aside(iter((data,))) as temporary:
            make_private_directory(target.parent)
            temporary.replace(target)
            self._sync_with_parents(target.parent)

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

    def sync(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        if len(paths) > 1:
            # The file system commits what is waiting together, so many at once cost little more.
            with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="headgate-sync") as pool:
                list(pool.map(_sync_file, paths))
        else:
            for path in paths:
                _sync_file(path)
        for directory in {path.parent for path in paths}:
            with storage_errors(directory):
                self._sync_with_parents(directory)

    def _sync_with_parents(self, directory: Path) -> None:
        """Sync a directory and, unless that was done before, the directories that name it.

        Another process may have made one of them, and not synced its name yet.
        """
        _sync_directory(directory)
        above = directory
        while above != self._root and above not in self._named:
            # Directories are never removed from a warehouse, so once is enough.
            _sync_directory(above.parent)
            self._named.add(above)
            above = above.parent

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with contextlib.suppress(ObjectNotFound), _reading(path):
                path.unlink()

    @contextmanager
    def _written_aside(self, chunks: Iterator[bytes]) -> Iterator[Path]:
        """Write a synced file that no key names yet; remove it at the end of the block."""
        self._prepare()
        temporary = self._incoming / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with storage_errors(temporary), os.fdopen(create_private(temporary), "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _prepare(self) -> None:
        """Make the directory for temporary files, once per store, and remove abandoned ones."""
        if self._prepared:
            return
        with storage_errors(self._incoming):
            _make_directories(self._incoming)
            horizon = time.time() - _ABANDONED_AFTER_SECONDS
            for path in self._incoming.iterdir():
                # Another process may remove it at the same time.
                with contextlib.suppress(FileNotFoundError):
                    if path.lstat().st_mtime < horizon:
                        path.unlink()
        self._prepared = True

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)


# --- keys -----------------------------------------------------------------------------------


def check_key(key: str) -> str:
    """Return the key; raise `UnsafePath` if it could name anything but an object in the store.

    Looser than the rule for paths of a files dataset: Spark, too, writes below a warehouse, and
    cleanup must be able to name everything that it finds there.
    """
    components = key.split("/")
    for component in components:
        if component in {"", ".", ".."}:
            raise UnsafePath(path=key, reason=f"an object key has the component {component!r}")
    if "\0" in key:
        raise UnsafePath(path=key, reason="an object key has a NUL character")
    if components[0] == _INCOMING:
        raise UnsafePath(path=key, reason=f"{_INCOMING}/ holds unfinished files")
    return key


def check_prefix(prefix: str) -> str:
    """Return a directory of keys without a slash at its end; empty for the whole store."""
    stripped = prefix.rstrip("/")
    return check_key(stripped) if stripped or prefix else ""


# --- local files, which another process may be writing to -----------------------------------


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise failed system calls of the block as `StorageUnavailable` at the path."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def read_checked(source: Path, sha256: str | None) -> Iterator[bytes]:
    """Yield the file in chunks; raise `FileChanged` at its end if it has not the given digest."""
    seen = hashlib.sha256()
    with storage_errors(source), source.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            seen.update(chunk)
            yield chunk
    if sha256 is not None and seen.hexdigest() != sha256:
        raise FileChanged(path=str(source))


def open_file(source: Path) -> int:
    """Open a file to read; raise `FileChanged` if it is gone, or became a symbolic link."""
    try:
        return os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP}:
            raise FileChanged(path=str(source)) from error
        raise storage_error(error, source) from error


class HashedFile:
    """A local file, read in chunks and hashed on the way; symbolic links are not followed.

    A second thread hashes each chunk while the consumer writes it, so that a large file takes
    as long as the slower of the two.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._seen = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """The digest of the bytes read so far."""
        return self._seen.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        with (
            os.fdopen(open_file(self._source), "rb", buffering=0) as file,
            ThreadPoolExecutor(1, thread_name_prefix="headgate-hash") as pool,
        ):
            while chunk := self._read(file):
                hashed = pool.submit(self._seen.update, chunk)
                yield chunk
                hashed.result()
                self.size += len(chunk)

    def _read(self, file: RawIOBase) -> bytes:
        with storage_errors(self._source):
            return file.read(CHUNK_BYTES) or b""


# --- access: of the owner, and of the group where a directory is shared with it -------------


def create_private(path: Path) -> int:
    """Create a file that only its owner can open; return its descriptor, open for writing.

    In a directory that is shared with its group, the group gets the same access as to it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    if shared := _group_access(path.parent) & 0o060:
        os.fchmod(descriptor, 0o600 | shared)
    return descriptor


def make_private_directory(directory: Path) -> None:
    """Make a directory and its missing parents, with access as that of `create_private`."""
    if not directory.is_dir():
        make_private_directory(directory.parent)
        with contextlib.suppress(FileExistsError):
            _make_private(directory)


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    if shared := _group_access(directory.parent):
        # Not by the mode of mkdir, which the umask reduces.
        directory.chmod(stat.S_IMODE(directory.stat().st_mode) | shared)


def _group_access(directory: Path) -> int:
    """Return the access of the group to a directory that is shared on purpose; else 0.

    A directory that is closed to all other users, or that hands its group on, is shared on
    purpose. Others have the access of their group from the umask.
    """
    mode = directory.stat().st_mode
    is_deliberate = not mode & 0o007 or mode & stat.S_ISGID
    return mode & 0o070 if is_deliberate else 0


# --- directories and durability -------------------------------------------------------------


def _list_directory(root: Path, below: str, pending: list[str]) -> Iterator[ObjectInfo]:
    """Yield the objects directly in this directory; add its subdirectories to `pending`."""
    directory = root / below
    with contextlib.suppress(ObjectNotFound), _reading(directory), os.scandir(directory) as entries:
        for entry in entries:
            key = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                if key != _INCOMING:
                    pending.append(key)
                continue
            # It may be deleted between the listing and the stat.
            with contextlib.suppress(FileNotFoundError):
                if info := _describe(key, entry.stat(follow_symlinks=False)):
                    yield info


def _describe(key: str, status: os.stat_result) -> ObjectInfo | None:
    if not stat.S_ISREG(status.st_mode):
        return None
    modified_at = Instant(status.st_mtime_ns // 1000)
    return ObjectInfo(key=key, size=status.st_size, modified_at=modified_at)


def _link(temporary: Path, target: Path) -> bool:
    """Give the file its name if the name is free; unlike a rename, this never replaces."""
    while True:
        try:
            os.link(temporary, target)
        except FileExistsError:
            # If it is gone by now, it was deleted in between: the name is free again.
            if _is_taken(target):
                return False
        else:
            return True


def _is_taken(target: Path) -> bool:
    """Return whether an object has that name; raise if a directory has it."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, "something that is not an object has that name")
    return True


def _make_directories(directory: Path) -> None:
    """Make the directory and its parents, each synced in the parent that names it."""
    if directory.is_dir():
        return
    _make_directories(directory.parent)
    with contextlib.suppress(FileExistsError):
        _make_private(directory)
    _sync_directory(directory.parent)


def _sync_file(path: Path) -> None:
    with _reading(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectNotFound(location=str(path)) from error
    except OSError as error:
        raise storage_error(error, path) from error
