"""`schema apply`: changes the tables of a branch to match a schema file, in one publication.

A plan holds the next metadata of each table, in steps for review. The rows of the changed tables
are validated before anything is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from headgate.catalog.database import Connection
from headgate.catalog.operations import do_once
from headgate.catalog.publish import publish_prepared
from headgate.errors import ImpossibleSchemaChange
from headgate.model.changes import Change, PublishRequest, Receipt
from headgate.model.constraints import Constraints, Enforce
from headgate.model.failpoints import Failpoint, reach
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import DatasetKind, PublicationKind, TransactionType, Version
from headgate.model.rules import is_flagged
from headgate.rows import working_set, write
from headgate.rows.branch_tables import (
    BranchTable,
    BranchTables,
    branch_context,
    check_no_twin,
    new_table,
    reads_of,
)
from headgate.rows.engine import columns_sql, literal, quote
from headgate.rows.outcome import AppliedSchema, Counts, Parts, PlannedSchema, Request
from headgate.rows.schema_file import ColumnSpec, DatasetSpec, SchemaFile
from headgate.rows.validate import check_constraints
from headgate.rows.working_set import BY, TableEffect, WorkingSet, WorkingTable
from headgate.tables import constraints
from headgate.tables.creation import create_metadata
from headgate.tables.metadata import Json, Metadata, current_schema
from headgate.tables.scan import TableScan
from headgate.tables.schemas import parse_type, type_text, widest
from headgate.tables.snapshots import current_snapshot, effect_between
from headgate.tables.updates import apply_updates
from headgate.tables.versions import StoredVersion, TableVersions

if TYPE_CHECKING:
    from headgate.rows.evaluator_pool import EvaluatorPool

_DEFAULT_BUCKETS = 8


def plan(parts: Parts, branch: str, file: SchemaFile) -> PlannedSchema:
    """Return the steps that applying the file would take."""
    branch_tables = BranchTables(parts.database, branch_context(branch))
    plans = _Planner(branch_tables, parts.versions, file).run()
    return PlannedSchema(branch=branch, steps=_steps_by_name(plans))


def apply_schema(
    parts: Parts, request: Request, file: SchemaFile, pool: EvaluatorPool | None = None
) -> AppliedSchema:
    """Apply the file in one publication for all tables, or raise and change nothing."""
    branch_tables = BranchTables(parts.database, branch_context(request.branch))
    plans = _Planner(branch_tables, parts.versions, file).run()

    def act() -> Receipt:
        if pool is None:
            with WorkingSet(branch_tables, parts.versions, parts.options) as working:
                done = stage_plans(working, plans=plans)
        else:
            task = partial(stage_plans, plans=plans)
            done = pool.perform(parts, branch_tables, task, request.interrupt)
        return _publish(parts, request, branch_tables, plans, done)

    receipt = do_once(parts.database, request.operation, act)
    return AppliedSchema(
        branch=request.branch, publication=receipt.publication, steps=_steps_by_name(plans)
    )


def _steps_by_name(plans: Sequence[TablePlan]) -> dict[str, Sequence[str]]:
    return {str(plan.name): plan.change.steps for plan in plans}


def stage_plans(working: WorkingSet, *, plans: Sequence[TablePlan]) -> Json:
    """Write the next version of each table; return their locations, and the tables read."""
    for each in plans:
        working.tables[each.name] = _working_table(working, each)
    changing = [each for each in plans if each.change.steps]
    _validate(working, changing)
    reach(Failpoint.MUTATION_PREPARED)
    staged = {str(each.name): _stage(working, each) for each in changing}
    reach(Failpoint.MUTATION_STAGED)
    return {"staged": staged, "read": [str(name) for name in working.tables]}


def _publish(
    parts: Parts,
    request: Request,
    branch_tables: BranchTables,
    plans: Sequence[TablePlan],
    done: Json,
) -> Receipt:
    changing = [each for each in plans if each.change.steps]
    staged = [(each, _version(parts, each, done["staged"][str(each.name)])) for each in changing]
    written = [table for each in changing for table in (each.on_branch, each.renamed_from)]
    moved = {table.branch.id for table in written if table is not None and table.branch is not None}

    def prepare(connection: Connection) -> PublishRequest:
        changes = [
            change
            for each, version in staged
            for change in _changes(connection, request, branch_tables, each, version)
        ]
        return PublishRequest(
            caller=request.caller,
            kind=PublicationKind.COMMIT,
            changes=tuple(changes),
            reads=reads_of(
                (branch_tables.find(parse_dataset_name(n)) for n in done["read"]), moved
            ),
            operation=request.operation,
        )

    return publish_prepared(parts.database, prepare)


def _working_table(working: WorkingSet, plan: TablePlan) -> WorkingTable:
    """Return the table with its new columns and constraints over its present rows."""
    final = plan.change.metadata
    location = plan.base.location if plan.base else final["location"]
    version = StoredVersion(location=location, content=b"", metadata=working_set.relaxed(final))
    scan = TableScan(version, working.options)
    return WorkingTable(working.engine, plan.on_branch, scan, constraints_from=final)


def _validate(working: WorkingSet, changing: Sequence[TablePlan]) -> None:
    """Fill new columns, and raise where present rows violate the new constraints."""
    with_rows = [p for p in changing if p.base is not None and current_snapshot(p.base.metadata)]
    for plan in with_rows:
        for column, value in plan.change.filled.items():
            if value is None:
                raise ImpossibleSchemaChange(
                    dataset=str(plan.name),
                    reason=f"the new column {column!r} is required and has no default, and the "
                    "table has rows",
                    remedy="Give it a default, or add it as optional first and fill it.",
                )
            name = working.tables[plan.name].bring()
            working.engine.execute(f"UPDATE {name} SET {quote(column)} = {literal(value)}")
    check_constraints(working, list(_all_as_new(working, with_rows)))


def _all_as_new(working: WorkingSet, plans: Sequence[TablePlan]) -> Iterator[TableEffect]:
    """Return effects that add every row, for the validator."""
    tables = {plan.name: working.tables[plan.name] for plan in plans}
    for plan in plans:
        if is_flagged(write.provenance_of(plan.renamed_from or plan.on_branch)):
            # The flag may be that rows of other tables refer to rows that it has no more.
            for other, _ in working.referring(tables[plan.name]):
                if constraints.enforcement_of(other.scan.version.metadata) is not Enforce.OFF:
                    tables.setdefault(other.name, other)
    for table in tables.values():
        engine = working.engine
        rows = table.relation(table.columns)
        added, removed = engine.new_name("added"), engine.new_name("removed")
        columns = columns_sql(table.columns)
        engine.execute(f"CREATE TEMP VIEW {added} AS SELECT {columns}, 0 AS {BY} FROM {rows}")
        engine.execute(f"CREATE TEMP VIEW {removed} AS SELECT {columns} FROM {rows} LIMIT 0")
        yield TableEffect(table=table, removed=removed, added=added, counts=Counts())


def _stage(working: WorkingSet, plan: TablePlan) -> str:
    metadata = plan.change.metadata
    table = working.tables[plan.name]
    if plan.base is not None and plan.change.filled and table.rows is not None:
        metadata = working_set.stage_rows(working_set.effect_of(table), base=metadata)
    base = plan.base.metadata if plan.base else None
    stored = working.versions.write(plan.on_branch.dataset.id, metadata, base=base)
    reach(Failpoint.MUTATION_VERSION_STAGED)
    return stored.location


def _version(parts: Parts, plan: TablePlan, location: str) -> Version:
    """Return the version that was staged; its content is the same unless rows were filled."""
    version = write.version_of(parts, plan.on_branch, location)
    assert version is not None
    metadata = parts.versions.read(location).metadata
    base = plan.base.metadata if plan.base else None
    held = plan.on_branch.version or (plan.renamed_from.version if plan.renamed_from else None)
    if held is None or effect_between(base, metadata).changes_content:
        return version
    return replace(version, content_id=held.content_id)


def _changes(
    connection: Connection,
    request: Request,
    branch_tables: BranchTables,
    plan: TablePlan,
    version: Version,
) -> list[Change]:
    on_branch = plan.on_branch
    write.create_if_new(connection, on_branch, caller=request.caller)
    # All rows were validated, or there are none.
    facts = write.mutation_facts("schema", Counts(), keys_hold=True, steps=[*plan.change.steps])
    type = TransactionType.SNAPSHOT if plan.base is None else TransactionType.UPDATE
    if plan.renamed_from is not None:
        on_branch = branch_tables.rename(plan.renamed_from, on_branch)
    changes = write.add_version(branch_tables, on_branch, version=version, type=type, facts=facts)
    if plan.renamed_from is not None:
        changes += write.add_version(
            branch_tables, plan.renamed_from, version=None, type=TransactionType.DELETE, facts=facts
        )
    return changes


# The plan of a branch; it changes nothing.


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """The plan of one table: its state on the branch, its base version and its change."""

    name: DatasetName
    on_branch: BranchTable
    base: StoredVersion | None
    change: SchemaChange
    # The dataset that is renamed.
    renamed_from: BranchTable | None = None


class _Planner:
    """Plans every dataset of a file, and the properties it sets on tables that they refer to."""

    def __init__(
        self, branch_tables: BranchTables, versions: TableVersions, file: SchemaFile
    ) -> None:
        self.branch_tables = branch_tables
        self.versions = versions
        self.file = file
        self.declared = {spec.name for spec in file.datasets}
        self.plans: dict[DatasetName, TablePlan] = {}

    def run(self) -> list[TablePlan]:
        """Return the plans of the file's datasets, and of other tables that change."""
        specs = self.file.datasets
        names = list(self.declared)
        names += [spec.renamed_from for spec in specs if spec.renamed_from]
        names += [parse_dataset_name(r.dataset) for s in specs for r in s.constraints.references]
        self.branch_tables.prefetch(names)
        self.plans = {spec.name: self._plan(spec) for spec in specs}
        # The old names of renamed datasets, which show nothing afterwards.
        renamed = [plan.renamed_from for plan in self.plans.values()]
        self.old_names = {one.dataset.name for one in renamed if one is not None}
        self._follow_renames()
        for spec in specs:
            self._record_references(spec)
        return [p for p in self.plans.values() if p.name in self.declared or p.change.steps]

    def _plan(self, spec: DatasetSpec) -> TablePlan:
        on_branch = self.branch_tables.find(spec.name)
        if on_branch is not None and on_branch.dataset.kind is not DatasetKind.TABLE:
            what = "a view" if on_branch.dataset.kind is DatasetKind.VIEW else "a tree of files"
            reason = f"dataset {spec.name} is {what}, not a table"
            raise self.file.error(spec.name, reason=reason)
        renamed = None
        if spec.renamed_from is not None and not (on_branch and on_branch.version):
            renamed = self._find_shown(spec.renamed_from)
        held = on_branch if on_branch is not None and on_branch.version else renamed
        if held is None:
            check_no_twin(self.branch_tables, spec.name, old=spec.renamed_from)
        on_branch = on_branch or new_table(spec.name)
        if held is None or held.version is None:
            location = self.versions.table_location(on_branch.dataset.id)
            created = create_table(spec, location=location, now_ms=working_set.now_ms())
            return TablePlan(name=spec.name, on_branch=on_branch, base=None, change=created)
        base = self.versions.read(held.version.location)
        change = change_table(
            spec, base.metadata, base_location=base.location, now_ms=working_set.now_ms()
        )
        if _is_unvalidated(held, base.metadata):
            change = replace(change, steps=(*change.steps, "validate the rows"))
        if renamed is not None:
            steps = (f"rename dataset {renamed.dataset.name} to {spec.name}", *change.steps)
            change = replace(change, steps=steps)
        return TablePlan(
            name=spec.name, on_branch=on_branch, base=base, change=change, renamed_from=renamed
        )

    def _find_shown(self, name: DatasetName) -> BranchTable | None:
        found = self.branch_tables.find(name)
        return found if found is not None and found.version is not None else None

    def _follow_renames(self) -> None:
        """Make tables that refer to a renamed dataset refer to its new name."""
        for plan in [p for p in self.plans.values() if p.renamed_from is not None]:
            assert plan.renamed_from is not None and plan.base is not None
            old, new = str(plan.renamed_from.dataset.name), str(plan.name)
            for text in constraints.referring_datasets(plan.base.metadata):
                name = parse_dataset_name(text)
                if name in self.declared or name in self.old_names:
                    continue
                metadata = self._next_metadata(name)
                held, schema = constraints.constraints_of(metadata), current_schema(metadata)
                assert schema is not None
                references = tuple(
                    replace(r, dataset=new) if r.dataset == old else r for r in held.references
                )
                value = constraints.constraints_property(
                    schema, replace(held, references=references)
                )
                self._set_property(
                    name, constraints.PROPERTY, value, f"refer to {new} instead of {old}"
                )

    def _record_references(self, spec: DatasetSpec) -> None:
        """Record on each table that the dataset refers to; remove old records."""
        now = {r.dataset for r in spec.constraints.references}
        plan = self.plans[spec.name]
        before = constraints.constraints_of(plan.base.metadata).references if plan.base else ()
        for other in sorted(now | {r.dataset for r in before}):
            name, refers = parse_dataset_name(other), other in now
            if name in self.old_names:
                if refers:
                    reason = f"{other} is renamed in this file; refer to the new name"
                    raise self.file.error(spec.name, "references", reason=reason)
                # Its property stays under the new name.
                continue
            if name not in self.plans and self._find_shown(name) is None:
                if refers:
                    missing = self.branch_tables.unknown(name)
                    raise self.file.error(spec.name, "references", reason=missing.message)
                continue
            metadata = self._next_metadata(name)
            if refers and len(constraints.constraints_of(metadata).key) != 1:
                raise ImpossibleSchemaChange(
                    dataset=str(spec.name),
                    reason=f"it refers to {name}, which has no key of one column",
                    remedy=f'Give {name} a key, as in key = ["id"].',
                )
            names = set(constraints.referring_datasets(metadata)) - {str(spec.name)}
            if plan.renamed_from is not None:
                names.discard(str(plan.renamed_from.dataset.name))
            if refers:
                names.add(str(spec.name))
            step = f"{'is' if refers else 'is no longer'} referred to by {spec.name}"
            self._set_property(
                name, constraints.REFERRING_PROPERTY, constraints.referring_property(names), step
            )

    def _next_metadata(self, name: DatasetName) -> Metadata:
        """Return the planned metadata of a table, or that of the branch."""
        if name not in self.plans:
            on_branch = self.branch_tables.load(name)
            base = self.versions.read(on_branch.stored.location)
            change = SchemaChange(metadata=base.metadata, steps=())
            self.plans[name] = TablePlan(name=name, on_branch=on_branch, base=base, change=change)
        return self.plans[name].change.metadata

    def _set_property(self, name: DatasetName, property: str, value: str, step: str) -> None:
        """Set a property of a table's next metadata; a property with that value takes no step."""
        plan = self.plans[name]
        base, metadata = plan.base, plan.change.metadata
        if (metadata.get("properties") or {}).get(property) == value:
            return
        updated = apply_updates(
            metadata,
            [{"action": "set-properties", "updates": {property: value}}],
            now_ms=int(metadata["last-updated-ms"]),
            base_location=base.location if base is not None and metadata is base.metadata else None,
        )
        # The one step of a new table covers its properties.
        steps = plan.change.steps if base is None else (*plan.change.steps, step)
        self.plans[name] = replace(plan, change=replace(plan.change, metadata=updated, steps=steps))


