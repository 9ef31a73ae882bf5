"""Iceberg endpoint on SQLite: loads and commits over HTTP, and branches of many tables."""

from __future__ import annotations

import http.client
import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from bench.cases import Bench, Scale, Tell, Timed
from bench.filling import ACTOR, NAMESPACE, ROOT
from headgate.catalog.branches import create_branch
from headgate.catalog.database import Database
from headgate.catalog.datasets import create_dataset
from headgate.catalog.migrate import ensure_schema
from headgate.catalog.publish import publish
from headgate.catalog.records import load_branch
from headgate.model.access import ReadPolicy
from headgate.model.changes import AddTransaction, Caller, PublishRequest
from headgate.model.contexts import BranchContext, encode_prefix, parse_context
from headgate.model.ids import mint_content, mint_version
from headgate.model.names import DatasetName
from headgate.model.nouns import (
    Dataset,
    DatasetKind,
    PublicationKind,
    TransactionType,
    Version,
)
from headgate.model.rules import ChangedTable, Verdict
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.storage.local import LocalStore
from headgate.tables.creation import create_metadata
from headgate.tables.metadata import Metadata
from headgate.tables.updates import apply_updates
from headgate.tables.versions import TableVersions
from tests.support.manifests import empty_manifest_list

_LONG_AGO_MS = 1_700_000_000_000
_SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": number, "name": f"column_{number}", "type": "long", "required": False}
        for number in range(1, 21)
    ],
}


@dataclass(kw_only=True)
class Desk:
    """A table behind the endpoint, and a client connection that stays open."""

    connection: http.client.HTTPConnection
    path: str
    token: str
    location: str
    snapshot: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, method: str, path: str, body: bytes | None = None) -> None:
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content

    def next_commit(self) -> bytes:
        """Return the request of an append to the current snapshot."""
        parent, self.snapshot = self.snapshot, self.snapshot + 1
        added = _snapshot(self.location, self.snapshot, parent)
        _write_list(added)
        updates = [
            {"action": "add-snapshot", "snapshot": added},
            _point(self.snapshot),
        ]
        at = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}
        return orjson.dumps({"requirements": [at], "updates": updates})


def no_rules(
    context: BranchContext, changed: Sequence[ChangedTable], policy: ReadPolicy | None = None
) -> Verdict:
    """Validate nothing: the tables here have no constraints."""
    return Verdict()


@contextmanager
def _desks(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Desk]]:
    sizes = [1, scale.of(1_000, 1_000)]
    with _store() as (database, tables):
        endpoint = EmbeddedEndpoint(database, tables, no_rules)
        try:
            yield {
                f"{size:,} snapshot{'s' * (size > 1)}": make_desk(
                    *(database, tables, f"table-{size}"),
                    url=endpoint.url,
                    token=endpoint.issue(ACTOR),
                    snapshots=size,
                )
                for size in sizes
            }
        finally:
            endpoint.stop()


def make_desk(
    database: Database, tables: TableVersions, name: str, *, url: str, token: str, snapshots: int
) -> Desk:
    """Create a table behind the endpoint of this URL."""
    dataset = _table(database, tables, name, snapshots=snapshots)
    prefix = encode_prefix(parse_context(ROOT), client="bench")
    address = urlsplit(url)
    return Desk(
        connection=http.client.HTTPConnection(str(address.hostname), address.port),
        path=f"{address.path}/v1/{prefix}/namespaces/{NAMESPACE}/tables/{name}",
        token=token,
        location=tables.table_location(dataset.id),
        snapshot=snapshots,
    )


ENDPOINT: Bench[Desk] = Bench("endpoint on SQLite", _desks, repetitions=200)


@ENDPOINT.case("load a table", target_ms=5)
def _load(desk: Desk) -> Timed:
    return lambda: desk.ask("GET", f"{desk.path}?snapshots=all")


