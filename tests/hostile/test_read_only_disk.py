"""A store on a disk that can only be read: it is read truly, and nothing is written."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from headgate.catalog.database import Database
from headgate.catalog.log import list_publications
from headgate.catalog.migrate import NEWEST
from headgate.errors import CatalogBroken, CatalogReadOnly, HeadgateError, StoreTooOld
from headgate.settings import Settings, load_settings
from headgate.store.embedded import Store
from tests.support.cli import Cli, new_store_cli, put
from tests.support.disks import mounted_read_only
from tests.support.processes import run
from tests.support.rows import GRAPH, insert_people
from tests.support.site import serving
from tests.support.stores import content, expire_leases, files_branch, new_settings
from tests.support.stores import put as put_files

_NOBODY = 65534


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A store with files, a table and two branches."""
    (tmp_path / "store").mkdir()
    made = new_store_cli(tmp_path / "store", monkeypatch, capsys)
    put(made, "first")
    made.ok("branch", "create", "raw.scans", "other", "--from", "master")
    put(made, "second")
    (tmp_path / "schema.toml").write_text(GRAPH)
    made.ok("schema", "apply", str(tmp_path / "schema.toml"), "-b", "master")
    made.ok("mutate", "-b", "master", insert_people("a", "b"), "--idempotency-key", "k1")
    return made


