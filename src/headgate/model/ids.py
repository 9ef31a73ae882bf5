"""A type per id, and how ids are made.

Ids sort by the time they were minted, so that rows written together lie together on disk.
"""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import NewType

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

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def mint(prefix: str) -> str:
    """A new id: the prefix, ten characters of time, twelve of chance."""
    moment = time.time_ns() // 1_000_000
    clock = "".join(_ALPHABET[(moment >> shift) & 31] for shift in range(45, -5, -5))
    chance = secrets.randbits(60)
    return f"{prefix}-{clock}" + "".join(
        _ALPHABET[(chance >> shift) & 31] for shift in range(55, -5, -5)
    )


def mint_dataset() -> DatasetId:
    return DatasetId(mint("d"))


def mint_branch() -> BranchId:
    return BranchId(mint("b"))


def mint_transaction() -> TransactionId:
    return TransactionId(mint("t"))


def mint_version() -> VersionId:
    return VersionId(mint("v"))


def mint_content() -> ContentId:
    return ContentId(mint("c"))


def mint_unit() -> UnitId:
    return UnitId(mint("u"))


def mint_operation() -> OperationId:
    return OperationId(mint("o"))


def mint_intent() -> IntentId:
    return IntentId(mint("i"))


def mint_build() -> BuildId:
    return BuildId(mint("build"))


def mint_jobspec() -> JobSpecId:
    return JobSpecId(mint("js"))


# Moments as people and programs read them: ISO 8601 in UTC.


def instant_text(instant: Instant) -> str:
    """With microseconds, so that two publications never look alike."""
    seconds, micros = divmod(instant, 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
