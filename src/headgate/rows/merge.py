"""`merge`: a three-way merge of a branch into another, in one publication for all datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from headgate.catalog.database import Connection
from headgate.catalog.merge_base import MERGED, find_merge_base
from headgate.catalog.records import branches_named, list_datasets, load_transactions
from headgate.errors import BranchNowhere, Invalid, MergeConflict, NotFound, VersionExpired
from headgate.files.edits import root_of
from headgate.model.names import DatasetName
from headgate.model.nouns import DatasetKind, PublicationKind, Transaction, TransactionType
from headgate.rows import merge_content, working_set
from headgate.rows.branch_tables import BranchTable, branch_context
from headgate.rows.engine import Engine, columns_sql, conditions_of, equal_sql, quote, same_sql
from headgate.rows.merge_content import MergedSchemas, SchemaConflict
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.validate import violations_of
from headgate.rows.working_set import TableEffect, VersionMove, WorkingSet, WorkingTable
from headgate.rows.write import TableWrite, check_may_write, write_tables
from headgate.tables.constraints import constraints_of, referring_datasets
from headgate.tables.diff import DiffOptions, compare_tables
from headgate.tables.scan import DataFile, TableScan, json_rows
from headgate.tables.snapshots import effect_between
from headgate.tables.versions import StoredVersion

_MAX_CONFLICTS = 1_000
_SENTENCES = {
    "insert_insert": "both sides added it, with different values",
    "update_update": "both sides changed it, differently",
    "delete_update": "one side deleted it, the other changed it",
}


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """The source of a merge, and the datasets; all datasets if there are none."""

    source: str
    datasets: tuple[DatasetName, ...] = ()
    dry_run: bool = False
    # The one branch that a merge may create: a store's first datasets may exist on another only.
    primary: str = "master"


@dataclass(kw_only=True)
class _Side:
    """One dataset: the source's transaction, the target's and the merge base."""

    on_branch: BranchTable
    source: Transaction
    base: Transaction | None

    @property
    def target(self) -> Transaction | None:
        return self.on_branch.shown if self.on_branch.branch is not None else None

    @property
    def facts(self) -> dict[str, Any]:
        return {MERGED: {"branch": self.source.branch, "transaction": self.source.id}}

    @property
    def is_table(self) -> bool:
        return self.on_branch.dataset.kind is DatasetKind.TABLE

    def conflict(self, kind: str, reason: str) -> dict[str, Any]:
        name = str(self.on_branch.dataset.name)
        return {"dataset": name, "kind": kind, "reason": f"{name}: {reason}"}


def merge(parts: Parts, request: Request, merging: MergeRequest) -> Outcome:
    """Merge the source's changes into the target; any conflict leaves the target unchanged."""
    if merging.source == request.branch:
        raise Invalid(f"{merging.source!r} cannot be merged into itself.", branch=request.branch)
    check_may_write(parts, request)
    names = parts.database.read(lambda c: _find_datasets(c, merging, into=request.branch))
    conflicts: list[dict[str, Any]] = []

    def change(working: WorkingSet) -> None:
        conflicts.clear()
        working.branch_tables.prefetch(names)
        for side in parts.database.read(lambda c: _sides(c, working, merging, names)):
            conflicts.extend(_merge(parts, working, side))

    def check(working: WorkingSet, effects: Sequence[TableEffect]) -> None:
        for effect in effects:
            for violation in violations_of(working, effect):
                conflicts.append({**violation.to_json(), "reason": violation.text})
        if conflicts:
            distinct = {conflict["reason"]: conflict for conflict in conflicts}
            raise MergeConflict(
                source=merging.source, target=request.branch, conflicts=list(distinct.values())
            )

    return write_tables(
        parts,
        request,
        TableWrite(
            verb="merge",
            targets=names,
            change=change,
            check=check,
            kind=PublicationKind.MERGE,
            dry_run=merging.dry_run,
        ),
    )


def _find_datasets(
    connection: Connection, merging: MergeRequest, *, into: str
) -> list[DatasetName]:
    known = {dataset.name: dataset for dataset in list_datasets(connection)}
    missing = [name for name in merging.datasets if name not in known]
    if missing:
        raise NotFound(f"there is no dataset {missing[0]}.", dataset=str(missing[0]))
    wanted = [known[n] for n in merging.datasets] or list(known.values())
    on = branches_named(connection, [merging.source], [dataset.id for dataset in wanted])
    if not on:
        raise NotFound(
            f"none of the datasets has a branch {merging.source!r}. `headgate branch list` shows "
            "all branches.",
            branch=merging.source,
        )
    ids = [dataset.id for dataset in known.values()]
    if into != merging.primary and not branches_named(connection, branch_context(into).chain, ids):
        # A misspelled name would create a branch of everything.
        raise BranchNowhere(
            branch=into,
            remedy="To merge into a new branch, create it first with `headgate branch create`.",
        )
    return sorted(branch.dataset for branch in on)


