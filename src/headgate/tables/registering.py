"""Tables of other catalogs: found where they lie, and taken in without a copy."""

from __future__ import annotations

import re
from collections.abc import Callable

from headgate.errors import (
    ImpossibleTableChange,
    Invalid,
    MalformedRequest,
    NotFound,
    StorageUnavailable,
)
from headgate.model.ports import ObjectStore
from headgate.tables.places import without_places
from headgate.tables.properties import NEWEST_FORMAT_VERSION, upgrade_from_v1
from headgate.tables.schemas import current_schema
from headgate.tables.shape import MAIN, Metadata
from headgate.tables.versions import parse_metadata

_FILE = re.compile(r"[^/]*metadata\.json(?:\.gz)?\Z")
# A Hadoop catalog numbers its metadata files and has no other record of which is the newest.
_NUMBERED = re.compile(r"metadata/v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?\Z")
_HINT = "metadata/version-hint.text"


def names_metadata_file(location: str) -> bool:
    """Whether an address is that of a metadata file, rather than of a table's directory."""
    return _FILE.search(location) is not None


def newest_metadata(table: ObjectStore) -> str:
    """The key of the newest metadata file in a table's directory.

    A Hadoop catalog's numbers say which one that is, or a hint beside the files; of other tables
    only their catalog knows.
    """
    keys = sorted(found.key for found in table.list("metadata") if _FILE.search(found.key))
    numbered = {int(match[1]): key for key in keys if (match := _NUMBERED.match(key))}
    if numbered:
        return numbered[max(numbered)]
    if table.find(_HINT) is not None:
        hint = table.get(_HINT).decode(errors="replace").strip()
        hinted = [key for key in keys if key.startswith(f"metadata/{hint}")]
        if hint and len(hinted) == 1:
            return hinted[0]
    if not keys:
        raise NotFound(
            f"there is no Iceberg table in {table.url}: it has no metadata/*.metadata.json.",
            location=table.url,
        )
    raise Invalid(
        f"which of the {len(keys)} metadata files in {table.url}/metadata is the newest, only the "
        f"table's catalog knows. Ask it, and give that file, for example {table.url}/{keys[-1]}.",
        location=table.url,
    )


def read_foreign(read: Callable[[str], bytes], location: str) -> Metadata:
    """The metadata at an address outside the store; what is not a table is refused."""
    try:
        metadata = parse_metadata(read(location), location)
    except StorageUnavailable as error:
        raise MalformedRequest(
            what=f"the table at {location!r}", reason=error.message.rstrip(".")
        ) from error
    version = metadata["format-version"]
    if version not in range(1, NEWEST_FORMAT_VERSION + 1):
        raise _refuse(location, f"it has format version {version!r}")
    if any("manifest-list" not in found for found in metadata.get("snapshots") or []):
        raise _refuse(location, "its snapshots are from before there were manifest lists")
    return metadata


def taken_in(metadata: Metadata, *, outside: str, location: str, now_ms: int) -> Metadata:
    """The metadata with which a foreign table begins here: its files stay, new ones come to us."""
    upgraded = metadata
    if metadata["format-version"] == 1:
        upgraded = {**upgrade_from_v1(metadata), "format-version": 2}
    if current_schema(upgraded) is None:
        raise _refuse(outside, "it has no current schema")
    properties = upgraded.get("properties") or {}
    came_from = {"metadata-file": outside, "timestamp-ms": metadata.get("last-updated-ms", 0)}
    return {
        **_with_main(upgraded),
        "location": location,
        # Ours go below the warehouse.
        "properties": without_places(properties),
        "metadata-log": [*(metadata.get("metadata-log") or []), came_from],
        "last-updated-ms": now_ms,
    }


def _with_main(metadata: Metadata) -> Metadata:
    """Older writers name the current snapshot without a ref, and write -1 for none."""
    current = metadata.get("current-snapshot-id")
    refs = metadata.get("refs") or {}
    if current is None or current == -1:
        kept = {key: value for key, value in metadata.items() if key != "current-snapshot-id"}
        return {**kept, "refs": refs}
    main = {"snapshot-id": current, "type": "branch"}
    return {**metadata, "refs": {MAIN: main, **refs}}


def _refuse(location: str, reason: str) -> ImpossibleTableChange:
    return ImpossibleTableChange(change=f"registering {location}", reason=reason)
