"""Registered tables: the newest metadata file of another catalog, and the first one here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from headgate.errors import ImpossibleTableChange, Invalid, MalformedRequest, NotFound
from headgate.storage.local import LocalStore
from headgate.tables.creation import (
    DEFAULT_PROPERTIES,
    is_metadata_file,
    newest_metadata,
    read_external_metadata,
    register_metadata,
)
from headgate.tables.inspect import columns_of
from tests.support.metadata import NOW, add, change, column, commit, point, schema, table

OURS = "file:///ours/tables/d-2"
THEIRS = "file:///theirs/v3.metadata.json"


def take(metadata: dict[str, Any]) -> dict[str, Any]:
    return register_metadata(metadata, outside=THEIRS, location=OURS, now_ms=NOW + 9)


def lay_out(directory: Path, *names: str, hint: str | None = None) -> LocalStore:
    """A table's directory with empty metadata files of these names."""
    (directory / "metadata").mkdir()
    for name in names:
        (directory / "metadata" / name).touch()
    if hint is not None:
        (directory / "metadata" / "version-hint.text").write_text(hint)
    return LocalStore(directory)


@pytest.mark.parametrize(
    ("names", "hint", "newest"),
    [
        (["v2.metadata.json", "v10.metadata.json", "snap-1.avro"], "2", "v10.metadata.json"),
        (["v1.gz.metadata.json"], None, "v1.gz.metadata.json"),
        (["v1.metadata.json.gz"], None, "v1.metadata.json.gz"),
        (["00001-a.metadata.json", "00002-b.metadata.json"], "00001-a\n", "00001-a.metadata.json"),
    ],
)
def test_newest_metadata_is_by_number_or_by_hint(
    tmp_path: Path, names: list[str], hint: str | None, newest: str
) -> None:
    assert newest_metadata(lay_out(tmp_path, *names, hint=hint)) == f"metadata/{newest}"


def test_newest_metadata_that_only_a_catalog_records_is_an_error(tmp_path: Path) -> None:
    table_directory = lay_out(tmp_path, "00001-a.metadata.json", "00002-b.metadata.json", hint="7")
    with pytest.raises(Invalid, match=r"Give the current metadata location.*00002-b"):
        newest_metadata(table_directory)


def test_newest_metadata_of_no_table_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        newest_metadata(LocalStore(tmp_path / "none"))


def test_metadata_file_is_not_a_directory() -> None:
    assert is_metadata_file("s3://b/t/metadata/v1.metadata.json")
    assert is_metadata_file("/t/00001-x.gz.metadata.json")
    assert not is_metadata_file("/t/metadata")
    assert not is_metadata_file("/metadata.json/t")


def test_registered_table_keeps_its_history_and_writes_below_the_warehouse() -> None:
    places = {"write.data.path": "s3://theirs", "write.object-storage.path": "x", "a": "b"}
    theirs = change(table(properties=places), *commit(1))
    ours = take(theirs)
    assert (ours["location"], ours["properties"]) == (OURS, {**DEFAULT_PROPERTIES, "a": "b"})
    assert ours["metadata-log"][-1]["metadata-file"] == THEIRS
    kept = ("snapshots", "refs", "table-uuid", "schemas", "partition-specs")
    assert {name: ours[name] for name in kept} == {name: theirs[name] for name in kept}


def test_registered_table_without_refs_gets_main() -> None:
    theirs = change(table(), *commit(1), add(2, parent=1), point(2, "tagged", "tag"))
    tag = theirs["refs"].pop("tagged")
    del theirs["refs"]["main"]
    assert take({**theirs, "refs": {"tagged": tag}})["refs"] == {
        "main": {"snapshot-id": 1, "type": "branch"},
        "tagged": tag,
    }
    empty = take({**table(), "current-snapshot-id": -1})
    assert empty["refs"] == {} and "current-snapshot-id" not in empty


def test_table_of_version_1_is_registered_at_version_2() -> None:
    theirs = {
        "format-version": 1,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "file:///theirs",
        "last-updated-ms": NOW,
        "last-column-id": 1,
        "schema": schema(column(1, "id")),
        "partition-spec": [],
        "properties": {},
        "current-snapshot-id": 5,
        "snapshots": [{"snapshot-id": 5, "timestamp-ms": NOW, "manifest-list": "l"}],
    }
    ours = take(theirs)
    assert (ours["format-version"], ours["refs"]["main"]["snapshot-id"]) == (2, 5)
    assert [found.name for found in columns_of(ours)] == ["id"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"format-version": 4}, "format version 4"),
        ({"snapshots": [{"snapshot-id": 1, "manifests": ["a"]}]}, "without a manifest list"),
    ],
)
def test_table_that_cannot_be_registered_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ImpossibleTableChange, match=reason):
        read_external_metadata(lambda location: orjson.dumps({**table(), **more}), THEIRS)


def test_file_that_is_not_metadata_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="not JSON"):
        read_external_metadata(lambda location: b"\x1f\x8bzip", THEIRS)
