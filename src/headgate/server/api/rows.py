"""Routes of work on rows: scripts, loads and merges over many tables, each one publication."""

from __future__ import annotations

import base64
from typing import Any

from headgate.errors import Invalid, ObjectNotFound
from headgate.files.objects import Digest
from headgate.model.contexts import parse_context
from headgate.server.api.asking import KeyDependency
from headgate.server.api.caller import CallerDependency
from headgate.server.api.replies import REPLAYED, JsonReply
from headgate.server.api.routing import documented, router
from headgate.server.api.rows_models import (
    Load,
    Merge,
    Mutation,
    Optimize,
    OptimizedModel,
    OutcomeModel,
    Schema,
    SchemaModel,
)
from headgate.store import Store

routes = router("rows")


@routes.post("/mutate", **documented("mutate", OutcomeModel))
def mutate(caller: CallerDependency, body: Mutation, keyed: KeyDependency) -> JsonReply:
    """A script of INSERT, UPDATE, DELETE, UPSERT and MERGE statements: one publication."""
    with caller.acting(_written(body.branch)) as store:
        outcome = store.mutate(
            body.branch,
            body.sql,
            if_head=body.if_head,
            timeout_seconds=body.timeout_seconds,
            idempotency_key=keyed.key,
        )
        return _reply(outcome)


@routes.post("/load", **documented("load", OutcomeModel))
def load(caller: CallerDependency, body: Load, keyed: KeyDependency) -> JsonReply:
    """Rows into tables, by dataset: appended, merged by key, or in place of all."""
    with caller.acting(_written(body.branch)) as store:
        outcome = store.load(
            body.branch,
            {
                **body.rows,
                **{name: _decoded(name, sent) for name, sent in body.arrow.items()},
                **{name: _stored(store, sent) for name, sent in body.contents.items()},
            },
            mode=body.mode,
            if_head=body.if_head,
            timeout_seconds=body.timeout_seconds,
            idempotency_key=keyed.key,
        )
        return _reply(outcome)


@routes.post("/merge", **documented("merge", OutcomeModel))
def merge(caller: CallerDependency, body: Merge, keyed: KeyDependency) -> JsonReply:
    """What a branch changed since it forked, into another; conflicts are all listed."""
    with caller.acting(body.into) as store:
        outcome = store.merge(
            body.source,
            into=body.into,
            datasets=body.datasets,
            dry_run=body.dry_run,
            timeout_seconds=body.timeout_seconds,
            idempotency_key=keyed.key,
        )
        return _reply(outcome)


@routes.post("/schema/plan", **documented("plan_schema", SchemaModel))
def plan_schema(caller: CallerDependency, body: Schema) -> JsonReply:
    """What applying a schema file to a branch would do; nothing is changed."""
    rows = caller.looking().rows
    planned = rows.plan_schema_text(body.text, file=body.file, branch=body.branch)
    return JsonReply(planned.to_json())


@routes.post("/schema/apply", **documented("apply_schema", SchemaModel))
def apply_schema(caller: CallerDependency, body: Schema, keyed: KeyDependency) -> JsonReply:
    """Makes a branch's tables what a schema file says; rows that are there must fit."""
    with caller.acting(_written(body.branch)) as store:
        applied = store.rows.apply_schema_text(
            body.text, file=body.file, branch=body.branch, idempotency_key=keyed.key
        )
        return JsonReply(applied.to_json())


@routes.post("/optimize", **documented("optimize", OptimizedModel))
def optimize(caller: CallerDependency, body: Optimize, keyed: KeyDependency) -> JsonReply:
    """Writes a table's small files together; its rows and content id stay."""
    with caller.acting(body.branch) as store:
        done = store.rows.optimize(
            body.dataset,
            branch=body.branch,
            keep_snapshots=body.keep_snapshots,
            idempotency_key=keyed.key,
        )
        return JsonReply(done.to_json())


def _written(context: str) -> str:
    """The branch that is written where a chain is read."""
    return str(getattr(parse_context(context), "branch", context))


def _decoded(dataset: str, sent: str | list[str]) -> list[bytes]:
    streams = [sent] if isinstance(sent, str) else sent
    try:
        return [base64.b64decode(text, validate=True) for text in streams]
    except ValueError as error:
        raise Invalid(f"the rows of {dataset} are not base64.", dataset=dataset) from error


def _stored(store: Store, digests: list[str]) -> list[bytes]:
    for digest in digests:
        if store.trees.find_size(digest) is None:
            raise ObjectNotFound(location=digest)
    return [b"".join(store.trees.stream_content(Digest(digest))) for digest in digests]


def _reply(outcome: Any) -> JsonReply:
    reply = JsonReply(outcome.to_json())
    if outcome.replayed:
        reply.headers[REPLAYED] = "true"
    return reply
