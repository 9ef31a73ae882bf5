"""`merge`: a three-way merge of a branch into another, in one publication for all datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from headgate.catalog import records
from headgate.catalog.database import Connection
from headgate.catalog.merge_base import (
    MERGED,
    find_earlier,
    find_later,
    find_merge_bases,
    is_unchanged,
)
from headgate.catalog.records import check_committed, check_kept
from headgate.catalog.resolve import check_exists
from headgate.errors import Invalid, MergeConflict, NotFound
from headgate.files.edits import root_of
from headgate.files.tree import FilesDifference
from headgate.model import nouns
from headgate.model.changes import ReadView
from headgate.model.constraints import Enforce, ViolationKind
from headgate.model.ids import DatasetId, mint_version
from headgate.model.names import DatasetName
from headgate.model.rules import HOLD, RULES_FACT, ChangedTable, carried_facts, rows_hold
from headgate.rows import engine as sql
from headgate.rows import merge_content, working_set
from headgate.rows.branch_tables import BranchTable, BranchTables, branch_context
from headgate.rows.engine import columns_sql, conditions_of, equal_sql, quote, same_sql
from headgate.rows.evaluator_pool import EvaluatorPool, read_prepared, write_prepared
from headgate.rows.merge_content import MergedSchemas, SchemaConflict
from headgate.rows.outcome import Counts, Outcome, Parts, Request
from headgate.rows.validate import violations_of, violations_of_commits
from headgate.rows.working_set import TableEffect, VersionMove, WorkingSet, WorkingTable
from headgate.rows.write import (
    Prepared,
    Removed,
    TableWrite,
    check_may_write,
    prepare,
    write_tables,
)
from headgate.tables import diff, views
from headgate.tables.constraints import (
    constraints_of,
    enforcement_of,
    keeps_rules,
    referring_datasets,
)
from headgate.tables.inspect import recorded_row_count
from headgate.tables.metadata import Row, current_schema
from headgate.tables.scan import DataFile, TableScan, changed_files, json_rows
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

    # A branch, or a COMMITTED transaction, whose own branch may be gone.
    source: str
    datasets: tuple[DatasetName, ...] = ()
    dry_run: bool = False
    # Fallbacks of the target: a dataset that it does not have is merged with theirs.
    fallbacks: tuple[str, ...] = ()
    # Rows or paths of each kind of change that a preview shows.
    samples: int = 0
    # A preview compares only the metadata of larger tables.
    most_rows: int | None = None


@dataclass(kw_only=True)
class Side:
    """One dataset: the source's transaction, the target's and the merge bases, and the effect."""

    on_branch: BranchTable
    source: nouns.Transaction
    # Several after merges crosswise, each with other content.
    bases: Sequence[nouns.Transaction]
    # None: the merge does not change the dataset, or a conflict prevents the comparison.
    difference: diff.TableDifference | FilesDifference | None = None
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    # The table under the earlier name, if the source renamed it and the target did not.
    renamed: BranchTable | None = None
    # The name that the target gave it, if both renamed it.
    rival: DatasetName | None = None
    # The table is larger than the preview reads: its rows were not searched for conflicts.
    unchecked: bool = False

    @property
    def base(self) -> nouns.Transaction | None:
        return next(iter(self.bases), None)

    @property
    def target(self) -> nouns.Transaction | None:
        return self.on_branch.shown

    @property
    def taken(self) -> nouns.Version | None:
        """Return the source's version, as one of the dataset that gets it."""
        version = self.source.version
        same = self.source.dataset_id == self.on_branch.dataset.id
        return version if same else _minted(version)

    @property
    def facts(self) -> dict[str, Any]:
        return {MERGED: {"branch": self.source.branch, "transaction": self.source.id}}

    @property
    def kind(self) -> nouns.DatasetKind:
        return self.on_branch.dataset.kind

    def conflict(self, kind: str, reason: str) -> dict[str, Any]:
        name = str(self.on_branch.dataset.name)
        return {"dataset": name, "kind": kind, "reason": f"{name}: {reason}"}


def merge(
    parts: Parts, request: Request, merging: MergeRequest, pool: EvaluatorPool | None = None
) -> Outcome:
    """Merge the source's changes into the target; any conflict leaves the target unchanged."""
    check_may_write(parts, request)
    names = parts.database.read(lambda c: find_datasets(c, merging, into=request.branch))
    write = _Merge(merging, names, pool, request)
    return write_tables(parts, replace(request, branch=_chain(request.branch, merging)), write)


