"""Tables of other catalogs become datasets, for clients and for the command line alike."""

from __future__ import annotations

from collections.abc import Callable

from headgate.endpoint.ports import Idempotency, Principal, ServedTable, TableCatalog, TableChange
from headgate.errors import TableExists, ViewConflict
from headgate.model.contexts import Context
from headgate.model.ids import mint_content, mint_dataset
from headgate.model.names import DatasetName
from headgate.model.nouns import TransactionType
from headgate.tables.registering import read_foreign, taken_in
from headgate.tables.versions import TableVersions


def register(
    catalog: TableCatalog,
    versions: TableVersions,
    read_outside: Callable[[str], bytes],
    *,
    principal: Principal,
    context: Context,
    name: DatasetName,
    metadata_location: str,
    now_ms: int,
    idempotency: Idempotency | None,
) -> ServedTable:
    """Shows a table that lies elsewhere under a name of ours; none of its files are touched.

    What is added to it, metadata included, is written below the warehouse.
    """
    if catalog.resolve(context, name):
        raise TableExists(table=str(name), context=str(context))
    found = read_foreign(read_outside, metadata_location)
    dataset = catalog.find_dataset_id(name) or mint_dataset()
    metadata = taken_in(
        found,
        outside=metadata_location,
        location=versions.table_location(dataset),
        now_ms=now_ms,
    )
    change = TableChange(
        name=name,
        dataset_id=dataset,
        base=None,
        location=versions.write(dataset, metadata).location,
        content_id=mint_content(),
        type=TransactionType.SNAPSHOT,
        owned=False,
    )
    try:
        (table,) = catalog.commit(principal, context, [change], idempotency)
    except ViewConflict as error:
        if catalog.resolve(context, name) is None:
            raise
        # Whoever was first has the name.
        raise TableExists(table=str(name), context=str(context)) from error
    return table
