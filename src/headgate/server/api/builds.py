"""Routes of builds, of client-run builds, and of JobSpecs and plans."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import orjson
from fastapi import Depends, Query, Request
from fastapi import Path as PathParameter
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from headgate.builds.attempt import JobResult
from headgate.builds.bundle import Bundle, check_bundle
from headgate.builds.client_jobs import ClientJobs, JobMessage
from headgate.builds.project import Discovery, bundle_key, require_unique_outputs
from headgate.builds.report import BuildOutcome, Watch
from headgate.catalog.transactions import find_protections
from headgate.errors import BuildOfAnother, ContentSwept, Invalid, Unavailable
from headgate.files.objects import Digest
from headgate.model.checks import CheckStage
from headgate.model.ids import BuildId
from headgate.model.jobspecs import JobSpec, Source, declaration_from_json
from headgate.model.names import check_branch_name
from headgate.model.nouns import BuildState, DatasetKind
from headgate.server.api import conventions as api
from headgate.server.api import models
from headgate.server.builds import BuildRequestKey, ServerBuild
from headgate.store.documents import Json, jobspec_json
from headgate.store.embedded import Store

# Bodies of client-run builds

_BUILD = "build-01m7f8gggmxzttp51zc67s"
_ATTEMPT = f"{_BUILD}/0:1"
_SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_T = "t-01m7f8gggmxzttp51zc67s"

# `Count` is enough for a job of any size, `Log` for as much as a person reads.
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Attempt = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Output = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Log = Annotated[str, StringConstraints(max_length=1024 * 1024)]


class _Said(models.Asked):
    attempt: Attempt = models.eg(_ATTEMPT)
    number: int = models.eg(1, ge=1, le=2**63 - 1, description="Of this attempt, from 1 on.")


class ProgressSaid(_Said):
    event: Literal["progress"] = models.eg("progress")
    stages_done: Count = models.eg(1)
    stages: Count = models.eg(3)
    tasks_done: Count = models.eg(5)
    tasks: Count = models.eg(8)


class WrittenSaid(_Said):
    more: ClassVar = {"number": 2}
    event: Literal["written"] = models.eg("written")
    rows: Count = models.eg(1200)


class CheckSaid(models.Asked):
    """Result of a check, in the form that is stored with a transaction."""

    name: str = models.eg("one row an order")
    stage: CheckStage = models.eg("post")
    dataset: str = models.eg("sales.daily")
    on_error: str = models.eg("FAIL")
    passed: bool = models.eg(True)
    expectation: str = models.eg("id is a key")
    reason: str = models.eg("1200 rows, 0 repeated")
    samples: list[dict[str, str | None]] = models.eg([], default_factory=list, max_length=1000)


class EndedSaid(_Said):
    more: ClassVar = {"number": 3}
    event: Literal["ended"] = models.eg("ended")
    succeeded: bool = models.eg(True)
    aborted: bool = Field(False, description="It requested that nothing is published.")
    written: list[Output] = models.eg(["report"], default_factory=list, max_length=1000)
    replaced: list[Output] = Field(default_factory=list, max_length=1000)
    files: dict[str, models.Sha256] = models.eg(
        {"report": _SHA},
        default_factory=dict,
        description="By output of files: the root of the tree that was stored as contents.",
    )
    rows: Count = models.eg(1200, 0)
    spark_jobs: Count = models.eg(4, 0)
    checks: list[CheckSaid] = Field(default_factory=list, max_length=10_000)
    error: dict[str, Any] | None = None
    log: Log | None = Field(None, description="The end of its log.")

    def result(self) -> JobResult:
        failure = self.error or {"message": "the client gave no reason for the failure"}
        return JobResult(
            succeeded=self.succeeded,
            written=tuple(self.written),
            replaced=tuple(self.replaced),
            aborted=self.aborted,
            rows=self.rows,
            spark_jobs=self.spark_jobs,
            checks=tuple(check.model_dump(mode="json") for check in self.checks),
            error=None if self.succeeded else failure,
        )


class Working(models.Asked):
    running: list[Attempt] = models.eg(
        [_ATTEMPT],
        default_factory=list,
        max_length=1000,
        description="Attempts in progress at the client.",
    )
    seen: int = models.eg(4, 0, ge=0, le=2**63 - 1, description="The number in the last response.")
    expected: int = models.eg(1, 0, ge=0, le=2**31, description="As in the last response.")
    said: list[Annotated[ProgressSaid | WrittenSaid | EndedSaid, Field(discriminator="event")]] = (
        models.eg([], default_factory=list, max_length=1000)
    )
    ready: bool = Field(True, description="False while the client's engine starts.")
    wait_seconds: float = models.eg(10, 0, ge=0, le=10, description="Longest wait for a change.")


class ShownJobModel(models.Reply):
    position: int = models.eg(0)
    job: models.JobModel = models.eg(
        {"outputs": ["sales.daily"], "state": "running", "reason": "stale-input"}
    )


class InputOrderModel(models.Reply):
    dataset: str = models.eg("sales.orders")
    branch: str = models.eg("master")
    transaction: str = models.eg(_T)
    since_snapshot: int | None = models.eg(
        None, description="Only newer rows of the table are read."
    )
    root: str | None = models.eg(None, description="Of files: the tree, a content by this digest.")
    since_root: str | None = models.eg(None, description="Of files: the tree that was read last.")


class OutputOrderModel(models.Reply):
    dataset: str = models.eg("sales.daily")
    is_files: bool = models.eg(False)
    base_snapshot: int | None = models.eg(
        None, description="Snapshot that an incremental job adds to."
    )
    base_root: str | None = models.eg(None, description="Of files: the earlier tree.")


class OrderModel(models.Reply):
    key: str = models.eg(f"{_BUILD}/0")
    epoch: int = models.eg(1)
    token: str = models.eg(
        "of this attempt alone",
        description="Opens `job:<key>:<epoch>` of the Iceberg endpoint alone.",
    )
    module: str = models.eg("sales.daily")
    bundle: str = models.eg(_SHA, description="The code: `GET /bundles/{digest}`.")
    inputs: dict[str, InputOrderModel] = models.eg({"orders": InputOrderModel.example()})
    outputs: dict[str, OutputOrderModel] = models.eg({"daily": OutputOrderModel.example()})
    branch: str = models.eg("feature")
    fallback: list[str] = models.eg(["master"])
    incremental: bool = models.eg(False)
    extent: str | None = models.eg(
        None, description="Full or incremental, and the reason; for the log."
    )
    parameters: dict[str, Any] = models.eg({})
    allowed_run_seconds: float | None = models.eg(None)


class WorkModel(models.Reply):
    expected: int = models.eg(1, description="Number of jobs that will still start.")
    start: list[OrderModel] = models.eg([OrderModel.example()], description="Attempts to begin.")
    stop: list[str] = models.eg([], description="Attempts to end, which are no longer needed.")
    seen: int = models.eg(4, description="To be sent with the next request.")
    jobs: list[ShownJobModel] = models.eg([], description="Jobs that changed since then.")
    outcome: models.PlanModel | None = models.eg(
        None, description="The document of the build, at its end."
    )


def _message(one: ProgressSaid | WrittenSaid | EndedSaid) -> JobMessage:
    if isinstance(one, EndedSaid):
        return JobMessage(
            attempt=one.attempt,
            number=one.number,
            event={"event": one.event},
            result=one.result(),
            roots=one.files,
            log=one.log,
        )
    event = one.model_dump(exclude={"attempt", "number"})
    return JobMessage(attempt=one.attempt, number=one.number, event=event)


# Builds

build_routes = api.router("builds")

EVENTS = "text/event-stream"
_POLL_SECONDS = 0.5
# Time after which a comment line is sent, so that proxies do not close an idle stream.
_SILENCE_SECONDS = 15.0


@build_routes.get("/builds", **api.documented(list[models.BuildModel], paged=True))
def list_builds(
    caller: api.CallerDependency, pages: Annotated[api.Paging, Depends(api.paging(50))]
) -> api.JsonReply:
    """List builds, newest first."""
    found = caller.reading().builds(limit=pages.limit + 1, after=pages.cursor)
    return pages.page(found, cursor=lambda build: build["build"])


@build_routes.post("/builds", **api.documented(models.BuildWithJobsModel, status=202))
def start_build(caller: api.CallerDependency, body: models.Building) -> api.JsonReply:
    """Start a build, and return its record while it runs.

    The server's workers run its jobs or, with `where` as `caller`, the client does: see `work`.
    """
    with caller.writing(body.branch) as store:

        def build(id: BuildId, watch: Watch, jobs: ClientJobs | None = None) -> BuildOutcome:
            return store.build(body.targets, watch=watch, id=id, client_jobs=jobs, **body.options())

        actor = caller.grant.actor
        request_key = _request_key(actor, body)
        if body.where is models.Where.SERVER:
            id = caller.builds.start(build, request_key=request_key)
        else:
            id = caller.builds.start_client_run(
                build,
                actor=actor,
                branch=body.branch,
                reported_by=None if caller.grant.may_write_protected else actor,
                request_key=request_key,
            )
        return api.JsonReply(store.build_record(id), status_code=202)


def _request_key(actor: str, body: models.Building) -> BuildRequestKey | None:
    if body.request_key is None:
        return None
    text = body.model_dump_json(exclude={"request_key"}).encode()
    request_hash = hashlib.sha256(text).hexdigest()
    return BuildRequestKey(actor=actor, key=body.request_key, request_hash=request_hash)


@build_routes.get("/builds/{build}", **api.documented(models.BuildWithJobsModel))
def show_build(caller: api.CallerDependency, build: str) -> api.JsonReply:
    """Return one build with its jobs."""
    return api.JsonReply(caller.reading().build_record(build))


@build_routes.get("/builds/{build}/logs", **api.documented(models.BuildLogsModel))
def build_logs(
    caller: api.CallerDependency,
    build: str,
    job: Annotated[
        str | None, Query(description="Output of a job, or its number.", examples=["sales.daily"])
    ] = None,
) -> api.JsonReply:
    """Return the logs of a build's jobs; `job` is an output of a job, or its number."""
    return api.JsonReply(caller.reading().build_logs(build, job))


