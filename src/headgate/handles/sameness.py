"""What makes a repeated load the same request: what it names, and what was in that."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.errors import InvalidSource
from headgate.model.names import DatasetName
from headgate.mutations.sources import STDIN, Piped, files_of

Given = Mapping[DatasetName, Sequence[Any]]


def with_stdin_read(given: Given) -> dict[DatasetName, list[Any]]:
    """The same with what comes through stdin, which can be read only once."""
    return {name: [_read(place) for place in places] for name, places in given.items()}


def names_of(given: Given) -> dict[str, list[str]]:
    """What a load says: names of files, and digests of what has none."""
    return {str(name): [_name(place) for place in places] for name, places in given.items()}


def contents_of(given: Given) -> str | None:
    """A digest of what the files hold; None where one is gone, or is a pipe."""
    found = hashlib.sha256()
    for _, places in sorted(given.items(), key=lambda item: str(item[0])):
        for place in places:
            if not isinstance(place, str | Path):
                continue
            if str(place) == STDIN:
                return None
            try:
                for file in files_of(Path(place)):
                    with file.open("rb") as opened:
                        found.update(hashlib.file_digest(opened, "sha256").digest())
            except (OSError, InvalidSource):
                # Told by whoever reads it; a load that is done already needs its files no more.
                return None
    return found.hexdigest()


def _read(place: Any) -> Any:
    return Piped(sys.stdin.buffer.read()) if str(place) == STDIN else place


def _name(place: Any) -> str:
    if isinstance(place, str | Path):
        return str(place)
    if isinstance(place, bytes):
        return hashlib.sha256(place).hexdigest()
    digest = hashlib.sha256(str(place.schema).encode())
    for column in place.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                digest.update(buffer or b"-")
    return digest.hexdigest()
