"""Disks that are full or can only be read: a small disk in memory, and read-only mounts."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, *, size: str = "8m") -> Iterator[Path]:
    """Mount an empty disk of a few megabytes; skip the test where that is not possible."""
    with _mounted("-t", "tmpfs", "-o", f"size={size}", "tmpfs", at=at) as disk:
        yield disk


@contextmanager
def mounted_read_only(directory: Path, *, at: Path) -> Iterator[Path]:
    """Mount a directory a second time, for reading only; writes to the directory itself go on."""
    with _mounted("--bind", str(directory), at=at) as mount:
        subprocess.run(["mount", "-o", "remount,ro,bind", mount], check=True)
        yield mount


@contextmanager
def _mounted(*how: str, at: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("mount", "umount"))):
        pytest.skip("mounting a disk needs root, mount and umount")
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *how, at], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        # Lazily: the working directory of the test may be on it.
        subprocess.run(["umount", "--lazy", at], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Fill a disk to the last byte, for the length of the block."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        ballast.unlink()
