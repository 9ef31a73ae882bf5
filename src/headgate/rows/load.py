"""`load`: files into many tables of a branch, in one publication."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.errors import Invalid
from headgate.files.objects import StoredContent
from headgate.model.names import DatasetName
from headgate.rows.cast import cast_rows, given_columns, with_defaults
from headgate.rows.engine import advice_on_load, columns_sql, quote
from headgate.rows.inferred_schema import infer_table
from headgate.rows.outcome import Creation, Outcome, Parts, Request
from headgate.rows.schema_apply import create_table
from headgate.rows.sources import Source, SourceLike, SourcesByTable, read_sources
from headgate.rows.working_set import BY, ORDER, WorkingSet, now_ms
from headgate.rows.write import TableWrite, write_tables

# The prefix of columns that say which rows have a column.
_GIVEN = "__given"


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
        """Return the file and line of a row by its number, which counts from 1 over all sources."""
        ends = list(accumulate(source.rows.num_rows for source in self.sources))
        for source, end in zip(self.sources, ends, strict=True):
            if 0 < number <= end:
                row = number - 1 - (end - source.rows.num_rows)
                return {"file": source.file, "line": source.line_of(row)}
        return {}


def load(
    parts: Parts,
    request: Request,
    sources: SourcesByTable,
    mode: LoadMode,
    creation: Creation | None = None,
) -> Outcome:
    """Append, merge by key, or overwrite: all tables at once, or none."""
    return write_tables(parts, request, source_write(sources, mode, creation))


def source_write(
    sources: SourcesByTable, mode: LoadMode, creation: Creation | None = None
) -> TableWrite:
    """Return the change that a load makes."""

    @cache
    def batches() -> dict[str, Batch]:
        # Read once, although rows may be prepared again, and not at all for a finished operation.
        return {
            str(name): Batch(
                dataset=name, sources=tuple(chain.from_iterable(map(read_sources, each)))
            )
            for name, each in sources.items()
        }

    def change(working: WorkingSet) -> None:
        for batch in batches().values():
            if creation is not None and working.find_table(batch.dataset) is None:
                _create(working, batch, creation.keys.get(batch.dataset, ()))
            _load(working, batch, mode)

    def place_of(dataset: str, number: int) -> dict[str, Any]:
        return batches()[dataset].place_of(number) if dataset in batches() else {}

    return TableWrite(verb=f"load-{mode}", targets=list(sources), change=change, place_of=place_of)


def advice_for(sources: Iterable[SourceLike]) -> str | None:
    """Return the advice to load by Spark; None where Arrow is right."""
    return advice_on_load(sum(map(_size_of, sources)))


def _size_of(source: SourceLike) -> int:
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, StoredContent):
        return source.objects.find_size(source.digest) or 0
    if isinstance(source, pa.Table):
        return int(source.nbytes)
    path = Path(source)
    if path.is_dir():
        return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size if path.is_file() else 0


def _create(working: WorkingSet, batch: Batch, key: Sequence[str]) -> None:
    """Add a table with the columns of the sources to the working set."""
    on_branch = working.branch_tables.create(batch.dataset)
    spec = infer_table(batch.dataset, batch.sources, key)
    location = working.versions.table_location(on_branch.dataset.id)
    working.create(on_branch, create_table(spec, location=location, now_ms=now_ms()).metadata)


def _load(working: WorkingSet, batch: Batch, mode: LoadMode) -> None:
    table = working.table(batch.dataset)
    if mode is LoadMode.OVERWRITE:
        table.is_replaced = True
    table.begin()
    first = 1
    # Lines of JSON without a line have no columns either.
    for source in (one for one in batch.sources if one.rows.column_names):
        rows = cast_rows(source, table.scan.schema, str(batch.dataset))
        given = given_columns(source, rows)
        rows = with_defaults(rows, given, table.constraints.defaults)
        numbers = pa.array(range(first, first + rows.num_rows), pa.int64())
        first += rows.num_rows
        marked, marks = rows.append_column(ORDER, numbers), {}
        for number, (column, has) in enumerate(given.items()):
            marks[column] = f"{_GIVEN}{number}"
            marked = marked.append_column(marks[column], has)
        name = working.engine.register(marked)
        if mode is LoadMode.MERGE:
            check_merge_key(table.name, table.constraints.key, rows.column_names)
            newest = table.newest_by_key(name, rows.column_names, marks)
            table.merge(newest, rows.column_names, by=quote(ORDER), given=marks)
        else:
            columns = columns_sql(rows.column_names)
            working.engine.execute(
                f"INSERT INTO {table.rows} ({columns}, {BY}) SELECT {columns}, {ORDER} FROM {name}"
            )


def check_merge_key(dataset: DatasetName, key: Sequence[str], columns: Sequence[str]) -> None:
    """Raise where the rows of a source cannot be merged by key."""
    if not key:
        raise Invalid(
            f"{dataset} has no key to merge by. Add a key with `headgate schema apply`, or with "
            "--primary-key if --create creates it, or load with --mode append.",
            dataset=str(dataset),
        )
    missing = [column for column in key if column not in columns]
    if missing:
        raise Invalid(
            f"{dataset} is merged by its key ({', '.join(key)}), and the source has no column "
            f"{missing[0]!r}. Add the column, or load with --mode append.",
            dataset=str(dataset),
        )
