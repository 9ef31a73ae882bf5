"""An Iceberg table of another catalog becomes a dataset, without a copy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from headgate.catalog.operations import do_once
from headgate.endpoint.ports import Idempotency, Principal
from headgate.endpoint.registering import register
from headgate.endpoint.truth import SqlTableCatalog
from headgate.endpoint.writing import operation_key
from headgate.errors import BucketMissing, ObjectNotFound
from headgate.handles.parts import StoreParts
from headgate.model.contexts import BranchContext
from headgate.model.names import DatasetName, check_branch_name
from headgate.storage.outside import open_outside, read_outside
from headgate.tables.registering import names_metadata_file, newest_metadata


def register_table(
    store: StoreParts,
    name: DatasetName,
    location: str,
    *,
    branch: str,
    idempotency: Idempotency | None = None,
) -> None:
    """Shows the table at an address on a branch; a directory means its newest metadata file."""
    options = store.settings.environ
    principal = Principal(actor=store.settings.actor, may_write_protected=store.may_write_protected)
    context = BranchContext(chain=(check_branch_name(branch),))
    try:
        do_once(
            store.database,
            operation_key(principal, context, idempotency),
            lambda: register(
                SqlTableCatalog(store.database),
                store.contents.tables,
                partial(read_outside, options=options),
                principal=principal,
                context=context,
                name=name,
                metadata_location=_metadata_file(location, options),
                now_ms=time.time_ns() // 1_000_000,
                idempotency=idempotency,
            ),
        )
    except BucketMissing as error:
        # Not ours: whoever named it has to name another one.
        raise ObjectNotFound(location=location) from error


def _metadata_file(location: str, options: Mapping[str, str]) -> str:
    address = location.rstrip("/")
    if not address.startswith("file:") and "://" not in address:
        address = f"file://{Path(address).absolute()}"
    if names_metadata_file(address):
        return address
    return f"{address}/{newest_metadata(open_outside(address, options))}"
