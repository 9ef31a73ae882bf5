"""`load`: files into many tables of a branch, one publication."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.errors import Invalid
from headgate.model.names import DatasetName
from headgate.rows.cast import fit
from headgate.rows.engine import advice_on_load, columns_sql, quote
from headgate.rows.outcome import Outcome, Parts, Request
from headgate.rows.sources import Place, Source, read_sources
from headgate.rows.upsert import ORDER, merge_rows, newest_by_key
from headgate.rows.working_set import BY, Picture, PicturedTable
from headgate.rows.write import Work, perform


class LoadMode(enum.StrEnum):
    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """All sources of one table, in order."""

    dataset: DatasetName
    sources: tuple[Source, ...]

    def place_of(self, number: int) -> dict[str, Any]:
        """The file and the line of a row by its number, which counts from 1 over all sources."""
        ends = list(accumulate(source.rows.num_rows for source in self.sources))
        for source, end in zip(self.sources, ends, strict=True):
            if 0 < number <= end:
                row = number - 1 - (end - source.rows.num_rows)
                return {"file": source.file, "line": source.line_of(row)}
        return {}


def read_batches(
    given: Mapping[DatasetName, Sequence[Place]],
) -> list[Batch]:
    """Reads every source; a file that cannot be read stops all."""
    return [
        Batch(dataset=name, sources=tuple(s for where in places for s in read_sources(where)))
        for name, places in given.items()
    ]


def load(
    parts: Parts, request: Request, given: Mapping[DatasetName, Sequence[Place]], mode: LoadMode
) -> Outcome:
    """Adds, merges by key, or puts in place of what is there: all tables at once, or none."""

    @cache
    def batches() -> dict[str, Batch]:
        # Read once, though rows may be prepared again, and not for a request that was done before.
        return {str(batch.dataset): batch for batch in read_batches(given)}

    def change(picture: Picture) -> None:
        for batch in batches().values():
            _load(picture, batch, mode)

    def place(dataset: str, number: int) -> dict[str, Any]:
        return batches()[dataset].place_of(number) if dataset in batches() else {}

    return perform(
        parts,
        request,
        Work(verb=f"load-{mode}", targets=list(given), change=change, place=place),
    )


def advice_for(given: Iterable[Place]) -> str | None:
    """A word for people whose files are better loaded by Spark; None where Arrow is right."""
    return advice_on_load(sum(_size_of(where) for where in given))


def _size_of(where: Place) -> int:
    if isinstance(where, bytes):
        return len(where)
    if isinstance(where, pa.Table):
        return int(where.nbytes)
    path = Path(where)
    if path.is_dir():
        return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size if path.is_file() else 0


def _load(picture: Picture, batch: Batch, mode: LoadMode) -> None:
    table = picture.table(batch.dataset)
    if mode is LoadMode.OVERWRITE:
        table.is_replaced = True
    table.begin()
    first = 1
    for source in batch.sources:
        rows = fit(source, table.scan.schema, str(batch.dataset))
        numbers = pa.array(range(first, first + rows.num_rows), pa.int64())
        first += rows.num_rows
        name = picture.engine.register(rows.append_column(ORDER, numbers))
        _add(picture, table, name, rows.column_names, mode)


def _add(
    picture: Picture, table: PicturedTable, source: str, columns: list[str], mode: LoadMode
) -> None:
    if mode is LoadMode.MERGE:
        key = table.constraints.key
        check_merge_key(table.name, key, columns)
        newest = newest_by_key(picture, source, key)
        merge_rows(picture, table, newest, columns, by=quote(ORDER))
        return
    names = columns_sql(columns)
    picture.engine.do(
        f"INSERT INTO {table.rows} ({names}, {BY}) SELECT {names}, {ORDER} FROM {source}"
    )


def check_merge_key(dataset: DatasetName, key: Sequence[str], columns: Sequence[str]) -> None:
    """Refuses to merge what cannot be told apart."""
    if not key:
        raise Invalid(
            f"{dataset} has no key to merge by. Give it one with `headgate schema apply`, or "
            "load with --mode append.",
            dataset=str(dataset),
        )
    missing = [column for column in key if column not in columns]
    if missing:
        raise Invalid(
            f"{dataset} is merged by its key ({', '.join(key)}), and the source has no column "
            f"{missing[0]!r}.",
            dataset=str(dataset),
        )
