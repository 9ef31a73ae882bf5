"""A store on this machine: the only wiring, from settings to parts to verbs."""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Required, Self, TypedDict, TypeVar, Unpack

from headgate.attempts import Contents
from headgate.builds.attempt import Parts
from headgate.builds.plan import Plan, PlanRequest, plan_build
from headgate.builds.project import (
    Discovery,
    PublishReport,
    discover,
    find_project,
    publish_discovery,
)
from headgate.builds.report import PlannedBuild, graph_of, planned_reports
from headgate.catalog.branches import delete_branches, list_protected, protect_branch
from headgate.catalog.builds import cancel_build, list_builds, load_build
from headgate.catalog.database import Connection, Database
from headgate.catalog.datasets import list_tags
from headgate.catalog.jobspecs import load_jobspecs
from headgate.catalog.log import (
    list_events,
    list_publications,
    list_recoveries,
    load_publication,
)
from headgate.catalog.migrate import ensure_schema
from headgate.catalog.operations import do_once, find_operations
from headgate.catalog.records import list_branches, list_datasets, load_dataset
from headgate.catalog.recovery import Recovered, recover
from headgate.catalog.retention import Remembered
from headgate.catalog.tokens import create_token, list_tokens, revoke_token
from headgate.errors import Invalid, NotFound
from headgate.files.tree_store import FileTrees
from headgate.lakefs.endpoint import HeadReader, connect
from headgate.lineage.events import Lineage
from headgate.model.access import Role, check_patterns
from headgate.model.changes import OperationKey, Receipt
from headgate.model.graph import Graph
from headgate.model.graph_render import GraphFormat, render_json
from headgate.model.ids import BuildId, DatasetId
from headgate.model.names import (
    check_branch_name,
    check_label,
    check_lifetime_seconds,
    check_limit,
    check_options,
    parse_dataset_name,
    parse_member,
    split_names,
)
from headgate.model.nouns import Branch, Dataset, Publication, PublicationKind, Tag
from headgate.model.object_store import ObjectStore
from headgate.settings import BuildSettings, Settings, with_actor
from headgate.storage.address import open_store
from headgate.store.datasets import DatasetHandle
from headgate.store.diff import find_differences
from headgate.store.documents import (
    Json,
    audit_json,
    build_json,
    build_with_jobs_json,
    event_json,
    jobspec_json,
    token_json,
)
from headgate.store.rows import How, Rows
from headgate.store.transactions import TransactionHandle, UnitHandle, Verbs, load_opened
from headgate.tables.versions import TableVersions
from headgate.upkeep.cleanup import RetentionPolicy, check_older_than, clean_up
from headgate.upkeep.doctor import examine
from headgate.upkeep.reachability import Marking, choose_marking

if TYPE_CHECKING:
    from headgate.builds.client_jobs import ClientJobs
    from headgate.builds.report import BuildOutcome, Watch
    from headgate.rows.outcome import Outcome
    from headgate.spark.engines import SharedJvm
    from headgate.spark.session import SparkSession
    from headgate.spark.workplace import StoreSpark
    from headgate.tasks.declare import TableSpec
    from headgate.tasks.ports import (
        Attempts,
        Identity,
        ServerAddress,
        TableWork,
        WorkspaceRef,
        WorkspaceStore,
    )
    from headgate.tasks.supervisor import TaskHost


# What is said of the operations that are known under one idempotency key.


def only_operation(key: str, found: Sequence[Json]) -> Json:
    """The one operation; none says that nothing was committed, several ask which."""
    if not found:
        raise NotFound(
            f"nothing was committed under the key {key!r}: it never began, was refused, or is "
            "over 30 days old.",
            key=key,
            operation=None,
            state="not_committed",
            publication=None,
        )
    if len(found) > 1:
        raise Invalid(
            f"{len(found)} operations have the key {key!r}: say which by branch and kind.",
            key=key,
            operations=list(found),
        )
    return found[0]


# What may be asked of a plan and of a build, the same here and of a server.


class PlanAsked(TypedDict, total=False):
    """How targets are planned; all but the branch may be left out."""

    branch: Required[str]
    # Names, also as `a,b`; where it is left out: as configured, else the primary branch.
    fallback: Sequence[str] | None
    upstream: bool
    # Every job runs, fresh or not.
    force: bool
    # Incremental jobs read everything.
    full: bool
    parameters: Mapping[str, Any] | None


