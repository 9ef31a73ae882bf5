"""Reading a local file that somebody else may be writing to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
