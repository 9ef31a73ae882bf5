"""The dataset behind a table's name: found, or made by its first write."""

from __future__ import annotations

from headgate.catalog.database import Connection
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.find import find_dataset, find_dataset_by_id
from headgate.endpoint.ports import Principal, TableChange
from headgate.errors import DatasetExists, ImpossibleTableChange, Invalid, RequirementFailed
from headgate.model.ids import DatasetId
from headgate.model.names import DatasetName
from headgate.model.nouns import Dataset, DatasetKind


def find_table_dataset(connection: Connection, name: DatasetName) -> Dataset | None:
    """The dataset of that name, which must then be one of tables."""
    found = find_dataset(connection, name)
    return _of_tables(found) if found is not None else None


def find_or_create(connection: Connection, principal: Principal, change: TableChange) -> Dataset:
    """The dataset that a change is for; it must be the one whose directory the change names."""
    taken = find_dataset_by_id(connection, change.dataset_id)
    if taken is not None and taken.name != change.name:
        raise ImpossibleTableChange(
            change=f"table {change.name}",
            reason=f"its location is that of {taken.name}; leave LOCATION out",
        )
    if taken is not None:
        return _of_tables(taken)
    found = find_or_make(
        connection, principal, change.name, id=change.dataset_id, owned=change.owned
    )
    if found.id != change.dataset_id:
        # Another branch gave the name a dataset after this change was prepared.
        raise RequirementFailed(requirement="dataset", expected=change.dataset_id, actual=found.id)
    return found


def find_or_make(
    connection: Connection,
    principal: Principal,
    name: DatasetName,
    *,
    id: DatasetId | None = None,
    owned: bool = True,
) -> Dataset:
    """The dataset of tables with that name, made where there is none."""
    found = find_table_dataset(connection, name)
    if found is not None:
        return found
    try:
        return create_dataset_in(
            connection,
            name,
            kind=DatasetKind.TABLE,
            branch=None,
            actor=principal.actor,
            owned=owned,
            id=id,
        )
    except DatasetExists:
        # Somebody made it between looking and making.
        return find_or_make(connection, principal, name)


def _of_tables(dataset: Dataset) -> Dataset:
    if dataset.kind is not DatasetKind.TABLE:
        raise Invalid(
            f"dataset {dataset.name} is a tree of files, not a table. Give the table another name.",
            dataset=str(dataset.name),
        )
    return dataset