def preview(
    parts: Parts,
    into: str,
    merging: MergeRequest,
    names: Sequence[DatasetName],
    pool: EvaluatorPool | None = None,
) -> list[Side]:
    """Return the datasets that a merge would change, or that have conflicts; change nothing.

    This is the dry run of `merge` for callers that need not have the right to merge.
    """
    tables = BranchTables(parts.database, branch_context(_chain(into, merging)))
    write = _Merge(merging, names, pool)
    write.prepare(parts, tables, None)
    return [side for side in write.sides if side.difference is not None or side.conflicts]


def _chain(into: str, merging: MergeRequest) -> str:
    return into if ">" in into else ">".join((into, *merging.fallbacks))


class _Merge:
    """A merge; see `write.Write`. A server reads the rows of tables in an evaluator."""

    verb = "merge"
    kind = nouns.PublicationKind.MERGE

    def __init__(
        self,
        merging: MergeRequest,
        targets: Sequence[DatasetName],
        pool: EvaluatorPool | None,
        request: Request | None = None,
    ) -> None:
        """Without a request, the merge is a preview, and conflicts raise nothing."""
        self.merging = merging
        self.targets = targets
        self.dry_run = merging.dry_run
        self.sides: list[Side] = []
        self._pool = pool
        self._into = request.branch if request is not None else None
        self._interrupt = request.interrupt if request is not None else None

    def prepare(self, parts: Parts, tables: BranchTables, removed: Removed | None) -> Prepared:
        """Prepare the merge of all datasets."""
        tables.prefetch(self.targets)
        with WorkingSet(tables, parts.versions, parts.options) as working:
            self.sides, reads = parts.database.read(
                lambda c: (
                    _sides(c, tables, self.merging, self.targets),
                    _source_views(c, tables, self.merging, self.targets),
                )
            )
            trees = [side for side in self.sides if side.kind is nouns.DatasetKind.FILES]
            for side in trees:
                side.conflicts += _merge(parts, working, side, self.merging.samples)
            if self._pool is None or len(trees) == len(self.sides):
                prepared = _prepare_tables(working, self.sides, self.merging, self._into)
                return replace(prepared, reads=reads)
            task = partial(prepare_tables, sides=self.sides, merging=self.merging, into=self._into)
            done = self._pool.perform(parts, tables, task, self._interrupt)
            for side, sent in zip(self.sides, done["sides"], strict=True):
                side.conflicts, side.unchecked = sent["conflicts"], sent["unchecked"]
                if side.kind is not nouns.DatasetKind.FILES:
                    side.difference = diff.read_difference(sent["difference"])
            prepared = read_prepared(parts, tables, done, self._known())
            return replace(prepared, moves=(*working.moves, *prepared.moves), reads=reads)

    def _known(self) -> dict[tuple[DatasetName, str], nouns.Version | None]:
        """Return the versions that tables may come to show, apart from merged ones."""
        known: dict[tuple[DatasetName, str], nouns.Version | None] = {}
        for side in self.sides:
            for version in (_minted(side.target.version if side.target else None), side.taken):
                known[side.on_branch.dataset.name, version.location if version else ""] = version
            if side.renamed is not None:
                known[side.renamed.dataset.name, ""] = None
            if self.dry_run:
                known[side.on_branch.dataset.name, ""] = None
        return known


def prepare_tables(
    working: WorkingSet, *, sides: Sequence[Side], merging: MergeRequest, into: str | None
) -> dict[str, Any]:
    """Merge tables and views in an evaluator; return what was prepared, and the sides."""
    prepared = _prepare_tables(working, sides, merging, into)
    return write_prepared(prepared) | {
        "sides": [
            {
                "conflicts": side.conflicts,
                "unchecked": side.unchecked,
                "difference": asdict(side.difference) if side.difference else None,
            }
            for side in sides
        ]
    }


