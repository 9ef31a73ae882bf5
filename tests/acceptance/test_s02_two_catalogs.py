"""S02: a warehouse belongs to one catalog; no other catalog, and no old copy, deletes from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import text

from headgate.catalog import warehouse
from headgate.catalog.database import Database
from headgate.errors import CleanupHeld, WarehouseNotEmpty, WarehouseOccupied
from headgate.model.object_store import ObjectStore
from headgate.settings import Settings
from headgate.storage.local import LocalStore
from headgate.store.embedded import Store
from headgate.store.transactions import TransactionHandle
from tests.support.catalogs import make_catalog
from tests.support.cli import Cli, new_cli
from tests.support.postgres import PostgresServer
from tests.support.repositories import new_repository
from tests.support.s3 import running_s3
from tests.support.stores import DATASET, content, files_branch, new_settings, put
from tests.support.upkeep import (
    leave_orphans,
    let_days_pass,
    stored_keys,
    tidy,
    tidy_later,
    tidy_twice,
)

# Makes a copy of the catalog, as of now, and returns its URL.
Copy = Callable[[], str]
# Returns the settings of a store with the catalog at a URL.
Place = Callable[[str], Settings]


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Copy]]:
    """Yield the URL of an empty catalog, and a function that copies it."""
    if request.param == "sqlite":
        path, numbers = tmp_path / "catalog.db", count()

        def copy_file() -> str:
            database = Database(f"sqlite:///{path}")
            # Everything into the one file that is copied.
            with database.raw() as connection:
                connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
            database.close()
            return f"sqlite:///{shutil.copy(path, tmp_path / f'copy{next(numbers)}.db')}"

        yield f"sqlite:///{path}", copy_file
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database()
    copies: list[str] = []

    def copy_database() -> str:
        copies.append(server.create_database(like=name))
        return server.database_url(copies[-1])

    yield server.database_url(name), copy_database
    for one in (name, *copies):
        server.drop_database(one)


def _settings(url: str, root: Path) -> Settings:
    warehouse = str(root / "warehouse")
    return Settings(root=root, catalog=url, warehouse=warehouse, actor="ana", cache=root / "cache")


def _filled(url: str, root: Path) -> None:
    with Store(new_settings(url, root)) as store:
        put(files_branch(store), a="1")


def test_s02_second_catalog_on_an_occupied_warehouse_is_refused_and_deletes_nothing(
    catalog: tuple[str, Copy], tmp_path: Path
) -> None:
    _filled(catalog[0], tmp_path)
    _check_refused(tmp_path, WarehouseOccupied)
    with Store(_settings(catalog[0], tmp_path)) as store:
        assert content(store.dataset(DATASET).branch("master")) == {"a": "1"}


def test_s02_empty_catalog_over_a_warehouse_of_an_earlier_release_is_refused(
    catalog: tuple[str, Copy], tmp_path: Path
) -> None:
    _filled(catalog[0], tmp_path)
    shutil.rmtree(tmp_path / "warehouse" / warehouse.MARKERS)
    _check_refused(tmp_path, WarehouseNotEmpty)


def _check_refused(root: Path, error: type[Exception]) -> None:
    """Check that a second catalog neither opens nor uses nor cleans up the warehouse."""
    second = new_settings(f"sqlite:///{root}/second.db", root)
    with pytest.raises(error):
        Store(second)
    # As a process that another process has started, with publications that have no content.
    with Store(second, recover_first=False) as store:
        files_branch(store)
        with pytest.raises(error):
            tidy(store)
    with pytest.raises(error):
        Store(second)


def test_s02_catalog_of_an_earlier_release_gets_its_marker_when_it_is_used(
    catalog: tuple[str, Copy], tmp_path: Path
) -> None:
    _filled(catalog[0], tmp_path)
    _forget_identity(catalog[0], tmp_path)
    with Store(_settings(catalog[0], tmp_path)) as store:
        leave_orphans(store, 3)
        let_days_pass(store, 10)
        assert tidy_twice(store).deleted == 3
        assert content(store.dataset(DATASET).branch("master")) == {"a": "1"}
    marker = warehouse.find_marker(LocalStore(tmp_path / "warehouse"))
    assert marker is not None and marker.number == 3


def _forget_identity(url: str, root: Path) -> None:
    """Leave the store as a release before markers did."""
    shutil.rmtree(root / "warehouse" / warehouse.MARKERS)
    database = Database(url)
    mine = "DELETE FROM store WHERE \"key\" IN ('store_id', 'incarnation')"
    database.write(lambda connection: connection.execute(text(mine)))
    database.close()


@pytest.mark.parametrize("writer", ["original", "both"])
@pytest.mark.parametrize("first", ["original", "copy"])
def test_s02_of_two_copies_of_a_catalog_none_deletes_what_another_has_published_since(
    catalog: tuple[str, Copy], tmp_path: Path, first: str, writer: str
) -> None:
    _check_none_deletes(catalog, lambda url: _settings(url, tmp_path), first, writer)


@pytest.mark.parametrize("catalog", ["sqlite"], indirect=True)
@pytest.mark.parametrize("first", ["original", "copy"])
def test_s02_of_two_copies_of_a_catalog_none_deletes_what_another_has_published_to_a_bucket(
    catalog: tuple[str, Copy], tmp_path: Path, first: str
) -> None:
    with running_s3(tmp_path) as server:
        bucket = f"s3://{server.create_bucket()}/warehouse"

        def place(url: str) -> Settings:
            return replace(_settings(url, tmp_path), warehouse=bucket, environ=server.options)

        _check_none_deletes(catalog, place, first, "original")


def _check_none_deletes(catalog: tuple[str, Copy], place: Place, first: str, writer: str) -> None:
    """Copy the catalog, publish by one or both, and clean up by both, in this order."""
    make_catalog(catalog[0])
    with Store(place(catalog[0])) as store:
        put(files_branch(store), a="1")
    urls = {"original": catalog[0], "copy": catalog[1]()}
    writers = [name for name in urls if writer in {name, "both"}]
    for name in writers:
        with Store(place(urls[name])) as store:
            put(store.dataset(DATASET).branch("master"), b=name)
    order = [first, *urls.keys() - {first}]
    # Old enough to be condemned at first, and swept later.
    for days in (40, 42):
        for name in order:
            with Store(place(urls[name])) as store:
                if writers == [name]:
                    tidy_later(store, days)
                    continue
                with pytest.raises(CleanupHeld, match=r"has published|has cleaned up"):
                    tidy_later(store, days)
                with pytest.raises(CleanupHeld):
                    tidy(store, dry_run=True)
    for name in writers:
        with Store(place(urls[name])) as store:
            assert content(store.dataset(DATASET).branch("master")) == {"a": "1", "b": name}


@pytest.mark.parametrize("left", ["trace", "none"])
def test_s02_copy_deletes_nothing_that_an_open_transaction_or_a_jobspec_has_written_since(
    catalog: tuple[str, Copy], tmp_path: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_unpublished_kept(_settings(catalog[0], tmp_path), catalog[1], left, monkeypatch)


@pytest.mark.parametrize("catalog", ["sqlite"], indirect=True)
def test_s02_copy_deletes_nothing_that_an_open_transaction_has_written_to_a_bucket_since(
    catalog: tuple[str, Copy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_s3(tmp_path) as server:
        bucket = f"s3://{server.create_bucket()}/warehouse"
        settings = replace(
            _settings(catalog[0], tmp_path), warehouse=bucket, environ=server.options
        )
        _check_unpublished_kept(settings, catalog[1], "trace", monkeypatch)


def _check_unpublished_kept(
    settings: Settings, copy: Copy, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage, and publish a JobSpec, each after the catalog was copied; clean up by all.

    With `left` none, the writers leave no trace, as if they were killed, and the store is opened
    before the copies clean up.
    """
    make_catalog(settings.catalog)
    with Store(settings) as store:
        put(files_branch(store), a="1")
    copies = [copy()]
    with monkeypatch.context() as patched:
        if left == "none":
            patched.setattr(warehouse.Traces, "leave", lambda *_: None)
        with Store(settings) as store:
            opened = store.dataset(DATASET).branch("master").transaction()
            opened.write("b", b"2")
        copies.append(copy())
        work = new_repository(settings.root / "code")
        work.write(gold=_TRANSFORM)
        work.commit()
        with Store(settings) as store:
            store.publish_jobspecs(work.root)
    with Store(settings) as store:
        written = stored_keys(store)
    for url in copies:
        with Store(replace(settings, catalog=url)) as copied:
            for days in (40, 42):
                with pytest.raises(CleanupHeld, match="has published"):
                    tidy_later(copied, days)
    with Store(settings) as store:
        assert tidy_later(store, 0).deleted == 0 and stored_keys(store) == written
        TransactionHandle.load(store, opened.id).commit()
        assert content(store.dataset(DATASET).branch("master")) == {"a": "1", "b": "2"}
        traces = [info.key for info in store.objects.list(warehouse.MARKERS)]
        # The marker and the newest trace; that of the commit is left when the store closes.
        assert len(traces) == 2, traces


