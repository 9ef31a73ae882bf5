"""Applying a schema file: existing rows are validated first, then all tables change at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.catalog.database import Connection
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.operations import do_once
from headgate.catalog.publish import publish_prepared
from headgate.catalog.records import find_dataset
from headgate.errors import DatasetExists, ImpossibleSchemaChange, Invalid
from headgate.model.changes import Change, PublishRequest, Receipt
from headgate.model.constraints import Constraints, Reference
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import Instant, mint_content, mint_dataset, mint_version
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Dataset, DatasetKind, PublicationKind, TransactionType, Version
from headgate.rows.branch_tables import Ground, Standing, branch_context
from headgate.rows.engine import columns_sql, literal, quote
from headgate.rows.outcome import AppliedSchema, Counts, Parts, PlannedSchema, Request
from headgate.rows.schema_file import ColumnSpec, DatasetSpec, SchemaFile
from headgate.rows.validate import check_constraints
from headgate.rows.working_set import BY, Picture, PicturedTable, TableEffect, effect_of, stage_rows
from headgate.rows.write import add_version, fact
from headgate.tables import constraints
from headgate.tables import constraints as stored
from headgate.tables.classify import effect_between
from headgate.tables.inspect import current_snapshot, type_text
from headgate.tables.scan import TableScan
from headgate.tables.schema_diff import widest
from headgate.tables.schemas import current_schema, parse_type
from headgate.tables.shape import Json, Metadata
from headgate.tables.updates import apply_updates, create_metadata
from headgate.tables.versions import StoredVersion, TableVersions

# What a schema file makes of one table: the next metadata, in steps that a person can review.

DEFAULT_BUCKETS = 8


@dataclass(frozen=True, kw_only=True)
class SchemaChange:
    """The metadata a table gets, how it differs, and which new columns old rows need values in."""

    metadata: Metadata
    steps: tuple[str, ...]
    filled: dict[str, Any] = field(default_factory=dict)


def create_table(spec: DatasetSpec, *, location: str, now_ms: int) -> SchemaChange:
    """A table without rows; a keyed one is laid out in buckets of its key."""
    ids = _Ids(0)
    fields = [_new_field(column, ids) for column in spec.columns]
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
    text = stored.constraints_property(schema, spec.constraints)
    metadata = {**metadata, "properties": {stored.PROPERTY: text}}
    columns = ", ".join(f"{c.name} {c.type}" for c in spec.columns)
    return SchemaChange(metadata=metadata, steps=(f"create ({columns})",))


def change_table(
    spec: DatasetSpec, base: Metadata, *, base_location: str, now_ms: int
) -> SchemaChange:
    """The table as the file has it: fields keep their ids, also under another name."""
    schema = current_schema(base)
    assert schema is not None
    olds = {f["name"]: f for f in schema["fields"]}
    ids = _Ids(int(base["last-column-id"]))
    steps: list[str] = []
    filled: dict[str, Any] = {}
    fields = [_match(spec, column, olds, ids, steps, filled) for column in spec.columns]
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
        updates += _laid_out(spec, by_name)
    steps += _constraint_steps(stored.constraints_of(base), spec.constraints)
    text = stored.constraints_property(changed, spec.constraints)
    updates.append({"action": "set-properties", "updates": {stored.PROPERTY: text}})
    metadata = apply_updates(base, updates, now_ms=now_ms, base_location=base_location)
    return SchemaChange(metadata=metadata, steps=tuple(steps), filled=filled)


class _Ids:
    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self) -> int:
        self.last += 1
        return self.last


def _new_field(column: ColumnSpec, ids: _Ids) -> Json:
    id = ids()
    made: Json = {"id": id, "name": column.name, "required": column.required}
    made["type"] = parse_type(column.type, ids)
    return {**made, "doc": column.doc} if column.doc else made


def _match(
    spec: DatasetSpec,
    column: ColumnSpec,
    olds: dict[str, Json],
    ids: _Ids,
    steps: list[str],
    filled: dict[str, Any],
) -> Json:
    """The field that a column is by now: the old one, perhaps renamed or widened, or a new one."""
    was = column.renamed_from if column.renamed_from in olds else None
    old = olds.get(column.name) or (olds[was] if was else None)
    if old is None:
        made = _new_field(column, ids)
        default = spec.constraints.defaults.get(column.name)
        steps.append(f"add column {column.name} {column.type}")
        if column.required and default is None:
            filled[column.name] = None
        elif column.required:
            filled[column.name] = default
        return made
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
    wanted = parse_type(column.type, _Ids(0))
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
    return [
        {
            "source-id": by_name[first]["id"],
            "field-id": 1000,
            "name": f"{first}_bucket",
            "transform": f"bucket[{spec.buckets or DEFAULT_BUCKETS}]",
        }
    ]


def _laid_out(spec: DatasetSpec, by_name: dict[str, Json]) -> list[Json]:
    fields = [{k: v for k, v in f.items() if k != "field-id"} for f in _buckets(spec, by_name)]
    return [
        {"action": "add-spec", "spec": {"fields": fields}},
        {"action": "set-default-spec", "spec-id": -1},
    ]


def _constraint_steps(old: Constraints, new: Constraints) -> list[str]:
    steps = []
    for what in ("unique", "references", "cardinality"):
        before: Sequence[Any] = getattr(old, what)
        after: Sequence[Any] = getattr(new, what)
        steps += [f"demand {_words(item)}" for item in after if item not in before]
        steps += [f"no longer demand {_words(item)}" for item in before if item not in after]
    for name in sorted({*old.enums, *new.enums}):
        if old.enums.get(name) != new.enums.get(name):
            values = new.enums.get(name)
            steps.append(
                f"column {name}: one of {', '.join(map(str, values))}"
                if values
                else f"column {name}: any value"
            )
    for name in sorted({*old.defaults, *new.defaults}):
        if old.defaults.get(name) != new.defaults.get(name):
            steps.append(f"column {name}: default {new.defaults.get(name)!r}")
    return steps


def _words(item: Any) -> str:
    if isinstance(item, tuple):
        return f"unique ({', '.join(item)})"
    if hasattr(item, "per"):
        return f"at most {item.max} rows per {item.per}"
    return f"{item.column} refers to {item.dataset} ({item.on_delete})"


# What a schema file would change on a branch: for each table its next metadata; no side effect.


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """One table: where it stands, what it had, and what it gets."""

    name: DatasetName
    standing: Standing
    base: StoredVersion | None
    change: SchemaChange
    # The dataset whose place it takes.
    renamed_from: Standing | None = None

    @property
    def is_new(self) -> bool:
        return self.base is None

    @property
    def changes(self) -> bool:
        return bool(self.change.steps)


@dataclass(frozen=True, kw_only=True)
class SchemaPlan:
    tables: tuple[TablePlan, ...]

    @property
    def steps(self) -> dict[str, Sequence[str]]:
        """What each table gets, none where it is as the file says."""
        return {str(table.name): table.change.steps for table in self.tables}


def plan_schema(ground: Ground, versions: TableVersions, file: SchemaFile) -> SchemaPlan:
    """Plans every dataset of the file, and the notes that it leaves on those referred to."""
    names = [spec.name for spec in file.datasets]
    names += [spec.renamed_from for spec in file.datasets if spec.renamed_from]
    names += [
        parse_dataset_name(r.dataset) for s in file.datasets for r in s.constraints.references
    ]
    ground.look(names)
    plans = {spec.name: _plan(ground, versions, file, spec) for spec in file.datasets}
    _follow_renames(ground, versions, plans)
    _note_references(ground, versions, file, plans)
    return SchemaPlan(tables=tuple(plans.values()))


def _plan(
    ground: Ground, versions: TableVersions, file: SchemaFile, spec: DatasetSpec
) -> TablePlan:
    standing = ground.find(spec.name)
    if standing is not None and standing.dataset.kind is not DatasetKind.TABLE:
        raise file.wrong(spec.name, reason=f"dataset {spec.name} is a tree of files, not a table")
    renamed = _renamed(ground, spec, standing)
    held = standing if standing is not None and standing.version else renamed
    now_ms = time.time_ns() // 1_000_000
    if held is None or held.version is None:
        standing = standing or _new_standing(spec.name)
        location = versions.table_location(standing.dataset.id)
        made = create_table(spec, location=location, now_ms=now_ms)
        return TablePlan(name=spec.name, standing=standing, base=None, change=made)
    base = versions.read(held.version.location)
    change = change_table(spec, base.metadata, base_location=base.location, now_ms=now_ms)
    if renamed is not None:
        steps = (f"rename dataset {renamed.dataset.name} to {spec.name}", *change.steps)
        change = replace(change, steps=steps)
    return TablePlan(
        name=spec.name,
        standing=standing or _new_standing(spec.name),
        base=base,
        change=change,
        renamed_from=renamed,
    )


def _renamed(ground: Ground, spec: DatasetSpec, standing: Standing | None) -> Standing | None:
    """The dataset of the old name, while the new one shows nothing yet."""
    if spec.renamed_from is None or (standing is not None and standing.version is not None):
        return None
    old = ground.find(spec.renamed_from)
    return old if old is not None and old.version is not None else None


def _new_standing(name: DatasetName) -> Standing:
    dataset = Dataset(
        id=mint_dataset(), name=name, kind=DatasetKind.TABLE, owned=True, created_at=Instant(0)
    )
    return Standing(dataset=dataset, branch=None, source=None, shown=None)


def _leaving(plans: dict[DatasetName, TablePlan]) -> set[DatasetName]:
    """The old names of datasets that are renamed, which show nothing afterwards."""
    return {p.renamed_from.dataset.name for p in plans.values() if p.renamed_from is not None}


def _follow_renames(
    ground: Ground, versions: TableVersions, plans: dict[DatasetName, TablePlan]
) -> None:
    """Tables that refer to a renamed dataset refer to its new name."""
    leaving = _leaving(plans)
    for plan in [p for p in plans.values() if p.renamed_from is not None]:
        assert plan.renamed_from is not None and plan.base is not None
        old, new = str(plan.renamed_from.dataset.name), str(plan.name)

        def follow(metadata: Metadata, old: str = old, new: str = new) -> tuple[str, str, str]:
            held = stored.constraints_of(metadata)
            moved = tuple(
                Reference(column=r.column, dataset=new, on_delete=r.on_delete)
                if r.dataset == old
                else r
                for r in held.references
            )
            schema = current_schema(metadata)
            assert schema is not None
            changed = Constraints(**{**vars(held), "references": moved})
            text = stored.constraints_property(schema, changed)
            return stored.PROPERTY, text, f"refer to {new} instead of {old}"

        for text in constraints.referring_datasets(plan.base.metadata):
            name = parse_dataset_name(text)
            if name not in plans and name not in leaving:
                _set_property(ground, versions, plans, name, follow)


def _note_references(
    ground: Ground,
    versions: TableVersions,
    file: SchemaFile,
    plans: dict[DatasetName, TablePlan],
) -> None:
    """Writes on each table referred to who refers to it; on those no longer, takes it off."""
    leaving = _leaving(plans)
    for spec in file.datasets:
        now = {r.dataset for r in spec.constraints.references}
        base = plans[spec.name].base
        before = (
            {r.dataset for r in stored.constraints_of(base.metadata).references} if base else set()
        )
        was = plans[spec.name].renamed_from
        for other in sorted(now | before):
            name = parse_dataset_name(other)
            if name in leaving:
                if other in now:
                    reason = f"{other} gets another name in this file; refer to that"
                    raise file.wrong(spec.name, "references", reason=reason)
                # Its notes go on under the new name.
                continue
            if name not in plans and not _is_shown(ground, name):
                if other not in now:
                    continue
                raise file.wrong(
                    spec.name,
                    "references",
                    reason=f"there is no table {other} on {str(ground.context)!r} to refer to",
                )
            _check_target(versions, ground, plans, spec, name, refers=other in now)

            def note(
                metadata: Metadata,
                me: str = str(spec.name),
                refers: bool = other in now,
                old: str | None = str(was.dataset.name) if was else None,
            ) -> tuple[str, str, str]:
                held = set(constraints.referring_datasets(metadata)) - {old}
                names = held | {me} if refers else held - {me}
                word = "is" if refers else "is no longer"
                text = constraints.referring_property(n for n in names if n)
                return constraints.REFERRING_PROPERTY, text, f"{word} referred to by {me}"

            _set_property(ground, versions, plans, name, note)


def _check_target(
    versions: TableVersions,
    ground: Ground,
    plans: dict[DatasetName, TablePlan],
    spec: DatasetSpec,
    name: DatasetName,
    *,
    refers: bool,
) -> None:
    plan = plans.get(name)
    metadata = plan.change.metadata if plan else _base_of(ground, versions, name).metadata
    if refers and len(stored.constraints_of(metadata).key) != 1:
        raise ImpossibleSchemaChange(
            dataset=str(spec.name),
            reason=f"it refers to {name}, which has no key of one column",
            remedy=f'Give {name} a key, as in key = ["id"].',
        )


def _is_shown(ground: Ground, name: DatasetName) -> bool:
    standing = ground.find(name)
    return standing is not None and standing.version is not None


def _base_of(ground: Ground, versions: TableVersions, name: DatasetName) -> StoredVersion:
    standing = ground.load(name)
    if standing.version is None:
        raise Invalid(f"{name} has no version.", dataset=str(name))
    return versions.read(standing.version.location)


def _set_property(
    ground: Ground,
    versions: TableVersions,
    plans: dict[DatasetName, TablePlan],
    name: DatasetName,
    decide: Callable[[Metadata], tuple[str, str, str]],
) -> None:
    """Sets a property of a table's next metadata; one that is so already is no step."""
    plan = plans.get(name)
    if plan is None:
        base = _base_of(ground, versions, name)
        plan = TablePlan(
            name=name,
            standing=ground.load(name),
            base=base,
            change=SchemaChange(metadata=base.metadata, steps=()),
        )
    metadata = plan.change.metadata
    property, text, step = decide(metadata)
    if (metadata.get("properties") or {}).get(property) == text:
        return
    base_location = None
    if plan.base is not None and metadata is plan.base.metadata:
        base_location = plan.base.location
    updated = apply_updates(
        metadata,
        [{"action": "set-properties", "updates": {property: text}}],
        now_ms=int(metadata["last-updated-ms"]),
        base_location=base_location,
    )
    # A table that is made anew says all in its first step.
    steps = plan.change.steps if plan.is_new else (*plan.change.steps, step)
    plans[name] = replace(plan, change=replace(plan.change, metadata=updated, steps=steps))