def _prepare_tables(
    working: WorkingSet, sides: Sequence[Side], merging: MergeRequest, into: str | None
) -> Prepared:
    by_name = {side.on_branch.dataset.name: side for side in sides}

    def change(working: WorkingSet) -> None:
        for side in sides:
            if side.kind is not nouns.DatasetKind.FILES and not (
                merging.most_rows is not None and _is_larger(working, side, merging.most_rows)
            ):
                side.conflicts += _merge(None, working, side, merging.samples)

    def check(working: WorkingSet, effects: Sequence[TableEffect]) -> None:
        for effect in effects:
            side = by_name[effect.table.name]
            if merging.dry_run:
                side.difference = _effect_difference(working, side, effect, merging.samples)
            for violation in violations_of(working, effect):
                side.conflicts.append({**violation.to_json(), "reason": violation.text})
        found = [conflict for side in sides for conflict in side.conflicts]
        if found and into is not None:
            distinct = {conflict["reason"]: conflict for conflict in found}
            raise MergeConflict(
                source=merging.source, target=into, conflicts=list(distinct.values())
            )

    write = TableWrite(
        verb="merge", targets=(), change=change, check=check, dry_run=merging.dry_run
    )
    return prepare(write, working, None)


def find_datasets(connection: Connection, merging: MergeRequest, *, into: str) -> list[DatasetName]:
    """Return the datasets to merge, in order of name: those that have a branch of the source."""
    if merging.source == into:
        raise Invalid(f"{merging.source!r} cannot be merged into itself.", branch=into)
    wanted = [records.load_dataset(connection, name).id for name in merging.datasets] or None
    on = records.branches_named(connection, [merging.source], wanted)
    found = [branch.dataset for branch in on]
    if not on and (named := records.find_transaction(connection, merging.source)) is not None:
        found = [named.dataset] if wanted is None or named.dataset_id in wanted else []
    if not found:
        check_exists(connection, [merging.source])
        raise NotFound(
            f"none of the datasets has a branch {merging.source!r}. `headgate branch list` shows "
            "all branches.",
            branch=merging.source,
        )
    # A misspelled name would create a branch of everything.
    check_exists(connection, branch_context(into).chain)
    return sorted(found)


def _sides(
    connection: Connection,
    tables: BranchTables,
    merging: MergeRequest,
    names: Sequence[DatasetName],
) -> list[Side]:
    found = [one for name in names if (one := tables.find(name)) is not None]
    ids = [on_branch.dataset.id for on_branch in found]
    sources = _sources(connection, merging, ids)
    sides = []
    for on_branch in found:
        source = sources.get(on_branch.dataset.id)
        if source is None:
            continue
        target = on_branch.shown
        bases = find_merge_bases(connection, source, target) if target else ()
        sides.append(Side(on_branch=on_branch, source=source, bases=bases))
    return _follow_renames(connection, tables, sides)


def _source_views(
    connection: Connection,
    tables: BranchTables,
    merging: MergeRequest,
    names: Sequence[DatasetName],
) -> tuple[ReadView, ...]:
    """Return the source's views, which must not move before the merge is published."""
    found = [one.dataset.id for name in names if (one := tables.find(name)) is not None]
    on = records.branches_named(connection, [merging.source], found)
    return tuple(ReadView(branch=branch.id, view=branch.view) for branch in on)


def _follow_renames(
    connection: Connection, tables: BranchTables, sides: Sequence[Side]
) -> list[Side]:
    """Return the sides with a table that one branch renamed as one side, under the new name.

    The other branch still has it under the earlier name, perhaps with other rows.
    """
    found = {side.on_branch.dataset.id: side for side in sides}
    for side in sides:
        source, target = side.source, side.target
        if source.version is None or (target is not None and target.version is not None):
            continue
        name, id = side.on_branch.dataset.name, side.on_branch.dataset.id
        for last in find_earlier(connection, source):
            # The source renamed it: the target gets the new name, with its own rows.
            old, left = tables.find(last.dataset), found.get(last.dataset_id)
            if old is None or (left and left.source.version is not None):
                continue
            if old.shown is not None and old.version is not None:
                bases = find_merge_bases(connection, source, old.shown)
                on_branch = tables.rename(old, side.on_branch)
                found[id] = Side(on_branch=on_branch, source=source, bases=bases, renamed=old)
                found.pop(last.dataset_id, None)
                break
            side.rival = next(
                (
                    other
                    for other in find_later(connection, last.dataset_id)
                    if other != name and _continues(connection, tables, other, last.dataset_id)
                ),
                None,
            )
        for later in find_later(connection, id) if target is not None else ():
            # The target renamed it: the changes go to the new name.
            if _continues(connection, tables, later, id):
                new = tables.load(later)
                assert new.shown is not None
                bases = find_merge_bases(connection, source, new.shown)
                found[id] = Side(on_branch=new, source=source, bases=bases)
    return list(found.values())


