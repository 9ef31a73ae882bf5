"""Cleanup of tables: files of kept versions stay, files that writers left behind are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.catalog.datasets import create_tag
from headgate.errors import StorageUnavailable, VersionExpired
from headgate.model.changes import Caller
from headgate.store.embedded import Store
from tests.support.stores import everything, load, load_dataset, new_store
from tests.support.table_upkeep import (
    TABLE,
    TableClient,
    check_travel,
    keys_of,
    leave_files,
    open_version,
    shown_at,
)
from tests.support.upkeep import (
    assert_untouched,
    condemned_locations,
    let_days_pass,
    stored_keys,
    tidy,
    tidy_twice,
    why_kept,
)


@pytest.fixture
def store(made_catalog_url: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(made_catalog_url, tmp_path) as store:
        yield store


@pytest.fixture
def client(store: Store) -> Iterator[TableClient]:
    with TableClient(store) as client:
        yield client


def pass_days(store: Store, client: TableClient, days: float) -> None:
    client.forget()
    let_days_pass(store, days)


def location(store: Store, transaction: str) -> str:
    version = load(store, transaction).version
    assert version is not None
    return version.location


def is_gone(store: Store, transaction: str) -> bool:
    try:
        shown_at(store, transaction)
    except VersionExpired:
        return True
    return False


def test_table_that_a_branch_shows_is_kept_however_old(store: Store, client: TableClient) -> None:
    view = client.create(1, 2)
    pass_days(store, client, 4000)
    # The empty table of CREATE was shown for a moment, long ago.
    tidy_twice(store)
    assert shown_at(store, view) == [1, 2]
    assert stored_keys(store) == keys_of(store, [location(store, view)])


def test_versions_within_the_time_to_retain_are_kept_whole(
    store: Store, client: TableClient
) -> None:
    first, second = client.create(1), client.overwrite(2)
    pass_days(store, client, 27)
    assert_untouched(store)
    assert (shown_at(store, first), shown_at(store, second)) == ([1], [2])
    check_travel(store, location(store, second))


def test_what_no_branch_shows_any_more_goes_file_by_file(store: Store, client: TableClient) -> None:
    first, second = client.create(1), client.overwrite(2)
    pass_days(store, client, 40)
    cleaned = tidy_twice(store)
    assert is_gone(store, first) and shown_at(store, second) == [2]
    assert {item.what for item in cleaned.items} == {
        *("metadata file", "manifest list", "manifest", "data file"),
    }
    assert stored_keys(store) == keys_of(store, [location(store, second)])


def test_snapshot_that_was_forgotten_is_listed_by_no_version(
    store: Store, client: TableClient
) -> None:
    client.create(1)
    client.overwrite(2)
    pass_days(store, client, 40)
    client.append(3)
    assert len(client.table().snapshots()) == 4
    tidy(store)
    pass_days(store, client, 1.1)
    tidy(store)
    assert len(client.table().snapshots()) == 2
    check_travel(store, location(store, client.view()))
    assert shown_at(store, client.append(4)) == [2, 3, 4]


def test_tagged_version_keeps_its_rows_but_not_its_past(store: Store, client: TableClient) -> None:
    client.create(1)
    tagged = client.overwrite(2)
    create_tag(
        store.database, load_dataset(store, TABLE), "v1", at=tagged, caller=Caller(actor="ana")
    )
    view = client.overwrite(3)
    pass_days(store, client, 40)
    tidy_twice(store)
    assert (shown_at(store, tagged), shown_at(store, view)) == ([2], [3])
    assert len(open_version(store, location(store, tagged)).snapshots()) == 1
    needed = keys_of(store, [location(store, id) for id in (tagged, view)])
    assert stored_keys(store) == needed


def test_branch_keeps_files_that_the_other_one_replaced(store: Store, client: TableClient) -> None:
    client.create(1)
    client.append(2, context="feature>master")
    client.overwrite(9)
    pass_days(store, client, 400)
    tidy_twice(store)
    assert shown_at(store, client.view(context="feature")) == [1, 2]
    assert shown_at(store, client.view()) == [9]


def test_files_that_no_version_names_are_found_wherever_tables_lie(
    store: Store, client: TableClient
) -> None:
    view = client.create(1)
    here = f"tables/{load_dataset(store, TABLE).id}"
    left = {
        f"{here}/data/00000-refused.parquet",
        f"{here}/data/.00000-refused.parquet.crc",
        f"{here}/data/00001-deletes.puffin",
        f"{here}/metadata/snap-1.avro",
        f"{here}/metadata/1.stats",
        # From a CREATE TABLE AS SELECT whose commit was rejected: no dataset has this id.
        "tables/d-staged/data/00000-0.parquet",
    }
    leave_files(store, *left)
    pass_days(store, client, 5)
    assert_untouched(store)
    assert why_kept(tidy(store))["data file", "younger than the grace period"] == 3
    let_days_pass(store, 5)
    assert {item.where for item in tidy(store).items} == {f"{store.objects.url}/{k}" for k in left}
    let_days_pass(store, 1.1)
    assert tidy(store).deleted == len(left)
    assert stored_keys(store) >= keys_of(store, [location(store, view)])


def test_checksum_beside_a_needed_file_stays_with_it(store: Store, client: TableClient) -> None:
    client.create(1)
    (data,) = (key for key in stored_keys(store) if "/data/" in key)
    directory, _, name = data.rpartition("/")
    leave_files(store, f"{directory}/.{name}.crc")
    pass_days(store, client, 20)
    assert_untouched(store)
    assert f"{directory}/.{name}.crc" in stored_keys(store)


def test_dropped_table_goes_after_the_time_to_retain(store: Store, client: TableClient) -> None:
    last = client.create(1)
    client.catalog().drop_table(TABLE)
    pass_days(store, client, 20)
    assert_untouched(store)
    store.dataset(TABLE).branch("master").reset(to=last)
    assert shown_at(store, client.view()) == [1]
    client.catalog().drop_table(TABLE)
    pass_days(store, client, 40)
    tidy_twice(store)
    assert stored_keys(store) == set() and is_gone(store, last)


def test_renamed_table_keeps_the_files_in_the_old_ones_place(
    store: Store, client: TableClient
) -> None:
    client.create(1)
    client.catalog().rename_table(TABLE, "shop.renamed")
    client.append(2, name="shop.renamed")
    pass_days(store, client, 400)
    tidy_twice(store)
    assert shown_at(store, client.view(name="shop.renamed")) == [1, 2]


def test_files_of_a_registered_table_are_never_deleted_but_ours_are(
    store: Store, client: TableClient, tmp_path: Path
) -> None:
    with (
        new_store(f"sqlite:///{tmp_path}/theirs.db", tmp_path / "theirs") as theirs,
        TableClient(theirs) as elsewhere,
    ):
        elsewhere.create(1, 2)
        file = elsewhere.table().metadata_location
        before = stored_keys(theirs)
        store.dataset(TABLE).register(file, branch="master")
        assert shown_at(store, client.append(3)) == [1, 2, 3]
        pass_days(store, client, 400)
        let_days_pass(theirs, 400)
        tidy_twice(store)
        assert shown_at(store, client.view()) == [1, 2, 3]
        client.catalog().drop_table(TABLE)
        pass_days(store, client, 400)
        tidy_twice(store)
        assert stored_keys(store) == set() and stored_keys(theirs) == before


def test_dry_run_says_what_would_go_and_changes_nothing(store: Store, client: TableClient) -> None:
    client.create(1)
    client.overwrite(2)
    pass_days(store, client, 40)
    before = everything(store)
    said = tidy(store, dry_run=True)
    assert everything(store) == before
    done = tidy(store)
    assert said.items == done.items
    assert {item.why for item in said.items if item.what == "data file"} == {
        "not needed by any version"
    }


def test_manifest_that_is_lost_stops_all_deleting(store: Store, client: TableClient) -> None:
    client.create(1)
    leave_files(store, "tables/d-staged/data/00000-0.parquet")
    pass_days(store, client, 40)
    (manifest,) = (k for k in stored_keys(store) if k.endswith(".avro") and "/snap-" not in k)
    store.objects.replace(manifest, store.objects.get(manifest)[:-7])
    before = stored_keys(store)
    with pytest.raises(StorageUnavailable, match="bytes instead of"):
        tidy(store)
    assert stored_keys(store) == before and condemned_locations(store) == set()


def test_store_that_was_moved_deletes_no_table_file(
    store: Store, client: TableClient, tmp_path: Path
) -> None:
    client.create(1)
    pass_days(store, client, 40)
    moved = (tmp_path / "warehouse").rename(tmp_path / "moved")
    with new_store(store.settings.catalog, tmp_path / "other") as other:
        other.__dict__["objects"] = type(store.objects)(moved)  # type: ignore[call-arg]
        cleaned = tidy(other)
        assert {kept.why for kept in cleaned.kept if "file" in kept.what} == {
            "not checked, because the metadata of a table is outside the warehouse"
        }
        assert not any(item.what.endswith("file") for item in cleaned.items)