@build_routes.post("/builds/{build}/cancel", **api.documented(models.BuildModel))
def cancel_build(caller: api.CallerDependency, build: str) -> api.JsonReply:
    """Cancel a running build, wherever it runs, and abort what it has not committed."""
    found = caller.reading().build_record(build)
    with caller.writing(str(found["branch"])) as store:
        if found["actor"] != caller.grant.actor:
            _check_unprotected(
                store, found["branch"], [name for job in found["jobs"] for name in job["outputs"]]
            )
        return api.JsonReply(store.cancel_build(build))


@build_routes.get(
    "/builds/{build}/progress",
    **api.documented(None, what="Events `progress`, then one `end`.")
    | {"response_class": StreamingResponse},
)
def watch_build(caller: api.CallerDependency, build: str) -> Response:
    """Stream the build as a server-sent event after each change, until it has ended."""
    actor, most = caller.grant.actor, caller.served.settings.server.streams_per_actor
    if caller.builds.watched_by[actor] >= most:
        raise Unavailable(
            f"{actor} watches {most} builds, as many as this server streams to one actor. End one "
            "of them, or ask the operator to raise `streams_per_actor` in [server].",
            actor=actor,
            limit=most,
        )
    # Raises if the build does not exist: once the stream has begun, the status cannot change.
    first = _state(caller, build)
    return StreamingResponse(_watch(caller, build, first), media_type=EVENTS)


