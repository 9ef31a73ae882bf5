"""A flipped byte in any file of a store: `doctor --deep` names the file and where it is shown."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headgate.errors import FileDamaged
from headgate.spark.session import LocalSpark
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from headgate.tables.manifests import ManifestReader, parse_manifest, parse_manifest_list
from headgate.tables.referenced_files import FileRef, ManifestRef
from headgate.upkeep.doctor import examine
from tests.support.engines import Engines
from tests.support.s3 import running_s3
from tests.support.stores import files_branch, new_settings, new_store, put
from tests.support.table_upkeep import TableClient
from tests.support.upkeep import stored_keys

WHERE = "shop.orders@master"
_ROWS = ", ".join(f"({number}, 'name {number % 50} {number}')" for number in range(300))


@pytest.fixture
def store(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    """A table whose files are all Headgate's own."""
    with new_store(made_sqlite_url, tmp_path) as store:
        _fill(store)
        yield store


def _fill(store: Store) -> None:
    with TableClient(store) as client:
        client.catalog().create_namespace("shop")
        columns = pa.schema({"id": pa.int64(), "name": pa.string()})
        client.catalog().create_table("shop.orders", columns)
    store.mutate("master", f"insert into shop.orders values {_ROWS}")


def _findings(store: Store, check: str = "tables", *, deep: bool = True) -> list[tuple[str, str]]:
    checks = {found.name: found for found in examine(store.settings, deep=deep).checks}
    return [(finding.where, finding.what) for finding in checks[check].findings]


def _key(store: Store, part: str) -> str:
    return max(key for key in stored_keys(store) if part in key)


def _flip(store: Store, key: str, at: int) -> None:
    """Flip one bit of a byte; a second call restores it."""
    path = Path(store.settings.warehouse) / key
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def _flipped(content: bytes, step: int = 1) -> Iterator[bytes]:
    for at in range(0, len(content), step):
        yield content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


def _pages_end(content: bytes) -> int:
    """Return where the footer of a Parquet file begins."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


# --- files of Headgate's own writers -----------------------------------------------------------


@pytest.mark.parametrize("part", ["metadata.json", "/snap-", "-m0.avro", ".parquet"])
def test_flipped_byte_in_each_file_of_a_table_is_found_by_a_deep_look(
    store: Store, part: str
) -> None:
    key = _key(store, part)
    size = len(store.objects.get(key))
    if part == ".parquet":
        size = _pages_end(store.objects.get(key))
    for at in range(size // 9, size, size // 5):
        _flip(store, key, at)
        found = _findings(store)
        assert [where for where, what in found if key in what] == [WHERE], at
        _flip(store, key, at)
    assert _findings(store) == []


def test_flipped_byte_in_a_page_costs_nothing_to_those_who_do_not_look(store: Store) -> None:
    _flip(store, _key(store, ".parquet"), 100)
    assert _findings(store, deep=False) == []
    assert _findings(store) != []


def test_flipped_byte_of_a_page_never_changes_a_row_unseen(store: Store, tmp_path: Path) -> None:
    """For every byte of a file that `mutate` wrote; Parquet has no checksum of headers."""
    content = store.objects.get(_key(store, ".parquet"))
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(content)
    rows, file = parquet.read_table(copy), FileRef(path="x", size=0, rows=300, is_added=True)
    reader = ManifestReader(lambda location: b"")
    assert reader.find_damage(file, copy) is None
    unseen = 0
    for at, damaged in enumerate(_flipped(content[: _pages_end(content)])):
        copy.write_bytes(damaged + content[_pages_end(content) :])
        if reader.find_damage(file, copy) is None:
            unseen += 1
            assert parquet.read_table(copy).equals(rows), at
    assert unseen < len(content) // 10


# --- files of other writers --------------------------------------------------------------------


@pytest.fixture
def theirs(made_sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    """A table whose data and manifests PyIceberg wrote, without checksums."""
    with new_store(made_sqlite_url, tmp_path) as store, TableClient(store) as client:
        client.create(*range(100))
        yield store


def test_damaged_manifest_is_an_error_and_never_the_end_of_the_process(theirs: Store) -> None:
    """PyIceberg's compiled decoder follows a damaged length to other memory of the process."""
    for part in ("/snap-", "-m0.avro"):
        key = _key(theirs, part)
        content = theirs.objects.get(key)
        good, damaged = _parse(key, content), 0
        for other in _flipped(content, 3):
            try:
                assert len(_parse(key, other)) <= len(good)
            except FileDamaged:
                damaged += 1
        assert damaged > len(content) // 6


