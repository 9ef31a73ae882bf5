"""A large merge-load by Spark, and the plain `MERGE INTO` of a script.

Both tables hold the same rows in the same buckets, both merge the same Parquet files in one JVM,
in turns, and each time both begin from the same state. The difference is the cost of a load's
extra steps: duplicate keys detected, constraints checked, rows counted, one publication.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.cases import Bench, Scale, Tell, Timed, Unavailable
from bench.pipeline import PLAIN, open_empty_store, plain_catalog
from headgate.errors import SparkUnavailable
from headgate.store.embedded import Store

_TABLE = "rows.merged"
_MASTER = "master"
_ROWS_PER_BUCKET = 200_000
_SCHEMA = """
[dataset."{table}"]
columns = {{id = "long", n = "long", name = "string"}}
key = ["id"]
buckets = {buckets}
"""
_VIEW = "merging_source"
_MERGE = f"""
    MERGE INTO {PLAIN}.{_TABLE} t USING {_VIEW} s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


class Way(Protocol):
    """One of the two ways to produce the same table."""

    def put_back(self) -> None: ...

    def merge(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Plain:
    session: Any
    files: Path
    snapshot: int

    def put_back(self) -> None:
        self.session.sql(f"CALL {PLAIN}.system.set_current_snapshot('{_TABLE}', {self.snapshot})")

    def merge(self) -> None:
        self.session.read.parquet(str(self.files)).createOrReplaceTempView(_VIEW)
        self.session.sql(_MERGE)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    store: Store
    files: Path
    rows: int
    transaction: str

    def put_back(self) -> None:
        branch = self.store.dataset(_TABLE).branch(_MASTER)
        if branch.load().view != self.transaction:
            branch.reset(to=self.transaction)

    def merge(self) -> None:
        outcome = self.store.load(_MASTER, {_TABLE: self.files}, mode="merge", engine="spark")
        counts = outcome.counts[_TABLE]
        assert (counts.inserted, counts.updated) == (self.rows // 2, self.rows // 2)


@contextmanager
def _ways(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Way]]:
    rows = scale.merged_rows or scale.of(10_000_000, 200_000)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as home:
        root = Path(home)
        with open_empty_store(root) as store:
            try:
                session = store.spark(_MASTER)
            except SparkUnavailable as error:
                raise Unavailable(error.message) from error
            for option, value in plain_catalog(root / "plain").items():
                session.conf.set(option, value)
            files = _source(session, root, rows)
            ways: dict[str, Way] = {
                "plain MERGE INTO": _plain(session, files, rows),
                "headgate load": _loaded(store, session, files, rows),
            }
            tell(f"merging: {rows:,} rows, twice, in {time.monotonic() - began:.1f} s")
            yield ways


def _source(session: Any, root: Path, rows: int) -> Path:
    """Return as many rows as the table has; every other one is new."""
    path = root / "source"
    first = rows // 2
    frame = session.range(first, first + rows).selectExpr("id", "-id as n", "'new-' || id as name")
    frame.write.parquet(str(path))
    return path


def _before(session: Any, rows: int) -> Any:
    return session.range(rows).selectExpr("id", "id as n", "'name-' || id as name")


def _buckets(rows: int) -> int:
    return max(8, rows // _ROWS_PER_BUCKET)


def _plain(session: Any, files: Path, rows: int) -> Plain:
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {PLAIN}.rows")
    session.sql(
        f"CREATE TABLE {PLAIN}.{_TABLE} (id bigint NOT NULL, n bigint, name string) "
        f"USING iceberg PARTITIONED BY (bucket({_buckets(rows)}, id))"
    )
    _before(session, rows).writeTo(f"{PLAIN}.{_TABLE}").append()
    [shown] = session.sql(f"SELECT snapshot_id FROM {PLAIN}.{_TABLE}.snapshots").collect()
    return Plain(session=session, files=files, snapshot=shown["snapshot_id"])


def _loaded(store: Store, session: Any, files: Path, rows: int) -> Loaded:
    schema = store.settings.root / "merged.toml"
    schema.write_text(_SCHEMA.format(table=_TABLE, buckets=_buckets(rows)))
    store.rows.apply_schema(schema, branch=_MASTER)
    before = store.settings.root / "before"
    _before(session, rows).write.parquet(str(before))
    # By a load, which marks the keys as unique: after any other write a merge counts them.
    store.load(_MASTER, {_TABLE: before}, mode="overwrite", engine="spark")
    shown = store.dataset(_TABLE).branch(_MASTER).load().view
    assert shown is not None
    return Loaded(store=store, files=files, rows=rows, transaction=shown)


MERGING: Bench[Way] = Bench(
    "merge-load by Spark", _ways, repetitions=5, quick_repetitions=3, warm_ups=1
)


@MERGING.case("as many rows as there are, half new", target_ratio=1.2)
def _merge(way: Way) -> Timed:
    way.put_back()
    return way.merge
