"""Locations of a table's files: below its own, except files that it was registered with."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import TablePlaceRefused
from headgate.tables.referenced_files import check_file_locations
from tests.support.metadata import LOCATION, change, commit, table

S3 = "s3://bucket/wh/tables/d-1"


def _with_list(place: str, location: str = LOCATION) -> dict[str, Any]:
    """Return a table with one snapshot and its manifest list at that location."""
    return {**table(*commit(1, **{"manifest-list": place})), "location": location}


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
    location: str, place: str
) -> None:
    check_file_locations(_with_list(place, location))


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
def test_manifest_list_elsewhere_is_refused_by_name(location: str, place: str) -> None:
    with pytest.raises(TablePlaceRefused, match="manifest-list") as refused:
        check_file_locations(_with_list(place, location))
    assert refused.value.facts["value"] == place


def test_snapshots_of_a_registered_table_may_be_elsewhere() -> None:
    came = _with_list("s3://theirs/orders/metadata/snap-1.avro")
    grown = change(came, *commit(2, parent=1))
    check_file_locations(grown, came)
    outside = change(grown, *commit(3, parent=2, **{"manifest-list": "s3://theirs/snap-3.avro"}))
    with pytest.raises(TablePlaceRefused, match=r"theirs/snap-3"):
        check_file_locations(outside, grown)


@pytest.mark.parametrize("kind", ["statistics", "partition-statistics"])
def test_statistics_elsewhere_are_refused(kind: str) -> None:
    base = table(*commit(1))
    file = {"snapshot-id": 1, "statistics-path": "s3://theirs/stats.puffin"}
    with pytest.raises(TablePlaceRefused, match="statistics-path"):
        check_file_locations({**base, kind: [file]}, base)
    below = {**file, "statistics-path": f"{LOCATION}/stats.puffin"}
    check_file_locations({**base, kind: [below]}, base)