VERB = "schema"


def plan(parts: Parts, branch: str, file: SchemaFile) -> PlannedSchema:
    """What applying the file would do."""
    ground = Ground(parts.database, branch_context(branch))
    planned = plan_schema(ground, parts.versions, file)
    return PlannedSchema(branch=branch, steps=planned.steps)


def apply_schema(parts: Parts, request: Request, file: SchemaFile) -> AppliedSchema:
    """One publication for all tables of the file, or an error and no change."""
    ground = Ground(parts.database, branch_context(request.branch))
    planned = plan_schema(ground, parts.versions, file)

    def act() -> Receipt:
        with Picture(ground, parts.versions, parts.options) as picture:
            return _apply(parts, request, picture, planned)

    receipt = do_once(parts.database, request.operation, act)
    return AppliedSchema(
        branch=request.branch, publication=receipt.publication, steps=planned.steps
    )


def _apply(parts: Parts, request: Request, picture: Picture, planned: SchemaPlan) -> Receipt:
    changing = [table for table in planned.tables if table.changes]
    for table in planned.tables:
        picture.tables[table.name] = _pictured(parts, picture, table)
    _validate(picture, changing)
    reach(Failpoint.MUTATION_PREPARED)
    staged = [(table, _stage(parts, picture, table)) for table in changing]
    reach(Failpoint.MUTATION_STAGED)
    moved = {t.standing.branch.id for t in changing if t.standing.branch is not None}
    moved |= {
        t.renamed_from.branch.id for t in changing if t.renamed_from and t.renamed_from.branch
    }

    def prepare(connection: Connection) -> PublishRequest:
        steps = [
            step
            for table, version in staged
            for step in _steps(connection, request, picture.ground, table, version)
        ]
        return PublishRequest(
            actor=request.actor,
            kind=PublicationKind.COMMIT,
            changes=tuple(steps),
            reads=picture.reads(moved),
            operation=request.operation,
            may_write_protected=request.may_write_protected,
        )

    return publish_prepared(parts.database, prepare)