async def _watch(caller: api.Caller, build: str, first: Json) -> AsyncIterator[bytes]:
    # Counted here: a response that never starts, because its client has left, ends nothing.
    watched_by = caller.builds.watched_by
    watched_by[caller.grant.actor] += 1
    try:
        async for event in _events(caller, build, first):
            yield event
    finally:
        watched_by[caller.grant.actor] -= 1


async def _events(caller: api.Caller, build: str, first: Json) -> AsyncIterator[bytes]:
    state, sent, silent = first, None, 0.0
    while True:
        if state["state"] != BuildState.RUNNING:
            yield _event("end", state)
            return
        text = orjson.dumps(state, default=str)
        if text != sent:
            yield _event("progress", state)
            sent, silent = text, 0.0
        elif silent >= _SILENCE_SECONDS:
            yield b": still here\n\n"
            silent = 0.0
        if caller.builds.stopping.is_set():
            # The client asks again, and finds the server that is started next.
            return
        await asyncio.sleep(_POLL_SECONDS)
        silent += _POLL_SECONDS
        state = await run_in_threadpool(_state, caller, build)


def _state(caller: api.Caller, build: str) -> Json:
    """Return the record, with the live jobs or the outcome of a build that this server keeps."""
    # Tested before the record is read: the record ends a moment before the outcome is there.
    is_here = caller.builds.is_running(build)
    record = caller.reading().build_record(build)
    if caller.grant.policy is not None and record["actor"] != caller.grant.actor:
        # The record has only the jobs that the caller may read.
        return {"publications": [], **record}
    if is_here or record["state"] == BuildState.RUNNING:
        live = caller.builds.find_live(build) or record["jobs"]
        return record | {"state": BuildState.RUNNING, "jobs": live}
    return record | (caller.builds.find_outcome(build) or {"publications": []})


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data, default=str))


