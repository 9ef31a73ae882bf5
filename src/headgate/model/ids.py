"""A type for each kind of id, how ids are minted, and the digest of a JSON value.

Ids sort by the time at which they were minted, so that rows written together are stored together.
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NewType, TypeVar

DatasetId = NewType("DatasetId", str)
BranchId = NewType("BranchId", str)
TransactionId = NewType("TransactionId", str)
VersionId = NewType("VersionId", str)
ContentId = NewType("ContentId", str)
UnitId = NewType("UnitId", str)
OperationId = NewType("OperationId", str)
IntentId = NewType("IntentId", str)
BuildId = NewType("BuildId", str)
JobSpecId = NewType("JobSpecId", str)
PublicationNumber = NewType("PublicationNumber", int)
Epoch = NewType("Epoch", int)
# Microseconds since 1970 in UTC, always by the database's clock.
Instant = NewType("Instant", int)

T = TypeVar("T", bound=str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def mint(prefix: str) -> str:
    """Return a new id: the prefix, ten characters of time, twelve random ones."""
    milliseconds = time.time_ns() // 1_000_000
    clock = "".join(_ALPHABET[(milliseconds >> shift) & 31] for shift in range(45, -5, -5))
    chance = secrets.randbits(60)
    return f"{prefix}-{clock}" + "".join(
        _ALPHABET[(chance >> shift) & 31] for shift in range(55, -5, -5)
    )


def _minter(kind: Callable[[str], T], prefix: str) -> Callable[[], T]:
    return lambda: kind(mint(prefix))


mint_dataset = _minter(DatasetId, "d")
_DATASET = re.compile(f"d-[{_ALPHABET}]{{22}}")


def is_dataset_id(text: str) -> bool:
    """Return whether a text has the form of the ids that this program mints for datasets."""
    return _DATASET.fullmatch(text) is not None


mint_branch = _minter(BranchId, "b")
mint_transaction = _minter(TransactionId, "t")
mint_version = _minter(VersionId, "v")
mint_content = _minter(ContentId, "c")
mint_unit = _minter(UnitId, "u")
mint_operation = _minter(OperationId, "o")
mint_intent = _minter(IntentId, "i")
mint_build = _minter(BuildId, "build")
mint_jobspec = _minter(JobSpecId, "js")


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, the same on every machine and for any order of keys."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()


def to_datetime(instant: Instant) -> datetime:
    """Return a time in UTC, exact to the microsecond."""
    seconds, micros = divmod(instant, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


def instant_text(instant: Instant) -> str:
    """Return a time as ISO 8601, with microseconds so that no two publications look alike."""
    return to_datetime(instant).isoformat(timespec="microseconds").replace("+00:00", "Z")
