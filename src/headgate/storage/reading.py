"""Reading a local file that somebody else may be writing to."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path

from headgate.errors import FileChanged, StorageUnavailable

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
