"""Routes of changes of rows and schemas.

Scripts, loads and merges may change many tables; each is one publication.
"""

import base64
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, StringConstraints

from headgate.errors import Invalid, InvalidSchemaFile, ObjectNotFound
from headgate.files.objects import Digest, StoredContent
from headgate.model.contexts import parse_context
from headgate.server.api import conventions as api
from headgate.server.api.models import Asked, Body, Branch, Name, Reply, Sha256, eg
from headgate.store.embedded import Store

# Bodies; their fields are parameters of the verbs, by the same names

Context = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
# The client waits this long for its response, so the limit is the life of a connection.
TimeoutSeconds = Annotated[float, Field(ge=0, le=300)]


class Mutation(Asked):
    branch: Context = eg("master", description="A branch, or one with fallbacks: `feature>master`.")
    sql: Annotated[str, StringConstraints(min_length=1, max_length=16 * 1024 * 1024)] = eg(
        "delete from graph.person where id = 'ana'"
    )
    if_head: dict[str, str | None] = Field(
        default_factory=dict, description="Only while the branch shows these transactions."
    )
    timeout_seconds: TimeoutSeconds = 60


class Load(Asked):
    branch: Context = eg("master", description="A branch, or one with fallbacks: `feature>master`.")
    mode: Literal["append", "merge", "overwrite"] = eg("merge", "append")
    rows: dict[str, list[dict[str, Any]]] = eg(
        {"graph.person": [{"id": "ana", "name": "Ana"}]},
        default_factory=dict,
        description="Rows as objects, by dataset.",
    )
    arrow: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="Arrow streams in base64, one or several by dataset. A schema's metadata may "
        "name the file that the rows come from, as `headgate.file`.",
    )
    contents: dict[str, list[Sha256]] = Field(
        default_factory=dict,
        description="Arrow streams that were put as contents, by dataset and SHA-256: for more "
        "rows than a document may hold.",
    )
    create: bool = Field(
        False, description="Create tables that the branch lacks, with the columns of their rows."
    )
    primary_key: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Columns of the key, by dataset, for tables that the load creates.",
    )
    if_head: dict[str, str | None] = Field(default_factory=dict)
    timeout_seconds: TimeoutSeconds = 60


class Merge(Asked):
    source: Branch = eg("corrections")
    into: Branch = eg("master")
    datasets: list[Name] = Field(default_factory=list, max_length=10_000)
    dry_run: bool = eg(True, False)
    timeout_seconds: TimeoutSeconds = 60


class CountsModel(BaseModel):
    inserted: int
    updated: int
    deleted: int


class OutcomeModel(Body):
    publication: int | None = eg(12, description="Null where nothing changed.")
    counts: dict[str, CountsModel] = eg(
        {"graph.person": {"inserted": 0, "updated": 1, "deleted": 0}}
    )
    created: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="Columns and types of tables that a load created, by dataset; absent for none.",
    )


class Schema(Asked):
    branch: Context = eg("master")
    text: str = eg(
        '[dataset."graph.person"]\ncolumns = {id = "string"}', description="A schema file, in TOML."
    )
    file: Name = eg("graph.toml", "schema.toml", description="Its name in error messages.")


class SchemaModel(Reply):
    more: ClassVar = {"publication": 14}
    branch: str = eg("master")
    datasets: list[dict[str, Any]] = eg(
        [{"dataset": "graph.person", "steps": ["create the table"]}]
    )


class Optimize(Asked):
    dataset: Name = eg("graph.person")
    branch: Branch = eg("master")
    keep_snapshots: int = eg(100, 100, ge=1, le=1_000_000)


class OptimizedModel(Reply):
    more: ClassVar = {"files": {"before": 40, "after": 8}, "snapshots_dropped": 3}
    dataset: str = eg("graph.person")
    branch: str = eg("master")
    state: str = eg("optimized")
    publication: int | None = eg(15)


# Routes

row_routes = api.router("rows")


@row_routes.post("/mutate", **api.documented(OutcomeModel))
def mutate(
    caller: api.CallerDependency,
    body: Mutation,
    key: api.IdempotencyKey,
    interrupt: api.Interruption,
) -> api.JsonReply:
    """Run a script of INSERT, UPDATE, DELETE, UPSERT and MERGE statements as one publication."""
    with caller.writing(_written(body.branch), interrupt=interrupt) as store:
        outcome = store.mutate(**body.model_dump(), idempotency_key=key)
        return api.JsonReply(outcome.to_json(), replayed=outcome.replayed)


