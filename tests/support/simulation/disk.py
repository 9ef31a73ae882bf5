"""A disk that forgets, when the machine crashes, what was not synced.

Each process of the simulation records in a ledger what it has synced: the inode of a file, and the
names in a directory. After a crash, other files can be cut off, other names can be gone, and names
that were removed can be there again.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_INCOMING = ".incoming"


class Disk:
    """The warehouse of a simulated machine, and the ledger of what is durable in it."""

    def __init__(self, warehouse: Path, ledger: Path) -> None:
        self.warehouse = warehouse
        self._synced = ledger / "synced"
        self._names = ledger / "names"
        self._removed = ledger / "removed"
        self._ledger = ledger

    def settle(self) -> None:
        """Record that all there is now is durable."""
        shutil.rmtree(self._ledger, ignore_errors=True)
        for directory in (self._synced, self._names, self._removed):
            directory.mkdir(parents=True)
        for path in (self.warehouse, *self.warehouse.rglob("*")):
            if path.is_dir():
                self.sync_names(str(path))
            else:
                self.sync_content(str(path))

    # --- in a process -----------------------------------------------------------------------

    def holds(self, path: str) -> bool:
        return path.startswith(f"{self.warehouse}/") or path == str(self.warehouse)

    def sync_content(self, path: str) -> None:
        """Record that the content of a file is durable, whatever its names."""
        (self._synced / str(Path(path).stat().st_ino)).touch()

    def sync_names(self, directory: str) -> None:
        """Record that the names in a directory are durable."""
        with os.scandir(directory) as entries:
            found = {entry.name: entry.inode() for entry in entries}
        (self._names / self._key(directory)).write_text(json.dumps(found))

    def keep_removed(self, path: str) -> None:
        """Keep a file whose name is about to be removed: until the next sync it may come back."""
        status = Path(path).lstat()
        kept = self._removed / str(status.st_ino)
        if f"/{_INCOMING}/" in path:
            if status.st_nlink == 1:
                (self._synced / str(status.st_ino)).unlink(missing_ok=True)
        elif not kept.exists():
            os.link(path, kept)

    # --- after a crash ----------------------------------------------------------------------

    def crash(self, seed: int) -> None:
        """Forget some of what is not durable; no process of the simulation is alive."""
        self._forget(self.warehouse, random.Random(seed))
        self.settle()

    def _forget(self, directory: Path, chance: random.Random) -> None:
        ledger = self._names / self._key(str(directory))
        durable = json.loads(ledger.read_text()) if ledger.exists() else {}
        present = {entry.name: entry.inode() for entry in os.scandir(directory)}
        for name in sorted(present.keys() | durable.keys()):
            path = directory / name
            if name in present and durable.get(name) != present[name] and chance.random() < 0.5:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif name not in present and chance.random() < 0.5:
                kept = self._removed / str(durable[name])
                if kept.exists():
                    os.link(kept, path)
            if path.is_dir():
                self._forget(path, chance)
            elif path.exists() and not (self._synced / str(path.stat().st_ino)).exists():
                self._tear(path, chance)

    def _tear(self, path: Path, chance: random.Random) -> None:
        # A copy: another name of the same inode is torn by itself.
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: chance.choice((0, len(content) // 2, len(content)))])

    def _key(self, directory: str) -> str:
        return f"{os.path.relpath(directory, self.warehouse).replace('/', '%')}.json"


def install(disk: Disk, clock: Callable[[], int], boundary: Callable[[str], None]) -> DiskFaults:
    """Let the file system calls of this process go through the disk."""
    faults = DiskFaults()
    calls: dict[str, Any] = {
        name: getattr(os, name) for name in ("open", "fsync", "link", "mkdir", "unlink", "replace")
    }

    def open_file(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if faults.is_full and flags & os.O_CREAT and disk.holds(os.fspath(path)):
            raise OSError(errno.ENOSPC, "No space left on device", os.fspath(path))
        descriptor: int = calls["open"](path, flags, *more, **named)
        return descriptor

    def fsync(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not disk.holds(path):
            return
        if Path(path).is_dir():
            disk.sync_names(path)
        else:
            # Objects have the time of the simulation.
            os.utime(path, ns=(clock() * 1000, clock() * 1000))
            disk.sync_content(path)

    def link(source: Any, target: Any) -> None:
        calls["link"](source, target)
        if disk.holds(os.fspath(target)):
            boundary("disk.linked")

    def mkdir(path: Any, *more: Any, **named: Any) -> None:
        calls["mkdir"](path, *more, **named)
        if disk.holds(os.fspath(path)):
            boundary("disk.directory_made")

    def unlink(path: Any, *more: Any, **named: Any) -> None:
        place = os.fspath(path)
        is_object = disk.holds(place) and f"/{_INCOMING}/" not in place
        if is_object:
            boundary("disk.deleting")
        if disk.holds(place) and os.path.lexists(place):
            disk.keep_removed(place)
        calls["unlink"](path, *more, **named)

    def replace(source: Any, target: Any) -> None:
        if disk.holds(os.fspath(target)) and os.path.lexists(target):
            disk.keep_removed(os.fspath(target))
        calls["replace"](source, target)

    os.open, os.fsync, os.link = open_file, fsync, link  # type: ignore[assignment]
    os.mkdir, os.unlink, os.replace = mkdir, unlink, replace  # type: ignore[assignment]
    return faults


class DiskFaults:
    """State of the disk as this process meets it."""

    is_full = False
