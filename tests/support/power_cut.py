"""A disk that loses power: an ext4 image on a loop device, copied at the moment of the cut.

The image file holds what the file system has written to its device. Data that is only in the
page cache is not in it, as after a power failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SIZE = "256M"
# The file system must not commit by itself between a write and the cut.
_OPTIONS = "loop,commit=300"


class Disk:
    """A mounted file system; `cut` and `restore` together are a power failure and a reboot."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "disk"
        self._image = directory / "disk.img"
        self._copy = directory / "cut.img"
        self._mounted: Path | None = None

    def mount(self) -> None:
        """Make an empty file system and mount it; skip the test where that is not possible."""
        if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
            pytest.skip("a power cut needs root, mkfs.ext4 and mount")
        self.root.mkdir()
        subprocess.run(["truncate", "-s", _SIZE, self._image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        if (failed := self._mount(self._image)) is not None:
            pytest.skip(f"a power cut needs a loop device: {failed}")
        # A new file system writes its own structures late.
        self.flush()

    def flush(self) -> None:
        """Write all that is waiting; of this file system only, as other tests run beside this."""
        subprocess.run(["sync", "-f", self.root], check=True)

    def cut(self) -> None:
        """Keep what is on the device at this moment."""
        subprocess.run(["cp", "--sparse=always", self._image, self._copy], check=True)

    def restore(self) -> None:
        """Mount what was on the device at the cut; nothing may be open on the disk."""
        self.unmount()
        assert self._mount(self._copy) is None

    def unmount(self) -> None:
        if self._mounted is not None:
            subprocess.run(["umount", self.root], check=True)
            self._mounted = None

    def _mount(self, image: Path) -> str | None:
        """Mount an image; return the reason if it cannot be mounted."""
        command = ["mount", "-o", _OPTIONS, str(image), str(self.root)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return str(done.stderr).strip()
        self._mounted = image
        return None
