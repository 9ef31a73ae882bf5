"""`merge`: a branch into another, three ways by key, one publication for all datasets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headgate.catalog.database import Connection
from headgate.catalog.merge_base import MERGED, find_merge_base
from headgate.catalog.records import branches_named, list_datasets, load_transactions
from headgate.errors import BranchNowhere, Invalid, MergeConflict, NotFound, VersionExpired
from headgate.files.publication import root_of
from headgate.model.names import DatasetName
from headgate.model.nouns import Dataset, DatasetKind, PublicationKind, Transaction, TransactionType
from headgate.rows.branch_tables import Standing, branch_context
from headgate.rows.engine import columns_sql, conditions_of, equal_sql, quote, same_sql
from headgate.rows.merge_content import (
    MergedTree,
    Readings,
    SchemasDisagree,
    merge_schemas,
    merge_trees,
    take_tree,
)
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.upsert import merge_rows
from headgate.rows.validate import violations_of
from headgate.rows.working_set import Picture, PicturedTable, PlainMove, TableEffect
from headgate.rows.write import Work, check_may_write, perform
from headgate.tables.arrow import DataFile, plain_rows
from headgate.tables.classify import effect_between
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.diff import Comparing, compare_tables
from headgate.tables.scan import TableScan
from headgate.tables.versions import StoredVersion

# The three-way merge of one keyed table inside a picture, row by row.

_LISTED = 1_000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Files that only one of two versions has: all that differs between them is in these."""

    before: TableScan
    after: TableScan
    gone: Sequence[DataFile]
    come: Sequence[DataFile]

    @property
    def only_adds(self) -> bool:
        return not self.gone and not any(file.deletes for file in self.come)


def differing_files(before: TableScan, after: TableScan) -> Difference:
    """Files never change, so equal ones hold equal rows and need no look."""
    olds = {file.identity: file for file in before.plan()}
    news = {file.identity: file for file in after.plan()}
    return Difference(
        before=before,
        after=after,
        gone=[file for identity, file in olds.items() if identity not in news],
        come=[file for identity, file in news.items() if identity not in olds],
    )


def merge_keyed(
    picture: Picture, table: PicturedTable, difference: Difference
) -> list[dict[str, Any]]:
    """Applies the source's changes where the target has none; gives the conflicts."""
    key = list(table.constraints.key)
    columns = [c for c in table.columns if c in difference.after.schema.names]
    compared = [c for c in columns if c in difference.before.schema.names]
    changes = _changes(picture, difference, key, columns, compared)
    where = [conditions_of(picture.engine, changes, column) for column in key]
    held = table.bring(where)
    judged = _judged(picture, changes, held, key, columns, compared)
    engine = picture.engine
    taken, dropped = engine.new_name("taken"), engine.new_name("dropped")
    renamed = ", ".join(f"{quote('s.' + c)} AS {quote(c)}" for c in columns)
    engine.do(
        f"CREATE TEMP TABLE {taken} AS SELECT {renamed} FROM {judged} "
        "WHERE verdict = 'take' AND in_source"
    )
    engine.do(
        f"CREATE TEMP TABLE {dropped} AS SELECT {columns_sql(key)} FROM {judged} "
        "WHERE verdict = 'take' AND NOT in_source"
    )
    merge_rows(picture, table, taken, columns)
    engine.do(
        f"DELETE FROM {held} AS held USING {dropped} AS dropped "
        f"WHERE {equal_sql(key, 'held', 'dropped')}"
    )
    return _conflicts(picture, table, judged, key, columns, compared)


def read_added(picture: Picture, difference: Difference, columns: Sequence[str]) -> str:
    """A relation of the rows in the files that came."""
    return _rows(picture, difference.after, difference.come, columns)


def _rows(
    picture: Picture, scan: TableScan, files: Sequence[DataFile], columns: Sequence[str]
) -> str:
    empty = scan.schema.empty_table().select(list(columns))
    parts = [scan.read(file).select(list(columns)) for file in files]
    return picture.engine.register(pa.concat_tables([empty, *parts]))