def _continues(
    connection: Connection, tables: BranchTables, name: DatasetName, earlier: DatasetId
) -> bool:
    """Return whether the target has a table of this name that continues another dataset."""
    found = tables.find(name)
    if found is None or found.shown is None or found.version is None:
        return False
    return any(last.dataset_id == earlier for last in find_earlier(connection, found.shown))


def _sources(
    connection: Connection, merging: MergeRequest, ids: Sequence[DatasetId]
) -> dict[DatasetId, nouns.Transaction]:
    """Return what the source shows of these datasets: the views of a branch, or a transaction."""
    on = records.branches_named(connection, [merging.source], ids)
    if on:
        views = records.load_transactions(connection, [b.view for b in on if b.view])
        return {b.dataset_id: views[b.view] for b in on if b.view}
    named = records.load_transaction(connection, merging.source)
    check_committed(named)
    return {named.dataset_id: named}


def _merge(
    parts: Parts | None, working: WorkingSet, side: Side, samples: int
) -> list[dict[str, Any]]:
    """Merge one dataset into the working set; return the conflicts. Only trees need `parts`."""
    source, target, base = side.source, side.target, side.base
    if side.rival is not None:
        return [side.conflict("renamed", f"the other side renamed the same table to {side.rival}")]
    if side.renamed is not None:
        dropped = VersionMove(
            on_branch=side.renamed,
            version=None,
            type=nouns.TransactionType.DELETE,
            facts={},
            counts=Counts(),
        )
        working.moves.append(dropped)
        if target is not None and is_unchanged(side.source, side.target, side.bases):
            kept, held = _minted(target.version), _stored(working, target)
            if side.kind is nouns.DatasetKind.TABLE:
                how = diff.DiffOptions(options=working.options)
                side.difference = diff.compare_tables(held, held, how, same_content=True)
            type = nouns.TransactionType.SNAPSHOT
            _show(working, side, version=kept, shown=target, type=type, counts=Counts())
            return []
    if target is None:
        if source.version is not None:
            _take(parts, working, side, samples)
        return []
    if is_unchanged(side.source, side.target, side.bases):
        return []
    if is_unchanged(target, None, side.bases):
        return _fast_forward(parts, working, side, samples)
    if base is None or base.version is None:
        return [side.conflict("unrelated", "the branches have no transaction in common")]
    if any(one.version is None for one in (source, target, *side.bases)):
        return [side.conflict("dropped", "one side dropped it, the other changed it")]
    match side.kind:
        case nouns.DatasetKind.TABLE:
            return _three_way(working, side)
        case nouns.DatasetKind.VIEW:
            return _two_definitions(working, side)
        case nouns.DatasetKind.FILES:
            assert parts is not None, "an evaluator merges no trees"
            return _three_way_by_path(parts, working, side, samples)


def _is_larger(working: WorkingSet, side: Side, most_rows: int) -> bool:
    """Return whether a table is too large; if so, set the difference that its metadata gives.

    Conflicts that need no rows are left to the merge.
    """
    base, source, target = (_stored(working, t) for t in (side.base, side.source, side.target))
    if is_unchanged(side.source, side.target, side.bases) or source is None:
        return False
    if side.kind is nouns.DatasetKind.VIEW or side.rival is not None:
        return False
    if side.target and not is_unchanged(side.target, None, side.bases):
        if base is None or target is None:
            return False
        try:
            merge_content.merge_schemas((base,), source, target, now_ms=working_set.now_ms())
        except SchemaConflict:
            return False
    known = [recorded_row_count(v.metadata) for v in (source, target) if v is not None]
    if all(count is not None and count <= most_rows for count in known):
        return False
    how = diff.DiffOptions(options=working.options, samples=0, reads_files=False)
    side.difference = diff.compare_tables(target, source, how)
    if side.base is not None and side.target and not is_unchanged(side.target, None, side.bases):
        # Both sides changed it, so that the source's metadata is not that of the merged table.
        side.difference = replace(side.difference, rows=None, after_count=None)
    side.unchecked = True
    return True


def _minted(version: nouns.Version | None) -> nouns.Version | None:
    return replace(version, id=mint_version()) if version is not None else None


