"""Server-sent events, as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from headgate.handles.nouns import Json


def events(chunks: Iterable[bytes]) -> Iterator[tuple[str, Json]]:
    """Name and document of each event; comments, which only keep the line open, are passed over."""
    name, data = "message", ""
    for line in _lines(chunks):
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data += line.removeprefix("data:").strip()
        elif not line and data:
            yield name, json.loads(data)
            name, data = "message", ""


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in whole)