@row_routes.post("/load", **api.documented(OutcomeModel))
def load(
    caller: api.CallerDependency, body: Load, key: api.IdempotencyKey, interrupt: api.Interruption
) -> api.JsonReply:
    """Load rows into tables, by dataset: append, merge by key, or overwrite all rows."""
    with caller.writing(_written(body.branch), interrupt=interrupt) as store:
        outcome = store.load(
            body.branch,
            {
                **body.rows,
                **{name: _decoded(name, sent) for name, sent in body.arrow.items()},
                **{name: _stored(caller, store, sent) for name, sent in body.contents.items()},
            },
            mode=body.mode,
            create=body.create,
            primary_key=body.primary_key,
            if_head=body.if_head,
            timeout_seconds=body.timeout_seconds,
            idempotency_key=key,
        )
        return api.JsonReply(outcome.to_json(), replayed=outcome.replayed)


@row_routes.post("/merge", **api.documented(OutcomeModel))
def merge(
    caller: api.CallerDependency, body: Merge, key: api.IdempotencyKey, interrupt: api.Interruption
) -> api.JsonReply:
    """Merge the changes of a branch or transaction since the merge base; list all conflicts."""
    with caller.writing(body.into, interrupt=interrupt) as store:
        outcome = store.merge(**body.model_dump(), idempotency_key=key)
        return api.JsonReply(outcome.to_json(), replayed=outcome.replayed)


@row_routes.post("/schema/plan", **api.documented(SchemaModel))
def plan_schema(caller: api.CallerDependency, body: Schema) -> api.JsonReply:
    """Return what a schema file would change on a branch, without changing anything."""
    rows = caller.reading().rows
    text = _schema_text(caller, body)
    planned = rows.plan_schema_text(text, file=body.file, branch=body.branch)
    return api.JsonReply(planned.to_json())


@row_routes.post("/schema/apply", **api.documented(SchemaModel))
def apply_schema(
    caller: api.CallerDependency, body: Schema, key: api.IdempotencyKey, interrupt: api.Interruption
) -> api.JsonReply:
    """Change the tables of a branch to match a schema file; existing rows must fit."""
    with caller.writing(_written(body.branch), interrupt=interrupt) as store:
        applied = store.rows.apply_schema_text(
            _schema_text(caller, body), file=body.file, branch=body.branch, idempotency_key=key
        )
        return api.JsonReply(applied.to_json())


@row_routes.post("/optimize", **api.documented(OptimizedModel))
def optimize(
    caller: api.CallerDependency,
    body: Optimize,
    key: api.IdempotencyKey,
    interrupt: api.Interruption,
) -> api.JsonReply:
    """Compact the small files of a table; its rows and content id stay."""
    with caller.writing(body.branch, interrupt=interrupt) as store:
        done = store.rows.optimize(**body.model_dump(), idempotency_key=key)
        return api.JsonReply(done.to_json())


def _written(context: str) -> str:
    """Return the branch that is written; the fallbacks of a chain are only read."""
    return str(getattr(parse_context(context), "branch", context))


def _schema_text(caller: api.Caller, body: Schema) -> str:
    limit = caller.served.settings.server.script_bytes
    if len(body.text.encode(errors="surrogatepass")) > limit:
        reason = f"it is over {limit} bytes, the limit of this server ([server] script_bytes)"
        raise InvalidSchemaFile(file=body.file, line=1, reason=reason)
    return body.text


def _decoded(dataset: str, sent: str | list[str]) -> list[bytes]:
    streams = [sent] if isinstance(sent, str) else sent
    try:
        return [base64.b64decode(text, validate=True) for text in streams]
    except ValueError as error:
        raise Invalid(f"the rows of {dataset} are not base64.", dataset=dataset) from error


def _stored(caller: api.Caller, store: Store, digests: list[str]) -> list[StoredContent]:
    wanted = [Digest(digest) for digest in digests]
    if len(caller.contents.known(store, caller.grant, wanted, caller.trees)) < len(set(wanted)):
        # Also for contents of others: to tell them apart would disclose what is stored.
        raise ObjectNotFound(location=digests[0])
    objects = store.trees.objects
    for digest in digests:
        if objects.find_size(digest) is None:
            raise ObjectNotFound(location=digest)
    return [StoredContent(digest=Digest(digest), objects=objects) for digest in digests]
