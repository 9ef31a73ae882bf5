"""What a picture amounts to for one table: the rows that go and the rows that come, net."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headgate.errors import Invalid
from headgate.model.nouns import TransactionType
from headgate.mutations.counts import Counts
from headgate.mutations.engine import columns_sql, equal_sql, quote, same_sql
from headgate.mutations.pictured import RID, PicturedTable
from headgate.mutations.typing import is_beyond_years
from headgate.tables.reading import recorded_row_count


@dataclass(frozen=True, kw_only=True)
class TableEffect:
    """Names of two relations: rows that are there no more, and rows that were not there."""

    table: PicturedTable
    removed: str
    added: str
    counts: Counts

    @property
    def type(self) -> TransactionType:
        """The type that the change has where nobody names one."""
        if self.table.is_replaced:
            return TransactionType.SNAPSHOT
        if not self.counts.updated and not self.counts.deleted:
            return TransactionType.APPEND
        if not self.counts.updated and not self.counts.inserted:
            return TransactionType.DELETE
        return TransactionType.UPDATE

    def added_rows(self) -> pa.Table:
        columns = columns_sql(self.table.columns)
        rows = self.table.conform(self.table.engine.arrow(f"SELECT {columns} FROM {self.added}"))
        for name in rows.column_names:
            if is_beyond_years(rows.column(name)):
                raise Invalid(
                    f"{self.table.name}: a value of {name!r} is not in the years 1 to 9999; "
                    "nothing was changed.",
                    dataset=str(self.table.name),
                    column=name,
                )
        return rows

    def removed_ids(self) -> pa.Array:
        ids = self.table.engine.arrow(f"SELECT {RID} FROM {self.removed}").column(RID)
        return ids.combine_chunks()

    def fingerprint(self) -> tuple[int, int]:
        """The same for the same rows that go, whatever their order and files."""
        columns = columns_sql(self.table.columns)
        [(count, mark)] = self.table.engine.rows(
            f"SELECT count(*), coalesce(bit_xor(hash({columns})), 0) FROM {self.removed}"
        )
        return int(count), int(mark)


def effect_of(table: PicturedTable) -> TableEffect:
    """Compares the rows as they are by now with what they were; equal ones cancel out."""
    rows = table.begin()
    if table.is_replaced:
        return _replaced(table, rows)
    engine, before = table.engine, table.originals()
    removed, added = engine.new_name("removed"), engine.new_name("added")
    same = same_sql(table.columns, "old", "new")
    engine.do(
        f"CREATE TEMP TABLE {removed} AS SELECT old.* FROM {before} AS old ANTI JOIN {rows} AS new "
        f"ON old.{RID} = new.{RID} AND {same}"
    )
    engine.do(
        f"CREATE TEMP TABLE {added} AS SELECT new.* FROM {rows} AS new ANTI JOIN {before} AS old "
        f"ON old.{RID} = new.{RID} AND {same}"
    )
    _cancel(table, removed, added)
    return TableEffect(
        table=table, removed=removed, added=added, counts=_counts(table, removed, added)
    )


def _replaced(table: PicturedTable, rows: str) -> TableEffect:
    removed = table.engine.new_name("removed")
    table.engine.do(f"CREATE TEMP VIEW {removed} AS SELECT * FROM {rows} LIMIT 0")
    gone = recorded_row_count(table.scan.version.metadata) or 0
    counts = Counts(inserted=int(table.engine.value(f"SELECT count(*) FROM {rows}")), deleted=gone)
    return TableEffect(table=table, removed=removed, added=rows, counts=counts)


def _cancel(table: PicturedTable, removed: str, added: str) -> None:
    """A row that was deleted and came back as it was never went, where a key tells rows apart."""
    key = table.constraints.key
    engine = table.engine
    if not key or not engine.value(f"SELECT count(*) FROM {removed}"):
        return
    back = engine.new_name("back")
    engine.do(
        f"CREATE TEMP TABLE {back} AS SELECT old.{RID} AS was, new.rowid AS came "
        f"FROM {removed} AS old JOIN {added} AS new ON {equal_sql(key, 'old', 'new')} "
        f"AND {same_sql(table.columns, 'old', 'new')} "
        f"QUALIFY row_number() OVER (PARTITION BY old.{RID}) = 1"
    )
    engine.do(f"DELETE FROM {added} WHERE rowid IN (SELECT came FROM {back})")
    engine.do(f"DELETE FROM {removed} WHERE {RID} IN (SELECT was FROM {back})")


def _counts(table: PicturedTable, removed: str, added: str) -> Counts:
    engine = table.engine
    gone = int(engine.value(f"SELECT count(*) FROM {removed}"))
    come = int(engine.value(f"SELECT count(*) FROM {added}"))
    if not gone or not come:
        return Counts(inserted=come, deleted=gone)
    key = table.constraints.key
    pairing = equal_sql(key, "old", "new") if key else f"old.{quote(RID)} = new.{quote(RID)}"
    both = int(
        engine.value(f"SELECT count(*) FROM {removed} AS old SEMI JOIN {added} AS new ON {pairing}")
    )
    return Counts(inserted=come - both, updated=both, deleted=gone - both)
