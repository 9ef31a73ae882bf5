"""A served store: the verbs of a store, each an HTTP request. See ADR 0039."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from headgate.builds.plan import BuildOptions, Plan, PlanOptions
from headgate.builds.project import Discovery, PublishReport
from headgate.builds.report import PlannedBuild
from headgate.catalog.attempts import CheckHolder
from headgate.catalog.recovery import Recovered
from headgate.client.builds import request_body, send_discovery, start_build
from headgate.client.contents import remote_contents
from headgate.client.datasets import RemoteDatasetHandle, RemoteTransactionHandle, RemoteUnitHandle
from headgate.client.http import HttpClient, events, path_of, segment
from headgate.client.rows import RemoteContextTables, RemoteRows
from headgate.errors import Invalid, Unavailable
from headgate.files.objects import Objects
from headgate.model.access import ALL, Grant, Protections, Role, authorize, make_grant
from headgate.model.changes import Receipt
from headgate.model.graph import Graph
from headgate.model.ids import BuildId, UnitId
from headgate.model.names import check_branch_name, parse_dataset_name
from headgate.model.nouns import BuildState, Publication
from headgate.settings import Settings
from headgate.store.datasets import DatasetHandle
from headgate.store.documents import BRANCH, DATASET, PUBLICATION, TAG, TRANSACTION, Json
from headgate.store.embedded import Store
from headgate.store.queries import no_progress
from headgate.store.transactions import TransactionHandle, UnitHandle

if TYPE_CHECKING:
    from headgate.builds.client_jobs import ClientJobs
    from headgate.builds.report import BuildOutcome, Watch
    from headgate.builds.spark_jobs import JobResources
    from headgate.spark.engines import SharedJvm
    from headgate.spark.session import SparkSession
    from headgate.spark.workplace import StoreSpark
    from headgate.tasks import ports
    from headgate.tasks.declare import TableSpec


# Before a stream of progress that was cut is opened again.
_AGAIN_SECONDS = 0.5

P = ParamSpec("P")
T = TypeVar("T")


# A verb whose arguments are, by the same names, those of its request.


def _listed(
    verb: Callable[P, list[T]],
    path: str,
    parse: Callable[[Json], Any] = lambda sent: sent,
    *,
    cursor: str | None = None,
) -> Callable[P, list[T]]:
    """Return the verb as a request for the pages of a list; `cursor` is where they begin."""

    @wraps(verb)
    def ask(*given: P.args, **named: P.kwargs) -> list[T]:
        store, asked = _arguments(verb, given, named)
        if cursor is not None:
            asked["cursor"] = asked.pop(cursor)
        return [parse(sent) for sent in store.http.pages(path, **asked)]

    return ask


def _posted(verb: Callable[P, Json], path: str) -> Callable[P, Json]:
    @wraps(verb)
    def ask(*given: P.args, **named: P.kwargs) -> Json:
        store, body = _arguments(verb, given, named)
        return store.http.post(path, **body)

    return ask


def _arguments(verb: Callable[..., Any], given: Any, named: Any) -> tuple[RemoteStore, Json]:
    bound = signature(verb).bind(*given, **named)
    bound.apply_defaults()
    return bound.arguments.pop("self"), bound.arguments


class RemoteStore(Store):
    """The verbs of an embedded store, carried out by a server in the name of the token's actor."""

    def __init__(
        self,
        settings: Settings,
        *,
        jvm: SharedJvm | Callable[[], SharedJvm] | None = None,
        cold: bool = True,
    ) -> None:
        self._jvm, self._cold = jvm, cold
        self.http = HttpClient(settings.server_url or "", settings.token)
        try:
            about = self.http.get("/store")
        except BaseException:
            self.http.close()
            raise
        fallback = about["fallback"]
        # The server's primary branch and fallback override those of this machine's settings.
        builds = replace(
            settings.builds,
            branch=about["branch"],
            fallback=tuple(fallback) if fallback is not None else None,
        )
        self.settings = replace(settings, builds=builds, actor=about["actor"])
        self.role = Role(about["role"])
        self.may_write_protected = self.role is Role.ADMIN
        self.check_write = None
        self._on_s3 = about["storage"] == "s3"

    @property
    def file_contents(self) -> Objects:
        return remote_contents(self.http)

    @property
    def rows(self) -> RemoteRows:
        return RemoteRows(self.http)

    # --- reads ------------------------------------------------------------------------------

    def dataset(self, name: str) -> DatasetHandle:
        return RemoteDatasetHandle(self, parse_dataset_name(name), self.http)

    datasets = _listed(Store.datasets, "/datasets", DATASET.parse, cursor="after")
    branches = _listed(Store.branches, "/branches", BRANCH.parse, cursor="after")
    tags = _listed(Store.tags, "/tags", TAG.parse)
    publications = _listed(Store.publications, "/log", PUBLICATION.parse, cursor="before")
    events = _listed(Store.events, "/events", cursor="skip")
    recoveries = _listed(Store.recoveries, "/recoveries", cursor="skip")
    jobspecs = _listed(Store.jobspecs, "/jobspecs")
    builds = _listed(Store.builds, "/builds", cursor="after")
    tokens = _listed(Store.tokens, "/tokens")

    def protected(self) -> Protections:
        found = self.http.pages("/protected")
        return Protections({sent["name"]: tuple(sent["datasets"]) for sent in found})

    def publication(self, number: int) -> Publication:
        return PUBLICATION.parse(self.http.get(f"/log/{number}"))

    def status(self, key: str, *, branch: str | None = None, kind: str | None = None) -> Json:
        return self.http.get(f"/status/{segment(key)}", branch=branch, kind=kind)

    def opened(self, id: str) -> TransactionHandle | UnitHandle:
        sent = self.http.get(f"/transactions/{segment(id)}")
        if "transactions" in sent:
            actor = self.settings.actor
            return RemoteUnitHandle(self, UnitId(sent["unit"]), sent["branch"], actor, self.http)
        return RemoteTransactionHandle(self, TRANSACTION.parse(sent), self.http)

    def build_record(self, id: str) -> Json:
        return self.http.get(f"/builds/{segment(id)}")

    def build_logs(self, id: str, job: str | None = None) -> Json:
        return self.http.get(f"/builds/{segment(id)}/logs", job=job)

    def differences(
        self,
        before: str,
        after: str,
        *,
        dataset: str | None = None,
        rows: int = 5,
        key: Sequence[str] = (),
        on_large: Callable[[int, int], None] = no_progress,
    ) -> Json | list[Json]:
        asked = {"from": before, "to": after, "dataset": dataset, "rows": rows, "key": list(key)}
        found: Json | list[Json] = self.http.request("GET", "/diff", params=asked).document
        return found

    # --- changes ----------------------------------------------------------------------------

    def transaction(
        self,
        branch: str,
        *,
        lease_seconds: int = 900,
        actor: str | None = None,
        create: bool = False,
    ) -> UnitHandle:
        sent = self.http.post("/units", branch=branch, lease_seconds=lease_seconds, create=create)
        return RemoteUnitHandle(self, UnitId(sent["unit"]), branch, sent["actor"], self.http)

    def protect(
        self, branch: str, *, protected: bool = True, datasets: Sequence[str] = ALL
    ) -> None:
        method, params = ("PUT", {"datasets": [*datasets]}) if protected else ("DELETE", None)
        path = f"/protected/{path_of(check_branch_name(branch))}"
        self.http.request(method, path, params=params)

    def delete_everywhere(
        self, branch: str, *, force: bool = False, idempotency_key: str | None = None
    ) -> Receipt:
        params = {"name": check_branch_name(branch), "force": force or None}
        return self.http.publish("DELETE", "/branches", idempotency_key, params=params).receipt

    def restore_everywhere(self, branch: str, *, idempotency_key: str | None = None) -> Receipt:
        body = {"dataset": None, "branch": check_branch_name(branch)}
        return self.http.publish("POST", "/branches/restore", idempotency_key, body=body).receipt

    def cancel_build(self, id: str) -> Json:
        return self.http.call("POST", f"/builds/{segment(id)}/cancel")

    def create_token(
        self,
        *,
        actor: str,
        role: Role | str,
        branches: Sequence[str] = ALL,
        reads: Sequence[str] = ALL,
        datasets: Sequence[str] = ALL,
        lifetime_seconds: int | None = None,
    ) -> Json:
        grant = make_grant(actor, role, branches=branches, reads=reads, datasets=datasets)
        return self.http.post(
            "/tokens",
            actor=grant.actor,
            role=grant.role,
            branches=grant.branches,
            reads=grant.reads,
            datasets=grant.datasets,
            lifetime_seconds=lifetime_seconds,
        )

    def revoke_token(self, id: str) -> Json:
        return self.http.call("DELETE", f"/tokens/{segment(id)}")

    clean_up = _posted(Store.clean_up, "/cleanup")

    def examine(self, *, deep: bool = False) -> Json:
        return self.http.get("/doctor", deep=deep)

    def recover(self, *, dry_run: bool = False) -> Recovered:
        return Recovered(**self.http.post("/recover", dry_run=dry_run))

    # --- workspace tasks: the client executes them, the server publishes --------------------

    @property
    def _server(self) -> ports.ServerAddress:
        from headgate.tasks.ports import ServerAddress  # noqa: PLC0415  (optional: pydantic)

        return ServerAddress(url=self.http.url, token=self.settings.token)

    @cached_property
    def task_attempts(self) -> ports.Attempts:
        from headgate.client.tasks import RemoteAttempts  # noqa: PLC0415  (optional: pydantic)

        # A worker whose token cannot begin attempts must not poll a queue.
        authorize(Grant(actor=self.settings.actor, role=self.role), "dispatch_attempt")
        return RemoteAttempts(self.http)

    def workspaces(self, workspace: ports.WorkspaceRef) -> ports.WorkspaceStore:
        if "." not in workspace.repository:
            raise Invalid(
                f"{workspace.repository!r} is a lakeFS repository, whose publications are recorded "
                "in the catalog itself: run the task where the store is, with HEADGATE_URL unset.",
                repository=workspace.repository,
            )
        return self._files_workspaces

    @cached_property
    def _files_workspaces(self) -> ports.WorkspaceStore:
        from headgate.client.tasks import RemoteWorkspaces  # noqa: PLC0415  (optional: pydantic)

        return RemoteWorkspaces(self.http, self._content_cache)

    def sweep_staging(self, *, dry_run: bool = False) -> list[str]:
        """Return nothing: the server's cleanup sweeps staging, and reports it in its document."""
        return []

    # --- builds, JobSpecs and Spark ---------------------------------------------------------

    def plan(
        self, targets: Sequence[str], *, graph: str | None = None, **asked: Unpack[PlanOptions]
    ) -> PlannedBuild:
        body = request_body(targets, asked)
        return PlannedBuild.from_json(self.http.post("/plan", graph=graph, **body))

    def decide(self, targets: Sequence[str], **asked: Unpack[PlanOptions]) -> Plan:
        raise Invalid("a served store is planned there: call plan().")

    def graph(self, plan: Plan) -> Graph:
        raise Invalid("a plan of a served store is drawn there: call plan(graph=…).")

    def build(
        self,
        targets: Sequence[str],
        *,
        watch: Watch = lambda jobs: None,
        id: BuildId | None = None,
        client_jobs: ClientJobs | None = None,
        **asked: Unpack[BuildOptions],
    ) -> BuildOutcome:
        """Execute a client-run build: Spark on this machine, plan and publication at the server."""
        from headgate.client.builds import ClientBuild  # noqa: PLC0415  (slow: Spark)

        if id is not None or client_jobs is not None:
            raise Invalid("the server names its builds, and assigns their jobs itself.")
        started = start_build(self.http, targets, asked, where="caller")["build"]
        directory = self.scratch / "builds" / started
        return ClientBuild(self.http, lambda: self.job_resources, started, directory, watch).run()

    def build_on_server(
        self,
        targets: Sequence[str],
        *,
        watch: Callable[[Json], None] = lambda build: None,
        **asked: Unpack[BuildOptions],
    ) -> Json:
        started = start_build(self.http, targets, asked, where="server")
        watch(started)
        return self.watch_build(started["build"], watch)

    @cached_property
    def job_resources(self) -> JobResources:
        """Return the resources of client-run jobs: the server's bytes, the client's engine."""
        from headgate.client.builds import client_resources  # noqa: PLC0415  (slow: Spark)

        return client_resources(self.spark_settings, self.http, self.scratch, self._shared_jvm)

    @property
    def spark_settings(self) -> Settings:
        from headgate.spark.workplace import client_settings  # noqa: PLC0415  (slow: Spark)

        return client_settings(self.settings, on_s3=self._on_s3)

    def watch_build(self, id: str, watch: Callable[[Json], None]) -> Json:
        """Follow a build to its end; call `watch` each time that it changes."""
        while True:
            is_watched = False
            try:
                for name, build in events(self.http.stream(f"/builds/{segment(id)}/progress")):
                    watch(build)
                    is_watched = True
                    if name == "end":
                        return build
            except Unavailable:
                if not is_watched:
                    raise
            # The stream was cut before the end: by a proxy, or by a server that stops.
            build = self.build_record(id)
            if build["state"] != BuildState.RUNNING:
                return build | {"publications": []}
            time.sleep(_AGAIN_SECONDS)

    def publish_discovery(self, found: Discovery) -> PublishReport:
        # Git is on this machine; the server receives only the discovered JobSpecs and their code.
        return send_discovery(self.http, found)

    def spark(self, context: str) -> SparkSession:
        """Return a SparkSession whose catalog `headgate` is a context of the server's endpoint."""
        # Before Spark starts, which takes seconds.
        self.http.check_context(context)
        return self.client_spark.session(context)

    def context_tables(self, context: str) -> RemoteContextTables:
        # As Spark reads them: rights are checked at the endpoint, and files come from storage.
        return RemoteContextTables(self.http, context, self.settings.environ)

    def task_tables(
        self, spec: TableSpec, workspace: ports.WorkspaceRef, identity: ports.Identity
    ) -> ports.TableWork:
        from headgate.client.tasks import RemoteTables  # noqa: PLC0415  (optional: pydantic)

        return RemoteTables(self.http, self.client_spark.session, spec, workspace, identity)

    @cached_property
    def client_spark(self) -> StoreSpark:
        from headgate.spark.workplace import (  # noqa: PLC0415  (slow: Spark)
            ClientEndpoint,
            StoreSpark,
        )

        endpoint = ClientEndpoint(url=f"{self.http.url}/iceberg", token=self.settings.token)
        return StoreSpark(self.spark_settings, endpoint, self.scratch, self._warm_jvm)

    def acting_for(
        self, grant: Grant, *, check_holder: CheckHolder | None = None, reads_only: bool = False
    ) -> Store:
        raise Invalid("a served store acts in the name of its token: open it with another one.")

    def close(self) -> None:
        """Stop the engines that this process started, and close its connections."""
        runtime = self.__dict__.pop("client_spark", None)
        if runtime is not None:
            runtime.stop()
        resources = self.__dict__.pop("job_resources", None)
        if resources is not None:
            resources.workplace.close()
        self._leave_warm_spark()
        self.http.close()
