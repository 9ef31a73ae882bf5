"""Protocols of object stores: local disk, S3, and the contents that a server sends."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from headgate.model.ids import Instant

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size: int) -> str:
    """Return a size in the largest unit that gives a number of at least one."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One object in a listing; the time is by the store's own clock."""

    key: str
    size: int
    modified_at: Instant


class ObjectStore(Protocol):
    """Bytes under keys, on local disk or in an S3-compatible store.

    A reader of a key finds nothing or the whole object, never a part. A write is durable when its
    call returns. Failures raise `StorageUnavailable`; a key that would leave the store raises
    `UnsafePath`.
    """

    @property
    def url(self) -> str:
        """The store's location without a trailing slash: `{url}/{key}` is an object's location."""

    def put(self, key: str, data: bytes) -> bool:
        """Create the object; return False, and change nothing, if the key exists."""

    def put_file(self, key: str, source: Path, *, sha256: str | None = None) -> bool:
        """Like `put`, streaming; with `sha256`, only if the file still has this digest."""

    def put_hashed(self, source: Path, key_of: Callable[[str], str]) -> tuple[str, int]:
        """Store the file under the key of its SHA-256 digest; return the digest and the size.

        The stored object has this digest even if the file changes during the call.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Write the object, also over an existing one; the last writer wins."""

    def get(self, key: str) -> bytes:
        """Return the whole object, or raise `ObjectNotFound`."""

    def stream(self, key: str) -> Iterator[bytes]:
        """Return the object in chunks, or raise `ObjectNotFound`."""

    def local_path(self, key: str) -> Path | None:
        """Return the object's path on local disk, existing or not; None in every other store."""

    def find(self, key: str) -> ObjectInfo | None:
        """Return the object's size and time, or None if it does not exist."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Return every object below the directory `prefix`, in any order."""

    def sync(self, keys: Sequence[str]) -> None:
        """Make objects durable that other programs wrote; raise `ObjectNotFound` if one is missing.

        A store in which every object is durable once it exists does nothing.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Remove the objects; a missing key is not an error."""


@runtime_checkable
class BatchStore(Protocol):
    """An object store behind a server: one request carries many small objects."""

    def note_tree(self, key: str) -> None:
        """Note that the next objects belong to the tree of files with this root."""

    def find_missing(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that have no object."""

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Return objects as they arrive; for the keys left out, `get` raises the reason."""

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Like `put` for each object."""