@dataclass(frozen=True, kw_only=True)
class SchemaChange:
    """The next metadata of a table, its steps, and the new columns that old rows need values in."""

    metadata: Metadata
    steps: tuple[str, ...]
    filled: dict[str, Any] = field(default_factory=dict)


def create_table(spec: DatasetSpec, *, location: str, now_ms: int) -> SchemaChange:
    """Return a table without rows; a keyed one is laid out in buckets of its key."""
    next_id = count(1).__next__
    fields = [_new_field(column, next_id) for column in spec.columns]
    by_name = {f["name"]: f for f in fields}
    request: Json = {
        "schema": {
            "type": "struct",
            "fields": fields,
            "identifier-field-ids": [by_name[name]["id"] for name in spec.constraints.key],
        },
        "partition-spec": {"fields": _buckets(spec, by_name)},
        "properties": {},
    }
    metadata = create_metadata(request, location=location, now_ms=now_ms)
    schema = current_schema(metadata)
    assert schema is not None
    metadata = {**metadata, "properties": _properties(schema, spec)}
    columns = ", ".join(f"{c.name} {c.type}" for c in spec.columns)
    return SchemaChange(metadata=metadata, steps=(f"create ({columns})",))


def change_table(
    spec: DatasetSpec, base: Metadata, *, base_location: str, now_ms: int
) -> SchemaChange:
    """Return the table as in the file; fields keep their ids, also under a new name."""
    schema = current_schema(base)
    assert schema is not None
    olds = {f["name"]: f for f in schema["fields"]}
    next_id = count(int(base["last-column-id"]) + 1).__next__
    steps: list[str] = []
    filled: dict[str, Any] = {}
    fields = [_match(spec, column, olds, next_id, steps, filled) for column in spec.columns]
    kept = {f["id"] for f in fields}
    steps += [f"drop column {f['name']}" for f in schema["fields"] if f["id"] not in kept]
    by_name = {f["name"]: f for f in fields}
    key = [by_name[name]["id"] for name in spec.constraints.key]
    changed = {**schema, "fields": fields, "identifier-field-ids": key}
    updates: list[Json] = [
        {"action": "add-schema", "schema": changed},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    if set(key) != set(schema.get("identifier-field-ids") or []):
        steps.append(f"key ({', '.join(spec.constraints.key)})" if key else "drop key")
        updates += [
            {"action": "add-spec", "spec": {"fields": _buckets(spec, by_name)}},
            {"action": "set-default-spec", "spec-id": -1},
        ]
    steps += _constraint_steps(constraints.constraints_of(base), spec.constraints)
    enforced = (base.get("properties") or {}).get(constraints.ENFORCE_PROPERTY)
    if spec.enforce not in (None, enforced):
        steps.append(f"{spec.enforce} violations by engines")
    updates.append({"action": "set-properties", "updates": _properties(changed, spec)})
    metadata = apply_updates(base, updates, now_ms=now_ms, base_location=base_location)
    return SchemaChange(metadata=metadata, steps=tuple(steps), filled=filled)


def _properties(schema: Json, spec: DatasetSpec) -> dict[str, str]:
    found = {constraints.PROPERTY: constraints.constraints_property(schema, spec.constraints)}
    if spec.enforce is not None:
        found[constraints.ENFORCE_PROPERTY] = spec.enforce.value
    return found


def _is_unvalidated(held: BranchTable, base: Metadata) -> bool:
    """Return whether an engine wrote rows that were not validated, or that violate constraints."""
    declared = constraints.PROPERTY in (base.get("properties") or {})
    is_bound = declared or is_flagged(write.provenance_of(held))
    return is_bound and current_snapshot(base) is not None and not write.keys_hold(held)


def _new_field(column: ColumnSpec, next_id: Callable[[], int]) -> Json:
    made: Json = {"id": next_id(), "name": column.name, "required": column.required}
    made["type"] = parse_type(column.type, next_id)
    return {**made, "doc": column.doc} if column.doc else made


def _match(
    spec: DatasetSpec,
    column: ColumnSpec,
    olds: dict[str, Json],
    next_id: Callable[[], int],
    steps: list[str],
    filled: dict[str, Any],
) -> Json:
    """Return the field of a column: the old one, perhaps renamed or widened, or a new one."""
    was = column.renamed_from if column.renamed_from in olds else None
    old = olds.get(column.name) or (olds[was] if was else None)
    if old is None:
        steps.append(f"add column {column.name} {column.type}")
        if column.required:
            filled[column.name] = spec.constraints.defaults.get(column.name)
        return _new_field(column, next_id)
    if old["name"] != column.name:
        steps.append(f"rename column {old['name']} to {column.name}")
    kind = _widened(spec, column, old, steps)
    if bool(old.get("required")) != column.required:
        steps.append(f"column {column.name}: {'required' if column.required else 'optional'}")
    if (column.doc or old.get("doc")) != old.get("doc"):
        steps.append(f"column {column.name}: its description")
    new = {**old, "name": column.name, "type": kind, "required": column.required}
    return {**new, "doc": column.doc} if column.doc else new


def _widened(spec: DatasetSpec, column: ColumnSpec, old: Json, steps: list[str]) -> Any:
    wanted = parse_type(column.type, count(1).__next__)
    if type_text(wanted) == type_text(old["type"]):
        return old["type"]
    is_plain = isinstance(wanted, str) and isinstance(old["type"], str)
    if not is_plain or widest(_flat(old["type"]), _flat(wanted)) != _flat(wanted):
        raise ImpossibleSchemaChange(
            dataset=str(spec.name),
            reason=f"column {column.name!r} is {type_text(old['type'])} and cannot become "
            f"{column.type}",
            remedy="Types can only widen (int to long, float to double, more decimal digits): add "
            "a column of the new type and fill it by `headgate mutate`.",
        )
    steps.append(f"column {column.name}: {type_text(old['type'])} to {column.type}")
    return wanted


def _flat(kind: str) -> str:
    return kind.replace(" ", "")


def _buckets(spec: DatasetSpec, by_name: dict[str, Json]) -> list[Json]:
    if not spec.constraints.key:
        return []
    first = spec.constraints.key[0]
    transform = f"bucket[{spec.buckets or _DEFAULT_BUCKETS}]"
    source = by_name[first]["id"]
    return [{"source-id": source, "name": f"{first}_bucket", "transform": transform}]


def _constraint_steps(old: Constraints, new: Constraints) -> list[str]:
    steps = []
    for what in ("unique", "references", "cardinality"):
        before: Sequence[Any] = getattr(old, what)
        after: Sequence[Any] = getattr(new, what)
        steps += [f"add constraint {_described(item)}" for item in after if item not in before]
        steps += [f"drop constraint {_described(item)}" for item in before if item not in after]
    for name in sorted({*old.enums, *new.enums}):
        if old.enums.get(name) != new.enums.get(name):
            values = new.enums.get(name)
            allowed = f"one of {', '.join(map(str, values))}" if values else "any value"
            steps.append(f"column {name}: {allowed}")
    for name in sorted({*old.defaults, *new.defaults}):
        if old.defaults.get(name) != new.defaults.get(name):
            steps.append(f"column {name}: default {new.defaults.get(name)!r}")
    return steps


def _described(item: Any) -> str:
    if isinstance(item, tuple):
        return f"unique ({', '.join(item)})"
    if hasattr(item, "per"):
        return f"at most {item.max} rows per {item.per}"
    return f"{item.column} refers to {item.dataset} ({item.on_delete})"
