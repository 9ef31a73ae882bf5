"""Operations on rows: one row of a large table, small loads over many tables, many writers."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.cases import Bench, Scale, Tell, Timed
from bench.pipelines import open_store
from headgate.settings import Settings
from headgate.store.embedded import Store

_LARGE = "rows.large"
_WRITERS = 8
_EACH = 5
_LINKED = 5


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A store with one large table, five that refer to each other, and eight for contention."""

    store: Store
    rows: int
    crowd: list[Connection]
    tell: Tell
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


def _schema(buckets: int) -> str:
    text = (
        f'[dataset."{_LARGE}"]\ncolumns = {{id = "long", n = "long", name = "string"}}\n'
        f'key = ["id"]\nbuckets = {buckets}\n'
    )
    for at in range(_LINKED):
        text += f'[dataset."rows.link{at}"]\ncolumns = {{id = "long", up = "long"}}\nkey = ["id"]\n'
        if at:
            text += f'references = [{{column = "up", dataset = "rows.link{at - 1}"}}]\n'
    for at in range(_WRITERS):
        text += f'[dataset."rows.hot{at}"]\ncolumns = {{id = "long", n = "long"}}\nkey = ["id"]\n'
    return text


def fill(store: Store, rows: int, tell: Tell) -> None:
    began = time.monotonic()
    path = store.settings.root / "rows.toml"
    path.write_text(_schema(max(8, rows // 40_000)))
    store.rows.apply_schema(path, branch="master")
    ids = pa.array(range(rows), pa.int64())
    names = pc.binary_join_element_wise("name-", ids.cast(pa.string()), "")
    large = pa.table({"id": ids, "n": ids, "name": names})
    store.load("master", {_LARGE: large}, mode="overwrite")
    hot = pa.table({"id": pa.array(range(_WRITERS)), "n": pa.array([0] * _WRITERS)})
    store.load("master", {f"rows.hot{at}": hot for at in range(_WRITERS)})
    tell(f"rows: {rows:,} rows in {time.monotonic() - began:.1f} s")


@contextmanager
def _filled(scale: Scale, tell: Tell) -> Iterator[Mapping[str, Filled]]:
    rows = scale.of(10_000_000, 500_000)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as home,
        open_store(Path(home)) as store,
        ExitStack() as crowd,
    ):
        fill(store, rows, tell)
        lines = [crowd.enter_context(_writer(store.settings, at)) for at in range(_WRITERS)]
        yield {f"{rows:,} rows": Filled(store=store, rows=rows, crowd=lines, tell=tell)}


ROWS: Bench[Filled] = Bench(
    "work on rows", _filled, repetitions=30, quick_repetitions=5, warm_ups=2
)


@ROWS.case("update one row by key", target_ms=300)
def _update(filled: Filled) -> Timed:
    id = next(filled.numbers) * 7919 % filled.rows
    sql = f"update {_LARGE} set n = n + 1 where id = {id}"
    return lambda: _passes(filled.store.mutate("master", sql).publication)


@ROWS.case(f"load 1,000 rows into {_LINKED} tables with references", target_ms=500)
def _load(filled: Filled) -> Timed:
    first = next(filled.numbers) * 1_000
    ids = pa.array(range(first, first + 1_000 // _LINKED), pa.int64())
    rows = pa.table({"id": ids, "up": ids})
    given = {f"rows.link{at}": rows for at in range(_LINKED)}
    return lambda: _passes(filled.store.load("master", given).publication)


@ROWS.case(f"{_WRITERS * _EACH} updates by {_WRITERS} processes, one table", target_ms=8_000)
def _contended(filled: Filled) -> Timed:
    return lambda: _contend(filled, ["rows.hot0"] * _WRITERS)


@ROWS.case(f"{_WRITERS * _EACH} updates by {_WRITERS} processes, eight tables", target_ms=4_000)
def _apart(filled: Filled) -> Timed:
    return lambda: _contend(filled, [f"rows.hot{at}" for at in range(_WRITERS)])


def _passes(publication: int | None) -> None:
    assert publication is not None, "nothing was published"


def _contend(filled: Filled, tables: list[str]) -> None:
    for line, table in zip(filled.crowd, tables, strict=True):
        line.send(table)
    times = [seconds for line in filled.crowd for seconds in line.recv()]
    ratio = max(times) / statistics.median(times)
    filled.tell(f"slowest {max(times):.2f} s, {ratio:.1f} x the median")


@contextmanager
def _writer(settings: Settings, id: int) -> Iterator[Connection]:
    """Run a process that updates its own row of each table that it receives, a few times."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(settings, id, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        ours.send(None)
        process.join()


def _serve(settings: Settings, id: int, line: Connection) -> None:
    with Store(settings, recover_first=False) as store:
        while (table := line.recv()) is not None:
            times = []
            for _ in range(_EACH):
                began = time.monotonic()
                store.mutate(
                    "master", f"update {table} set n = n + 1 where id = {id}", timeout_seconds=120
                )
                times.append(time.monotonic() - began)
            line.send(times)
