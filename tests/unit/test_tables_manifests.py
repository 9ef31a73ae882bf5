"""Manifests: their live files, and errors for damaged ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headgate.errors import StorageUnavailable
from headgate.tables.manifests import parse_manifest, parse_manifest_list
from headgate.tables.referenced_files import ManifestRef

# Raised by SQLAlchemy for SQLite, under PyIceberg's own catalog.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    """The manifest lists of a table that was written twice and emptied by a delete."""
    catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    data = pa.table({"id": [1, 2]})
    table = catalog.create_table("db.t", data.schema)
    table.append(data)
    table.append(pa.table({"id": [3]}))
    table.delete("id = 3")
    catalog.close()
    return [snapshot.manifest_list for snapshot in table.metadata.snapshots]


def content(location: str) -> bytes:
    return Path(location.removeprefix("file://")).read_bytes()


def live(location: str) -> list[str]:
    refs = parse_manifest_list(content(location), location)
    return [file.path for ref in refs for file in parse_manifest(content(ref.path), ref)]


def test_live_files_of_each_snapshot_are_named(lists: list[str]) -> None:
    first, second, third = (live(location) for location in lists)
    assert len(first) == 1 and len(second) == 2
    assert third == first
    assert all(Path(path.removeprefix("file://")).is_file() for path in second)


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 200, 1000, 1500])
def test_list_that_was_cut_off_is_refused(lists: list[str], cut: int) -> None:
    with pytest.raises(StorageUnavailable, match="not a complete Avro file"):
        parse_manifest_list(content(lists[1])[:-cut], "here")


@pytest.mark.parametrize("nonsense", [b"", b"Obj", b"Obj\x01", b"{}", b"\0" * 100])
def test_list_that_is_something_else_is_refused(nonsense: bytes) -> None:
    with pytest.raises(StorageUnavailable, match="not a complete Avro file"):
        parse_manifest_list(nonsense, "here")


def test_manifest_of_another_length_or_count_is_refused(lists: list[str]) -> None:
    [ref] = parse_manifest_list(content(lists[0]), lists[0])
    found = content(ref.path)
    with pytest.raises(StorageUnavailable, match="bytes instead of"):
        parse_manifest(found[:-1], ref)
    more = ManifestRef(path=ref.path, length=ref.length, files=2)
    with pytest.raises(StorageUnavailable, match="1 live files, but its manifest list counts 2"):
        parse_manifest(found, more)
    uncounted = ManifestRef(path=ref.path, length=ref.length, files=None)
    assert len(parse_manifest(found, uncounted)) == 1
