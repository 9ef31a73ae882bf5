"""Appends of many clients to one table, all prepared on an older snapshot than the newest."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from bench.cases import Bench, Scale, Tell, Timed
from bench.endpoint import no_rules
from bench.filling import ACTOR, ROOT
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.storage.local import LocalStore
from headgate.tables.versions import TableVersions

_APPENDS = 32
_WRITERS = 16
_TABLES = (f"db.t{number}" for number in itertools.count())


@dataclass(frozen=True, kw_only=True)
class Writers:
    """A number of PyIceberg clients that share the appends among them, and do not retry."""

    endpoint: EmbeddedEndpoint
    count: int

    def connect(self) -> RestCatalog:
        token = self.endpoint.issue(ACTOR)
        return RestCatalog("headgate", uri=self.endpoint.url, warehouse=ROOT, token=token)


@contextmanager
def _crews(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Writers]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        with closing(Database(f"sqlite:///{root / 'catalog.db'}")) as database:
            ensure_schema(database, create=True)
            versions = TableVersions(LocalStore(root / "warehouse"))
            endpoint = EmbeddedEndpoint(database, versions, no_rules)
            try:
                crews = {
                    f"{count} writer{'s' * (count > 1)}": Writers(endpoint=endpoint, count=count)
                    for count in (1, _WRITERS)
                }
                next(iter(crews.values())).connect().create_namespace("db")
                yield crews
            finally:
                endpoint.stop()


APPENDS: Bench[Writers] = Bench(
    "appends by Iceberg clients",
    _crews,
    repetitions=10,
    quick_repetitions=3,
    warm_ups=1,
    counts_sql=False,
)


@APPENDS.case(f"{_APPENDS} appends to one table", target_ratio=1.5)
def _append(writers: Writers) -> Timed:
    """Each writer appends on what it loaded before the first append of all."""
    name, rows = next(_TABLES), pa.table({"id": pa.array([1], pa.int64())})
    no_retry = {"commit.retry.num-retries": "0"}
    writers.connect().create_table(name, rows.schema, properties=no_retry)
    tables = [writers.connect().load_table(name) for _ in range(writers.count)]

    def append(table: Any) -> None:
        for _ in range(_APPENDS // writers.count):
            table.append(rows)

    def work() -> None:
        with ThreadPoolExecutor(writers.count) as pool:
            list(pool.map(append, tables))
        found = writers.connect().load_table(name).current_snapshot()
        assert found is not None and found.summary is not None
        assert found.summary["total-records"] == str(_APPENDS), "an append was lost"

    return work