def _sides(
    connection: Connection, working: WorkingSet, merging: MergeRequest, names: Sequence[DatasetName]
) -> list[_Side]:
    found = [one for name in names if (one := working.branch_tables.find(name)) is not None]
    ids = [on_branch.dataset.id for on_branch in found]
    on = {b.dataset: b for b in branches_named(connection, [merging.source], ids)}
    views = load_transactions(connection, [b.view for b in on.values() if b.view])
    sides = []
    for on_branch in found:
        branch = on.get(on_branch.dataset.name)
        if branch is None or branch.view is None:
            continue
        source = views[branch.view]
        target = on_branch.shown if on_branch.branch is not None else None
        base = find_merge_base(connection, source, target) if target else None
        sides.append(_Side(on_branch=on_branch, source=source, base=base))
    return sides


def _merge(parts: Parts, working: WorkingSet, side: _Side) -> list[dict[str, Any]]:
    """Merge one dataset into the working set; return the conflicts."""
    source, target, base = side.source, side.target, side.base
    if target is None:
        if source.version is not None:
            _take(parts, working, side)
        return []
    if _same_version(source, target) or (base is not None and _same_version(source, base)):
        return []
    if base is not None and _same_version(target, base):
        _fast_forward(parts, working, side)
        return []
    if base is None or base.version is None:
        return [side.conflict("unrelated", "the branches have no transaction in common")]
    if source.version is None or target.version is None:
        return [side.conflict("dropped", "one side dropped it, the other changed it")]
    if side.is_table:
        return _three_way(parts, working, side)
    return _three_way_by_path(parts, working, side)


def _same_version(one: Transaction, other: Transaction) -> bool:
    """Compare content ids: equal ones promise equal rows, whatever compaction did."""
    if one.version is None or other.version is None:
        return one.version is other.version
    return one.version.content_id == other.version.content_id


def _take(parts: Parts, working: WorkingSet, side: _Side) -> None:
    """Show the source's version: the target has none, or is at the merge base."""
    if side.source.version is not None and not side.is_table:
        target = side.target.version if side.target is not None else None
        taken = merge_content.take_tree(parts, root_of(target), root_of(side.source.version))
        _show(working, side, version=side.source.version, type=taken.type, counts=taken.counts)
        return
    old, new = _stored(parts, side.target), _stored(parts, side.source)
    type, counts = TransactionType.DELETE, Counts()
    if new is not None:
        type = effect_between(old.metadata if old else None, new.metadata).inferred_type
        counts = _counts(parts, old, new)
    _show(working, side, version=side.source.version, type=type, counts=counts)


def _stored(parts: Parts, transaction: Transaction | None) -> StoredVersion | None:
    if transaction is None or transaction.version is None:
        return None
    if not transaction.version.location.endswith(".json"):
        return None
    _check_kept(transaction)
    return parts.versions.read(transaction.version.location)


def _check_kept(transaction: Transaction) -> None:
    """Raise where cleanup removed a version, such as the merge base of old branches."""
    if transaction.condemned:
        raise VersionExpired(what=f"transaction {transaction.id} of {transaction.dataset}")


def _counts(parts: Parts, old: StoredVersion | None, new: StoredVersion) -> Counts:
    """Return the counts from metadata where that is enough, else from the differing files."""
    found = compare_tables(old, new, DiffOptions(options=parts.options, samples=0))
    rows = found.rows
    if rows is None:
        return Counts()
    return Counts(inserted=rows.added, updated=rows.changed, deleted=rows.removed)


def _fast_forward(parts: Parts, working: WorkingSet, side: _Side) -> None:
    """Show the source's version; its rows are read only where other tables depend on it."""
    new, old = _stored(parts, side.source), _stored(parts, side.target)
    if new is None or old is None or not side.is_table:
        _take(parts, working, side)
        return
    constraints = constraints_of(new.metadata)
    alone = not constraints.references and not referring_datasets(new.metadata)
    if alone or not constraints.key or constraints.key != constraints_of(old.metadata).key:
        _take(parts, working, side)
        return
    schemas = merge_content.merge_schemas(old, new, old, now_ms=working_set.now_ms())
    table, difference = _open(parts, working, side, (old, new, old), schemas)
    _KeyedMerge(table, difference).run()
    table.pointer = side.source.version


