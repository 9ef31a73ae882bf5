"""How two table versions differ: metadata answers where it can, then manifests, then rows."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headgate.errors import Invalid, MissingExtra
from headgate.tables.classify import added_snapshots
from headgate.tables.inspect import find_row_count, open_table, read_rows, recorded_row_count
from headgate.tables.rows import Row, RowChanges
from headgate.tables.schema_diff import (
    Pair,
    SchemaChanges,
    common_columns,
    identifier_columns,
    schema_changes,
)
from headgate.tables.shape import Json, Metadata
from headgate.tables.versions import StoredVersion

Version = StoredVersion | None


class Basis(enum.StrEnum):
    """What the answer was found in; each costs more than the one before."""

    CONTENT = "content"
    METADATA = "metadata"
    FILES = "files"
    ROWS = "rows"


def _say_nothing(_rows: int, _parts: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """How much to find out, and with what."""

    # AWS_* variables by name, for files in S3.
    options: Mapping[str, str]
    # Columns that tell rows apart; empty: those that the table itself says do.
    key: Sequence[str] = ()
    samples: int = 5
    # False: only what metadata can tell.
    reads_files: bool = True
    # Told how many rows are compared in how many parts on disk, where they are many.
    on_large: Callable[[int, int], None] = _say_nothing


@dataclass(frozen=True, kw_only=True)
class TableDifference:
    """What leads from one version to the other; None is not known."""

    basis: Basis
    schema: SchemaChanges
    key: tuple[str, ...]
    before_count: int | None
    after_count: int | None
    rows: RowChanges | None

    @property
    def is_identical(self) -> bool:
        return not self.schema and self.rows is not None and not self.rows


def compare_tables(
    before: Version, after: Version, how: Comparing, *, same_content: bool = False
) -> TableDifference:
    """The difference between two versions, of which None has neither columns nor rows."""
    old, new = (version.metadata if version else None for version in (before, after))
    pairs = common_columns(old, new) if old is not None and new is not None else []
    key = _choose_key(old, new, pairs, how.key)
    basis: Basis = Basis.CONTENT
    rows: RowChanges | None = RowChanges()
    if not same_content and (old is not None or new is not None):
        basis, rows = Basis.METADATA, _find_appended(before, after, how)
    if rows is None and how.reads_files:
        basis, rows = _compare_files(before, after, pairs, key, how)
    before_count, after_count = _counts(before, after, rows, how)
    return TableDifference(
        basis=basis,
        schema=SchemaChanges() if same_content else schema_changes(old, new),
        key=tuple(pairs[at][1].path for at in key),
        before_count=before_count,
        after_count=after_count,
        rows=rows,
    )


def _choose_key(
    old: Metadata | None, new: Metadata | None, pairs: Sequence[Pair], asked: Sequence[str]
) -> list[int]:
    """Positions of the key among the common columns; empty where rows have none."""
    names = {pair[0].path: at for at, pair in enumerate(pairs)}
    names |= {pair[1].path: at for at, pair in enumerate(pairs)}
    if asked and pairs:
        unknown = [name for name in asked if name not in names]
        if unknown:
            raise Invalid(
                f"{', '.join(unknown)} cannot be a key: it is not a column that both sides have. "
                f"They have {', '.join(pair[1].path for pair in pairs)}.",
                key=list(asked),
            )
        return [names[name] for name in asked]
    for metadata in (new, old):
        own = identifier_columns(metadata) if metadata is not None else []
        if own and all(name in names for name in own):
            return [names[name] for name in own]
    return []


def _find_appended(before: Version, after: Version, how: Comparing) -> RowChanges | None:
    """The changes where one version is the other plus rows, as its snapshots' summaries say."""
    if after is not None and (snapshots := _appends(before, after)) is not None:
        count, rows = _appended_rows(before, after, snapshots, how)
        return RowChanges(added=count, added_rows=rows) if count is not None else None
    if before is not None and (snapshots := _appends(after, before)) is not None:
        count, rows = _appended_rows(after, before, snapshots, how)
        return RowChanges(removed=count, removed_rows=rows) if count is not None else None
    return None


def _appends(base: Version, new: StoredVersion) -> list[Json] | None:
    """The append snapshots between them; None where something else happened."""
    if base is None:
        return []
    added = added_snapshots(base.metadata, new.metadata)
    if added is None:
        return None
    # A rewrite changes files, not rows.
    telling = [snapshot for snapshot in added if snapshot["summary"]["operation"] != "replace"]
    return telling if all(s["summary"]["operation"] == "append" for s in telling) else None


def _appended_rows(
    base: Version, new: StoredVersion, snapshots: Sequence[Json], how: Comparing
) -> tuple[int | None, list[Row]]:
    """How many rows were appended, and the first few of them."""
    count = recorded_row_count(new.metadata) if base is None else _total_added(snapshots)
    if not count or not how.reads_files or not how.samples:
        return count, []
    if base is None:
        return count, read_rows(new, limit=how.samples, options=how.options)
    table = open_table(new, options=how.options)
    files = table.files_added_by([s["snapshot-id"] for s in snapshots], how.samples)
    return count, table.rows(files, how.samples)


def _total_added(snapshots: Sequence[Json]) -> int | None:
    total = 0
    for summary in (snapshot["summary"] for snapshot in snapshots):
        # A snapshot that added no file need not say how many rows it added.
        added = str(summary.get("added-records", "?" if "added-data-files" in summary else "0"))
        if not added.isdigit():
            return None
        total += int(added)
    return total


def _counts(
    before: Version, after: Version, rows: RowChanges | None, how: Comparing
) -> tuple[int | None, int | None]:
    """Rows on both sides; once one of them is known, the difference gives the other."""
    old = recorded_row_count(before.metadata) if before else 0
    new = recorded_row_count(after.metadata) if after else 0
    if rows is None:
        return old, new
    if old is None and new is None and before is not None and how.reads_files:
        old = find_row_count(before, options=how.options)
    grown = rows.added - rows.removed
    if old is None:
        return (None if new is None else new - grown), new
    return old, (old + grown if new is None else new)


def _compare_files(
    before: Version, after: Version, pairs: Sequence[Pair], key: Sequence[int], how: Comparing
) -> tuple[Basis, RowChanges]:
    try:
        from headgate.tables.row_diff import compare_files  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise MissingExtra(feature="comparing rows without Spark", extra="arrow") from error
    was_read, rows = compare_files(
        open_table(before, options=how.options) if before else None,
        open_table(after, options=how.options) if after else None,
        pairs=pairs,
        key=key,
        samples=how.samples,
        on_large=how.on_large,
    )
    return (Basis.ROWS if was_read else Basis.FILES), rows