def _pictured(parts: Parts, picture: Picture, table: TablePlan) -> PicturedTable:
    """The table with its new columns and demands over the rows that it has."""
    final = table.change.metadata
    location = table.base.location if table.base else final["location"]
    version = StoredVersion(location=location, content=b"", metadata=_relaxed(final))
    return PicturedTable(
        picture.engine, table.standing, TableScan(version, parts.options), demands=final
    )


def _relaxed(metadata: Metadata) -> Metadata:
    """No column required: rows that lack a value must be found, not stumbled over."""
    schema = current_schema(metadata)
    assert schema is not None
    fields = [{**field, "required": False} for field in schema["fields"]]
    loose = {**schema, "fields": fields, "identifier-field-ids": []}
    others = [s for s in metadata["schemas"] if s["schema-id"] != schema["schema-id"]]
    return {**metadata, "schemas": [*others, loose]}


def _validate(picture: Picture, changing: Sequence[TablePlan]) -> None:
    held = [t for t in changing if t.base is not None and current_snapshot(t.base.metadata)]
    for table in held:
        for column, value in table.change.filled.items():
            if value is None:
                raise ImpossibleSchemaChange(
                    dataset=str(table.name),
                    reason=f"the new column {column!r} is required and has no default, and the "
                    "table has rows",
                    remedy="Give it a default, or add it as optional first and fill it.",
                )
            name = picture.tables[table.name].bring()
            picture.engine.do(f"UPDATE {name} SET {quote(column)} = {literal(value)}")
    check_constraints(picture, list(_all_as_new(picture, held)), lambda dataset, number: {})


