"""Files that are new in a version: all of them are found, below the table, and only they."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headgate.errors import ObjectNotFound, TablePlaceRefused, UnreadableTableFile
from headgate.tables.metadata import Metadata
from headgate.tables.referenced_files import NewFiles, find_new_files
from tests.support.manifests import ADDED, DELETED, EXISTING, manifest, manifest_list
from tests.support.metadata import LOCATION, change, commit, table

S3 = "s3://bucket/wh/tables/d-1"


class Files:
    """Files in memory by address; counts the reads."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.reads: list[str] = []

    def get(self, location: str) -> bytes:
        self.reads.append(location)
        if location not in self.content:
            raise ObjectNotFound(location=location)
        return self.content[location]

    def snapshot(self, list_at: str, manifests: Mapping[str, Any], *, held: Any = ()) -> list[Any]:
        """Write a manifest list with these manifests and those held; return all of them."""
        made = list(held)
        for at, entries in manifests.items():
            one, self.content[at] = manifest(at, entries)
            made.append(one)
        self.content[list_at] = manifest_list(made)
        return made


@pytest.fixture
def files() -> Files:
    return Files()


def _list(id: int) -> str:
    return f"{LOCATION}/metadata/snap-{id}.avro"


def _with_list(place: str, location: str = LOCATION) -> dict[str, Any]:
    """Return a table with one snapshot and its manifest list at that location."""
    return {**table(*commit(1, **{"manifest-list": place})), "location": location}


def _found(files: Files, metadata: Metadata, base: Metadata | None = None) -> set[str]:
    return set(find_new_files(metadata, base, files.get).addresses())


def test_new_files_of_a_commit_are_list_manifests_data_and_no_earlier_ones(files: Files) -> None:
    first, second = f"{LOCATION}/metadata/m1.avro", f"{LOCATION}/metadata/m2.avro"
    old, new = f"{LOCATION}/data/1.parquet", f"{LOCATION}/data/2.parquet"
    held = files.snapshot(_list(1), {first: [(ADDED, old)]})
    files.snapshot(_list(2), {second: [(ADDED, new), (DELETED, old)]}, held=held)
    base = table(*commit(1))
    grown = change(base, *commit(2, parent=1))
    assert _found(files, base) == {_list(1), first, old}
    files.reads.clear()
    assert _found(files, grown, base) == {_list(2), second, new}
    # A manifest that was there before is not read.
    assert first not in files.reads


def test_new_files_of_two_snapshots_in_one_commit_are_those_of_both(files: Files) -> None:
    first, second = f"{LOCATION}/metadata/m1.avro", f"{LOCATION}/metadata/m2.avro"
    made = [f"{LOCATION}/data/1.parquet", f"{LOCATION}/data/2.parquet"]
    held = files.snapshot(_list(1), {first: [(ADDED, made[0])]})
    files.snapshot(_list(2), {second: [(ADDED, made[1])]}, held=held)
    both = table(*commit(1), *commit(2, parent=1))
    assert _found(files, both, table()) == {_list(1), _list(2), first, second, *made}


def test_new_files_of_a_rewritten_manifest_are_not_its_data(files: Files) -> None:
    first, second = f"{LOCATION}/metadata/m1.avro", f"{LOCATION}/metadata/m2.avro"
    data = f"{LOCATION}/data/1.parquet"
    files.snapshot(_list(1), {first: [(ADDED, data)]})
    files.snapshot(_list(2), {second: [(EXISTING, data)]})
    base = table(*commit(1))
    assert _found(files, change(base, *commit(2, parent=1)), base) == {_list(2), second}


def test_new_files_of_a_change_without_snapshots_need_no_read(files: Files) -> None:
    base = table(*commit(1))
    update = {"action": "set-properties", "updates": {"a": "b"}}
    assert find_new_files(change(base, update), base, files.get) == NewFiles()
    assert files.reads == []


@pytest.mark.parametrize("damage", ["missing", "cut off", "no Avro"])
@pytest.mark.parametrize("which", ["list", "manifest"])
def test_manifest_that_cannot_be_read_is_refused(files: Files, damage: str, which: str) -> None:
    at = f"{LOCATION}/metadata/m1.avro"
    files.snapshot(_list(1), {at: [(ADDED, f"{LOCATION}/data/1.parquet")]})
    broken = _list(1) if which == "list" else at
    match damage:
        case "missing":
            del files.content[broken]
        case "cut off":
            files.content[broken] = files.content[broken][:-7]
        case _:
            files.content[broken] = b"x" * len(files.content[broken])
    with pytest.raises(UnreadableTableFile) as refused:
        _found(files, table(*commit(1)))
    assert refused.value.facts["location"] == broken


