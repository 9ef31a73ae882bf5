"""Where a SQLite catalog may live: not on a network file system, whose locks do not hold."""

from __future__ import annotations

from pathlib import Path

from headgate.errors import CatalogBroken

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p"}
_NETWORK_FUSE = {"fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone"}
MOUNTS = Path("/proc/self/mountinfo")


def check_catalog_path(database: str | None, mounts: Path = MOUNTS) -> None:
    """Refuses a path on a network file system, naming it."""
    if not database or database == ":memory:":
        raise CatalogBroken(
            where="sqlite",
            reason="a catalog in memory would be lost with the process",
            remedy="Give it a file: `sqlite:///path/catalog.db`.",
        )
    kind = _kind_of(Path(database).absolute(), mounts)
    if kind in _NETWORK | _NETWORK_FUSE:
        raise CatalogBroken(
            where=database,
            reason=f"it lies on a network file system ({kind}), where SQLite's locks do not hold",
            remedy="Put it on a local disk, or use a PostgreSQL catalog for a team.",
        )


def _kind_of(path: Path, mounts: Path) -> str | None:
    """The file system type of the deepest mount point above the path; None where not told."""
    if not mounts.exists():
        return None
    resolved = path.resolve()
    best: tuple[int, str] | None = None
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if resolved.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split()[0])
    return best[1] if best else None