def _all_as_new(picture: Picture, held: Sequence[TablePlan]) -> Iterator[TableEffect]:
    """Every row as if it had just been added, for the validator."""
    for table in held:
        pictured = picture.tables[table.name]
        engine = picture.engine
        rows = pictured.relation(pictured.columns)
        added, removed = engine.new_name("added"), engine.new_name("removed")
        columns = columns_sql(pictured.columns)
        engine.do(f"CREATE TEMP VIEW {added} AS SELECT {columns}, 0 AS {BY} FROM {rows}")
        engine.do(f"CREATE TEMP VIEW {removed} AS SELECT {columns} FROM {rows} LIMIT 0")
        yield TableEffect(table=pictured, removed=removed, added=added, counts=Counts())


def _stage(parts: Parts, picture: Picture, table: TablePlan) -> Version:
    metadata = table.change.metadata
    pictured = picture.tables[table.name]
    if table.base is not None and table.change.filled and pictured.rows is not None:
        metadata = stage_rows(effect_of(pictured), base=metadata)
    stored = parts.versions.write(table.standing.dataset.id, metadata)
    reach(Failpoint.MUTATION_VERSION_STAGED)
    base = table.base.metadata if table.base else None
    held = table.standing.version or (table.renamed_from.version if table.renamed_from else None)
    keeps = held is not None and not effect_between(base, metadata).changes_content
    content = held.content_id if held is not None and keeps else mint_content()
    return Version(id=mint_version(), location=stored.location, content_id=content)


def _steps(
    connection: Connection, request: Request, ground: Ground, table: TablePlan, version: Version
) -> list[Change]:
    standing = table.standing
    if find_dataset(connection, table.name) is None:
        create_dataset_in(
            connection,
            table.name,
            kind=DatasetKind.TABLE,
            branch=None,
            actor=request.actor,
            id=standing.dataset.id,
        )
    elif standing.dataset.created_at == 0:
        # Somebody made the dataset after the plan.
        raise DatasetExists(dataset=str(table.name))
    # All rows were validated, or there are none.
    facts = fact(VERB, Counts(), keys_hold=True, steps=[*table.change.steps])
    new = table.base is None or table.renamed_from is not None
    type = TransactionType.SNAPSHOT if new else TransactionType.UPDATE
    steps = add_version(ground, standing, version=version, type=type, facts=facts)
    if table.renamed_from is not None:
        steps += add_version(
            ground, table.renamed_from, version=None, type=TransactionType.DELETE, facts=facts
        )
    return steps