# Client-run builds

client_build_routes = api.router("builds")

Sha256Path = Annotated[
    str, PathParameter(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive.")
]


@client_build_routes.post("/builds/{build}/work", **api.documented(WorkModel))
async def work_build(caller: api.CallerDependency, build: str, body: Working) -> api.JsonReply:
    """Report the client's jobs, and return the attempts to start and stop; called repeatedly.

    If the client sends no request for a minute, the server cancels the build.
    """
    kept = await caller.threads.run(lambda: _receive(caller, build, body), is_reserved=True)
    return api.JsonReply(await _answer(kept, body))


@client_build_routes.get(
    "/bundles/{digest}", **api.documented(None, what="The archive.") | {"response_class": Response}
)
def get_bundle(caller: api.CallerDependency, digest: Sha256Path) -> Response:
    """Return the code of a JobSpec to a client that may build."""
    with caller.writing() as store:
        return Response(store.objects.get(bundle_key(digest)), media_type=api.OCTETS)


@client_build_routes.put(
    "/bundles/{digest}",
    **api.documented(dict[str, str | int], status=201),
    openapi_extra={"requestBody": {"required": True, "content": {api.OCTETS: {"schema": {}}}}},
)
async def put_bundle(
    caller: api.CallerDependency, request: Request, digest: Sha256Path
) -> api.JsonReply:
    """Store the code of JobSpecs before they are published; contents do not include it."""
    with caller.writing() as store:
        async with api.received(request, store.scratch / "uploads", digest=digest) as body:
            await run_in_threadpool(_keep_bundle, store, body)
        return api.JsonReply({"digest": digest, "size": body.size}, status_code=201)


def _keep_bundle(store: Store, body: api.Received) -> None:
    _check_size(body.size)
    data = body.path.read_bytes()
    check_bundle(data)
    store.objects.put(bundle_key(body.digest), data)


def _receive(caller: api.Caller, build: str, body: Working) -> ServerBuild:
    """Return the build; raise unless this caller started it and may write its branch."""
    kept = caller.builds.load_client_run(build)
    with caller.writing(kept.branch) as store:
        if kept.actor != caller.grant.actor:
            raise BuildOfAnother(build=build, actor=kept.actor)
        for one in body.said:
            for root in one.files.values() if isinstance(one, EndedSaid) else ():
                caller.contents.check_tree(store, caller.grant, Digest(root), caller.trees)
    assert kept.client_jobs is not None
    kept.client_jobs.receive([_message(one) for one in body.said], ready=body.ready)
    return kept


async def _answer(kept: ServerBuild, body: Working) -> object:
    """Return a response as soon as something is new, or at the end of the wait."""
    assert kept.client_jobs is not None
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    # The client sends nothing while it waits: a longer wait would count as silence.
    deadline = loop.time() + min(body.wait_seconds, kept.client_jobs.silent_seconds / 3)

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    with kept.client_jobs.subscribed(wake):
        while True:
            woken.clear()
            rest = deadline - loop.time()
            found = kept.find_answer(
                body.running, body.seen, expected=body.expected, anyway=rest <= 0
            )
            if found is not None:
                return found
            try:
                await asyncio.wait_for(woken.wait(), rest)
            except TimeoutError:
                continue


# JobSpecs from clients: every field is described, because all later plans read it

Words = Annotated[str, StringConstraints(max_length=10_000)]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_IDENTIFIER = r"[^\W\d]\w*"
Function = Annotated[str, StringConstraints(max_length=500, pattern=rf"^{_IDENTIFIER}$")]
Module = Annotated[
    str, StringConstraints(max_length=500, pattern=rf"^{_IDENTIFIER}(\.{_IDENTIFIER})*$")
]
# One line without control characters: it is shown to people, and compared.
Line = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f]+$")]
_MANY = 10_000