_TRANSFORM = """
    from headgate.transforms import Output, transform

    @transform(out=Output("gold.made"))
    def made(out):
        pass
"""


@pytest.mark.parametrize("first", ["original", "copy"])
def test_s02_of_two_copies_that_published_nothing_since_the_first_to_clean_up_goes_on(
    catalog: tuple[str, Copy], tmp_path: Path, first: str
) -> None:
    _filled(catalog[0], tmp_path)
    urls = {"original": catalog[0], "copy": catalog[1]()}
    second = "copy" if first == "original" else "original"
    with (
        Store(_settings(urls[first], tmp_path)) as winner,
        Store(_settings(urls[second], tmp_path)) as loser,
    ):
        tidy(winner)
        before = stored_keys(winner)
        for dry_run in (True, False):
            with pytest.raises(CleanupHeld):
                tidy(loser, dry_run=dry_run)
        tidy(winner)
        # Also the winner, once the other one has data that it does not know.
        with Store(_settings(urls[second], tmp_path)) as writer:
            put(writer.dataset(DATASET).branch("master"), c="3")
        for store in (winner, loser):
            with pytest.raises(CleanupHeld):
                tidy(store)
        assert stored_keys(winner) > before


def test_s02_trace_that_a_killed_process_did_not_leave_is_left_at_the_next_opening(
    catalog: tuple[str, Copy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(catalog[0], tmp_path)
    copied = catalog[1]()
    with monkeypatch.context() as patched:
        patched.setattr(warehouse.Traces, "leave", lambda *_: None)
        with Store(_settings(catalog[0], tmp_path)) as store:
            put(store.dataset(DATASET).branch("master"), b="2")
    with Store(_settings(catalog[0], tmp_path)):
        pass
    with Store(_settings(copied, tmp_path)) as copy, pytest.raises(CleanupHeld):
        tidy(copy)
    with Store(_settings(catalog[0], tmp_path)) as store:
        tidy(store)


def test_s02_traces_of_publications_do_not_pile_up(
    catalog: tuple[str, Copy], tmp_path: Path
) -> None:
    _filled(catalog[0], tmp_path)
    for number in range(3):
        with Store(_settings(catalog[0], tmp_path)) as store:
            for each in range(3):
                put(store.dataset(DATASET).branch("master"), b=f"{number} {each}")
            traces = {info.key for info in store.objects.list(warehouse.MARKERS)}
            # The marker, the newest trace, and the one of the process before.
            assert len(traces) <= 3, traces
            tidy(store)


def test_s02_catalog_restored_from_before_a_cleanup_is_held_until_it_is_confirmed(
    catalog: tuple[str, Copy], tmp_path: Path
) -> None:
    _filled(catalog[0], tmp_path)
    backup = catalog[1]()
    with Store(_settings(catalog[0], tmp_path)) as store:
        put(store.dataset(DATASET).branch("master"), b="2")
        tidy(store)
    with Store(_settings(backup, tmp_path)) as restored:
        with pytest.raises(CleanupHeld, match="ends at"):
            tidy(restored)
        checks = {check["check"]: check for check in restored.examine()["checks"]}
        assert "--confirm-warehouse" in checks["storage"]["findings"][0]["what"]
        restored.clean_up(older_than_seconds=7 * 86400, confirm_warehouse=True)
        tidy(restored)
        assert restored.examine()["ok"]
    with Store(_settings(catalog[0], tmp_path)) as lost, pytest.raises(CleanupHeld):
        tidy(lost)


def test_s02_cleanup_killed_while_it_advances_the_marker_is_followed_by_one_that_works(
    catalog: tuple[str, Copy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(catalog[0], tmp_path)
    with Store(_settings(catalog[0], tmp_path)) as store:
        put_marker = warehouse._put_marker

        def put_and_die(objects: ObjectStore, marker: warehouse.Marker) -> bool:
            put_marker(objects, marker)
            raise KeyboardInterrupt

        for dying in (_die, put_and_die):
            with monkeypatch.context() as patched:
                patched.setattr(warehouse, "_put_marker", dying)
                with pytest.raises(KeyboardInterrupt):
                    tidy(store)
            tidy(store)
        tidy(store)


def _die(*_: object) -> bool:
    raise KeyboardInterrupt


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return new_cli(tmp_path, monkeypatch, capsys)


def test_s02_init_migrate_and_doctor_refuse_a_catalog_that_is_not_the_warehouses(
    cli: Cli, tmp_path: Path
) -> None:
    cli.ok("init", "one", "--warehouse", str(tmp_path / "lake"))
    _put(cli, "one")
    shared = ("--warehouse", str(tmp_path / "lake"))
    assert cli.error("init", "two", *shared, code=4) == "warehouse_occupied"
    assert not (tmp_path / "two").exists()
    # The catalog is lost: an empty one must not take its place.
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path / "one")
        cli.ok("backup", str(tmp_path / "kept"))
    (tmp_path / "one/.headgate/catalog.db").unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path / "one")
        assert cli.error("migrate", code=4) == "warehouse_occupied"
        said = cli("doctor")
        assert said.code == 1 and "Restore a backup with `headgate restore" in said.out + said.err
        assert cli("files", "ls", "raw.scans", "-b", "master").code != 0
        # The empty catalog that `migrate` left is not in the way.
        cli.ok("restore", str(tmp_path / "kept"))
        assert cli("files", "ls", "raw.scans", "-b", "master").code == 0
    assert list((tmp_path / "lake/objects").rglob("*"))


def test_s02_warehouse_adopted_on_purpose_is_cleaned_only_after_a_confirmation(
    cli: Cli, tmp_path: Path
) -> None:
    shared = ("--warehouse", str(tmp_path / "lake"))
    cli.ok("init", "one", *shared)
    _put(cli, "one")
    cli.ok("init", "two", *shared, "--adopt-warehouse")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path / "two")
        assert cli.error("cleanup", code=4) == "cleanup_held"
        cli.ok("cleanup", "--confirm-warehouse")
        cli.ok("cleanup")
        patched.chdir(tmp_path / "one")
        assert cli.error("cleanup", code=4) == "warehouse_occupied"
        assert cli.error("files", "ls", "raw.scans", "-b", "master", code=4) == "warehouse_occupied"


def _put(cli: Cli, directory: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(cli.directory / directory)
        cli.ok("dataset", "create", "raw.scans", "--kind", "files")
        source = cli.file(f"{directory}/a.txt")
        cli.ok("files", "put", "raw.scans", "-b", "master", str(source), "a.txt")
