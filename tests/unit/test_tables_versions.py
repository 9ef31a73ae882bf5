"""Metadata files: their locations, and reads through the cache."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from headgate.errors import StorageUnavailable
from headgate.model.ids import DatasetId, Instant
from headgate.storage.local import LocalStore
from headgate.tables.metadata import Metadata
from headgate.tables.versions import StoredVersion, TableVersions, WeighedCache
from tests.support.metadata import NOW, commit, table


class CountingStore(LocalStore):
    """Counts the reads."""

    reads = 0

    def get(self, key: str) -> bytes:
        self.reads += 1
        return super().get(key)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "wh")


DATASET = DatasetId("d-01m7f8gggmxzttp51zc67s")


def _write(versions: TableVersions, metadata: Metadata) -> StoredVersion:
    """Write a version whose snapshots were there before."""
    return versions.write(DATASET, metadata, base=metadata)


def test_version_is_below_its_dataset_and_reads_back_equal(store: CountingStore) -> None:
    written = TableVersions(store).write(DATASET, table(), base=None)
    (found,) = store.list()
    assert found.key.startswith(f"tables/{DATASET}/metadata/00000-")
    assert found.key.endswith(".metadata.json")
    assert written.location == f"{store.url}/{found.key}"
    assert TableVersions(store).read(written.location) == written


def test_version_read_before_is_not_fetched_again(store: CountingStore) -> None:
    location = TableVersions(store).write(DATASET, table(), base=None).location
    versions = TableVersions(store)
    assert versions.read(location) is versions.read(location)
    assert store.reads == 1


def test_version_too_large_for_the_cache_is_fetched_each_time(store: CountingStore) -> None:
    versions = TableVersions(store, cache_bytes=10)
    location = versions.write(DATASET, table(), base=None).location
    assert versions.read(location) == versions.read(location)
    assert store.reads == 2


def test_snapshots_forgotten_since_the_write_are_not_listed(store: CountingStore) -> None:
    since = [Instant(0)]
    versions = TableVersions(store, remembered=lambda: since[0])
    written = _write(versions, table(*commit(1), *commit(2, parent=1)))
    location = written.location
    assert len(versions.read(location).metadata["snapshots"]) == 2
    since[0] = Instant((NOW + 100) * 1000)
    left = versions.read(location)
    assert [snapshot["snapshot-id"] for snapshot in left.metadata["snapshots"]] == [2]
    assert (left.content, store.reads) == (written.content, 0)
    assert len(orjson.loads(orjson.dumps(left.to_encode()))["snapshots"]) == 1
    assert versions.read(location) is left


def test_version_written_and_version_read_are_encoded_alike(store: CountingStore) -> None:
    written = _write(TableVersions(store), table(*commit(1), *commit(2, parent=1)))
    read = TableVersions(store).read(written.location)
    assert written.snapshots is not None
    assert orjson.dumps(written.to_encode()) == orjson.dumps(read.to_encode()) == read.content


def test_table_location_is_by_dataset_and_leads_back_to_it(store: CountingStore) -> None:
    versions = TableVersions(store)
    assert versions.table_location(DATASET) == f"{store.url}/tables/{DATASET}"
    assert versions.find_dataset(f"{store.url}/tables/{DATASET}/") == DATASET


@pytest.mark.parametrize(
    "location", ["s3://other/wh/tables/d-1", "{}/tables/", "{}/tables/a/b", "tables/.."]
)
def test_location_elsewhere_is_not_a_table_location(store: CountingStore, location: str) -> None:
    assert TableVersions(store).find_dataset(location.format(store.url)) is None


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"format-version": 2}'])
def test_file_that_is_not_table_metadata_is_refused(store: CountingStore, content: bytes) -> None:
    store.put("x", content)
    with pytest.raises(StorageUnavailable):
        TableVersions(store).read(f"{store.url}/x")


def test_location_outside_the_warehouse_is_not_read(store: CountingStore) -> None:
    with pytest.raises(StorageUnavailable, match="warehouse"):
        TableVersions(store).read("s3://bucket/elsewhere/x")


def test_cache_drops_what_was_used_longest_ago() -> None:
    cache: WeighedCache[str] = WeighedCache(limit=2)
    cache.put("a", "A", weight=1)
    cache.put("b", "B", weight=1)
    assert cache.find("a") == "A"
    cache.put("c", "C", weight=1)
    assert [cache.find(key) for key in "abc"] == ["A", None, "C"]
