"""An attempt's directory on disks of every kind."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from headgate.errors import Exists
from headgate.tasks.attempt_directory import attempt_directory, remove_directory


def test_directory_of_an_attempt_is_made_where_the_disk_knows_no_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(descriptor: int, request: int, argument: bytes) -> bytes:
        asked.append(request)
        raise OSError(errno.ENOTTY, "no such thing")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    with attempt_directory(tmp_path, "one", {"task": "t"}) as workspace:
        assert workspace.is_dir()
    assert len(asked) == 1


def test_directory_of_an_attempt_is_never_shared(tmp_path: Path) -> None:
    for _ in range(2):
        with attempt_directory(tmp_path, "one", {}) as workspace:
            with pytest.raises(Exists), attempt_directory(tmp_path, "one", {}):
                pass
            remove_directory(workspace.parent)
        assert not workspace.parent.exists()