def _take(parts: Parts | None, working: WorkingSet, side: Side, samples: int) -> None:
    """Show the source's version: the target has none, or is at the merge base."""
    version = side.taken
    if side.kind is nouns.DatasetKind.FILES:
        target = side.target.version if side.target is not None else None
        assert parts is not None, "an evaluator merges no trees"
        merged = merge_content.take_tree(parts, root_of(target), root_of(version), samples)
        type = merged.type if version is not None else nouns.TransactionType.DELETE
        side.difference = merged.difference
        _show(working, side, version=version, type=type, counts=merged.counts)
        return
    old, new = _stored(working, side.target), _stored(working, side.source)
    was, now = (one.metadata if one else None for one in (old, new))
    if side.kind is nouns.DatasetKind.VIEW:
        effect, found = views.effect_between, diff.compare_views(old, new)
    else:
        # From metadata where that is enough, else from the differing files.
        how = diff.DiffOptions(options=working.options, samples=samples)
        effect, found = effect_between, diff.compare_tables(old, new, how)
    type = effect(was, now).inferred_type if now is not None else nouns.TransactionType.DELETE
    side.difference, rows = found, found.rows or diff.RowChanges()
    counts = Counts(inserted=rows.added, updated=rows.changed, deleted=rows.removed)
    _show(working, side, version=version, type=type, counts=counts)


def _stored(working: WorkingSet, transaction: nouns.Transaction | None) -> StoredVersion | None:
    if transaction is None or transaction.version is None:
        return None
    if not transaction.version.location.endswith(".json"):
        return None
    check_kept(transaction)
    return working.versions.read(transaction.version.location)


def _fast_forward(
    parts: Parts | None, working: WorkingSet, side: Side, samples: int
) -> list[dict[str, Any]]:
    """Show the source's version; its rows are read only where other tables depend on it."""
    new, old = _stored(working, side.source), _stored(working, side.target)
    if new is None or old is None or side.kind is not nouns.DatasetKind.TABLE:
        _take(parts, working, side, samples)
        return []
    constraints = constraints_of(new.metadata)
    alone = not constraints.references and not referring_datasets(new.metadata)
    conflicts = []
    if not rows_hold(side.source.provenance) and enforcement_of(old.metadata) is not Enforce.OFF:
        # An engine committed to the source, and its rows were not validated, or are flagged.
        conflicts = _violations_within(working, side, old, new)
    if alone or not constraints.key or constraints.key != constraints_of(old.metadata).key:
        _take(parts, working, side, samples)
        return conflicts
    schemas = merge_content.merge_schemas((old,), new, old, now_ms=working_set.now_ms())
    table, difference = _open(working, side, (old, new, old), schemas)
    _KeyedMerge(table, difference).run()
    table.pointer = side.taken
    target = side.target.provenance if side.target is not None else {}
    known = carried_facts(side.source.provenance)
    if rows_hold(target) and keeps_rules(old.metadata, new.metadata):
        known = {RULES_FACT: {"state": HOLD}}
    table.facts = {**side.facts, **known}
    return conflicts


def _violations_within(
    working: WorkingSet, side: Side, old: StoredVersion, new: StoredVersion
) -> list[dict[str, Any]]:
    """Return the violations in the source's version, apart from references between tables."""
    name = side.on_branch.dataset.name
    changed = ChangedTable(name=name, before=old.location, after=new.location)
    with WorkingSet(working.branch_tables, working.versions, working.options) as apart:
        found = violations_of_commits(apart, [changed], always=True)
    return [
        {**violation.to_json(), "reason": violation.text}
        for _, violation in found
        if violation.kind is not ViolationKind.REFERENCE
    ]


def _two_definitions(working: WorkingSet, side: Side) -> list[dict[str, Any]]:
    """Return the conflict of a view that both sides changed, unless to the same definition."""
    stored = [_stored(working, one) for one in (side.base, side.source, side.target)]
    base, source, target = (views.definition(one.metadata) for one in stored if one is not None)
    if source == target:
        return []
    kind = "update_update"
    queries = {
        name: found["queries"]
        for name, found in (("base", base), ("source", source), ("target", target))
    }
    return [{**side.conflict(kind, f"{_SENTENCES[kind]}: a view is merged whole"), **queries}]


