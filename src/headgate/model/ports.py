"""What Headgate needs from the outside, as Protocols; the rooms above are handed the real thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from headgate.model.ids import Instant


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One stored object, as the store lists it; the time is by the store's own clock."""

    key: str
    size: int
    modified_at: Instant


class ObjectStore(Protocol):
    """Bytes under keys, on local disk or in an S3-compatible store.

    A reader of a key finds nothing or the whole object, never a part. What a call that writes
    returned for is durable. Failures are `StorageUnavailable`; a key that would leave the
    store is `UnsafePath`.
    """

    @property
    def url(self) -> str:
        """Where the store is, without a slash at the end: `{url}/{key}` is an object's location."""
        ...

    def put(self, key: str, data: bytes) -> bool:
        """Creates the object; False, with nothing changed, if the key was taken already."""
        ...

    def put_file(self, key: str, source: Path, *, sha256: str | None = None) -> bool:
        """As `put`, streaming; with a digest given, only if that is what the file still holds."""
        ...

    def put_hashed(self, source: Path, key_of: Callable[[str], str]) -> tuple[str, int]:
        """Stores the file under the key that its SHA-256 makes, and returns that and its size.

        What is stored has this digest, whatever happens to the file meanwhile.
        """
        ...

    def replace(self, key: str, data: bytes) -> None:
        """Writes the object whether or not the key is taken; the last writer wins."""
        ...

    def get(self, key: str) -> bytes:
        """The whole object, or `ObjectNotFound`."""
        ...

    def stream(self, key: str) -> Iterator[bytes]:
        """The object in chunks, for what may not fit in memory, or `ObjectNotFound`."""
        ...

    def local_path(self, key: str) -> Path | None:
        """Where the object is, or would be, a file of this machine; None in every other store."""
        ...

    def find(self, key: str) -> ObjectInfo | None:
        """What the store knows of the object, or None."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object below the directory `prefix`, in no promised order."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Removes the objects; a key that is not there is no error."""
        ...


@runtime_checkable
class Parcels(Protocol):
    """An object store that every request is a journey to: many small objects travel together."""

    def find_missing(self, keys: Sequence[str]) -> set[str]:
        """Which of these objects are not there."""
        ...

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Those that come together, as they come; of the others `get` says what they lack."""
        ...

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """As `put` of each."""
        ...


class Outside(Protocol):
    """A system whose branches move by themselves (lakeFS, a Git ref): effects are made there.

    `target` says where, in words only the system understands. Heads are its own ids.
    """

    def find_head(self, target: Mapping[str, str]) -> str | None:
        """Where the target stands now; None where it is gone."""
        ...

    def steps_past(self, target: Mapping[str, str], expected: str) -> int | None:
        """How many steps its head is past `expected`; None where that is not in its history."""
        ...

    def undo(self, target: Mapping[str, str], *, effect: str, back_to: str) -> bool:
        """Moves the head back only if it still is exactly the effect; False otherwise."""
        ...

    def find_mark(self, target: Mapping[str, str]) -> str | None:
        """Which execution the head says it was made by; None where it says nothing."""
        ...
