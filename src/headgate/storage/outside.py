"""Files that lie anywhere, as a person or another catalog names them; read, never written."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.errors import UnsafePath
from headgate.model.ports import ObjectStore
from headgate.storage.opening import open_store

# What Hadoop's S3 clients call their addresses.
_S3_ALIASES = ("s3a://", "s3n://")


def read_outside(location: str, options: Mapping[str, str]) -> bytes:
    """The whole file at a path, `file:` or `s3:` address; `ObjectNotFound` where there is none."""
    directory, name = split(location)
    return open_outside(directory, options).get(name)


def open_outside(directory: str, options: Mapping[str, str]) -> ObjectStore:
    """What lies below a directory, to be read."""
    for alias in _S3_ALIASES:
        if directory.startswith(alias):
            return open_store(f"s3://{directory.removeprefix(alias)}", options)
    return open_store(directory, options)


def split(location: str) -> tuple[str, str]:
    """The directory of a file's address, and its name there."""
    directory, slash, name = location.rpartition("/")
    if not slash or not directory or not name:
        raise UnsafePath(path=location, reason="it does not name a file in a directory")
    return directory, name
