"""Spellings of one storage address."""

from __future__ import annotations

import pytest

from headgate.storage.address import canonical, key_below


@pytest.mark.parametrize(
    "location",
    [
        *("file:///wh/tables/x", "file:/wh/tables/x", "file://localhost/wh/tables/x"),
        *("/wh/tables/x", "file:////wh/tables/x", "file:///wh/./tables//x"),
    ],
)
def test_local_file_is_found_in_any_spelling(location: str) -> None:
    assert key_below("file:///wh", location) == "tables/x"


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_object_is_found_under_every_scheme(scheme: str) -> None:
    assert key_below("s3://b/wh", f"{scheme}://b/wh/tables/n=a%2Fb+c/x") == "tables/n=a%2Fb+c/x"


@pytest.mark.parametrize(
    "location",
    [
        *("file:///wh", "file:///wh/", "file:///whale/x", "file:///wh/../other/x", "s3://wh/x"),
        *("file:///wh/tables/../../x", "http://wh/x", "", "wh/x"),
    ],
)
def test_address_elsewhere_has_no_key(location: str) -> None:
    assert key_below("file:///wh", location) is None


def test_address_of_another_system_stays_as_it_is() -> None:
    assert canonical("gs://bucket/x/../y") == "gs://bucket/x/../y"
    assert canonical("s3://bucket/x/../y") == "s3://bucket/x/../y"