@pytest.mark.parametrize("status", [ADDED, EXISTING])
@pytest.mark.parametrize("place", ["file:///etc/passwd", "s3://theirs/1.parquet", f"{LOCATION}0/1"])
def test_data_file_elsewhere_is_refused_whatever_its_entry_claims(
    files: Files, place: str, status: Any
) -> None:
    files.snapshot(_list(1), {f"{LOCATION}/metadata/m1.avro": [(status, place)]})
    with pytest.raises(TablePlaceRefused, match="data file") as refused:
        _found(files, table(*commit(1)))
    assert refused.value.facts["value"] == place


def test_manifest_elsewhere_is_refused_and_not_read(files: Files) -> None:
    at = "file:///etc/m1.avro"
    files.snapshot(_list(1), {at: [(ADDED, f"{LOCATION}/data/1.parquet")]})
    with pytest.raises(TablePlaceRefused, match="manifest"):
        _found(files, table(*commit(1)))
    assert at not in files.reads


def test_files_of_a_registered_table_may_be_elsewhere_and_new_ones_not(files: Files) -> None:
    theirs, at = "s3://theirs/orders/1.parquet", "s3://theirs/orders/metadata/m1.avro"
    list_at = "s3://theirs/orders/metadata/snap-1.avro"
    held = files.snapshot(list_at, {at: [(ADDED, theirs)]})
    came = _with_list(list_at)
    grown = change(came, *commit(2, parent=1))
    here, new = f"{LOCATION}/metadata/m2.avro", f"{LOCATION}/data/2.parquet"
    files.snapshot(_list(2), {here: [(ADDED, new)]}, held=held)
    assert _found(files, grown, came) == {_list(2), here, new}
    # The manifest is rewritten: what it keeps was there before.
    files.snapshot(_list(2), {here: [(EXISTING, theirs), (ADDED, new)]})
    assert _found(files, grown, came) == {_list(2), here, new}
    files.snapshot(_list(2), {here: [(EXISTING, "s3://theirs/orders/2.parquet")]})
    with pytest.raises(TablePlaceRefused, match=r"orders/2\.parquet"):
        _found(files, grown, came)


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (LOCATION, f"{LOCATION}/metadata/snap-1.avro"),
        (LOCATION, "file:/wh/tables/d-1/metadata/snap-1.avro"),
        (S3, f"{S3}/metadata/snap-1.avro"),
        (S3, "s3a://bucket/wh/tables/d-1/metadata/snap-1.avro"),
        ("s3a://bucket/wh/tables/d-1", f"{S3}/a/../b.avro"),
    ],
)
def test_manifest_list_below_the_table_is_accepted_in_any_spelling(
    files: Files, location: str, place: str
) -> None:
    files.content[place] = manifest_list([])
    assert _found(files, _with_list(place, location)) == {place}


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (LOCATION, "file:///wh/tables/d-10/metadata/snap-1.avro"),
        (LOCATION, f"{LOCATION}/../d-2/snap-1.avro"),
        (LOCATION, "snap-1.avro"),
        (LOCATION, "https://host/wh/tables/d-1/snap-1.avro"),
        (S3, "s3://bucket/wh/tables/d-2/metadata/snap-1.avro"),
        (S3, "s3://bucket2/wh/tables/d-1/metadata/snap-1.avro"),
        (S3, S3),
    ],
)
def test_manifest_list_elsewhere_is_refused_by_name(
    files: Files, location: str, place: str
) -> None:
    with pytest.raises(TablePlaceRefused, match="manifest-list") as refused:
        _found(files, _with_list(place, location))
    assert refused.value.facts["value"] == place


@pytest.mark.parametrize("kind", ["statistics", "partition-statistics"])
def test_statistics_elsewhere_are_refused(files: Files, kind: str) -> None:
    base = table(*commit(1))
    file = {"snapshot-id": 1, "statistics-path": "s3://theirs/stats.puffin"}
    with pytest.raises(TablePlaceRefused, match="statistics-path"):
        _found(files, {**base, kind: [file]}, base)
    below = {**file, "statistics-path": f"{LOCATION}/stats.puffin"}
    assert _found(files, {**base, kind: [below]}, base) == {below["statistics-path"]}