def _three_way(working: WorkingSet, side: Side) -> list[dict[str, Any]]:
    old, new, held = (_stored(working, t) for t in (side.base, side.source, side.target))
    assert old is not None and new is not None and held is not None
    others = [one for base in side.bases[1:] if (one := _stored(working, base)) is not None]
    try:
        schemas = merge_content.merge_schemas(
            (old, *others), new, held, now_ms=working_set.now_ms()
        )
    except SchemaConflict as conflict:
        return [side.conflict("schema", str(conflict))]
    table, difference = _open(working, side, (old, new, held), schemas)
    conflicts: list[dict[str, Any]] = []
    if table.constraints.key:
        schema = current_schema(schemas.base)
        assert schema is not None
        scans = [
            working_set.scan_with(one, merge_content.read_by(one, schema), options=working.options)
            for one in others
        ]
        conflicts = _KeyedMerge(table, difference, scans).run()
    elif not others and difference.only_adds and _only_added(old, held):
        columns = [c for c in table.columns if c in difference.after.schema.names]
        rows = working_set.collect(working.engine, difference.after, difference.added, columns)
        names = columns_sql(columns)
        working.engine.execute(f"INSERT INTO {table.begin()} ({names}) SELECT {names} FROM {rows}")
    else:
        return [side.conflict("unkeyed", "it has no key, and both sides did more than add rows")]
    if schemas.unchanged and difference.only_adds and not conflicts:
        table.reused = list(difference.added)
    return conflicts


def _three_way_by_path(
    parts: Parts, working: WorkingSet, side: Side, samples: int
) -> list[dict[str, Any]]:
    assert side.base is not None and side.target is not None
    for one in side.bases:
        check_kept(one)
    source, target, *bases = (root_of(t.version) for t in (side.source, side.target, *side.bases))
    merged = merge_content.merge_trees(parts, bases, source, target, samples)
    side.difference = merged.difference
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


def _show(
    working: WorkingSet, side: Side, *, shown: nouns.Transaction | None = None, **content: Any
) -> None:
    facts = {**side.facts, **carried_facts((shown or side.source).provenance)}
    working.moves.append(VersionMove(on_branch=side.on_branch, facts=facts, **content))


def _effect_difference(
    working: WorkingSet, side: Side, effect: TableEffect, samples: int
) -> diff.TableDifference:
    """Return the change of a working table, with samples of its rows."""
    table, counts = effect.table, effect.counts
    old, new = _stored(working, side.target), table.final
    if table.pointer is not None and (source := _stored(working, side.source)) is not None:
        new = source.metadata
    was = old.metadata if old is not None else None
    before = recorded_row_count(was) if was is not None else 0
    return diff.TableDifference(
        basis=diff.Basis.ROWS,
        schema=diff.schema_changes(was, new) if new is not None else diff.SchemaChanges(),
        key=tuple(table.constraints.key),
        before_count=before,
        after_count=None if before is None else before + counts.inserted - counts.deleted,
        rows=_row_changes(effect, samples),
    )


def _row_changes(effect: TableEffect, samples: int) -> diff.RowChanges:
    table, key = effect.table, list(effect.table.constraints.key)
    matches = equal_sql(key, "here", "there") if key else "false"
    order = columns_sql(key or table.columns[:1], "here")

    def read(here: str, join: str, there: str) -> list[Row]:
        found = table.engine.arrow(
            f"SELECT {columns_sql(table.columns, 'here')} FROM {here} AS here {join} JOIN {there} "
            f"AS there ON {matches} ORDER BY {order} LIMIT {samples}"
        )
        return json_rows(sql.from_engine(found, table.scan.schema))

    olds = read(effect.removed, "SEMI", effect.added)
    news = read(effect.added, "SEMI", effect.removed)
    return diff.RowChanges(
        added=effect.counts.inserted,
        removed=effect.counts.deleted,
        changed=effect.counts.updated,
        added_rows=read(effect.added, "ANTI", effect.removed),
        removed_rows=read(effect.removed, "ANTI", effect.added),
        changed_rows=[diff.changed_row(key, old, new) for old, new in zip(olds, news, strict=True)],
    )


def _only_added(base: StoredVersion, version: StoredVersion) -> bool:
    operations = effect_between(base.metadata, version.metadata)
    return not operations.replaces and operations.operations <= {"append", "replace"}


