"""Metadata files: where they lie and how they come back."""

from __future__ import annotations

import orjson
import pytest

from headgate.errors import StorageUnavailable
from headgate.model.ids import DatasetId, Instant
from headgate.tables.versions import TableVersions, WeighedCache
from tests.support.metadata import NOW, commit, table


class CountingStore:
    """Objects in a dictionary, and how often one was read."""

    url = "s3://bucket/wh"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads = 0

    def put(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def get(self, key: str) -> bytes:
        self.reads += 1
        return self.objects[key]


DATASET = DatasetId("d-1")


def test_version_lies_below_its_dataset_and_reads_back_equal() -> None:
    store = CountingStore()
    written = TableVersions(store).write(DATASET, table())
    (key,) = store.objects
    assert key.startswith("tables/d-1/metadata/00000-")
    assert key.endswith(".metadata.json")
    assert written.location == f"s3://bucket/wh/{key}"
    assert TableVersions(store).read(written.location) == written


def test_version_read_before_is_not_fetched_again() -> None:
    store = CountingStore()
    location = TableVersions(store).write(DATASET, table()).location
    versions = TableVersions(store)
    assert versions.read(location) is versions.read(location)
    assert store.reads == 1


def test_version_too_large_for_the_cache_is_fetched_each_time() -> None:
    store = CountingStore()
    versions = TableVersions(store, cache_bytes=10)
    location = versions.write(DATASET, table()).location
    assert versions.read(location) == versions.read(location)
    assert store.reads == 2


def test_snapshots_that_are_forgotten_meanwhile_are_listed_no_longer() -> None:
    store, since = CountingStore(), [Instant(0)]
    versions = TableVersions(store, remembered=lambda: since[0])
    written = versions.write(DATASET, table(*commit(1), *commit(2, parent=1)))
    location = written.location
    assert len(versions.read(location).metadata["snapshots"]) == 2
    since[0] = Instant((NOW + 100) * 1000)
    left = versions.read(location)
    assert [snapshot["snapshot-id"] for snapshot in left.metadata["snapshots"]] == [2]
    assert (left.content, store.reads) == (written.content, 0)
    assert len(orjson.loads(orjson.dumps(left.to_encode()))["snapshots"]) == 1
    assert versions.read(location) is left


def test_version_is_encoded_alike_whether_written_here_or_read() -> None:
    store = CountingStore()
    written = TableVersions(store).write(DATASET, table(*commit(1), *commit(2, parent=1)))
    read = TableVersions(store).read(written.location)
    assert written.snapshots is not None
    assert orjson.dumps(written.to_encode()) == orjson.dumps(read.to_encode()) == read.content


def test_table_location_is_by_dataset_and_tells_it_back() -> None:
    versions = TableVersions(CountingStore())
    assert versions.table_location(DATASET) == "s3://bucket/wh/tables/d-1"
    assert versions.find_dataset("s3://bucket/wh/tables/d-1/") == DATASET


@pytest.mark.parametrize(
    "location",
    [
        "s3://other/wh/tables/d-1",
        "s3://bucket/wh/tables/",
        "s3://bucket/wh/tables/a/b",
        "tables/..",
    ],
)
def test_location_elsewhere_is_no_table_location(location: str) -> None:
    assert TableVersions(CountingStore()).find_dataset(location) is None


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"format-version": 2}'])
def test_file_that_is_no_table_metadata_is_refused(content: bytes) -> None:
    store = CountingStore()
    store.put("x", content)
    with pytest.raises(StorageUnavailable):
        TableVersions(store).read("s3://bucket/wh/x")


def test_location_outside_the_warehouse_is_not_read() -> None:
    with pytest.raises(StorageUnavailable, match="warehouse"):
        TableVersions(CountingStore()).read("s3://bucket/elsewhere/x")


def test_cache_drops_what_was_used_longest_ago() -> None:
    cache: WeighedCache[str] = WeighedCache(limit=2)
    cache.put("a", "A", weight=1)
    cache.put("b", "B", weight=1)
    assert cache.find("a") == "A"
    cache.put("c", "C", weight=1)
    assert [cache.find(key) for key in "abc"] == ["A", None, "C"]
