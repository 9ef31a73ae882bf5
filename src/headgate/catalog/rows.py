"""Rows become nouns here, and only here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import RowMapping, Select, select

from headgate.catalog.schema import branches, datasets, transactions, versions
from headgate.model.history import Step
from headgate.model.ids import (
    BranchId,
    ContentId,
    DatasetId,
    Epoch,
    Instant,
    PublicationNumber,
    TransactionId,
    UnitId,
    VersionId,
)
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    AttemptRef,
    Branch,
    Dataset,
    DatasetKind,
    Transaction,
    TransactionState,
    TransactionType,
    Version,
)

_SEPARATOR = "\x1f"
_parents = branches.alias("parents")


def dump(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def load(text: str) -> Any:
    return orjson.loads(text)


def namespace_key(parts: tuple[str, ...]) -> str:
    """How a namespace is stored: parts joined by the separator that Iceberg's REST uses."""
    return _SEPARATOR.join(parts)


def namespace_parts(key: str) -> tuple[str, ...]:
    return tuple(key.split(_SEPARATOR))


def dataset_name(row: RowMapping | Mapping[str, Any]) -> DatasetName:
    return _dataset_name(row["namespace"], row["dataset_name"])


# The same few thousand names come with every branch and every transaction of a plan.
@lru_cache(maxsize=32_768)
def _dataset_name(namespace: str, name: str) -> DatasetName:
    return DatasetName(namespace=namespace_parts(namespace), name=name)


DATASETS = select(datasets, datasets.c.name.label("dataset_name"))


def to_dataset(row: RowMapping) -> Dataset:
    return Dataset(
        id=DatasetId(row["id"]),
        name=dataset_name(row),
        kind=DatasetKind(row["kind"]),
        owned=bool(row["owned"]),
        created_at=Instant(row["created_at"]),
    )


# The parent's name by a left join: a branch is read far more often than it is written.
BRANCHES: Select[Any] = (
    select(
        branches,
        datasets.c.namespace,
        datasets.c.name.label("dataset_name"),
        _parents.c.name.label("parent_name"),
    )
    .join(datasets, datasets.c.id == branches.c.dataset_id)
    .outerjoin(_parents, _parents.c.id == branches.c.parent_id)
)


def to_branch(row: RowMapping) -> Branch:
    return Branch(
        id=BranchId(row["id"]),
        dataset_id=DatasetId(row["dataset_id"]),
        dataset=dataset_name(row),
        name=row["name"],
        parent_id=BranchId(row["parent_id"]) if row["parent_id"] else None,
        parent=row["parent_name"],
        head=TransactionId(row["head_id"]) if row["head_id"] else None,
        view=TransactionId(row["view_id"]) if row["view_id"] else None,
        remembered_chain=tuple(load(row["remembered_chain"])) if row["remembered_chain"] else (),
    )


TRANSACTIONS: Select[Any] = (
    select(
        transactions,
        datasets.c.namespace,
        datasets.c.name.label("dataset_name"),
        versions.c.location,
        versions.c.content_id,
        versions.c.condemned_at,
    )
    .join(datasets, datasets.c.id == transactions.c.dataset_id)
    .outerjoin(versions, versions.c.id == transactions.c.version_id)
)


def to_transaction(row: RowMapping) -> Transaction:
    return Transaction(
        id=TransactionId(row["id"]),
        dataset_id=DatasetId(row["dataset_id"]),
        dataset=dataset_name(row),
        branch_id=BranchId(row["branch_id"]),
        branch=row["branch_name"],
        parent=TransactionId(row["parent_id"]) if row["parent_id"] else None,
        depth=row["depth"],
        jump=TransactionId(row["jump_id"]) if row["jump_id"] else None,
        type=TransactionType(row["type"]),
        state=TransactionState(row["state"]),
        version=_version(row),
        actor=row["actor"],
        opened_at=Instant(row["opened_at"]),
        closed_at=Instant(row["closed_at"]) if row["closed_at"] is not None else None,
        lease_until=Instant(row["lease_until"]) if row["lease_until"] is not None else None,
        lease_seconds=row["lease_seconds"],
        attempt=attempt_ref(row),
        unit=UnitId(row["unit_id"]) if row["unit_id"] else None,
        publication=(
            PublicationNumber(row["publication"]) if row["publication"] is not None else None
        ),
        inputs_key=row["inputs_key"],
        build_key=row["build_key"],
        adoptable=bool(row["adoptable"]),
        condemned=row["condemned_at"] is not None,
        provenance=load(row["provenance"]),
    )


def to_step(id: str, parent_id: str | None, depth: int, jump_id: str | None) -> Step:
    return Step(
        id=TransactionId(id),
        parent=TransactionId(parent_id) if parent_id else None,
        depth=depth,
        jump=TransactionId(jump_id) if jump_id else None,
    )


def attempt_ref(row: RowMapping) -> AttemptRef | None:
    if row["attempt_key"] is None:
        return None
    return AttemptRef(key=row["attempt_key"], epoch=Epoch(row["attempt_epoch"]))


def _version(row: RowMapping) -> Version | None:
    if row["version_id"] is None:
        return None
    return Version(
        id=VersionId(row["version_id"]),
        location=row["location"],
        content_id=ContentId(row["content_id"]),
    )