class BuildAsked(PlanAsked, total=False):
    """How a plan is carried out."""

    # Nothing is visible until the whole build has passed.
    atomic: bool
    retries: int
    abort_on_failure: bool
    wait_seconds: float
    task_key: str | None


def check_patience(asked: BuildAsked) -> None:
    """How often and how long a build tries."""
    for option, given in (
        ("retries", asked.get("retries", 0)),
        ("wait_seconds", asked.get("wait_seconds", 0)),
    ):
        if not given >= 0:
            raise Invalid(f"{option} is {given!r}: give 0 or more.")


def plan_request(targets: Sequence[str], asked: PlanAsked, *, builds: BuildSettings) -> PlanRequest:
    """The request for a plan of these targets."""
    check_options(asked, BuildAsked, needed=("branch",))
    fallback = asked.get("fallback")
    wanted = split_names(targets)
    if not wanted:
        raise Invalid("name the datasets to build.")
    for name in (asked["branch"], *split_names(fallback or ())):
        check_branch_name(name)
    return PlanRequest(
        targets=wanted,
        branch=asked["branch"],
        fallback=builds.fallback_of(asked["branch"]) if fallback is None else split_names(fallback),
        upstream=asked.get("upstream", False),
        force=asked.get("force", False),
        full=asked.get("full", False),
        adopt=builds.adopt,
        parameters=asked.get("parameters") or {},
    )


# Verbs that look at a store as a whole and change nothing.


def _say_nothing(rows: int, parts: int) -> None:
    """Nobody is told how large a comparison is."""