def _open(
    working: WorkingSet,
    side: Side,
    versions: tuple[StoredVersion, StoredVersion, StoredVersion],
    schemas: MergedSchemas,
) -> tuple[WorkingTable, Difference]:
    """Open the target in the working set, and compare base and source, by the merged schemas."""
    base, source, target = versions
    scan = partial(working_set.scan_with, options=working.options)
    table = WorkingTable(working.engine, side.on_branch, scan(target, schemas.target))
    if schemas.target is not target.metadata or side.renamed is not None:
        # A table that is renamed is written even if no row changes.
        table.final = schemas.target
    table.facts = side.facts
    working.tables[table.name] = table
    before, after = scan(base, schemas.base), scan(source, schemas.source)
    return table, Difference.of(before, after)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Files that only one of two versions has: they hold all rows that differ."""

    before: TableScan
    after: TableScan
    removed: Sequence[DataFile]
    added: Sequence[DataFile]

    @classmethod
    def of(cls, before: TableScan, after: TableScan) -> Difference:
        removed, added = changed_files(before, after)
        return cls(before=before, after=after, removed=removed, added=added)

    @property
    def only_adds(self) -> bool:
        return not self.removed and not any(file.deletes for file in self.added)


class _KeyedMerge:
    """Applies the source's changes by key where the target has none; the others are conflicts."""

    def __init__(
        self, table: WorkingTable, difference: Difference, others: Sequence[TableScan] = ()
    ) -> None:
        """`others` are further merge bases, read by the schema of the first."""
        self.table = table
        self.engine = table.engine
        self.difference = difference
        self.others = others
        self.key = list(table.constraints.key)
        self.columns = [c for c in table.columns if c in difference.after.schema.names]
        # Columns that the base has as well.
        self.compared = [c for c in self.columns if c in difference.before.schema.names]

    def run(self) -> list[dict[str, Any]]:
        engine = self.engine
        changes = self._changes(self.difference, self.columns)
        engine.execute(f"ALTER TABLE {changes} ADD COLUMN disputed BOOLEAN DEFAULT false")
        for other in self.others:
            self._dispute(changes, Difference.of(self.difference.before, other))
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

    def _changes(self, difference: Difference, columns: Sequence[str]) -> str:
        """Return a relation with a row for each key that differs: its base and source values."""
        engine, key, compared = self.engine, self.key, self.compared
        old = working_set.collect(engine, difference.before, difference.removed, compared)
        new = working_set.collect(engine, difference.after, difference.added, columns)
        name = engine.new_name("changes")
        olds = ", ".join(f"o.{quote(c)} AS {quote('b.' + c)}" for c in compared)
        news = ", ".join(f"n.{quote(c)} AS {quote('s.' + c)}" for c in columns)
        keys = ", ".join(f"coalesce(n.{quote(c)}, o.{quote(c)}) AS {quote(c)}" for c in key)
        # A column that the source added has no old value to differ from.
        given = "".join(f" OR n.{quote(c)} IS NOT NULL" for c in columns if c not in compared)
        engine.execute(
            f"CREATE TEMP TABLE {name} AS SELECT {keys}, o.{quote(key[0])} IS NOT NULL AS in_base, "
            f"n.{quote(key[0])} IS NOT NULL AS in_source, {olds}, {news} "
            f"FROM {old} AS o FULL JOIN {new} AS n ON {equal_sql(key, 'o', 'n')} "
            f"WHERE NOT ({same_sql(compared, 'o', 'n')}){given}"
        )
        return name

    def _dispute(self, changes: str, difference: Difference) -> None:
        """Mark the keys at which two merge bases differ, also where the source did not change.

        Only one of the bases, and not always the same, has the value that a side started from.
        """
        rows = self._changes(difference, self.compared)
        matches = equal_sql(self.key, "c", "d")
        olds, news = ([f"{side}.{c}" for c in self.compared] for side in "bs")
        held = columns_sql([*self.key, "in_base", "in_source", *olds, *news])
        self.engine.execute(
            f"INSERT INTO {changes} ({held}) "
            f"SELECT {columns_sql([*self.key, 'in_base', 'in_base', *olds, *olds])} "
            f"FROM {rows} AS d ANTI JOIN {changes} AS c ON {matches}"
        )
        self.engine.execute(
            f"UPDATE {changes} AS c SET disputed = true FROM {rows} AS d WHERE {matches}"
        )

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
            f"WHEN NOT (c.disputed OR c.in_base OR {in_target}) THEN 'take' "
            f"WHEN NOT c.disputed AND c.in_base AND {in_target} "
            f"AND {agrees('b', self.compared)} THEN 'take' "
            f"WHEN NOT c.in_source OR NOT ({in_target}) THEN 'delete_update' "
            "WHEN NOT c.in_base THEN 'insert_insert' "
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
