"""What an OPEN transaction holds before anything is written in it."""

from __future__ import annotations

import time

from headgate.catalog.database import Connection
from headgate.catalog.find import find_transaction, load_dataset
from headgate.catalog.stage import stage_version
from headgate.handles.parts import StoreParts
from headgate.model.ids import mint_content, mint_version
from headgate.model.nouns import DatasetKind, Transaction, TransactionType, Version
from headgate.tables.shape import MAIN, Json
from headgate.tables.updates import apply_updates

# Nothing but this can be done to a table of the first format.
_UPGRADE: Json = {"action": "upgrade-format-version", "format-version": 2}
_WITHOUT_ROWS: Json = {"action": "remove-snapshot-ref", "ref-name": MAIN}


def begin(store: StoreParts, opened: Transaction) -> Transaction:
    """A SNAPSHOT of a table begins with the table's columns and no rows.

    Without them no engine would find the table to write to, and a commit would drop it.
    """
    base = store.database.read(lambda c: _base_of(c, opened))
    if base is None:
        return opened
    held = store.contents.tables.read(base.location).metadata
    metadata = apply_updates(
        held,
        [_WITHOUT_ROWS] if held["format-version"] > 1 else [_UPGRADE, _WITHOUT_ROWS],
        now_ms=time.time_ns() // 1_000_000,
        base_location=base.location,
    )
    written = store.contents.tables.write(opened.dataset_id, metadata)
    version = Version(id=mint_version(), location=written.location, content_id=mint_content())
    return stage_version(store.database, opened.id, version, expected=None)


def _base_of(connection: Connection, opened: Transaction) -> Version | None:
    """The version of the table that a SNAPSHOT is about to replace."""
    if opened.type is not TransactionType.SNAPSHOT or opened.parent is None:
        return None
    if load_dataset(connection, opened.dataset).kind is not DatasetKind.TABLE:
        return None
    before = find_transaction(connection, opened.parent)
    return before.version if before is not None else None
