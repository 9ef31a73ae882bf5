"""The first admin token of a server is in a file for its user alone, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from headgate.cli.main import run
from headgate.cli.serve import _first_token
from headgate.errors import Exists, StorageFull
from headgate.store.embedded import Store
from tests.support.disks import filled, small_disk
from tests.support.site import serving
from tests.support.stores import new_settings, new_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(f"sqlite:///{tmp_path}/catalog.db", tmp_path)


def test_token_is_written_once_to_a_file_of_mode_0600(store: Store, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        file = _first_token(store)
    finally:
        os.umask(before)
    assert file == tmp_path / ".headgate" / "admin-token"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o077 == 0
    secret = file.read_text()
    assert secret.startswith("hg_") and secret.endswith("\n") and " " not in secret
    assert [token["role"] for token in store.tokens()] == ["admin"]
    assert _first_token(store) is None
    file.unlink()
    assert _first_token(store) is None
    store.close()


def _plain(file: Path) -> None:
    file.write_text("planted")


def _link(file: Path) -> None:
    file.symlink_to(file.with_name("target"))


@pytest.mark.parametrize("plant", [_plain, _link])
def test_file_that_is_there_already_is_neither_used_nor_replaced(
    store: Store, tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    file = tmp_path / ".headgate" / "admin-token"
    file.parent.mkdir()
    plant(file)
    with pytest.raises(Exists, match="Delete it"):
        _first_token(store)
    assert store.tokens() == [] and not file.with_name("target").exists()
    file.unlink()
    assert _first_token(store) is not None
    store.close()


def test_full_disk_costs_no_token(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / ".headgate") as disk,
        Store(new_settings(f"sqlite:///{tmp_path}/catalog.db", tmp_path)) as store,
    ):
        with filled(disk), pytest.raises(StorageFull, match="admin-token"):
            _first_token(store)
        assert store.tokens() == [] and list(disk.iterdir()) == []
        assert _first_token(store) is not None


def test_server_prints_the_path_and_not_the_token(tmp_path: Path) -> None:
    assert run(["init", str(tmp_path)]) == 0
    with serving(tmp_path) as (url, token, process):
        assert token is not None
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/api/v1/tokens", headers=headers, timeout=60).status_code == 200
        form = httpx.get(f"{url}/login", timeout=60).text
        assert "to a file" in form and str(tmp_path) not in form
    assert token not in (tmp_path / "serve.log").read_text()
    assert process.stdout is not None