def _changes(
    picture: Picture,
    difference: Difference,
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> str:
    """One row for each key that differs: what it was, and what the source made of it."""
    engine = picture.engine
    old = _rows(picture, difference.before, difference.gone, compared)
    new = _rows(picture, difference.after, difference.come, columns)
    name = engine.new_name("changes")
    olds = ", ".join(f"o.{quote(c)} AS {quote('b.' + c)}" for c in compared)
    news = ", ".join(f"n.{quote(c)} AS {quote('s.' + c)}" for c in columns)
    keys = ", ".join(f"coalesce(n.{quote(c)}, o.{quote(c)}) AS {quote(c)}" for c in key)
    fresh = [c for c in columns if c not in compared]
    # A column that the source added has no old value to differ from.
    given = "".join(f" OR n.{quote(c)} IS NOT NULL" for c in fresh)
    engine.do(
        f"CREATE TEMP TABLE {name} AS SELECT {keys}, o.{quote(key[0])} IS NOT NULL AS in_base, "
        f"n.{quote(key[0])} IS NOT NULL AS in_source, {olds}, {news} "
        f"FROM {old} AS o FULL JOIN {new} AS n ON {equal_sql(key, 'o', 'n')} "
        f"WHERE NOT ({same_sql(compared, 'o', 'n')}){given}"
    )
    return name


def _judged(
    picture: Picture,
    changes: str,
    held: str,
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> str:
    """Beside each change what the target has, and what follows: nothing, take, or a conflict."""
    engine = picture.engine
    name = engine.new_name("judged")

    def agrees(side: str, names: Sequence[str]) -> str:
        return " AND ".join(
            f"t.{quote(c)} IS NOT DISTINCT FROM c.{quote(side + '.' + c)}" for c in names
        )

    there = f"t.{quote(key[0])} IS NOT NULL"
    ours = ", ".join(f"t.{quote(c)} AS {quote('t.' + c)}" for c in columns)
    engine.do(
        f"CREATE TEMP TABLE {name} AS SELECT c.*, {there} AS in_target, {ours}, CASE "
        f"WHEN NOT c.in_source AND NOT ({there}) THEN 'same' "
        f"WHEN c.in_source AND {there} AND {agrees('s', columns)} THEN 'same' "
        f"WHEN NOT c.in_base AND NOT ({there}) THEN 'take' "
        f"WHEN c.in_base AND {there} AND {agrees('b', compared)} THEN 'take' "
        "WHEN NOT c.in_base THEN 'insert_insert' "
        f"WHEN NOT c.in_source OR NOT ({there}) THEN 'delete_update' "
        "ELSE 'update_update' END AS verdict "
        f"FROM {changes} AS c LEFT JOIN {held} AS t ON {equal_sql(key, 'c', 't')}"
    )
    return name


def _conflicts(
    picture: Picture,
    table: PicturedTable,
    judged: str,
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> list[dict[str, Any]]:
    rows = plain_rows(
        picture.engine.arrow(
            f"SELECT * FROM {judged} WHERE verdict NOT IN ('same', 'take') "
            f"ORDER BY {columns_sql(key)} LIMIT {_LISTED}"
        )
    )
    return [_conflict(table, row, key, columns, compared) for row in rows]


_SENTENCES = {
    "insert_insert": "both sides added it, with different values",
    "update_update": "both sides changed it, differently",
    "delete_update": "one side deleted it, the other changed it",
}


def _conflict(
    table: PicturedTable,
    row: Mapping[str, Any],
    key: Sequence[str],
    columns: Sequence[str],
    compared: Sequence[str],
) -> dict[str, Any]:
    def side(flag: str, letter: str, names: Sequence[str]) -> dict[str, Any] | None:
        return {c: row[f"{letter}.{c}"] for c in names} if row[flag] else None

    named = {column: row[column] for column in key}
    shown = ", ".join(f"{column} = {value!r}" for column, value in named.items())
    return {
        "dataset": str(table.name),
        "kind": row["verdict"],
        "key": named,
        "base": side("in_base", "b", compared),
        "source": side("in_source", "s", columns),
        "target": side("in_target", "t", columns),
        "reason": f"{table.name}: {shown}: {_SENTENCES[row['verdict']]}",
    }


@dataclass(frozen=True, kw_only=True)
class Merging:
    source: str
    datasets: tuple[DatasetName, ...] = ()
    dry_run: bool = False
    # The one branch that a merge may begin: a store's first datasets may be born on another.
    primary: str = "master"


@dataclass(kw_only=True)
class _Side:
    """One dataset: what the source shows, what the target shows, and what both began from."""

    standing: Standing
    source: Transaction
    base: Transaction | None

    @property
    def target(self) -> Transaction | None:
        return self.standing.shown if self.standing.branch is not None else None

    @property
    def facts(self) -> dict[str, Any]:
        return {MERGED: {"branch": self.source.branch, "transaction": self.source.id}}


@dataclass(kw_only=True)
class _Found:
    conflicts: list[dict[str, Any]] = field(default_factory=list)

    def add(self, dataset: DatasetName, kind: str, reason: str) -> None:
        self.conflicts.append(
            {"dataset": str(dataset), "kind": kind, "reason": f"{dataset}: {reason}"}
        )


def merge(parts: Parts, request: Request, merging: Merging) -> Outcome:
    """Brings what the source changed to the target; any conflict leaves the target as it was."""
    if merging.source == request.branch:
        raise Invalid(f"{merging.source!r} cannot be merged into itself.", branch=request.branch)
    check_may_write(parts, request)
    names = parts.database.read(lambda c: _find_datasets(c, merging, into=request.branch))
    found = _Found()

    def change(picture: Picture) -> None:
        found.conflicts.clear()
        picture.ground.look(names)
        for side in parts.database.read(lambda c: _sides(c, picture, merging, names)):
            _merge(parts, picture, side, found)

    def check(picture: Picture, effects: Sequence[TableEffect]) -> None:
        for effect in effects:
            for broken in violations_of(picture, effect):
                violation = broken.violation
                found.conflicts.append({**violation.to_json(), "reason": violation.text})
        if found.conflicts:
            raise MergeConflict(
                source=merging.source, target=request.branch, conflicts=_distinct(found.conflicts)
            )

    return perform(
        parts,
        request,
        Work(
            verb="merge",
            targets=names,
            change=change,
            check=check,
            kind=PublicationKind.MERGE,
            dry_run=merging.dry_run,
        ),
    )


def _distinct(conflicts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({conflict["reason"]: conflict for conflict in conflicts}.values())


def _find_datasets(connection: Connection, merging: Merging, *, into: str) -> list[DatasetName]:
    known = {dataset.name: dataset for dataset in list_datasets(connection)}
    missing = [name for name in merging.datasets if name not in known]
    if missing:
        raise NotFound(f"there is no dataset {missing[0]}.", dataset=str(missing[0]))
    wanted = [known[n] for n in merging.datasets] or list(known.values())
    on = branches_named(connection, [merging.source], [dataset.id for dataset in wanted])
    if not on:
        raise NotFound(
            f"none of the datasets has a branch {merging.source!r}. `headgate branch list` shows "
            "those there are.",
            branch=merging.source,
        )
    ids = [dataset.id for dataset in known.values()]
    if into != merging.primary and not branches_named(connection, branch_context(into).chain, ids):
        # Else a slip of the pen would make a branch of everything.
        raise BranchNowhere(
            branch=into, remedy="To merge into a new branch, make it off another first."
        )
    return sorted(branch.dataset for branch in on)


def _sides(
    connection: Connection, picture: Picture, merging: Merging, names: Sequence[DatasetName]
) -> list[_Side]:
    standings = [s for name in names if (s := picture.ground.find(name)) is not None]
    ids = [standing.dataset.id for standing in standings]
    on = {b.dataset: b for b in branches_named(connection, [merging.source], ids)}
    views = load_transactions(connection, [b.view for b in on.values() if b.view])
    sides = []
    for standing in standings:
        branch = on.get(standing.dataset.name)
        if branch is None or branch.view is None:
            continue
        source = views[branch.view]
        target = standing.shown if standing.branch is not None else None
        base = find_merge_base(connection, source, target) if target else None
        sides.append(_Side(standing=standing, source=source, base=base))
    return sides


def _merge(parts: Parts, picture: Picture, side: _Side, found: _Found) -> None:
    """Decides how one dataset is merged, and does it to the picture."""
    source, target, base = side.source, side.target, side.base
    if target is None or _same_version(source, target):
        if target is None and source.version is not None:
            _take(parts, picture, side)
        return
    if base is not None and _same_version(source, base):
        return
    if base is not None and _same_version(target, base):
        _fast_forward(parts, picture, side)
        return
    name = side.standing.dataset.name
    if base is None or base.version is None:
        found.add(name, "unrelated", "the branches have no transaction in common")
    elif source.version is None or target.version is None:
        found.add(name, "dropped", "one side dropped it, the other changed it")
    elif not _is_table(side.standing.dataset):
        _three_way_by_path(parts, picture, side, found)
    else:
        _three_way(parts, picture, side, found)


def _same_version(one: Transaction, other: Transaction) -> bool:
    """Equal content ids promise equal rows, whatever compaction did to the files."""
    if one.version is None or other.version is None:
        return one.version is other.version
    return one.version.content_id == other.version.content_id


def _take(parts: Parts, picture: Picture, side: _Side) -> None:
    """The dataset is new on the target, or the target stands where the source began."""
    if side.source.version is not None and not _is_table(side.standing.dataset):
        target = side.target.version if side.target is not None else None
        taken = take_tree(parts, root_of(target), root_of(side.source.version))
        _show_tree(picture, side, replace(taken, version=side.source.version))
        return
    old, new = _stored(parts, side.target), _stored(parts, side.source)
    type = TransactionType.DELETE
    counts = Counts()
    if new is not None:
        type = effect_between(old.metadata if old else None, new.metadata).natural
        counts = _counts(parts, old, new)
    picture.moves.append(
        PlainMove(
            standing=side.standing,
            version=side.source.version,
            type=type,
            facts=side.facts,
            counts=counts,
        )
    )


def _is_table(dataset: Dataset) -> bool:
    return dataset.kind is DatasetKind.TABLE


def _stored(parts: Parts, transaction: Transaction | None) -> StoredVersion | None:
    if transaction is None or transaction.version is None:
        return None
    if not transaction.version.location.endswith(".json"):
        return None
    _check_kept(transaction)
    return parts.versions.read(transaction.version.location)


def _check_kept(transaction: Transaction) -> None:
    """Two branches may have parted so long ago that cleanup took what they had in common."""
    if transaction.condemned:
        raise VersionExpired(what=f"transaction {transaction.id} of {transaction.dataset}")


def _counts(parts: Parts, old: StoredVersion | None, new: StoredVersion) -> Counts:
    """From metadata alone where it says enough, else by the files that differ."""
    found = compare_tables(old, new, Comparing(options=parts.options, samples=0))
    rows = found.rows
    if rows is None:
        return Counts()
    return Counts(inserted=rows.added, updated=rows.changed, deleted=rows.removed)


def _fast_forward(parts: Parts, picture: Picture, side: _Side) -> None:
    """The target shows the source's version; its rows are looked at only where others depend."""
    new, old = _stored(parts, side.source), _stored(parts, side.target)
    if new is None or old is None or not _is_table(side.standing.dataset):
        _take(parts, picture, side)
        return
    demands = constraints_of(new.metadata)
    alone = not demands.references and not referring_datasets(new.metadata)
    if alone or not demands.key or demands.key != constraints_of(old.metadata).key:
        _take(parts, picture, side)
        return
    readings = merge_schemas(old, new, old, now_ms=_now_ms())
    table = _pictured(parts, picture, side, old, readings)
    difference = differing_files(
        _scan(parts, old, readings.base), _scan(parts, new, readings.source)
    )
    merge_keyed(picture, table, difference)
    table.pointer = side.source.version


def _three_way(parts: Parts, picture: Picture, side: _Side, found: _Found) -> None:
    name = side.standing.dataset.name
    old, new, held = (_stored(parts, t) for t in (side.base, side.source, side.target))
    assert old is not None and new is not None and held is not None
    try:
        readings = merge_schemas(old, new, held, now_ms=_now_ms())
    except SchemasDisagree as disagreement:
        found.add(name, "schema", str(disagreement))
        return
    table = _pictured(parts, picture, side, held, readings)
    difference = differing_files(
        _scan(parts, old, readings.base), _scan(parts, new, readings.source)
    )
    if table.constraints.key:
        found.conflicts += merge_keyed(picture, table, difference)
    elif difference.only_adds and _only_added(old, held):
        columns = [c for c in table.columns if c in difference.after.schema.names]
        rows = read_added(picture, difference, columns)
        named = columns_sql(columns)
        picture.engine.do(f"INSERT INTO {table.begin()} ({named}) SELECT {named} FROM {rows}")
    else:
        found.add(name, "unkeyed", "it has no key, and both sides did more than add rows")
        return
    if readings.unchanged and difference.only_adds and not found.conflicts:
        table.reused = list(difference.come)


def _three_way_by_path(parts: Parts, picture: Picture, side: _Side, found: _Found) -> None:
    assert side.base is not None and side.target is not None
    _check_kept(side.base)
    merged = merge_trees(
        parts, *(root_of(t.version) for t in (side.base, side.source, side.target))
    )
    name = str(side.standing.dataset.name)
    found.conflicts += [
        {"dataset": name, **one, "reason": f"{name}: {one['reason']}"} for one in merged.conflicts
    ]
    if merged.version is not None:
        _show_tree(picture, side, merged)


def _show_tree(picture: Picture, side: _Side, tree: MergedTree) -> None:
    picture.moves.append(
        PlainMove(
            standing=side.standing,
            version=tree.version,
            type=tree.type,
            facts=side.facts,
            counts=tree.counts,
            objects=tree.objects,
        )
    )


def _only_added(base: StoredVersion, version: StoredVersion) -> bool:
    operations = effect_between(base.metadata, version.metadata)
    return not operations.replaces and operations.operations <= {"append", "replace"}


def _pictured(
    parts: Parts, picture: Picture, side: _Side, held: StoredVersion, readings: Readings
) -> PicturedTable:
    table = PicturedTable(picture.engine, side.standing, _scan(parts, held, readings.target))
    if readings.target is not held.metadata:
        table.final = readings.target
    table.facts = side.facts
    picture.tables[table.name] = table
    return table


def _scan(parts: Parts, version: StoredVersion, metadata: Any) -> TableScan:
    read = StoredVersion(location=version.location, content=b"", metadata=metadata)
    return TableScan(read, parts.options)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
