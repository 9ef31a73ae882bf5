"""Backup, restore-check and restore as in docs/serving.md, on both databases and warehouses."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import text

from headgate.catalog import garbage_collection
from headgate.catalog.database import Database
from headgate.errors import (
    BackupIncomplete,
    BackupRefused,
    CatalogBroken,
    CleanupHeld,
    Invalid,
    WarehouseOccupied,
)
from headgate.settings import Settings
from headgate.storage.local import LocalStore
from headgate.store.embedded import Store
from headgate.upkeep.backup import back_up, check_backup, read_manifest, restore
from headgate.upkeep.doctor import examine
from tests.support.cli import Cli, new_store_cli
from tests.support.cli import put as put_file
from tests.support.postgres import PostgresServer
from tests.support.s3 import running_s3
from tests.support.stores import DATASET, content, files_branch, new_settings, new_store, put
from tests.support.tables import create_tables, read_table
from tests.support.upkeep import interrupted, let_days_pass, stored_keys, tidy, tidy_later


@dataclass(frozen=True, kw_only=True)
class Place:
    """Settings of a store, and a function that loses all of it, as a fire does."""

    settings: Settings
    lose: Callable[[], None]


@pytest.fixture(params=["sqlite and directory", "postgresql and bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    root = tmp_path / "store"
    root.mkdir()
    if request.param == "sqlite and directory":
        settings = new_settings(f"sqlite:///{root}/catalog.db", root)
        yield Place(settings=settings, lose=lambda: shutil.rmtree(root))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database()
    with running_s3(tmp_path) as bucket:
        settings = replace(
            new_settings(server.database_url(name), root),
            warehouse=f"s3://{bucket.create_bucket()}/lake",
            environ=bucket.options,
        )

        def lose() -> None:
            with Store(settings, recover_first=False) as store:
                store.objects.delete([info.key for info in store.objects.list()])
            database = Database(settings.catalog)
            with database.raw() as connection:
                connection.execute(text("DROP SCHEMA public CASCADE"))
                connection.execute(text("CREATE SCHEMA public"))
            database.close()

        yield Place(settings=settings, lose=lose)
    server.drop_database(name)


def _fill(store: Store) -> None:
    master = files_branch(store)
    put(master, a="1")
    put(master, a="2", b="3")
    master.dataset.branch("feature").create(parent="master")
    create_tables(store, "master", orders=[{"id": 1}])


def _findings(directory: Path) -> dict[str, str]:
    report = check_backup(directory)
    return {
        check.name: "\n".join(f"{f.where}: {f.what}" for f in check.findings)
        for check in report.checks
        if not check.ok
    }


# --- the whole way ---------------------------------------------------------------------------


def test_store_restored_from_a_backup_goes_on_where_it_was(place: Place, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Store(place.settings) as store:
        _fill(store)
        opened = store.dataset(DATASET).branch("feature").transaction()
        opened.write("open", b"not committed yet")
        made = back_up(store.database, store.objects, kept)
        assert made["findings"] == [] and made["copied"] == made["objects"] > 5
        put(store.dataset(DATASET).branch("master"), c="after the backup")
    place.lose()
    # Without the store: a backup is tried where it is.
    assert _findings(kept) == {}
    assert restore(place.settings, kept)["cleanup_held"] is False
    assert examine(place.settings, deep=True).ok
    with Store(place.settings) as store:
        master = store.dataset(DATASET).branch("master")
        assert content(master) == {"a": "2", "b": "3"}
        assert read_table(store, "master", "shop.orders") == [{"id": 1}]
        assert store.dataset(DATASET).branch("feature").load().head == opened.id
        put(master, c="4")
        # Nothing was there, so no other catalog can need what this one deletes.
        tidy(store)
        tidy_later(store, 40)
        assert content(master) == {"a": "2", "b": "3", "c": "4"}


def test_repeated_backup_copies_what_is_new(place: Place, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Store(place.settings) as store:
        _fill(store)
        first = back_up(store.database, store.objects, kept)
        assert back_up(store.database, store.objects, kept)["copied"] == 0
        put(store.dataset(DATASET).branch("master"), c="new")
        again = back_up(store.database, store.objects, kept)
        # The content, and the leaf and the index of the tree.
        assert again["copied"] == 3 and again["objects"] == first["objects"] + 3
        assert again["publication"] == first["publication"] + 1
    assert _findings(kept) == {}
    assert len(list(kept.glob("catalog-*"))) == 1


def test_cleanup_beside_a_backup_deletes_nothing_that_it_has_yet_to_copy(
    place: Place, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    with Store(place.settings) as store:
        _fill(store)
        # History that is about to be swept when the backup starts, and history that is condemned
        # by the cleanup beside it.
        tidy_later(store, 40)
        put(store.dataset(DATASET).branch("master"), a="5")
        before = stored_keys(store)

        def clean() -> None:
            cleaned = tidy_later(store, 90)
            assert cleaned.deleted == 0
            assert any("a backup is running" in kept.why for kept in cleaned.kept)

        with _Listing(store, clean) as objects:
            back_up(store.database, objects, kept)
        assert stored_keys(store) == before
        assert tidy_later(store, 92).deleted > 0
    assert _findings(kept) == {}


class _Listing:
    """Objects of a store that call a function before they are listed for the first time."""

    def __init__(self, store: Store, action: Callable[[], None]) -> None:
        self._store, self._actions = store, [action]

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._actions == []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.objects, name)

    def list(self, prefix: str = "") -> Any:
        while self._actions and not prefix:
            self._actions.pop()()
        return self._store.objects.list(prefix)


# --- one database is enough --------------------------------------------------------------------


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_sqlite_url, tmp_path) as store:
        _fill(store)
        yield store


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def _back_up(store: Store, kept: Path) -> dict[str, Any]:
    return back_up(store.database, store.objects, kept)


class _Stopped(Exception):
    """Ends a backup in the middle."""


def _stop_at_third(store: Store) -> LocalStore:
    calls = iter(range(2))

    class Stopping(LocalStore):
        def stream(self, key: str) -> Iterator[bytes]:
            if next(calls, None) is None:
                raise _Stopped
            return super().stream(key)

    return Stopping(Path(store.settings.warehouse))


def test_interrupted_backup_is_recognised_and_completed(store: Store, kept: Path) -> None:
    with pytest.raises(_Stopped):
        back_up(store.database, _stop_at_third(store), kept)
    assert "not complete" in _findings(kept)["backup"]
    with pytest.raises(BackupIncomplete):
        restore(store.settings, kept)
    made = _back_up(store, kept)
    assert made["findings"] == [] and _findings(kept) == {}


def test_interrupted_repetition_leaves_the_backup_before(store: Store, kept: Path) -> None:
    first = _back_up(store, kept)
    put(store.dataset(DATASET).branch("master"), c="p", d="q", e="r")
    with pytest.raises(_Stopped):
        back_up(store.database, _stop_at_third(store), kept)
    assert read_manifest(kept).publication == first["publication"]
    assert _findings(kept) == {}
    _back_up(store, kept)
    assert _findings(kept) == {} and len(list(kept.glob("catalog-*"))) == 1


def test_hold_of_a_killed_backup_ends(store: Store) -> None:
    garbage_collection.hold_sweeps(store.database)
    assert store.database.read(garbage_collection.is_held)
    late = "UPDATE store SET value = CAST(value AS INTEGER) - 16 * 60 * 1000000 "
    own = "WHERE \"key\" LIKE 'backup:%'"
    store.database.write(lambda c: c.execute(text(late + own)))
    assert not store.database.read(garbage_collection.is_held)


def test_restore_check_finds_each_damage(store: Store, kept: Path) -> None:
    _back_up(store, kept)
    manifest = read_manifest(kept)
    parquet = next(key for key in manifest.objects if key.endswith(".parquet"))
    for key in (parquet, *[key for key in manifest.objects if key.startswith("objects/")][:2]):
        path = kept / "warehouse" / key
        held = path.read_bytes()
        path.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
        assert f"warehouse/{key}: it is damaged: it has the digest" in _findings(kept)["backup"]
        path.write_bytes(held[:-1])
        assert "bytes instead of" in _findings(kept)["backup"]
        path.unlink()
        assert f"warehouse/{key}: it does not exist" in _findings(kept)["backup"]
        path.write_bytes(held)
    assert _findings(kept) == {}
    catalog = next(kept.glob("catalog-*"))
    held = catalog.read_bytes()
    catalog.write_bytes(held[:5000] + b"\xff" + held[5001:])
    assert "its digest differs" in _findings(kept)["catalog"]
    catalog.write_bytes(held)
    # A manifest that lacks an object which the catalog names.
    lacking = {key: entry for key, entry in manifest.objects.items() if key != parquet}
    document = orjson.loads((kept / "backup.json").read_bytes()) | {"objects": lacking}
    (kept / "backup.json").write_bytes(orjson.dumps(document))
    assert parquet in _findings(kept)["names"]


def test_file_that_the_store_has_lost_or_damaged_is_reported_and_the_rest_is_copied(
    store: Store, kept: Path
) -> None:
    keys = sorted(key for key in stored_keys(store) if key.startswith("objects/"))
    contents = [key for key in keys if store.objects.get(key) in (b"1", b"3")]
    root = Path(store.settings.warehouse)
    (root / contents[0]).unlink()
    (root / contents[1]).write_bytes(b"?")
    made = _back_up(store, kept)
    assert sorted(finding["where"] for finding in made["findings"]) == contents
    assert all("doctor" in finding["remedy"] for finding in made["findings"])
    assert all(key in _findings(kept)["backup"] for key in contents)
    assert made["objects"] == len(stored_keys(store)) - 1


def test_warehouse_with_unreadable_metadata_is_copied_as_a_whole(store: Store, kept: Path) -> None:
    root = Path(store.settings.warehouse)
    metadata = max(key for key in stored_keys(store) if key.endswith("metadata.json"))
    (root / metadata).write_bytes(b"{")
    made = _back_up(store, kept)
    assert made["objects"] == len(stored_keys(store))
    [finding] = made["findings"]
    assert finding["where"] == "the warehouse" and metadata in finding["what"]


# --- restoring over a store ----------------------------------------------------------------------


def _lose_catalog(settings: Settings) -> None:
    for path in Path(settings.root).glob("made.db*"):
        path.unlink()


def test_store_restored_over_its_warehouse_deletes_nothing_until_confirmed(
    store: Store, kept: Path, tmp_path: Path
) -> None:
    settings = store.settings
    _back_up(store, kept)
    put(store.dataset(DATASET).branch("master"), c="newer")
    copy = replace(settings, catalog=f"sqlite:///{tmp_path}/newer.db")
    tidy(store)
    store.close()
    shutil.copy(tmp_path / "made.db", tmp_path / "newer.db")
    _lose_catalog(settings)
    done = restore(settings, kept)
    assert done["cleanup_held"] is True and done["copied"] == 0
    with Store(settings) as restored:
        let_days_pass(restored, 40)
        with pytest.raises(CleanupHeld):
            tidy(restored)
    # The newer catalog is still the one that the marker knows.
    with Store(copy) as newer:
        tidy(newer)
        assert content(newer.dataset(DATASET).branch("master"))["c"] == "newer"
    with Store(settings) as restored:
        restored.clean_up(older_than_seconds=7 * 86400, confirm_warehouse=True)
    with Store(copy) as newer, pytest.raises(CleanupHeld):
        tidy(newer)


def test_restore_puts_back_only_what_is_missing_or_cut_short(store: Store, kept: Path) -> None:
    _back_up(store, kept)
    keys = sorted(key for key in stored_keys(store) if key.startswith("objects/"))
    root = Path(store.settings.warehouse)
    (root / keys[0]).unlink()
    (root / keys[1]).write_bytes(b"")
    store.close()
    _lose_catalog(store.settings)
    assert restore(store.settings, kept)["copied"] == 2
    checks = {check.name: check.ok for check in examine(store.settings, deep=True).checks}
    assert checks["objects"] and checks["tables"] and not checks["storage"]


def test_restore_refuses_an_existing_catalog_another_place_and_another_store(
    store: Store, kept: Path, tmp_path: Path
) -> None:
    _back_up(store, kept)
    with pytest.raises(CatalogBroken, match="this one exists"):
        restore(store.settings, kept)
    new = f"sqlite:///{tmp_path}/new.db"
    (tmp_path / "new.db-wal").write_bytes(b"the log of a catalog that was moved away")
    with pytest.raises(CatalogBroken, match="with its `-wal` file"):
        restore(replace(store.settings, catalog=new), kept)
    (tmp_path / "new.db-wal").unlink()
    (tmp_path / "new.db").write_text("not a database")
    with pytest.raises(CatalogBroken, match="this one exists"):
        restore(replace(store.settings, catalog=new), kept)
    (tmp_path / "new.db").write_bytes(b"")
    moved = replace(store.settings, catalog=new, warehouse=str(tmp_path / "elsewhere"))
    with pytest.raises(Invalid, match="absolute paths"):
        restore(moved, kept)
    with new_store(f"sqlite:///{tmp_path}/b.db", tmp_path / "b") as other:
        put(files_branch(other), a="1")
        other_kept = tmp_path / "other kept"
        _back_up(other, other_kept)
    # Without tables a backup can be restored anywhere, but not over another store.
    with pytest.raises(WarehouseOccupied):
        restore(replace(store.settings, catalog=new), other_kept)
    assert restore(moved, other_kept)["copied"] == 3
    with Store(moved) as restored:
        assert content(restored.dataset(DATASET).branch("master")) == {"a": "1"}


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    cli = new_store_cli(tmp_path, monkeypatch, capsys)
    put_file(cli, "a", "1")
    return cli


def test_backup_and_restore_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    assert cli.json("backup", "kept")["copied"] == 3
    said = cli.ok("backup", "kept")
    assert "3 files" in said.err and "of which 0 (0 B) are new" in said.err
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert "ok   backup" in cli.ok("restore-check", "kept").out
    shutil.rmtree(tmp_path / ".headgate")
    # A command in between says what to do, and leaves nothing that is in the way.
    assert "headgate restore" in cli("dataset", "list").err
    assert "headgate restore" in cli("doctor").out
    assert not (tmp_path / ".headgate/catalog.db").exists()
    assert "3 files written" in cli.ok("restore", "kept").err
    assert cli.json("doctor", "--deep")["ok"] is True
    cli.ok("recover")
    cli.ok("cleanup")
    assert [e["path"] for e in cli.json("files", "ls", "raw.scans", "-b", "master")] == ["a"]
    next((tmp_path / "kept/warehouse/objects").rglob("*/*/*")).unlink()
    assert cli.json("restore-check", "kept", code=1)["ok"] is False


def test_backup_says_why_a_directory_does_not_do(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.file("used/notes.txt")
    cli.file("plain")
    for wrong in ("used", "plain", ".headgate/warehouse/kept", ".headgate", "."):
        assert cli.error("backup", wrong, code=4) == "backup_refused"
    assert cli.error("restore-check", "used", code=2) == "invalid"
    assert cli.error("restore", "nowhere", code=2) == "invalid"
    cli.ok("backup", "kept")
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    assert cli.error("backup", "kept", code=2) == "invalid"
    assert "the server's machine" in cli("restore", "kept").err
    monkeypatch.delenv("HEADGATE_URL")
    cli.ok("init", "second")
    monkeypatch.chdir(tmp_path / "second")
    assert cli.error("backup", "../kept", code=4) == "backup_refused"
    assert "a backup of store" in cli("backup", "../kept").err


def test_backup_of_an_older_catalog_does_not_replace_a_newer_one(store: Store, kept: Path) -> None:
    _back_up(store, kept)
    document = orjson.loads((kept / "backup.json").read_bytes()) | {"publication": 999}
    (kept / "backup.json").write_bytes(orjson.dumps(document))
    with pytest.raises(BackupRefused, match="at publication 999"):
        _back_up(store, kept)


def test_second_backup_to_a_directory_waits_for_nobody(store: Store, kept: Path) -> None:
    def second() -> None:
        with pytest.raises(BackupRefused, match="another backup"):
            _back_up(store, kept)

    back_up(store.database, interrupted(store, second), kept)
    assert _findings(kept) == {}


def test_backup_to_a_full_disk_says_so_and_is_completed_later(store: Store, kept: Path) -> None:
    put(store.dataset(DATASET).branch("master"), large="x" * 5_000_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file of this process may grow beyond this: the error of a full disk, without a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, hard))
    try:
        with pytest.raises(BackupIncomplete, match=r"File too large.*Run `headgate backup` again"):
            _back_up(store, kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "not complete" in _findings(kept)["backup"]
    assert not store.database.read(garbage_collection.is_held)
    _back_up(store, kept)
    assert _findings(kept) == {}