@ENDPOINT.case("commit an append", target_ms=15)
def _commit(desk: Desk) -> Timed:
    body = desk.next_commit()
    return lambda: desk.ask("POST", desk.path, body)


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Many tables, each with this many snapshots in its history."""

    database: Database
    datasets: list[Dataset]
    numbers: Iterator[int] = field(default_factory=itertools.count)


@contextmanager
def _crowds(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Crowd]]:
    count = scale.of(1_000, 100)
    with _store() as (empty, no_tables), _store() as (full, tables):
        start = time.monotonic()
        crowds = {
            f"{count:,} tables without rows": _crowd(empty, no_tables, count, snapshots=0),
            f"{count:,} tables of 100 snapshots": _crowd(full, tables, count, snapshots=100),
        }
        tell(f"branches: 2 × {count:,} tables in {time.monotonic() - start:.1f} s")
        yield crowds


def _crowd(database: Database, tables: TableVersions, count: int, *, snapshots: int) -> Crowd:
    made = [
        _table(database, tables, f"table-{number}", snapshots=snapshots) for number in range(count)
    ]
    return Crowd(database=database, datasets=made)


BRANCHES: Bench[Crowd] = Bench(
    "branches of many tables", _crowds, repetitions=5, quick_repetitions=3, warm_ups=1
)


@BRANCHES.case("create a branch of every table", flat=True)
def _branch(crowd: Crowd) -> Timed:
    name = f"branch-{next(crowd.numbers)}"

    def work() -> None:
        for dataset in crowd.datasets:
            create_branch(crowd.database, dataset, name, parent=ROOT, caller=Caller(actor=ACTOR))

    return work


@contextmanager
def _store() -> Iterator[tuple[Database, TableVersions]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        with closing(Database(f"sqlite:///{root / 'catalog.db'}")) as database:
            ensure_schema(database, create=True)
            yield database, TableVersions(LocalStore(root / "warehouse"))


def _table(database: Database, tables: TableVersions, name: str, *, snapshots: int) -> Dataset:
    """Create a table with one transaction on its root, and this many snapshots in its metadata."""
    full = DatasetName(namespace=(NAMESPACE,), name=name)
    dataset = create_dataset(
        database, full, kind=DatasetKind.TABLE, branch=ROOT, caller=Caller(actor=ACTOR)
    )
    metadata = _metadata(tables.table_location(dataset.id), snapshots)
    location = tables.write(dataset.id, metadata, base=metadata).location
    for made in metadata["snapshots"][-1:]:
        _write_list(made)
    branch = database.read(lambda c: load_branch(c, dataset, ROOT))
    change = AddTransaction(
        branch=branch.id,
        expected_head=None,
        expected_view=None,
        parent=None,
        type=TransactionType.SNAPSHOT,
        version=Version(id=mint_version(), location=location, content_id=mint_content()),
    )
    request = PublishRequest(
        caller=Caller(actor=ACTOR), kind=PublicationKind.COMMIT, changes=(change,)
    )
    publish(database, request)
    return dataset


def _metadata(location: str, snapshots: int) -> Metadata:
    body = {"schema": _SCHEMA, "properties": {"format-version": "2"}}
    created = create_metadata(body, location=location, now_ms=_LONG_AGO_MS)
    updates: list[dict[str, object]] = [
        {"action": "add-snapshot", "snapshot": _snapshot(location, number, number - 1 or None)}
        for number in range(1, snapshots + 1)
    ]
    if snapshots:
        updates.append(_point(snapshots))
    return apply_updates(created, updates, now_ms=_LONG_AGO_MS + snapshots, base_location=None)


def _write_list(snapshot: Mapping[str, Any]) -> None:
    """Write a manifest list without manifests, as an engine would before it commits."""
    Path(str(snapshot["manifest-list"]).removeprefix("file://")).write_bytes(empty_manifest_list())


def _snapshot(location: str, number: int, parent: int | None) -> dict[str, object]:
    made: dict[str, object] = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": _LONG_AGO_MS + number,
        "manifest-list": f"{location}/metadata/snap-{number:020d}.avro",
        "summary": {
            "operation": "append",
            "added-data-files": "1",
            "added-records": "1000",
            "added-files-size": "100000",
            "total-records": str(number * 1000),
            "total-data-files": str(number),
            "engine-name": "spark",
        },
        "schema-id": 0,
    }
    return made if parent is None else {**made, "parent-snapshot-id": parent}


def _point(number: int) -> dict[str, object]:
    return {
        "action": "set-snapshot-ref",
        "ref-name": "main",
        "type": "branch",
        "snapshot-id": number,
    }
