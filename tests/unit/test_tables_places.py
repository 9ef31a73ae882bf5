"""Where a table's files may lie: below its location, unless it came with them."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import TablePlaceRefused
from headgate.tables.register import check_places
from tests.support.metadata import LOCATION, change, commit, table

S3 = "s3://bucket/wh/tables/d-1"


def _with_list(place: str, location: str = LOCATION) -> dict[str, Any]:
    """A table with one snapshot, whose manifest list lies there."""
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
def test_manifest_list_below_the_table_is_taken_however_it_is_spelled(
    location: str, place: str
) -> None:
    check_places(_with_list(place, location))


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
        check_places(_with_list(place, location))
    assert refused.value.facts["value"] == place


def test_snapshots_that_a_table_came_with_may_lie_elsewhere() -> None:
    came = _with_list("s3://theirs/orders/metadata/snap-1.avro")
    grown = change(came, *commit(2, parent=1))
    check_places(grown, came)
    outside = change(grown, *commit(3, parent=2, **{"manifest-list": "s3://theirs/snap-3.avro"}))
    with pytest.raises(TablePlaceRefused, match=r"theirs/snap-3"):
        check_places(outside, grown)


@pytest.mark.parametrize("kind", ["statistics", "partition-statistics"])
def test_statistics_elsewhere_are_refused(kind: str) -> None:
    base = table(*commit(1))
    file = {"snapshot-id": 1, "statistics-path": "s3://theirs/stats.puffin"}
    with pytest.raises(TablePlaceRefused, match="statistics-path"):
        check_places({**base, kind: [file]}, base)
    check_places({**base, kind: [{**file, "statistics-path": f"{LOCATION}/stats.puffin"}]}, base)