class SentCheck(models.Asked):
    name: Argument = models.eg("has rows")
    on_error: Literal["FAIL", "WARN"] = models.eg("FAIL")
    expectation: dict[str, Any] = models.eg({"op": "true"})
    description: Words = ""


class SentInput(models.Asked):
    name: Argument = models.eg("orders")
    dataset: models.Name = models.eg("sales.orders")
    branch: models.Branch | None = None
    transaction: Argument | None = None
    checks: list[SentCheck] = Field(default_factory=list, max_length=_MANY)
    description: Words = ""


class SentOutput(models.Asked):
    name: Argument = models.eg("out")
    dataset: models.Name = models.eg("sales.daily")
    kind: DatasetKind = models.eg("table", DatasetKind.TABLE)
    checks: list[SentCheck] = Field(default_factory=list, max_length=_MANY)
    partition_cols: list[Argument] = Field(default_factory=list, max_length=_MANY)
    sort_by: list[Argument] = Field(default_factory=list, max_length=_MANY)
    description: Words = ""


class SentParameter(models.Asked):
    name: Argument = models.eg("days")
    kind: Literal["string", "integer", "float", "boolean"] = models.eg("integer")
    default: bool | int | float | Words = models.eg(7)
    description: Words = ""


class SentIncremental(models.Asked):
    require_incremental: bool = False
    semantic_version: int = models.eg(1, 1)
    snapshot_inputs: list[Argument] = models.eg(["rates"], default_factory=list, max_length=_MANY)
    allow_retention: bool = False
    strict_append: bool = False


class SentDeclaration(models.Asked):
    module: Module = models.eg("shop.daily")
    function: Function = models.eg("daily")
    file: models.Path = models.eg("shop/daily.py")
    line: int = models.eg(7, ge=0)
    inputs: list[SentInput] = models.eg(
        [{"name": "orders", "dataset": "sales.orders"}], max_length=_MANY
    )
    outputs: list[SentOutput] = models.eg(
        [{"name": "out", "dataset": "sales.daily", "kind": "table"}], min_length=1, max_length=_MANY
    )
    parameters: list[SentParameter] = Field(default_factory=list, max_length=_MANY)
    incremental: SentIncremental | None = None
    fresh: Literal["inputs", "never"] | Annotated[float, Field(ge=0)] = "inputs"
    bundle_data: list[models.Path] = Field(default_factory=list, max_length=_MANY)
    allowed_run_seconds: Annotated[float, Field(gt=0)] | None = None
    profile: list[Argument] = Field(default_factory=list, max_length=_MANY)
    spark_conf: dict[Argument, Words] = Field(default_factory=dict)
    allow_empty: bool = False


class SentJobSpec(models.Asked):
    declaration: SentDeclaration = models.eg(SentDeclaration.example())
    logic_hash: models.Sha256 = models.eg(_SHA)
    code_hash: models.Sha256 | None = Field(
        None, description="Of the logic without its locked dependencies."
    )


class SentSource(models.Asked):
    repository: Line = models.eg(
        "git.example.org/shop", description="A name that clones share, without credentials."
    )
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,64}$")] = models.eg("5d3f0c2a")
    branch: models.Branch = models.eg("feature")
    clean: bool = models.eg(True, description="False where files differ from the commit.")


class JobSpecsToPublish(models.Asked):
    source: SentSource = models.eg(SentSource.example())
    bundle: models.Sha256 = models.eg(
        _SHA, description="The code: a zip, sent to `/contents/{digest}` before."
    )
    jobspecs: list[SentJobSpec] = models.eg([SentJobSpec.example()], max_length=_MANY)
    declared_before: list[models.Name] | None = Field(
        default=None,
        max_length=_MANY,
        description="Outputs at the merge base with the fallback: those that are missing now are "
        "marked as removed. Without it, those that the branch name had before.",
    )
    former: list[Line] = Field(
        default_factory=list,
        max_length=_MANY,
        description="Projects of the repository that were moved to this one, or deleted.",
    )


