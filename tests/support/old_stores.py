"""Stores that earlier releases made, kept as archives with what those releases read from them.

Iceberg stores absolute locations, so an archive is unpacked where its store was made.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, delete, insert, select

from headgate.catalog.migrate import closing_database, find_version, migrate
from tests.support.source import ROOT

ARCHIVES = ROOT / "tests" / "stores"
RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz"))


@contextmanager
def unpacked(release: str) -> Iterator[Path]:
    """Unpack the store of a release; one test at a time has it."""
    place = Path(f"/tmp/headgate-store-{release}")
    with place.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Left by a test that was killed.
        shutil.rmtree(place, ignore_errors=True)
        with tarfile.open(ARCHIVES / f"{release}.tar.xz") as archive:
            archive.extractall(place, filter="data")
        try:
            yield place
        finally:
            shutil.rmtree(place)


def move_to_postgres(place: Path, url: str) -> None:
    """Give an unpacked store a PostgreSQL catalog of the same release: its schema and its rows."""
    file = place / ".headgate" / "catalog.db"
    with closing_database(f"sqlite:///{file}") as old, closing_database(url) as new:
        with old.raw() as rows:
            version, tables = find_version(rows), _reflected(rows)
        migrate(new, to=version)
        with old.raw() as rows, new.raw() as into:
            for table in _reflected(into).sorted_tables:
                # A new catalog has an identity and a counter, which the old one has too.
                into.execute(delete(table))
                found = rows.execute(select(tables.tables[table.name])).mappings().all()
                if found:
                    into.execute(insert(table), [dict(row) for row in found])
            into.commit()
    file.unlink()
    settings = place / "headgate.toml"
    settings.write_text(settings.read_text().replace(".headgate/catalog.db", url))


def _reflected(connection: Connection) -> MetaData:
    tables = MetaData()
    tables.reflect(connection)
    return tables


def replies(release: str) -> list[tuple[list[str], Any]]:
    """Return commands and the documents that the release printed for them."""
    found = json.loads((ARCHIVES / f"{release}.json").read_text())
    return [(one["command"], one["json"]) for one in found]


def assert_says_at_least(new: Any, old: Any) -> None:
    """Compare documents of two releases: the newer may have more members, and the same values."""
    if isinstance(old, dict):
        assert isinstance(new, dict)
        for key, value in old.items():
            assert_says_at_least(new[key], value)
    elif isinstance(old, list):
        assert isinstance(new, list) and len(new) == len(old)
        for one, other in zip(new, old, strict=True):
            assert_says_at_least(one, other)
    else:
        assert new == old
