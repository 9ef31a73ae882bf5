"""Backup and restore as in docs/serving.md: the catalog first, then the warehouse."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from headgate.connection import open as open_store
from headgate.store.embedded import Store
from tests.support.shell import headgate_json
from tests.support.stores import content, files_branch, put
from tests.support.tables import create_tables, read_table


def _back_up(root: Path, to: Path) -> None:
    """Copy the catalog, then the warehouse, while the store is in use."""
    with (
        sqlite3.connect(root / ".headgate" / "catalog.db") as live,
        sqlite3.connect(to / "catalog.db") as copy,
    ):
        live.backup(copy)
    live.close()
    copy.close()
    shutil.copytree(root / ".headgate" / "warehouse", to / "warehouse")


def _restore(root: Path, kept: Path) -> None:
    shutil.rmtree(root / ".headgate")
    (root / ".headgate").mkdir()
    shutil.copy(kept / "catalog.db", root / ".headgate" / "catalog.db")
    shutil.copytree(kept / "warehouse", root / ".headgate" / "warehouse")


def _fill(store: Store) -> None:
    put(files_branch(store), a="1")
    create_tables(store, "master", orders=[{"id": 1}])


def test_store_restored_from_a_backup_is_sound_and_goes_on(tmp_path: Path) -> None:
    root, kept = tmp_path / "store", tmp_path / "kept"
    root.mkdir()
    kept.mkdir()
    headgate_json("init", cwd=root)
    with open_store(root) as store:
        _fill(store)
        _back_up(root, kept)
        put(store.dataset("raw.scans").branch("master"), b="lost with the disk")
    _restore(root, kept)
    assert headgate_json("doctor", "--deep", cwd=root)["ok"] is True
    with open_store(root) as store:
        master = store.dataset("raw.scans").branch("master")
        assert content(master) == {"a": "1"}
        assert read_table(store, "master", "shop.orders") == [{"id": 1}]
        put(master, c="3")
        assert content(master) == {"a": "1", "c": "3"}


def test_warehouse_copied_after_the_catalog_holds_more_than_it_names(tmp_path: Path) -> None:
    """A write between the two copies leaves files that the copied catalog does not refer to."""
    root, kept = tmp_path / "store", tmp_path / "kept"
    root.mkdir()
    kept.mkdir()
    headgate_json("init", cwd=root)
    with open_store(root) as store:
        _fill(store)
        live = sqlite3.connect(root / ".headgate" / "catalog.db")
        copy = sqlite3.connect(kept / "catalog.db")
        live.backup(copy)
        put(store.dataset("raw.scans").branch("master"), b="between")
        shutil.copytree(root / ".headgate" / "warehouse", kept / "warehouse")
        live.close()
        copy.close()
    _restore(root, kept)
    assert headgate_json("doctor", "--deep", cwd=root)["ok"] is True
