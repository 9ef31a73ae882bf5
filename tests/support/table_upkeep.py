"""Tables for tests of cleanup: written by PyIceberg, and read back by it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadataUtil

from headgate.errors import VersionExpired
from headgate.settings import Settings
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store
from headgate.tables.scan import file_properties
from tests.support.stores import load
from tests.support.upkeep import tidy_later

TABLE = "shop.orders"


class TableClient:
    """PyIceberg on the contexts of a store, through one endpoint that can be restarted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._endpoint: EmbeddedEndpoint | None = None
        self._catalogs: dict[str, RestCatalog] = {}

    def __enter__(self) -> TableClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def catalog(self, context: str = "master") -> RestCatalog:
        if self._endpoint is None:
            store = self._store
            self._endpoint = EmbeddedEndpoint(
                store.database, store.tables, store.rules, store.settings.environ
            )
        if context not in self._catalogs:
            self._catalogs[context] = RestCatalog(
                "headgate",
                uri=self._endpoint.url,
                warehouse=context,
                token=self._endpoint.tokens.issue(self._store.settings.actor),
                **file_properties(self._store.settings.environ),
            )
        return self._catalogs[context]

    def table(self, context: str = "master", name: str = TABLE) -> Table:
        return self.catalog(context).load_table(name)

    def create(self, *values: int, name: str = TABLE, context: str = "master") -> str:
        """Create a table of one column with these rows, and return the view of the branch."""
        catalog = self.catalog(context)
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        catalog.create_table(name, rows(1).schema)
        return self.append(*values, name=name, context=context)

    def append(self, *values: int, name: str = TABLE, context: str = "master") -> str:
        self.table(context, name).append(rows(*values))
        return self.view(name=name, context=context)

    def overwrite(self, *values: int, name: str = TABLE, context: str = "master") -> str:
        self.table(context, name).overwrite(rows(*values))
        return self.view(name=name, context=context)

    def view(self, *, name: str = TABLE, context: str = "master") -> str:
        branch = context.partition(">")[0]
        if branch.startswith("txn:"):
            return ""
        return str(self._store.dataset(name).branch(branch).load().view)

    def forget(self) -> None:
        """Stop the endpoint; the next use starts another, with empty caches."""
        self._catalogs.clear()
        if self._endpoint is not None:
            self._endpoint.stop()
            self._endpoint = None


def rows(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def shown_at(store: Store, transaction: str) -> list[int]:
    """Return the rows that a transaction shows, in order; `VersionExpired` once it is condemned."""
    found = load(store, transaction)
    if found.condemned:
        raise VersionExpired(what=transaction)
    if found.version is None:
        return []
    return read_values(open_version(store, found.version.location))


def open_version(store: Store, location: str) -> StaticTable:
    """Open a version as the store serves it, by PyIceberg alone."""
    metadata = TableMetadataUtil.parse_obj(store.tables.read(location).metadata)
    return StaticTable(
        identifier=("version", location),
        metadata=metadata,
        metadata_location=location,
        io=load_file_io(file_properties(store.settings.environ), location=location),
        catalog=NoopCatalog("version"),
    )


def read_values(table: Any, snapshot_id: int | None = None) -> list[int]:
    found: list[int] = table.scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist()
    return sorted(found)


def check_travel(store: Store, location: str) -> None:
    """Assert that every snapshot that a version lists can be read to its last row."""
    table = open_version(store, location)
    for snapshot in table.snapshots():
        read_values(table, snapshot.snapshot_id)


def keys_of(store: Store, locations: Iterable[str]) -> set[str]:
    """Return all files that these versions need, by PyIceberg alone, as keys of the warehouse."""
    found: set[str] = set()
    for location in locations:
        table = open_version(store, location)
        found.add(location)
        for snapshot in table.snapshots():
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found.update(entry.data_file.file_path for entry in entries)
        found.update(statistics.statistics_path for statistics in table.metadata.statistics)
    start = f"{store.objects.url}/"
    return {place.removeprefix(start) for place in found if place.startswith(start)}


def leave_files(store: Store, *keys: str) -> None:
    """Create files that a writer left behind, under the table's own directory."""
    for key in keys:
        path = Path(store.settings.warehouse) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left behind")


# --- entry points of processes ----------------------------------------------------------------


def condemn_again_and_again(settings: Settings, stop: Path) -> None:
    """Clean up on one day far ahead, where all content is old and nothing is due for the sweep."""
    with Store(settings, recover_first=False) as store:
        while not stop.exists():
            tidy_later(store, 40)


def append_again_and_again(settings: Settings, branch: str, rounds: int) -> None:
    """Write one row after the other, on a branch of its own."""
    with Store(settings, recover_first=False) as store, TableClient(store) as client:
        for number in range(rounds):
            client.append(number, context=branch)
