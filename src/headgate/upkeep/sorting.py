"""What becomes of one stored object; pure."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from headgate.model.ids import Instant
from headgate.upkeep.probing import PREFIX

_OBJECT = re.compile(r"objects/sha256/([0-9a-f]{2})/([0-9a-f]{62})\Z")
_BUNDLE = re.compile(r"bundles/([0-9a-f]{64})\.zip\Z")
# A dataset's own directory, also of one that was staged and never came to be.
_TABLE = re.compile(r"tables/d-[0-9a-z]+/.+\Z", re.DOTALL)
# Hadoop's local file system writes a checksum beside each file.
_CHECKSUM = re.compile(r"(.*/)\.([^/]+)\.crc\Z", re.DOTALL)


class Kind(enum.StrEnum):
    """What a key says about who wrote it."""

    OBJECT = "object"
    BUNDLE = "bundle"
    PROBE = "probe"
    TABLE = "table file"
    UNKNOWN = "unknown"


class Fate(enum.StrEnum):
    """What cleanup does with an object; all but the last two leave it where it is."""

    NEEDED = "a version that is not condemned needs it"
    YOUNG = "it is younger than the grace"
    WAITING = "it was condemned too short a time ago"
    UNSURE = "a table version lies outside this warehouse, so it is not known what is needed"
    FOREIGN = "Headgate did not write it"
    SPARE = "it was condemned and is needed again"
    CONDEMN = "nothing needs it"
    SWEEP = "it was condemned, and still nothing needs it"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The moments that decide: by the store's clock, and by the database's."""

    # Younger by the store's clock: never condemned.
    young_since: Instant
    # Condemned later by the database's clock: not swept yet.
    fresh_since: Instant


def read_key(key: str) -> tuple[Kind, str | None]:
    """The kind of a key, and the digest that it stands for."""
    if match := _OBJECT.match(key):
        return Kind.OBJECT, match[1] + match[2]
    if match := _BUNDLE.match(key):
        return Kind.BUNDLE, match[1]
    if key.startswith(PREFIX):
        return Kind.PROBE, None
    return (Kind.TABLE if _TABLE.match(key) else Kind.UNKNOWN), None


def table_file_of(key: str) -> str:
    """The key of the table's file that a key belongs to: itself, or what it is a checksum of."""
    match = _CHECKSUM.match(key)
    return match[1] + match[2] if match else key


def name_kind(kind: Kind, key: str) -> str:
    """What a key holds, in a word for a report."""
    if kind is not Kind.TABLE:
        return kind
    directory, _, name = table_file_of(key).rpartition("/")
    if name.endswith((".metadata.json", ".metadata.json.gz")):
        return "metadata file"
    if name.endswith(".avro") and directory.endswith("/metadata"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    if name.endswith(".stats") or name.startswith("partition-stats"):
        return "statistics file"
    return "delete file" if "deletes." in name else "data file"


def decide(
    kind: Kind,
    *,
    needed: bool | None,
    modified_at: Instant,
    condemned_at: Instant | None,
    limits: Limits,
) -> Fate:
    """The rule: needed objects stay, others are condemned when old, and swept a day later."""
    if kind is Kind.UNKNOWN:
        return Fate.FOREIGN
    if needed is None:
        return Fate.UNSURE
    if needed:
        return Fate.NEEDED if condemned_at is None else Fate.SPARE
    if modified_at >= limits.young_since:
        # Also where it is condemned: then it was swept before, and somebody stored it anew.
        return Fate.YOUNG
    if condemned_at is None:
        return Fate.CONDEMN
    return Fate.SWEEP if condemned_at <= limits.fresh_since else Fate.WAITING
