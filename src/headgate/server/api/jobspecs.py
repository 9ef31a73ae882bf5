"""Routes of JobSpecs and of plans: publish, list, and what a build would do."""

from __future__ import annotations

from fastapi import Request

from headgate.builds.bundle import Bundle, check_bundle
from headgate.builds.discovery import Discovery, require_one_maker
from headgate.errors import BranchProtected, ContentSwept, Invalid
from headgate.files.objects import Digest
from headgate.handles.documents import jobspec_json
from headgate.handles.nouns import Json
from headgate.model.jobspecs import JobSpec, Source, declaration_from_json
from headgate.model.names import check_branch_name
from headgate.server.api.asking import Cursor, Limit
from headgate.server.api.caller import CallerDependency
from headgate.server.api.jobspecs_models import JobSpecsToPublish, PublishedJobSpecsModel
from headgate.server.api.models import JobSpecModel, PlanModel
from headgate.server.api.replies import JsonReply, following, page
from headgate.server.api.requests import PlanToShow
from headgate.server.api.routing import documented, router
from headgate.store import Store

routes = router("jobspecs")

# It is read as a whole, to be checked before anything runs it.
_BUNDLE_BYTES = 256 * 1024 * 1024


@routes.get("/jobspecs", **documented("list_jobspecs", list[JobSpecModel], paged=True))
def list_jobspecs(
    caller: CallerDependency,
    request: Request,
    branch: str | None = None,
    dataset: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """What is published now on each branch name, in the order in which it was."""

    def key(spec: Json) -> str:
        return str(spec["jobspec"])

    found = sorted(caller.looking().jobspecs(branch=branch, dataset=dataset), key=key)
    rest = following(found, cursor, key=key)
    return page(request, rest, limit=limit, cursor=key, to=lambda spec: spec)


@routes.post("/jobspecs", **documented("publish_jobspecs", PublishedJobSpecsModel))
def publish_jobspecs(caller: CallerDependency, body: JobSpecsToPublish) -> JsonReply:
    """Replaces what a repository publishes on a branch's name; what it left out is marked."""
    branch = check_branch_name(body.source.branch)
    with caller.acting(branch) as store:
        # Whether the commit was clean is the client's word, which is not enough here.
        if not store.may_write_protected and branch in store.protected():
            raise BranchProtected(branch=branch)
        done = store.publish_discovery(_discovery(store, body))
        published = [jobspec_json(spec) for spec in done.published]
        return JsonReply({"published": published, "removed": list(done.removed)})


@routes.post("/plan", **documented("plan", PlanModel))
def plan(caller: CallerDependency, body: PlanToShow) -> JsonReply:
    """What a build would do, and why; nothing is changed."""
    planned = caller.looking().plan(
        body.targets,
        branch=body.branch,
        fallback=body.fallback,
        upstream=body.upstream,
        force=body.force,
        full=body.full,
        parameters=body.parameters,
        graph=body.graph,
    )
    return JsonReply(planned.to_json())


def _discovery(store: Store, body: JobSpecsToPublish) -> Discovery:
    """What the client found in its repository, held to the same rules as what is found here."""
    source = Source(**body.source.model_dump())
    declared = [declaration_from_json(s.declaration.model_dump(mode="json")) for s in body.jobspecs]
    require_one_maker(declared)
    specs = zip(declared, (sent.logic_hash for sent in body.jobspecs), strict=True)
    return Discovery(
        source=source,
        jobspecs=tuple(
            JobSpec(declaration=one, logic_hash=hashed, bundle=body.bundle, source=source)
            for one, hashed in specs
        ),
        bundle=_bundle(store, body.bundle),
        suspicions=(),
        unreachable=(),
    )


def _bundle(store: Store, digest: str) -> Bundle:
    size = store.trees.find_size(digest)
    if size is None:
        raise ContentSwept(path=f"bundle {digest}")
    if size > _BUNDLE_BYTES:
        raise Invalid(f"the bundle has {size} bytes; a server takes {_BUNDLE_BYTES}.", bytes=size)
    data = b"".join(store.trees.stream_content(Digest(digest)))
    check_bundle(data)
    return Bundle(data=data, digest=digest)