def _three_way(parts: Parts, working: WorkingSet, side: _Side) -> list[dict[str, Any]]:
    old, new, held = (_stored(parts, t) for t in (side.base, side.source, side.target))
    assert old is not None and new is not None and held is not None
    try:
        schemas = merge_content.merge_schemas(old, new, held, now_ms=working_set.now_ms())
    except SchemaConflict as conflict:
        return [side.conflict("schema", str(conflict))]
    table, difference = _open(parts, working, side, (old, new, held), schemas)
    conflicts: list[dict[str, Any]] = []
    if table.constraints.key:
        conflicts = _KeyedMerge(table, difference).run()
    elif difference.only_adds and _only_added(old, held):
        columns = [c for c in table.columns if c in difference.after.schema.names]
        rows = _relation(working.engine, difference.after, difference.added, columns)
        names = columns_sql(columns)
        working.engine.execute(f"INSERT INTO {table.begin()} ({names}) SELECT {names} FROM {rows}")
    else:
        return [side.conflict("unkeyed", "it has no key, and both sides did more than add rows")]
    if schemas.unchanged and difference.only_adds and not conflicts:
        table.reused = list(difference.added)
    return conflicts


def _three_way_by_path(parts: Parts, working: WorkingSet, side: _Side) -> list[dict[str, Any]]:
    assert side.base is not None and side.target is not None
    _check_kept(side.base)
    merged = merge_content.merge_trees(
        parts, *(root_of(t.version) for t in (side.base, side.source, side.target))
    )
    if merged.version is not None:
        _show(
            working,
            side,
            version=merged.version,
            type=merged.type,
            counts=merged.counts,
            objects=merged.objects,
        )
    name = str(side.on_branch.dataset.name)
    return [
        {"dataset": name, **one, "reason": f"{name}: {one['reason']}"} for one in merged.conflicts
    ]


def _show(working: WorkingSet, side: _Side, **content: Any) -> None:
    working.moves.append(VersionMove(on_branch=side.on_branch, facts=side.facts, **content))


def _only_added(base: StoredVersion, version: StoredVersion) -> bool:
    operations = effect_between(base.metadata, version.metadata)
    return not operations.replaces and operations.operations <= {"append", "replace"}


def _open(
    parts: Parts,
    working: WorkingSet,
    side: _Side,
    versions: tuple[StoredVersion, StoredVersion, StoredVersion],
    schemas: MergedSchemas,
) -> tuple[WorkingTable, Difference]:
    """Open the target in the working set, and compare base and source, by the merged schemas."""
    base, source, target = versions
    scan = partial(working_set.scan_with, options=parts.options)
    table = WorkingTable(working.engine, side.on_branch, scan(target, schemas.target))
    if schemas.target is not target.metadata:
        table.final = schemas.target
    table.facts = side.facts
    working.tables[table.name] = table
    return table, _difference(scan(base, schemas.base), scan(source, schemas.source))


