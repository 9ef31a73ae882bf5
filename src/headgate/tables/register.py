"""Tables of other catalogs: found where they lie, and taken in without a copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from headgate.errors import (
    ImpossibleTableChange,
    Invalid,
    MalformedRequest,
    NotFound,
    StorageUnavailable,
    TablePlaceRefused,
)
from headgate.model.ports import ObjectStore
from headgate.storage.keys import canonical, key_below
from headgate.tables.schemas import current_schema
from headgate.tables.shape import MAIN, Json, Metadata
from headgate.tables.updates import NEWEST_FORMAT_VERSION, upgrade_from_v1
from headgate.tables.versions import parse_metadata

# Where a table's files may be written: below its own location, and nowhere else.
#
# Cleanup knows what is below the warehouse, and so does whoever backs it up. Clients take these
# settings at their word, so a table that had them would leave files that nobody looks after.

PLACES = frozenset(
    {
        "write.data.path",
        "write.metadata.path",
        "write.object-storage.path",
        "write.folder-storage.path",
    }
)
# Classes of the client's that choose a place for each file; what they choose cannot be known.
PROVIDERS = frozenset({"write.location-provider.impl", "write.py-location-provider.impl"})
# What the metadata names by address, and under which key.
_NAMED = {
    "snapshots": "manifest-list",
    "statistics": "statistics-path",
    "partition-statistics": "statistics-path",
}


def check_places(metadata: Metadata, base: Metadata | None = None) -> None:
    """Refuses settings and files anywhere but below the table's location.

    What the base has already may lie elsewhere: a registered table's files stay where they are.
    """
    root = canonical(metadata["location"])
    for kind, place in _added_places(metadata, base or {}):
        if key_below(root, place) is None:
            raise TablePlaceRefused(setting=kind, value=place, location=root)
    for name, value in (metadata.get("properties") or {}).items():
        if name in PROVIDERS:
            raise TablePlaceRefused(setting=name, value=value, location=root)
        if name in PLACES:
            place = canonical(value.rstrip("/"))
            if place != root and not place.startswith(f"{root}/"):
                raise TablePlaceRefused(setting=name, value=value, location=root)


def unseen(
    base: Metadata, new: Metadata, part: str = "snapshots", *, key: str = "snapshot-id"
) -> list[Json]:
    """Of a list in the metadata, the items whose key the base does not have."""
    before, after = base.get(part) or [], new.get(part) or []
    if after[: len(before)] == before:
        # The same objects in the same order, as a commit leaves them: compared at no cost.
        return list(after[len(before) :])
    known = {item.get(key) for item in before}
    return [item for item in after if item.get(key) not in known]


def _added_places(metadata: Metadata, base: Metadata) -> Iterator[tuple[str, str]]:
    for part, key in _NAMED.items():
        for item in unseen(base, metadata, part, key=key):
            if place := item.get(key):
                yield key, str(place)


def without_places(properties: dict[str, str]) -> dict[str, str]:
    """The properties of a table from elsewhere, without those that say where it writes."""
    return {
        name: value
        for name, value in properties.items()
        if name not in PLACES and name not in PROVIDERS
    }


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
