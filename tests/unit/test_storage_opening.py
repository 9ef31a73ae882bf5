"""Storage addresses: supported ones, and the errors for others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headgate.errors import Invalid, MissingExtra, StorageUnavailable, UnsafePath
from headgate.storage.address import open_store

_KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"}


def test_open_plain_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("ware house").url == f"file://{tmp_path.resolve()}/ware house"


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "file://localhost{}", "{}"])
def test_open_local_address_every_form_is_the_same_place(form: str, tmp_path: Path) -> None:
    store = open_store(form.format(tmp_path))
    store.put("a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert store.url == f"file://{tmp_path.resolve()}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
    ],
)
def test_open_s3_address_has_no_slash_at_its_end(url: str, shown: str) -> None:
    assert open_store(url, _KEYS).url == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gs://bucket/x",
        "http://host/x",
        "s3:bucket",
        "s3://",
        "s3a://bucket/x",
        "s3://bucket/x?versionId=1",
        "file://host/x",
        "file:relative",
        "a\0b",
    ],
)
def test_open_other_address_lists_what_is_supported(url: str) -> None:
    with pytest.raises(Invalid, match=r"directory.*file:///.*s3://bucket/prefix"):
        open_store(url)


def test_open_s3_prefix_that_climbs_is_refused() -> None:
    with pytest.raises(UnsafePath):
        open_store("s3://bucket/a/../b", _KEYS)


def test_open_s3_half_a_credential_names_the_missing_half() -> None:
    with pytest.raises(Invalid, match="SecretAccessKey"):
        open_store("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "id"})


def test_open_s3_foreign_variables_are_ignored() -> None:
    assert open_store(
        "s3://bucket", {**_KEYS, "AWS_PROFILE": "x", "AWS_PAGER": "less", "HOME": "/"}
    )


def test_open_s3_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headgate.storage.s3", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"S3 storage.*headgate\[s3\]"):
        open_store("s3://bucket/x", _KEYS)


def test_get_s3_closed_port_is_unavailable_within_seconds() -> None:
    # Port 1 is closed: listening on it needs privileges.
    store = open_store("s3://bucket/x", {**_KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    with pytest.raises(StorageUnavailable, match=r"s3://bucket/x/a failed: .*127\.0\.0\.1:1"):
        store.get("a")