# The three-way merge of one keyed table, row by row.


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Files that only one of two versions has: they hold all rows that differ."""

    before: TableScan
    after: TableScan
    removed: Sequence[DataFile]
    added: Sequence[DataFile]

    @property
    def only_adds(self) -> bool:
        return not self.removed and not any(file.deletes for file in self.added)


def _difference(before: TableScan, after: TableScan) -> Difference:
    """Compare two versions by their files: a file never changes, so equal ones hold equal rows."""
    olds = {file.identity: file for file in before.plan()}
    news = {file.identity: file for file in after.plan()}
    return Difference(
        before=before,
        after=after,
        removed=[file for identity, file in olds.items() if identity not in news],
        added=[file for identity, file in news.items() if identity not in olds],
    )


def _relation(
    engine: Engine, scan: TableScan, files: Sequence[DataFile], columns: Sequence[str]
) -> str:
    empty = scan.schema.empty_table().select(list(columns))
    parts = [scan.read(file).select(list(columns)) for file in files]
    return engine.register(pa.concat_tables([empty, *parts]))


class _KeyedMerge:
    """Applies the source's changes by key where the target has none; the others are conflicts."""

    def __init__(self, table: WorkingTable, difference: Difference) -> None:
        self.table = table
        self.engine = table.engine
        self.difference = difference
        self.key = list(table.constraints.key)
        self.columns = [c for c in table.columns if c in difference.after.schema.names]
        # Columns that the base has as well.
        self.compared = [c for c in self.columns if c in difference.before.schema.names]

    def run(self) -> list[dict[str, Any]]:
        engine = self.engine
        changes = self._changes()
        target = self.table.bring([conditions_of(engine, changes, column) for column in self.key])
        verdicts = self._verdicts(changes, target)
        taken, dropped = engine.new_name("taken"), engine.new_name("dropped")
        renamed = ", ".join(f"{quote('s.' + c)} AS {quote(c)}" for c in self.columns)
        engine.execute(
            f"CREATE TEMP TABLE {taken} AS SELECT {renamed} FROM {verdicts} "
            "WHERE verdict = 'take' AND in_source"
        )
        engine.execute(
            f"CREATE TEMP TABLE {dropped} AS SELECT {columns_sql(self.key)} FROM {verdicts} "
            "WHERE verdict = 'take' AND NOT in_source"
        )
        self.table.merge(taken, self.columns)
        engine.execute(
            f"DELETE FROM {target} AS held USING {dropped} AS dropped "
            f"WHERE {equal_sql(self.key, 'held', 'dropped')}"
        )
        rows = json_rows(
            engine.arrow(
                f"SELECT * FROM {verdicts} WHERE verdict NOT IN ('same', 'take') "
                f"ORDER BY {columns_sql(self.key)} LIMIT {_MAX_CONFLICTS}"
            )
        )
        return [self._conflict(row) for row in rows]

    def _changes(self) -> str:
        """Return a relation with a row for each key that differs: its base and source values."""
        engine, key, compared = self.engine, self.key, self.compared
        old = _relation(engine, self.difference.before, self.difference.removed, compared)
        new = _relation(engine, self.difference.after, self.difference.added, self.columns)
        name = engine.new_name("changes")
        olds = ", ".join(f"o.{quote(c)} AS {quote('b.' + c)}" for c in compared)
        news = ", ".join(f"n.{quote(c)} AS {quote('s.' + c)}" for c in self.columns)
        keys = ", ".join(f"coalesce(n.{quote(c)}, o.{quote(c)}) AS {quote(c)}" for c in key)
        # A column that the source added has no old value to differ from.
        given = "".join(f" OR n.{quote(c)} IS NOT NULL" for c in self.columns if c not in compared)
        engine.execute(
            f"CREATE TEMP TABLE {name} AS SELECT {keys}, o.{quote(key[0])} IS NOT NULL AS in_base, "
            f"n.{quote(key[0])} IS NOT NULL AS in_source, {olds}, {news} "
            f"FROM {old} AS o FULL JOIN {new} AS n ON {equal_sql(key, 'o', 'n')} "
            f"WHERE NOT ({same_sql(compared, 'o', 'n')}){given}"
        )
        return name

    def _verdicts(self, changes: str, target: str) -> str:
        """Return the changes with the target's values and a verdict: same, take, or a conflict."""
        name = self.engine.new_name("verdicts")

        def agrees(side: str, names: Sequence[str]) -> str:
            return " AND ".join(
                f"t.{quote(c)} IS NOT DISTINCT FROM c.{quote(side + '.' + c)}" for c in names
            )

        in_target = f"t.{quote(self.key[0])} IS NOT NULL"
        ours = ", ".join(f"t.{quote(c)} AS {quote('t.' + c)}" for c in self.columns)
        self.engine.execute(
            f"CREATE TEMP TABLE {name} AS SELECT c.*, {in_target} AS in_target, {ours}, CASE "
            f"WHEN NOT c.in_source AND NOT ({in_target}) THEN 'same' "
            f"WHEN c.in_source AND {in_target} AND {agrees('s', self.columns)} THEN 'same' "
            f"WHEN NOT c.in_base AND NOT ({in_target}) THEN 'take' "
            f"WHEN c.in_base AND {in_target} AND {agrees('b', self.compared)} THEN 'take' "
            "WHEN NOT c.in_base THEN 'insert_insert' "
            f"WHEN NOT c.in_source OR NOT ({in_target}) THEN 'delete_update' "
            "ELSE 'update_update' END AS verdict "
            f"FROM {changes} AS c LEFT JOIN {target} AS t ON {equal_sql(self.key, 'c', 't')}"
        )
        return name

    def _conflict(self, row: Mapping[str, Any]) -> dict[str, Any]:
        def side(flag: str, letter: str, names: Sequence[str]) -> dict[str, Any] | None:
            return {c: row[f"{letter}.{c}"] for c in names} if row[flag] else None

        key = {column: row[column] for column in self.key}
        shown = ", ".join(f"{column} = {value!r}" for column, value in key.items())
        return {
            "dataset": str(self.table.name),
            "kind": row["verdict"],
            "key": key,
            "base": side("in_base", "b", self.compared),
            "source": side("in_source", "s", self.columns),
            "target": side("in_target", "t", self.columns),
            "reason": f"{self.table.name}: {shown}: {_SENTENCES[row['verdict']]}",
        }
