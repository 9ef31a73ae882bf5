"""Applying a schema file: existing rows are validated first, then all tables change at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.catalog.database import Connection
from headgate.catalog.datasets import create_dataset_in
from headgate.catalog.find import find_dataset
from headgate.catalog.operations import do_once
from headgate.catalog.publish import publish_prepared
from headgate.errors import DatasetExists, ImpossibleSchemaChange
from headgate.model.changes import Change, PublishRequest, Receipt
from headgate.model.failpoints import Failpoint, reach
from headgate.model.ids import mint_content, mint_version
from headgate.model.nouns import DatasetKind, PublicationKind, TransactionType, Version
from headgate.mutations.counts import Counts
from headgate.mutations.effects import TableEffect, effect_of
from headgate.mutations.engine import columns_sql, literal, quote
from headgate.mutations.ground import Ground, branch_context
from headgate.mutations.outcomes import AppliedSchema, PlannedSchema
from headgate.mutations.parts import Parts, Request
from headgate.mutations.picture import Picture
from headgate.mutations.pictured import BY, PicturedTable
from headgate.mutations.schema_file import SchemaFile
from headgate.mutations.schema_plan import SchemaPlan, TablePlan, plan_schema
from headgate.mutations.staging import stage_rows
from headgate.mutations.steps import add_version, fact
from headgate.mutations.validating import check_constraints
from headgate.tables.classify import effect_between
from headgate.tables.reading import current_snapshot
from headgate.tables.scanning import TableScan
from headgate.tables.schemas import current_schema
from headgate.tables.shape import Metadata
from headgate.tables.versions import StoredVersion

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