class Looking(Verbs):
    """Lists of nouns, and records as documents."""

    def datasets(self) -> list[Dataset]:
        return self.database.read(list_datasets)

    def branches(self, dataset: str | None = None) -> list[Branch]:
        """Of one dataset, or of all."""
        return self.database.read(lambda c: list_branches(c, _id(c, dataset)))

    def protected(self) -> list[str]:
        """Branch names that accept only builds of clean commits and admins."""
        return self.database.read(list_protected)

    def tags(self, dataset: str | None = None) -> list[Tag]:
        def read(connection: Connection) -> list[Tag]:
            wanted = load_dataset(connection, parse_dataset_name(dataset)) if dataset else None
            return list_tags(connection, wanted)

        return self.database.read(read)

    def publications(
        self,
        *,
        actor: str | None = None,
        dataset: str | None = None,
        branch: str | None = None,
        kind: PublicationKind | str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> list[Publication]:
        """Newest first; `before` goes on where an earlier list ended."""
        check_limit(limit)
        wanted = parse_member(PublicationKind, kind, what="kind of publication") if kind else None
        return self.database.read(
            lambda c: list_publications(
                c,
                actor=actor,
                dataset=_id(c, dataset),
                branch=branch,
                kind=wanted,
                limit=limit,
                before=before,
            )
        )

    def publication(self, number: int) -> Publication:
        found = self.database.read(lambda c: load_publication(c, number))
        if found is None:
            raise NotFound(f"there is no publication {number}.", publication=number)
        return found

    def events(
        self,
        *,
        actor: str | None = None,
        dataset: str | None = None,
        branch: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        skip: int = 0,
    ) -> list[Json]:
        """What was recorded and is no publication, newest first."""
        check_limit(limit, skip)
        found = self.database.read(
            lambda c: list_events(
                c,
                actor=actor,
                dataset=_id(c, dataset),
                branch=branch,
                kind=kind,
                limit=limit,
                skip=skip,
            )
        )
        return [event_json(event) for event in found]

    def recoveries(
        self,
        *,
        actor: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        skip: int = 0,
    ) -> list[Json]:
        """The audit of recovery, newest first; `actor` is the one whose work was settled."""
        check_limit(limit, skip)
        found = self.database.read(
            lambda c: list_recoveries(c, actor=actor, kind=kind, limit=limit, skip=skip)
        )
        return [audit_json(row) for row in found]

    def status(self, key: str, *, branch: str | None = None, kind: str | None = None) -> Json:
        """What became of the operation with an idempotency key: committed, in progress, or not."""
        found = self.database.read(lambda c: find_operations(c, key, branch=branch, kind=kind))
        return only_operation(key, found)

    def opened(self, id: str) -> TransactionHandle | UnitHandle:
        """What an id stands for, in any state: a unit, or a transaction."""
        return load_opened(self, id)

    def jobspecs(self, *, branch: str | None = None, dataset: str | None = None) -> list[Json]:
        found = self.database.read(lambda c: load_jobspecs(c, branch=branch, dataset=dataset))
        return [jobspec_json(spec) for spec in found]

    def builds(self, *, limit: int = 50, after: str | None = None) -> list[Json]:
        """Newest first; `after` goes on where an earlier list ended."""
        check_limit(limit)
        found = self.database.read(lambda c: list_builds(c, limit=limit, after=after))
        return [build_json(build) for build in found]

    def build_record(self, id: str) -> Json:
        """A build and how each of its jobs is doing."""
        return build_with_jobs_json(self.database.read(lambda c: load_build(c, id)))

    def differences(
        self,
        before: str,
        after: str,
        *,
        dataset: str | None = None,
        rows: int = 5,
        key: Sequence[str] = (),
        on_large: Callable[[int, int], None] = _say_nothing,
    ) -> Json | list[Json]:
        """What leads from one branch, context or transaction to another; of all: a list."""
        return find_differences(
            self, dataset, before, after, rows=rows, key=tuple(key), on_large=on_large
        )

    def tokens(self) -> list[Json]:
        """Tokens and what they stand for; never the tokens themselves."""
        return [token_json(record) for record in self.database.read(list_tokens)]


def _id(connection: Connection, dataset: str | None) -> DatasetId | None:
    return load_dataset(connection, parse_dataset_name(dataset)).id if dataset else None


# Verbs on workspace tasks: where they are done, and where their workspaces live.


class Working(Verbs):
    """What tasks need of a store."""

    @cached_property
    def task_host(self) -> TaskHost:
        """Settings under which this machine runs the store's tasks."""
        from headgate.tasks.supervisor import TaskHost  # noqa: PLC0415  (optional: pydantic)

        settings = self.settings
        return TaskHost(
            attempts=self.task_attempts,
            store=settings.root,
            root=settings.tasks_root or settings.root / ".headgate" / "tasks",
            actor=settings.actor,
            server=self._server,
        )

    @property
    def _server(self) -> ServerAddress | None:
        """Who serves this store to this process; a local one is served by nobody."""
        return None

    @cached_property
    def task_attempts(self) -> Attempts:
        """Who mints the epochs of tasks and knows which attempt is the newest."""
        from headgate.tasks.files_store import CatalogAttempts  # noqa: PLC0415  (with the one above)

        return CatalogAttempts(self.database, self.settings.actor)

    @abstractmethod
    def task_tables(
        self, spec: TableSpec, workspace: WorkspaceRef, identity: Identity
    ) -> TableWork:
        """Opens a task's tables to one attempt, with a Spark session for them."""

    def workspaces(self, workspace: WorkspaceRef) -> WorkspaceStore:
        """Where a task's workspace lives: a dataset's name has a dot, a repository's has none."""
        return self._files_workspaces if "." in workspace.repository else self._lakefs_workspaces

    @cached_property
    def _lakefs_workspaces(self) -> WorkspaceStore:
        lakefs = connect(self.settings)
        from headgate.files.private_copy import ContentCache  # noqa: PLC0415  (with the next)
        from headgate.tasks.lakefs_store import (  # noqa: PLC0415  (optional: pydantic, its SDK)
            LakeFSWorkspaces,
        )

        return LakeFSWorkspaces(
            self.database, lakefs, ContentCache(self.settings.cache / "contents")
        )

    def sweep_staging(self, *, dry_run: bool = False) -> list[str]:
        """Removes staging branches that dead attempts left in lakeFS, where one is configured."""
        if self.settings.lakefs_endpoint is None:
            return []
        lakefs = connect(self.settings)
        from headgate.tasks.lakefs_store import sweep_staging  # noqa: PLC0415  (optional: its SDK)

        return sweep_staging(self.database, lakefs, dry_run=dry_run)

    @cached_property
    def _files_workspaces(self) -> WorkspaceStore:
        from headgate.files.private_copy import ContentCache  # noqa: PLC0415  (with the next)
        from headgate.tasks.files_store import (  # noqa: PLC0415  (optional: pydantic)
            FilesWorkspaces,
        )

        cache = ContentCache(self.settings.cache / "contents")
        return FilesWorkspaces(self.database, self.trees, cache)


# Verbs that change a store as a whole: names on every dataset, tokens, builds, upkeep.


class Changing(Working):
    """What is done to the store rather than to one dataset."""

    def protect(self, branch: str, *, protected: bool = True) -> None:
        """This branch name accepts only builds of clean commits and admins, on every dataset."""
        protect_branch(self.database, branch, actor=self.settings.actor, protected=protected)

    def delete_everywhere(self, branch: str, *, operation: OperationKey | None = None) -> Receipt:
        """Deletes a branch of every dataset that has it, at once."""
        check_branch_name(branch)

        def act() -> Receipt:
            found = [b for b in self.database.read(list_branches) if b.name == branch]
            if not found:
                raise NotFound(f"no dataset has a branch {branch!r}.", branch=branch)
            return delete_branches(
                self.database,
                found,
                actor=self.settings.actor,
                may_write_protected=self.may_write_protected,
                operation=operation,
            )

        return do_once(self.database, operation, act)

    def cancel_build(self, id: str) -> Json:
        """Ends a build that runs, wherever it runs."""
        return build_json(cancel_build(self.database, id, actor=self.settings.actor))

    def create_token(
        self,
        *,
        actor: str,
        role: Role | str,
        branches: Sequence[str] = ("*",),
        lifetime_seconds: int | None = None,
    ) -> Json:
        """A new token under `token`, with what it stands for; shown once and stored nowhere."""
        if lifetime_seconds is not None:
            check_lifetime_seconds(lifetime_seconds)
        secret, record = create_token(
            self.database,
            actor=check_label(actor, what="an actor"),
            role=parse_member(Role, role, what="role"),
            branches=check_patterns(branches),
            lifetime_seconds=lifetime_seconds,
            created_by=self.settings.actor,
        )
        return {"token": secret, **token_json(record)}

    def revoke_token(self, id: str) -> Json:
        """Refused from now on."""
        return token_json(revoke_token(self.database, id))

    def clean_up(
        self, *, older_than_seconds: int, dry_run: bool = False, engine: Marking = Marking.AUTO
    ) -> Json:
        """Condemns what nothing needs and sweeps what was condemned a day before."""
        policy = RetentionPolicy(
            retain_seconds=self.settings.retain_seconds,
            older_than_seconds=check_older_than(older_than_seconds),
        )
        cleaned = clean_up(
            self.database,
            self.objects,
            policy,
            actor=self.settings.actor,
            dry_run=dry_run,
            mark_manifests=choose_marking(
                engine,
                self.objects,
                self.settings.environ,
                lambda: self.spark(self.settings.builds.branch),
            ),
        )
        if self.settings.lakefs_endpoint is None:
            return cleaned.to_json()
        return cleaned.to_json() | {"staging": self.sweep_staging(dry_run=dry_run)}

    def examine(self, *, deep: bool = False) -> Json:
        """What is wrong with the store, from end to end; changes nothing."""
        return examine(self.settings, deep=deep).to_json()


# Parts that several share: made at first use, once, and ended by one of them.

T = TypeVar("T")


class Shared(Generic[T]):
    """One part for all who hold this, from the first who asks until it is taken away."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """The part; whoever comes while it is being made waits for it."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def take_away(self) -> T | None:
        """The part, to be ended, if anybody had ever asked for it."""
        with self._lock:
            made, self._made = self._made, None
            return made


class Store(Looking, Changing):
    """One store: its catalog, its bytes, and everything that can be done with them."""

    def __init__(
        self,
        settings: Settings,
        *,
        recover_first: bool = True,
        jvm: SharedJvm | Callable[[], SharedJvm] | None = None,
    ) -> None:
        self.settings = settings
        # Only a server knows who is an admin: see `acting_as`.
        self.may_write_protected = False
        # Where builds and sessions run, if somebody else has one; else they start their own.
        self._jvm = jvm
        # One for all in whose names this store acts: a process can have no second one.
        self._spark = Shared(self._open_spark)
        self.database = Database(settings.catalog)
        ensure_schema(self.database)
        if recover_first:
            self.recover()

    # --- parts ------------------------------------------------------------------------------

    @cached_property
    def objects(self) -> ObjectStore:
        return open_store(self.settings.warehouse, self.settings.environ)

    @cached_property
    def trees(self) -> FileTrees:
        return FileTrees(self.objects)

    @cached_property
    def tables(self) -> TableVersions:
        return TableVersions(self.objects, remembered=Remembered(self.database))

    @cached_property
    def contents(self) -> Contents:
        return Contents(trees=self.trees, tables=self.tables)

    @property
    def _shared_jvm(self) -> SharedJvm | None:
        """Somebody else's JVM; one that is handed in as a function is asked for only here."""
        return self._jvm() if callable(self._jvm) else self._jvm

    @property
    def spark_runtime(self) -> StoreSpark:
        return self._spark.get()

    def _open_spark(self) -> StoreSpark:
        from headgate.spark.workplace import (  # noqa: PLC0415  (slow: HTTP, Spark)
            StoreSpark,
            open_endpoint,
        )

        endpoint = open_endpoint(self.settings, self.database, self.tables)
        return StoreSpark(self.settings, endpoint, self.scratch, self._shared_jvm)

    @cached_property
    def build_parts(self) -> Parts:
        from headgate.spark.workplace import (  # noqa: PLC0415  (slow: HTTP, Spark)
            Workplace,
            open_endpoint,
        )

        return Parts(
            settings=self.settings,
            database=self.database,
            objects=self.objects,
            contents=self.contents,
            workplace=Workplace(
                self.settings,
                partial(open_endpoint, self.settings, self.database, self.tables),
                self.scratch,
                self._shared_jvm,
            ),
            listener=self.lineage.receive if self.lineage is not None else None,
        )

    @cached_property
    def lineage(self) -> Lineage | None:
        """Tells an OpenLineage receiver what builds have done, if there is one."""
        if self.settings.lineage is None:
            return None
        return Lineage(self.settings.lineage, self.database, self.tables)

    @property
    def scratch(self) -> Path:
        """Logs and working directories of this machine."""
        return self.settings.root / ".headgate" / "work"

    def acting_as(self, actor: str, *, may_write_protected: bool) -> Store:
        """The same store in somebody else's name; its parts are shared, so it is never closed."""
        # Parts are made at first use: they must be there before they can be shared.
        _ = self.objects, self.trees, self.tables, self.contents, self.build_parts
        other = copy.copy(self)
        other.settings = with_actor(self.settings, actor)
        other.may_write_protected = may_write_protected
        return other

    # --- verbs ------------------------------------------------------------------------------

    def dataset(self, name: str) -> DatasetHandle:
        """A dataset by name, whether it exists yet or not."""
        return DatasetHandle(self, parse_dataset_name(name))

    def transaction(
        self, branch: str, *, lease_seconds: int = 900, actor: str | None = None
    ) -> UnitHandle:
        """Several datasets, one publication: a context manager that commits, or aborts."""
        return UnitHandle.open(
            self, branch, lease_seconds=lease_seconds, actor=actor or self.settings.actor
        )

    def spark(self, context: str) -> SparkSession:
        """A SparkSession whose catalog `headgate` is that context: `feature>master`, `txn:…`."""
        return self.spark_runtime.session(context, actor=self.settings.actor)

    def task_tables(
        self, spec: TableSpec, workspace: WorkspaceRef, identity: Identity
    ) -> TableWork:
        from headgate.tasks.table_work import SparkTables  # noqa: PLC0415  (optional: pydantic)

        def session(context: str, token: str) -> SparkSession:
            return self.spark_runtime.session(context, token)

        return SparkTables(self.database, self.contents, session, spec, workspace, identity)

    def publish_jobspecs(
        self, directory: Path, *, branch: str | None = None, allow_dirty: bool = False
    ) -> PublishReport:
        """Publishes every transform of a Git repository on its branch's name."""
        found = discover(find_project(directory), branch=branch, allow_dirty=allow_dirty)
        return self.publish_discovery(found)

    def publish_discovery(self, found: Discovery) -> PublishReport:
        """Publishes what was found in a Git repository, here or by a client."""
        return publish_discovery(self.database, self.objects, found, actor=self.settings.actor)

    def decide(self, targets: Sequence[str], **asked: Unpack[PlanAsked]) -> Plan:
        """The plan with all that was decided, for those who look into it here."""
        request = plan_request(targets, asked, builds=self.settings.builds)
        return plan_build(self.database, self.contents, request)

    def _drawn(self, plan: Plan, format: str) -> Mapping[str, Any]:
        chosen = parse_member(GraphFormat, format, what="format of a graph")
        return render_json(self.graph(plan), chosen)

    def graph(self, plan: Plan) -> Graph:
        """A plan as datasets and what they are made of, to be drawn."""
        primary = self.settings.builds.branch
        return self.database.read(lambda c: graph_of(c, plan, primary=primary))

    def plan(
        self,
        targets: Sequence[str],
        *,
        graph: str | None = None,
        **asked: Unpack[PlanAsked],
    ) -> PlannedBuild:
        """What a build would do, and why, drawn if asked; no side effect."""
        made = self.decide(targets, **asked)
        return PlannedBuild(
            branch=made.request.branch,
            fallback=made.request.fallback,
            jobs=planned_reports(made),
            graph=self._drawn(made, graph) if graph else None,
        )

    def build(
        self,
        targets: Sequence[str],
        *,
        watch: Watch = lambda jobs: None,
        id: BuildId | None = None,
        handed: ClientJobs | None = None,
        **asked: Unpack[BuildAsked],
    ) -> BuildOutcome:
        """Runs JobSpecs on a branch; failed jobs are reported in the outcome, not raised.

        Its jobs are done on this store's Spark, unless they are handed to a client.
        """
        from headgate.builds.run import (  # noqa: PLC0415  (slow: HTTP, Spark)
            BuildRequest,
            run_build,
        )

        check_patience(asked)
        request = BuildRequest(
            plan=plan_request(targets, asked, builds=self.settings.builds),
            actor=self.settings.actor,
            atomic=asked.get("atomic", False),
            retries=asked.get("retries", 0),
            abort_on_failure=asked.get("abort_on_failure", False),
            wait_seconds=asked.get("wait_seconds", 0),
            task_key=asked.get("task_key"),
            id=id,
            reported_by=handed.reported_by if handed is not None else None,
        )
        directory = self.scratch / "builds"
        return run_build(self.build_parts, request, directory, watch=watch, jobs=handed)

    def build_on_server(
        self,
        targets: Sequence[str],
        *,
        watch: Callable[[dict[str, Any]], None] = lambda build: None,
        **asked: Unpack[BuildAsked],
    ) -> dict[str, Any]:
        """A build on the server's workers, shown as it goes on; its document at the end."""
        raise Invalid("there is no server here to build on: set HEADGATE_URL, or build here.")

    # --- rows -------------------------------------------------------------------------------

    @property
    def rows(self) -> Rows:
        """Verbs on the rows of many tables at once."""
        return Rows(self, self.tables, self.spark)

    def mutate(self, branch: str, sql: str, **how: Unpack[How]) -> Outcome:
        """A script of INSERT, UPDATE, DELETE, UPSERT and MERGE statements: one publication."""
        return self.rows.mutate(branch, sql, **how)

    def load(
        self,
        branch: str,
        sources: Mapping[str, Any],
        *,
        mode: str = "append",
        engine: str = "arrow",
        **how: Unpack[How],
    ) -> Outcome:
        """Files or Arrow tables into tables, by dataset: one publication for all of them."""
        return self.rows.load(branch, sources, mode=mode, engine=engine, **how)

    def merge(
        self,
        source: str,
        into: str,
        *,
        datasets: Sequence[str] = (),
        dry_run: bool = False,
        **how: Unpack[How],
    ) -> Outcome:
        """What a branch changed since it forked, into another, in one publication."""
        return self.rows.merge(source, into=into, datasets=datasets, dry_run=dry_run, **how)

    def recover(self, *, dry_run: bool = False) -> Recovered:
        """Settle what dead processes left behind."""
        read_head = HeadReader(self.settings) if self.settings.lakefs_endpoint else None
        return recover(self.database, read_head, dry_run=dry_run)

    def close(self) -> None:
        """Ends what this store started: Spark, its endpoint, its connections."""
        runtime = self._spark.take_away()
        if runtime is not None:
            runtime.stop()
        parts = self.__dict__.pop("build_parts", None)
        if parts is not None:
            parts.workplace.close()
        lineage = self.__dict__.pop("lineage", None)
        if lineage is not None:
            lineage.close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