def _parse(key: str, content: bytes) -> list[object]:
    if "/snap-" in key:
        return list(parse_manifest_list(content, key))
    return list(parse_manifest(content, ManifestRef(path=key, length=len(content), files=None)))


def test_footer_of_a_file_without_checksums_is_checked(theirs: Store) -> None:
    key = _key(theirs, ".parquet")
    content = theirs.objects.get(key)
    for at in (_pages_end(content), len(content) - 6, len(content) - 2):
        _flip(theirs, key, at)
        [(where, what)] = _findings(theirs)
        assert where == WHERE and key in what
        _flip(theirs, key, at)
    assert _findings(theirs) == []


@pytest.mark.parametrize("part", ["/snap-", "-m0.avro", ".parquet"])
def test_checksums_that_spark_writes_beside_a_file_are_compared(theirs: Store, part: str) -> None:
    key = _key(theirs, part)
    path = Path(theirs.settings.warehouse) / key
    content = path.read_bytes()
    beside = path.with_name(f".{path.name}.crc")
    # As Hadoop's local file system writes it.
    sums = [zlib.crc32(content[at : at + 512]) for at in range(0, len(content), 512)]
    header = b"crc\0" + (512).to_bytes(4, "big")
    beside.write_bytes(header + b"".join(value.to_bytes(4, "big") for value in sums))
    assert _findings(theirs) == []
    # In the middle of a text in the header, and in the statistics of the footer.
    for at in (len(content) // 3, len(content) - 40):
        _flip(theirs, key, at)
        found = _findings(theirs)
        assert any("checksum" in what and key in what for _, what in found), found
        _flip(theirs, key, at)
    # Cut short by a power failure: it says nothing about the file.
    beside.write_bytes(beside.read_bytes()[:-2])
    assert _findings(theirs) == []


@pytest.mark.xdist_group("spark")
def test_flipped_byte_of_a_page_that_spark_wrote_is_found(
    store: Store, local_spark: LocalSpark, tmp_path: Path
) -> None:
    ours = set(stored_keys(store))
    endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules)
    try:
        session = Engines(store, endpoint, local_spark, tmp_path).session("master")
        session.sql("create table shop.theirs as select id, string(id) name from range(999)")
    finally:
        endpoint.stop()
    key = max(key for key in set(stored_keys(store)) - ours if key.endswith(".parquet"))
    path = Path(store.settings.warehouse) / key
    # By the checksums of its pages, not by that of Hadoop beside the file.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    assert _findings(store) == []
    _flip(store, key, _pages_end(path.read_bytes()) // 2)
    [(where, what)] = _findings(store)
    assert where == "shop.theirs@master" and key in what


# --- elsewhere ---------------------------------------------------------------------------------


def test_flipped_byte_in_a_content_of_a_tree_is_found(store: Store) -> None:
    put(files_branch(store), a="the content of a file", b="another")
    for key in sorted(key for key in stored_keys(store) if key.startswith("objects/")):
        _flip(store, key, 3)
        found = _findings(store, "objects")
        assert found and all(where.startswith("raw.scans@master") for where, _ in found)
        _flip(store, key, 3)


def test_flipped_byte_of_a_page_in_a_bucket_is_found(sqlite_url: str, tmp_path: Path) -> None:
    with running_s3(tmp_path) as server:
        settings = replace(
            new_settings(sqlite_url, tmp_path),
            warehouse=f"s3://{server.create_bucket()}/warehouse",
            environ=server.options,
        )
        with Store(settings) as store:
            _fill(store)
            assert _findings(store) == []
            key = _key(store, ".parquet")
            content = bytearray(store.objects.get(key))
            content[200] ^= 1
            store.objects.replace(key, bytes(content))
            [(where, what)] = _findings(store)
            assert where == WHERE and key in what