class PublishedJobSpecsModel(models.Reply):
    published: list[models.JobSpecModel] = models.eg([])
    removed: list[str] = models.eg(
        ["sales.hourly"], description="Datasets that the repository no longer produces."
    )


# JobSpecs and plans

jobspec_routes = api.router("jobspecs")

# A bundle is read into memory as a whole, to be checked before any code in it runs.
_BUNDLE_BYTES = 256 * 1024 * 1024


@jobspec_routes.get("/jobspecs", **api.documented(list[models.JobSpecModel], paged=True))
def list_jobspecs(
    caller: api.CallerDependency,
    pages: api.Pages,
    branch: str | None = None,
    dataset: str | None = None,
    repository: Annotated[
        str | None, Query(description="Repository of the code.", examples=["github.com/acme/shop"])
    ] = None,
    commit: Annotated[
        str | None, Query(description="Commit of the code.", examples=["3f2c9ab1"])
    ] = None,
) -> api.JsonReply:
    """List the JobSpecs that are published on each branch name, in the order of publication.

    With a commit, and without a branch and a dataset: also those that were replaced since.
    """
    found = caller.reading().jobspecs(
        branch=branch, dataset=dataset, repository=repository, commit=commit
    )
    return pages.page_by_key(found, key=lambda spec: str(spec["jobspec"]))


@jobspec_routes.post("/jobspecs", **api.documented(PublishedJobSpecsModel))
def publish_jobspecs(caller: api.CallerDependency, body: JobSpecsToPublish) -> api.JsonReply:
    """Replace the JobSpecs of a repository on a branch name; mark those left out as removed."""
    branch = check_branch_name(body.source.branch)
    with caller.writing(branch) as store:
        # A clean commit is only the client's claim, which is not enough for a protected branch.
        made = [o.dataset for spec in body.jobspecs for o in spec.declaration.outputs]
        _check_unprotected(store, branch, made)
        done = store.publish_discovery(_discovery(store, body))
        published = [jobspec_json(spec) for spec in done.published]
        return api.JsonReply({"published": published, "removed": list(done.removed)})


@jobspec_routes.post("/plan", **api.documented(models.PlanModel))
def plan(caller: api.CallerDependency, body: models.PlanToShow) -> api.JsonReply:
    """Return what a build would do, and why, without changing anything."""
    return api.JsonReply(caller.reading().plan(body.targets, **body.options()).to_json())


def _check_unprotected(store: Store, branch: str, datasets: Sequence[str]) -> None:
    if not store.may_write_protected:
        store.full_database.read(find_protections).check(branch, datasets)


def _discovery(store: Store, body: JobSpecsToPublish) -> Discovery:
    """Return the client's discovery, checked by the same rules as a discovery made here."""
    source = Source(**body.source.model_dump())
    declared = [declaration_from_json(s.declaration.model_dump(mode="json")) for s in body.jobspecs]
    require_unique_outputs(declared)
    return Discovery(
        source=source,
        jobspecs=tuple(
            JobSpec(
                declaration=one,
                logic_hash=sent.logic_hash,
                code_hash=sent.code_hash,
                bundle=body.bundle,
                source=source,
            )
            for one, sent in zip(declared, body.jobspecs, strict=True)
        ),
        bundle=_bundle(store, body.bundle),
        suspicions=(),
        unreachable=(),
        declared_before=None if body.declared_before is None else tuple(body.declared_before),
        former=tuple(body.former),
    )


def _bundle(store: Store, digest: str) -> Bundle:
    if store.objects.find(bundle_key(digest)) is not None:
        return Bundle(data=store.objects.get(bundle_key(digest)), digest=digest)
    # Clients up to release 0.1 send it as a content.
    size = store.trees.objects.find_size(digest)
    if size is None:
        raise ContentSwept(path=f"bundle {digest}")
    _check_size(size)
    data = b"".join(store.trees.objects.stream(Digest(digest)))
    check_bundle(data)
    return Bundle(data=data, digest=digest)


def _check_size(size: int) -> None:
    if size > _BUNDLE_BYTES:
        raise Invalid(f"the bundle has {size} bytes; a server accepts {_BUNDLE_BYTES}.", bytes=size)
