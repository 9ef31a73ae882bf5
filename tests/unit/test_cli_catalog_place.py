"""A SQLite catalog is rejected on file systems without locks, by the machine's list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.catalog.database import check_catalog_path
from headgate.errors import CatalogBroken


def mounts(tmp_path: Path, *lines: tuple[str, str]) -> Path:
    """Write a mountinfo file: mount point and file system type."""
    file = tmp_path / "mountinfo"
    file.write_text(
        "".join(
            f"{number} 1 0:{number} / {point} rw,relatime shared:1 - {kind} source rw\n"
            for number, (point, kind) in enumerate(lines, start=20)
        )
    )
    return file


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"])
def test_catalog_on_a_network_file_system_is_refused_and_named(tmp_path: Path, kind: str) -> None:
    found = mounts(tmp_path, ("/", "ext4"), ("/net", kind))
    with pytest.raises(CatalogBroken, match=rf"network file system \({kind}\).*PostgreSQL"):
        check_catalog_path("/net/store/catalog.db", found)


def test_catalog_on_a_local_mount_below_a_network_one_is_allowed(tmp_path: Path) -> None:
    found = mounts(tmp_path, ("/", "ext4"), ("/net", "nfs4"), ("/net/local", "xfs"))
    check_catalog_path("/net/local/catalog.db", found)


def test_catalog_beside_a_network_mount_is_allowed(tmp_path: Path) -> None:
    found = mounts(tmp_path, ("/", "overlay"), ("/net", "nfs4"))
    check_catalog_path("/network/catalog.db", found)


def test_catalog_on_a_mount_with_a_space_in_its_name_is_recognised(tmp_path: Path) -> None:
    found = mounts(tmp_path, ("/", "ext4"), ("/team\\040share", "cifs"))
    with pytest.raises(CatalogBroken, match="cifs"):
        check_catalog_path("/team share/catalog.db", found)


def test_catalog_where_the_newer_of_two_mounts_on_one_point_counts(tmp_path: Path) -> None:
    found = mounts(tmp_path, ("/", "ext4"), ("/data", "ext4"), ("/data", "nfs"))
    with pytest.raises(CatalogBroken, match="nfs"):
        check_catalog_path("/data/catalog.db", found)


def test_catalog_reached_through_a_link_is_judged_by_where_it_lies(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "link").symlink_to(share)
    found = mounts(tmp_path, ("/", "ext4"), (str(share), "nfs4"))
    with pytest.raises(CatalogBroken, match="nfs4"):
        check_catalog_path(str(tmp_path / "link" / "catalog.db"), found)


def test_catalog_where_no_mounts_are_told_is_allowed(tmp_path: Path) -> None:
    check_catalog_path("/anywhere/catalog.db", tmp_path / "missing")


@pytest.mark.parametrize("place", ["", None, ":memory:"])
def test_catalog_in_memory_is_refused(place: str | None) -> None:
    with pytest.raises(CatalogBroken, match="lost with the process"):
        check_catalog_path(place)
