"""Where in a TOML file something is said: the parser itself tells only of broken syntax."""

from __future__ import annotations

import re
import tomllib
from typing import Any

_WORD = r"(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)"
_KEY = re.compile(rf"\s*({_WORD}(?:\s*\.\s*{_WORD})*)\s*=")

Path = tuple[str, ...]


class Lines:
    """The line of each table and key of a document, by path."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        header: Path = ()
        for number, line in enumerate(text.splitlines(), start=1):
            if line.lstrip().startswith("["):
                header = _path(line.split("#", 1)[0]) or header
                self._lines.setdefault(header, number)
            elif found := _KEY.match(line):
                self._lines.setdefault((*header, *(_path(f"{found[1]} = 0") or ())), number)

    def of(self, *path: str) -> int:
        """The line of the thing, or of the nearest that holds it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return self._lines[path[:length]]
        return 1


def _path(line: str) -> Path | None:
    try:
        at: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    found: list[str] = []
    while isinstance(at, dict | list) and at:
        if isinstance(at, list):
            at = at[0]
            continue
        [name] = at
        found.append(name)
        at = at[name]
    return tuple(found)
