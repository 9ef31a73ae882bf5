"""Failures of a SQLite catalog: each raises a clear error, and loses nothing."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from headgate.catalog.database import RESERVED, Database, check_catalog_path, now
from headgate.errors import CatalogBroken, CatalogUnavailable, HeadgateError, Invalid
from headgate.model.failpoints import Failpoint
from headgate.settings import Settings
from headgate.store.embedded import Store
from headgate.testing.failpoints import armed
from tests.support.oracle import assert_store_sound
from tests.support.processes import run
from tests.support.stores import DATASET, content, everything, files_branch, new_settings, put

_NOBODY = 65534


def _filled(sqlite_url: str, root: Path) -> Settings:
    settings = new_settings(sqlite_url, root)
    with Store(settings) as store:
        put(files_branch(store), a="1")
    return settings


def test_full_disk_is_named_and_nothing_is_lost(sqlite_url: str, tmp_path: Path) -> None:
    settings = _filled(sqlite_url, tmp_path)
    with Store(settings) as store:
        _allow_no_more_pages(store)
        master = store.dataset(DATASET).branch("master")
        shown = content(master)
        with pytest.raises(CatalogBroken, match="full") as refused:
            for n in range(1000):
                put(master, **{f"f{n}": "x" * 100})
                shown = content(master)
        assert "Free some space" in refused.value.message
        assert content(master) == shown
    with Store(settings) as store:
        assert content(store.dataset(DATASET).branch("master")) == shown
        assert_store_sound(store)


def _allow_no_more_pages(store: Store) -> None:
    engine = store.database._connected()
    engine.dispose()

    @event.listens_for(engine, "connect")
    def limit(connection: Any, _record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")


def test_process_that_uses_all_its_connections_is_told_so(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(_filled(sqlite_url, tmp_path)) as store:
        monkeypatch.setattr(store.database._connected().pool, "_timeout", 0.05)
        with ExitStack() as held:
            for _ in range(32):
                held.enter_context(store.database.raw())
            with pytest.raises(CatalogUnavailable, match="all 32 connections") as refused:
                store.dataset(DATASET).branch("master").load()
            assert refused.value.retryable
        assert content(store.dataset(DATASET).branch("master")) == {"a": "1"}


def test_operation_that_others_wait_for_has_a_connection_when_all_others_are_in_use(
    made_catalog_url: str,
) -> None:
    database = Database(made_catalog_url)
    with closing(database), ExitStack() as held:
        for _ in range(32):
            held.enter_context(database.raw())
        before = RESERVED.set(True)
        try:
            assert database.read(now) <= database.write(now)
        finally:
            RESERVED.reset(before)


@pytest.mark.parametrize("verb", ["put", "open"])
def test_disk_that_fails_at_commit_leaves_the_state_before(
    sqlite_url: str, tmp_path: Path, verb: str
) -> None:
    settings = _filled(sqlite_url, tmp_path)
    assert run(_work_on_a_small_disk, settings, verb, tmp_path / "said") == 0
    said = (tmp_path / "said").read_text()
    assert said.startswith("CatalogBroken"), said
    with Store(settings) as store:
        master = store.dataset(DATASET).branch("master")
        assert (content(master), master.load().is_open) == ({"a": "1"}, False)
        assert_store_sound(store)


def _work_on_a_small_disk(settings: Settings, verb: str, said: Path) -> None:
    """Limit the size of files just before COMMIT, so that no file can grow."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Store(settings) as store:
        master = store.dataset(DATASET).branch("master")

        def shrink(point: Failpoint) -> None:
            if point in (Failpoint.PUBLISH_APPLIED, Failpoint.OPEN_APPLIED):
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

        try:
            with armed(shrink):
                put(master, b="2") if verb == "put" else master.transaction()
            outcome = "nothing failed"
        except HeadgateError as error:
            outcome = f"{type(error).__name__}: {error}"
        said.write_text(outcome)


@pytest.mark.parametrize("keep", [0, 50, 1000, 0.3, 0.6, 0.9])
def test_truncated_file_is_refused_with_its_name(
    sqlite_url: str, tmp_path: Path, keep: float
) -> None:
    settings = _filled(sqlite_url, tmp_path)
    file = tmp_path / "catalog.db"
    size = file.stat().st_size
    with file.open("r+b") as cut:
        cut.truncate(int(keep if keep >= 1 or keep == 0 else size * keep))
    with pytest.raises(CatalogBroken) as refused, Store(settings) as store:
        everything(store)
    assert "catalog.db" in refused.value.message


@pytest.mark.parametrize(
    "bytes", [b"not a database at all" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
def test_file_that_is_something_else_is_refused(
    sqlite_url: str, tmp_path: Path, bytes: bytes
) -> None:
    settings = _filled(sqlite_url, tmp_path)
    (tmp_path / "catalog.db").write_bytes(bytes)
    with pytest.raises(CatalogBroken):
        Store(settings)
    assert (tmp_path / "catalog.db").read_bytes() == bytes


def test_missing_directory_is_named(tmp_path: Path) -> None:
    settings = Settings(
        root=tmp_path,
        catalog=f"sqlite:///{tmp_path / 'no' / 'such' / 'catalog.db'}",
        warehouse=str(tmp_path / "w"),
    )
    with pytest.raises(CatalogBroken, match="directory"):
        Store(settings)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every account may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="headgate-trouble-"))
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


def test_read_only_directory_is_refused_with_a_remedy(open_directory: Path) -> None:
    settings = _filled(f"sqlite:///{open_directory / 'catalog.db'}", open_directory)
    said = Path(tempfile.mkdtemp(dir=open_directory)) / "said"
    said.parent.chmod(0o777)
    for file in open_directory.glob("catalog.db*"):
        file.chmod(0o444)
    for directory in (open_directory, *(d for d in open_directory.rglob("*") if d.is_dir())):
        if directory != said.parent:
            directory.chmod(0o555)
    for file in (open_directory / "warehouse").rglob("*.json"):
        file.chmod(0o444)
    assert run(_open_as_somebody, settings, said) == 0
    assert said.read_text().startswith("CatalogReadOnly")
    assert "writable" in said.read_text()


def _open_as_somebody(settings: Settings, said: Path) -> None:
    """Open the store without privileges: root, which may write everywhere, drops them first."""
    if os.getuid() == 0:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    try:
        with Store(settings) as store:
            files_branch(store, "raw.more")
        outcome = "nothing was refused"
    except HeadgateError as error:
        outcome = f"{type(error).__name__}: {error}"
    said.write_text(outcome)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_network_file_system_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:50 / {tmp_path}/net rw,relatime shared:1 - {kind} server:/share rw\n"
        f"3 2 8:2 / {tmp_path}/net/local rw - ext4 /dev/sdb1 rw\n"
    )
    with pytest.raises(CatalogBroken, match=kind):
        check_catalog_path(str(tmp_path / "net" / "catalog.db"), mounts)
    check_catalog_path(str(tmp_path / "net" / "local" / "catalog.db"), mounts)
    check_catalog_path(str(tmp_path / "catalog.db"), mounts)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_catalog_in_memory_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(CatalogBroken, match="memory"):
        Store(Settings(root=tmp_path, catalog=url, warehouse=str(tmp_path)))


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://x/y"])
def test_catalog_url_of_no_known_kind_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(Invalid):
        Store(Settings(root=tmp_path, catalog=url, warehouse=str(tmp_path)))
