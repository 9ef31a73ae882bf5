"""The files of a files dataset as a transform sees them: a directory that is the job's own."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from headgate.errors import Invalid
from headgate.model.names import check_file_path
from headgate.transforms import FileStatus


class DirectoryFiles:
    """Files below one directory, read-only unless there is somebody to tell of a write."""

    def __init__(self, root: Path, on_write: Callable[[], None] | None = None) -> None:
        self._root = root
        self._on_write = on_write

    @property
    def hadoop_path(self) -> str:
        return self._root.as_uri()

    def ls(
        self, glob: str | None = None, regex: str = ".*", show_hidden: bool = False
    ) -> Iterator[FileStatus]:
        """The files in order of their paths; hidden ones begin with a dot or an underscore."""
        for path in sorted(path for path in self._root.rglob("*") if path.is_file()):
            name = path.relative_to(self._root).as_posix()
            if not show_hidden and path.name.startswith((".", "_")):
                continue
            if _matches(name, glob) and re.fullmatch(regex, name):
                stat = path.stat()
                yield FileStatus(
                    path=name, size=stat.st_size, modified=stat.st_mtime_ns // 1_000_000
                )

    def open(self, path: str, mode: str = "r", **kwargs: Any) -> IO[Any]:
        file = self._root / check_file_path(path)
        if set(mode) & set("wax+"):
            if self._on_write is None:
                raise Invalid(f"{path} is a file of an input: it can be read, not written.")
            file.parent.mkdir(parents=True, exist_ok=True)
            self._on_write()
        return file.open(mode, **kwargs)


def _matches(name: str, glob: str | None) -> bool:
    """Whether a path matches; `*` crosses folders, and `**/` stands for none of them too."""
    if glob is None:
        return True
    return any(fnmatch.fnmatchcase(name, form) for form in {glob, glob.replace("**/", "")})
