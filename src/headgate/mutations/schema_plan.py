"""What a schema file would change on a branch: for each table its next metadata; no side effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headgate.errors import ImpossibleSchemaChange, Invalid
from headgate.model.constraints import Constraints, Reference
from headgate.model.ids import Instant, mint_dataset
from headgate.model.names import DatasetName, parse_dataset_name
from headgate.model.nouns import Dataset, DatasetKind
from headgate.mutations.ground import Ground, Standing
from headgate.mutations.schema_change import SchemaChange, change_table, create_table
from headgate.mutations.schema_file import DatasetSpec, SchemaFile
from headgate.tables import constraints as stored
from headgate.tables import references
from headgate.tables.schemas import current_schema
from headgate.tables.shape import Metadata
from headgate.tables.updates import apply_updates
from headgate.tables.versions import StoredVersion, TableVersions


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

        for text in references.referring_datasets(plan.base.metadata):
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
                held = set(references.referring_datasets(metadata)) - {old}
                names = held | {me} if refers else held - {me}
                word = "is" if refers else "is no longer"
                text = references.referring_property(n for n in names if n)
                return references.PROPERTY, text, f"{word} referred to by {me}"

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