@contextmanager
def _read_only(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store on a read-only mount, at the same path: tables have absolute locations."""
    with mounted_read_only(cli.directory, at=cli.directory) as mount:
        monkeypatch.chdir(mount)
        yield mount
        monkeypatch.chdir(tmp_path)


def _files(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below a directory, with what a write would change of it."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_mode)
    return found


_READS = (
    ("log",),
    ("log", "--events"),
    ("branch", "list", "raw.scans"),
    ("files", "ls", "raw.scans", "-b", "master"),
    ("dataset", "list"),
    ("dataset", "show", "graph.person", "--rows", "5"),
    ("history", "raw.scans", "-b", "master"),
    ("status", "k1", "-b", "master"),
    ("diff", "raw.scans", "--from", "other", "--to", "master"),
    ("jobspecs", "list"),
    ("builds", "list"),
    ("token", "list"),
    ("doctor",),
    ("recover",),
)
_WRITES = (
    ("files", "put", "raw.scans", "-b", "master", "{tmp}/schema.toml", "new"),
    ("files", "rm", "raw.scans", "-b", "master", "first"),
    ("branch", "create", "raw.scans", "third", "--from", "master"),
    ("dataset", "create", "raw.more", "--kind", "files"),
    ("mutate", "-b", "master", insert_people("c")),
    ("token", "create", "--actor", "bo", "--role", "reader"),
    ("cleanup",),
    ("serve", "--port", "1"),
)


def test_everything_is_read_as_on_a_disk_that_can_be_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {words: cli.ok(*words).out for words in _READS if words != ("doctor",)}
    before = _files(cli.directory)
    with _read_only(cli, tmp_path, monkeypatch):
        for words in _READS:
            said = cli(*words)
            assert said.code == 0, (words, said)
            assert said.out == expected.get(words, said.out), words
        cli.ok("files", "get", "raw.scans", "-b", "master", "first", str(tmp_path / "got"))
    assert (tmp_path / "got").read_text() == "hello"
    assert _files(cli.directory) == before


def test_write_is_refused_with_one_clear_error(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _files(cli.directory)
    with _read_only(cli, tmp_path, monkeypatch):
        for words in _WRITES:
            said = cli(*(word.replace("{tmp}", str(tmp_path)) for word in words), "--json")
            assert said.code == 6, (words, said)
            told = json.loads(said.out)
            assert told["code"] in {"catalog_read_only", "storage_read_only"}, (words, told)
            assert "Traceback" not in said.err, words
    assert _files(cli.directory) == before


def test_unfinished_work_is_left_for_a_store_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    settings = new_settings(f"sqlite:///{tmp_path}/store/catalog.db", tmp_path / "store")
    with Store(settings) as store:
        master = files_branch(store)
        put_files(master, a="1")
        master.transaction()
        expire_leases(store)
    with mounted_read_only(settings.root, at=tmp_path / "mount") as mount:
        elsewhere = Settings(
            root=mount, catalog=f"sqlite:///{mount}/catalog.db", warehouse=str(mount / "warehouse")
        )
        with Store(elsewhere) as store:
            master = store.dataset("raw.scans").branch("master")
            assert master.load().is_open and content(master) == {"a": "1"}
            with pytest.raises(CatalogReadOnly):
                store.recover()
    with Store(settings) as store:
        assert not store.dataset("raw.scans").branch("master").load().is_open


def test_older_schema_is_refused_and_not_migrated(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    settings = new_settings(f"sqlite:///{tmp_path}/store/catalog.db", tmp_path / "store")
    with closing(sqlite3.connect(tmp_path / "store" / "catalog.db")) as old, old:
        old.execute(f"UPDATE store SET value = '{NEWEST - 1}' WHERE key = 'schema_version'")
    before = _files(settings.root)
    mount = tmp_path / "mount"
    with mounted_read_only(settings.root, at=mount), pytest.raises(StoreTooOld):
        Store(Settings(root=mount, catalog=f"sqlite:///{mount}/catalog.db", warehouse="w"))
    assert _files(settings.root) == before


# --- the write-ahead log --------------------------------------------------------------------


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A catalog whose newest publication is only in the write-ahead log, after a crash."""
    (tmp_path / "store").mkdir()
    settings = new_settings(f"sqlite:///{tmp_path}/store/catalog.db", tmp_path / "store")
    with Store(settings) as store:
        files_branch(store)
    with Store(settings) as store:
        put_files(store.dataset("raw.scans").branch("master"), a="1")
        shutil.copytree(settings.root, tmp_path / "crashed")
    assert (tmp_path / "crashed" / "catalog.db-wal").stat().st_size > 0
    return tmp_path / "crashed"


def _publications(catalog: Path) -> list[int]:
    database = Database(f"sqlite:///{catalog}")
    try:
        return [p.number for p in database.read(lambda c: list_publications(c, limit=10))]
    finally:
        database.close()


def test_rows_that_are_only_in_the_log_are_read(crashed: Path, tmp_path: Path) -> None:
    before = _files(crashed)
    with mounted_read_only(crashed, at=tmp_path / "mount") as mount:
        assert _publications(mount / "catalog.db") == [2, 1]
    assert _files(crashed) == before


def test_log_that_cannot_be_read_is_refused_and_not_left_out(crashed: Path, tmp_path: Path) -> None:
    (crashed / "catalog.db-shm").unlink()
    with (
        mounted_read_only(crashed, at=tmp_path / "mount") as mount,
        pytest.raises(CatalogBroken, match=r"committed rows are in .*-wal.*Copy the directory"),
    ):
        _publications(mount / "catalog.db")


def test_writes_beside_a_reader_are_seen_by_its_next_read(tmp_path: Path) -> None:
    """The reader began when no process had the catalog open."""
    (tmp_path / "store").mkdir()
    settings = new_settings(f"sqlite:///{tmp_path}/store/catalog.db", tmp_path / "store")
    with Store(settings) as store:
        files_branch(store)
    with mounted_read_only(settings.root, at=tmp_path / "mount") as mount:
        reader = Database(f"sqlite:///{mount}/catalog.db")

        def seen() -> int:
            return len(reader.read(lambda c: list_publications(c, limit=10)))

        assert seen() == 1
        with Store(settings) as store:
            master = store.dataset("raw.scans").branch("master")
            put_files(master, a="1")
            assert seen() == 2
            put_files(master, b="2")
            assert seen() == 3
        assert seen() == 3
        with Store(settings) as store:
            put_files(store.dataset("raw.scans").branch("master"), c="3")
        assert seen() == 4
        with pytest.raises(CatalogReadOnly):
            reader.write(lambda c: None)
        reader.close()


# --- of another user ------------------------------------------------------------------------


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every account may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="headgate-read-only-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def test_store_of_another_user_is_read_by_those_it_is_shared_with(open_directory: Path) -> None:
    settings = new_settings(f"sqlite:///{open_directory}/catalog.db", open_directory)
    with Store(settings) as store:
        put_files(files_branch(store), a="1")
    said = Path(tempfile.mkdtemp(dir=open_directory)) / "said"
    said.parent.chmod(0o777)
    for path in open_directory.rglob("*"):
        if path != said.parent:
            path.chmod(0o555 if path.is_dir() else 0o444)
    open_directory.chmod(0o555)
    assert run(_read_as_somebody, settings, said) == 0
    assert said.read_text() == "{'a': '1'} CatalogReadOnly"


def _read_as_somebody(settings: Settings, said: Path) -> None:
    """Open the store without privileges: root, which may write everywhere, drops them first."""
    if os.getuid() == 0:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    with Store(settings) as store:
        text = str(content(store.dataset("raw.scans").branch("master")))
        try:
            store.create_token(actor="eve", role="admin")
        except HeadgateError as error:
            text += f" {type(error).__name__}"
    said.write_text(text)


# --- served ---------------------------------------------------------------------------------


def test_server_on_a_disk_that_can_only_be_read_serves_reads(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = cli.json("token", "create", "--actor", "walt", "--role", "writer")["token"]
    reader = cli.json("token", "create", "--actor", "rea", "--role", "reader")["token"]
    with Store(load_settings(cli.directory)) as store:
        store.close()
    before = _files(cli.directory)
    with (
        _read_only(cli, tmp_path, monkeypatch) as mount,
        serving(mount, log=tmp_path / "serve.log") as (url, _, _process),
    ):

        def call(method: str, path: str, token: str, **how: object) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}"}
            return httpx.request(method, f"{url}{path}", headers=headers, timeout=60, **how)  # type: ignore[arg-type]

        assert call("GET", "/api/v1/log", reader).json()[0]["publication"] > 0
        assert call("GET", "/api/v1/files/raw.scans/first?branch=master", reader).text == "hello"
        where = "/api/v1/files/raw.scans/new?branch=master"
        refused = call("PUT", where, writer, content=b"x")
        assert (refused.status_code, refused.json()["code"]) == (503, "storage_read_only")
        assert str(mount) not in refused.text
        # A denial stays one, though it cannot be recorded.
        assert call("PUT", where, reader, content=b"x").status_code == 403
        signed_in = httpx.post(f"{url}/login", data={"token": reader}, timeout=60).cookies
        for page in ("/", "/log", "/branches", "/datasets/raw.scans"):
            shown = httpx.get(f"{url}{page}", cookies=signed_in, timeout=60)
            assert shown.status_code == 200, (page, shown.text)
    assert _files(cli.directory) == before
