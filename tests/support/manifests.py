"""Real manifest lists and manifests, with the entries that a test names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

ADDED, EXISTING, DELETED = (
    ManifestEntryStatus.ADDED,
    ManifestEntryStatus.EXISTING,
    ManifestEntryStatus.DELETED,
)
_SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))


@cache
def empty_manifest_list() -> bytes:
    """Return a manifest list without manifests, as of a snapshot that has no files."""
    return manifest_list([])


def manifest_list(manifests: Iterable[ManifestFile], *, snapshot: int = 1) -> bytes:
    """Return the bytes of a manifest list."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "snap.avro"
        with write_manifest_list(
            format_version=2,
            output_file=PyArrowFileIO().new_output(str(path)),
            snapshot_id=snapshot,
            parent_snapshot_id=None,
            sequence_number=snapshot,
            avro_compression="null",
        ) as writer:
            writer.add_manifests(list(manifests))
        return path.read_bytes()


def manifest(
    location: str, entries: Iterable[tuple[Any, str]], *, snapshot: int = 1
) -> tuple[ManifestFile, bytes]:
    """Return a manifest for this location, and its bytes; entries are statuses and addresses."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "m.avro"
        with write_manifest(
            format_version=2,
            spec=UNPARTITIONED_PARTITION_SPEC,
            schema=_SCHEMA,
            output_file=PyArrowFileIO().new_output(str(path)),
            snapshot_id=snapshot,
            avro_compression="null",
        ) as writer:
            for status, place in entries:
                entry = ManifestEntry.from_args(
                    status=status,
                    snapshot_id=snapshot,
                    sequence_number=1,
                    file_sequence_number=1,
                    data_file=_data_file(place),
                )
                {ADDED: writer.add, EXISTING: writer.existing, DELETED: writer.delete}[status](
                    entry
                )
        made = writer.to_manifest_file()
        content = path.read_bytes()
    made[0] = location
    return made, content


def _data_file(place: str) -> Any:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=4,
        spec_id=0,
    )
