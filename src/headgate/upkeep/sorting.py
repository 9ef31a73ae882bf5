"""What becomes of one stored object; pure."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from headgate.model.ids import Instant
from headgate.upkeep.probing import PREFIX

_OBJECT = re.compile(r"objects/sha256/([0-9a-f]{2})/([0-9a-f]{62})\Z")
_BUNDLE = re.compile(r"bundles/([0-9a-f]{64})\.zip\Z")


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
    TABLE = "table files are left alone in this release"
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
    return (Kind.TABLE if key.startswith("tables/") else Kind.UNKNOWN), None


def decide(
    kind: Kind,
    *,
    needed: bool,
    modified_at: Instant,
    condemned_at: Instant | None,
    limits: Limits,
) -> Fate:
    """The rule: needed objects stay, others are condemned when old, and swept a day later."""
    if kind is Kind.TABLE:
        return Fate.TABLE
    if kind is Kind.UNKNOWN:
        return Fate.FOREIGN
    if needed:
        return Fate.NEEDED if condemned_at is None else Fate.SPARE
    if modified_at >= limits.young_since:
        # Also where it is condemned: then it was swept before, and somebody stored it anew.
        return Fate.YOUNG
    if condemned_at is None:
        return Fate.CONDEMN
    return Fate.SWEEP if condemned_at <= limits.fresh_since else Fate.WAITING
