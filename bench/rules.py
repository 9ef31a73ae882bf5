"""Appends by an Iceberg client to a large table: with its rules of rows, and without.

A server validates an append in a process of its own, as here. Both tables have the same rows in the
same buckets, and get the same appends in turns.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.rest import RestCatalog

from bench.cases import Bench, Scale, Tell, Timed
from bench.filling import ACTOR
from bench.pipelines import open_store
from headgate.model.constraints import Enforce
from headgate.rows.evaluator_pool import EvaluatorPool
from headgate.settings import ServerSettings
from headgate.spark.workplace import EmbeddedEndpoint
from headgate.store.embedded import Store

_APPENDED = 10_000
_ROWS_PER_BUCKET = 200_000
_SCHEMA = """
[dataset."rules.{enforce}"]
columns = {{id = "long", n = "long", name = "string"}}
key = ["id"]
unique = [["n"]]
buckets = {buckets}
enforce = "{enforce}"
"""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One of the two tables. Its keys are even; odd ones are free, and all above them."""

    catalog: RestCatalog
    name: str
    rows: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def append(self, ids: pa.Array) -> Timed:
        table, rows = self.catalog.load_table(self.name), _rows(ids)
        return lambda: table.append(rows)


@contextmanager
def _targets(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Target]]:
    rows = scale.of(10_000_000, 500_000)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as home,
        open_store(Path(home)) as store,
        closing(EvaluatorPool(ServerSettings(), store.scratch, os.environ)) as pool,
    ):
        _fill(store, rows, tell)
        store.evaluators = pool
        endpoint = EmbeddedEndpoint(store.database, store.tables, store.rules)
        try:
            token = endpoint.issue(ACTOR)
            catalog = RestCatalog("bench", uri=endpoint.url, warehouse="master", token=token)
            yield {
                label: Target(catalog=catalog, name=f"rules.{enforce}", rows=rows)
                for label, enforce in (
                    ("without rules", Enforce.OFF),
                    ("with rules", Enforce.REJECT),
                )
            }
        finally:
            endpoint.stop()


def _fill(store: Store, rows: int, tell: Tell) -> None:
    began = time.monotonic()
    held = _rows(pc.multiply(pa.array(range(rows), pa.int64()), 2))
    for enforce in (Enforce.OFF, Enforce.REJECT):
        path = store.settings.root / f"{enforce}.toml"
        buckets = max(8, rows // _ROWS_PER_BUCKET)
        path.write_text(_SCHEMA.format(enforce=enforce, buckets=buckets))
        store.rows.apply_schema(path, branch="master")
        store.load("master", {f"rules.{enforce}": held}, mode="overwrite")
    tell(f"rules: {rows:,} rows, twice, in {time.monotonic() - began:.1f} s")


def _rows(ids: pa.Array) -> pa.Table:
    names = pc.binary_join_element_wise("name-", ids.cast(pa.string()), "")
    required = pa.field("id", pa.int64(), nullable=False)
    schema = pa.schema([required, ("n", pa.int64()), ("name", pa.string())])
    return pa.table([ids, ids, names], schema=schema)


RULES: Bench[Target] = Bench(
    "rules of rows", _targets, repetitions=10, quick_repetitions=3, warm_ups=1, counts_sql=False
)


@RULES.case(f"append {_APPENDED:,} rows, keys above all others")
def _in_order(target: Target) -> Timed:
    first = 2 * target.rows + next(target.numbers) * _APPENDED
    return target.append(pa.array(range(first, first + _APPENDED), pa.int64()))


@RULES.case(f"append {_APPENDED:,} rows, keys between the others")
def _between(target: Target) -> Timed:
    step, shift = 2 * target.rows // _APPENDED, 2 * next(target.numbers) + 1
    return target.append(pa.array(range(shift, shift + step * _APPENDED, step), pa.int64()))
