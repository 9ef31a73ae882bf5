"""An embedded store: `Store` wires the parts from the settings and has every verb.

Its verbs are grouped in the classes `StoreQueries` (reads), `TaskVerbs` (tasks) and `AdminVerbs`
(changes of the store as a whole). See ADR 0003.
"""

from __future__ import annotations

import copy
import difflib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from headgate.attempts import Contents
from headgate.catalog import warehouse
from headgate.catalog.attempts import CheckHolder
from headgate.catalog.branches import delete_branches, protect_branch, restore_branches
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.catalog.records import branches_named
from headgate.catalog.recovery import Recovered, cancel_build, recover
from headgate.catalog.resolve import check_context, check_exists
from headgate.catalog.retention import remembered_since
from headgate.catalog.tokens import create_token, revoke_token
from headgate.errors import CatalogReadOnly, HeadgateError, Invalid, NotFound, TableNotFound
from headgate.files.tree_store import FileTrees
from headgate.model import names
from headgate.model.access import ALL, Grant, ReadPolicy, Role, make_grant, write_check
from headgate.model.changes import Receipt
from headgate.model.contexts import parse_context
from headgate.model.ids import BuildId
from headgate.model.object_store import ObjectStore
from headgate.settings import Settings, with_actor
from headgate.storage.address import open_store
from headgate.store import documents
from headgate.store.datasets import DatasetHandle
from headgate.store.queries import StoreQueries
from headgate.store.rows import Rows
from headgate.store.transactions import StoreBase, UnitHandle
from headgate.tables.versions import Remembered, TableVersions

if TYPE_CHECKING:
    from headgate.builds.attempt import Parts
    from headgate.builds.client_jobs import ClientJobs
    from headgate.builds.plan import BuildOptions, Plan, PlanOptions, PlanRequest
    from headgate.builds.project import Discovery, PublishReport
    from headgate.builds.report import BuildOutcome, PlannedBuild, Watch
    from headgate.files.private_copy import ContentCache
    from headgate.lineage.events import Lineage
    from headgate.model.graph import Graph
    from headgate.model.rules import RowRules
    from headgate.rows.answer import SqlAnswer, TableReader
    from headgate.rows.query import ContextTables
    from headgate.spark.engines import SharedJvm
    from headgate.spark.session import SparkSession
    from headgate.spark.workplace import StoreSpark
    from headgate.store.overview import Overview
    from headgate.tasks import ports
    from headgate.tasks.declare import TableSpec
    from headgate.tasks.supervisor import TaskHost

P = ParamSpec("P")
T = TypeVar("T")


class TaskVerbs(StoreBase):
    """Verbs and parts for tasks."""

    @cached_property
    def task_host(self) -> TaskHost:
        """Settings with which this machine executes tasks of the store."""
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
    def _server(self) -> ports.ServerAddress | None:
        """Address of the server that serves this store to this process; None if embedded."""
        return None

    @cached_property
    def task_attempts(self) -> ports.Attempts:
        """The part that mints the epochs of tasks and checks which attempt is the newest."""
        from headgate.tasks.files_store import CatalogAttempts  # noqa: PLC0415  (with the one above)

        return CatalogAttempts(self.database, self.settings.actor)

    def workspaces(self, workspace: ports.WorkspaceRef) -> ports.WorkspaceStore:
        """Return the store of a workspace: files datasets, or lakeFS.

        The name of a dataset has a dot, the name of a lakeFS repository has none.
        """
        return self._files_workspaces if "." in workspace.repository else self._lakefs_workspaces

    @cached_property
    def _lakefs_workspaces(self) -> ports.WorkspaceStore:
        from headgate.lakefs.endpoint import connect  # noqa: PLC0415  (slow)

        lakefs = connect(self.settings)
        from headgate.tasks.lakefs_store import LakeFSWorkspaces  # noqa: PLC0415  (optional: pydantic, its SDK)

        return LakeFSWorkspaces(self.database, lakefs, self._content_cache)

    def sweep_staging(self, *, dry_run: bool = False) -> list[str]:
        """Delete lakeFS staging branches of dead attempts, and return their names.

        Returns an empty list where no lakeFS is configured.

        :param dry_run: return the names, and delete nothing.
        """
        from headgate.lakefs.endpoint import connect  # noqa: PLC0415  (slow)

        if self.settings.lakefs_endpoint is None:
            return []
        lakefs = connect(self.settings)
        from headgate.tasks.lakefs_store import sweep_staging  # noqa: PLC0415  (optional: its SDK)

        return sweep_staging(self.database, lakefs, dry_run=dry_run)

    @cached_property
    def _files_workspaces(self) -> ports.WorkspaceStore:
        from headgate.tasks.files_store import FilesWorkspaces  # noqa: PLC0415  (optional: pydantic)

        return FilesWorkspaces(self.database, self.trees, self._content_cache)

    @property
    def _content_cache(self) -> ContentCache:
        from headgate.files.private_copy import ContentCache  # noqa: PLC0415  (for tasks alone)

        return ContentCache(self.settings.cache / "contents")


class AdminVerbs(TaskVerbs):
    """Verbs that change the store as a whole."""

    def protect(
        self, branch: str, *, protected: bool = True, datasets: Sequence[str] = ALL
    ) -> None:
        """Protect a branch name, in place of an earlier protection of it.

        A protected branch accepts only admins and builds of clean commits.

        :param protected: False removes the protection.
        :param datasets: patterns of the datasets to protect; all datasets by default.
        """
        protect_branch(
            self.database, branch, actor=self.settings.actor, protected=protected, datasets=datasets
        )

    def delete_everywhere(
        self, branch: str, *, force: bool = False, idempotency_key: str | None = None
    ) -> Receipt:
        """Delete the branch of this name on every dataset that has it, in one publication.

        Raises `NotFound` if no dataset has the branch.

        :param force: delete the primary branch too, and one with child branches, OPEN transactions
            or running builds, which raises `BranchInUse` otherwise.
        :param idempotency_key: a repeated call with the same key returns the first receipt.
        """
        names.check_branch_name(branch)

        def act(**how: Any) -> Receipt:
            found = self.database.read(lambda c: branches_named(c, [branch]))
            if not found:
                self.database.read(lambda c: check_exists(c, [branch]))
                raise NotFound(f"no dataset has a branch {branch!r}.", branch=branch)
            return delete_branches(self.database, found, force=force, **how)

        return self.once(idempotency_key, "branch-delete", branch, {"dataset": None}, act)

    def restore_everywhere(self, branch: str, *, idempotency_key: str | None = None) -> Receipt:
        """Restore the branch of this name on every dataset that lost it, in one publication.

        Datasets whose old branch has expired are left out, unless all have.

        :param idempotency_key: a repeated call with the same key returns the first receipt.
        """
        act = partial(restore_branches, self.database, None, branch)
        return self.once(idempotency_key, "branch-restore", branch, {"dataset": None}, act)

    def cancel_build(self, id: str) -> documents.Json:
        """Cancel a running build, and return its document.

        Its OPEN transactions are aborted at once, on any machine; its process then stops.
        """
        return documents.build_json(cancel_build(self.database, id, actor=self.settings.actor))

    def create_token(
        self,
        *,
        actor: str,
        role: Role | str,
        branches: Sequence[str] = ALL,
        reads: Sequence[str] = ALL,
        datasets: Sequence[str] = ALL,
        lifetime_seconds: int | None = None,
    ) -> documents.Json:
        """Create a token for a server, and return it under `token` with its record.

        The store keeps no copy of the token: it cannot be shown again.

        :param actor: name that requests with the token act under.
        :param role: role of the actor.
        :param branches: patterns of the branch names that the actor may write.
        :param reads: patterns of the branch names that the actor may read; they must cover those
            that it may write.
        :param datasets: patterns of the datasets that the actor may read and write.
        :param lifetime_seconds: time until the token expires; it never expires by default.
        """
        if lifetime_seconds is not None:
            names.check_lifetime_seconds(lifetime_seconds)
        secret, record = create_token(
            self.database,
            make_grant(actor, role, branches=branches, reads=reads, datasets=datasets),
            lifetime_seconds=lifetime_seconds,
            created_by=self.settings.actor,
        )
        return {"token": secret, **documents.TOKEN.json(record)}

    def revoke_token(self, id: str) -> documents.Json:
        """Revoke a token, and return its record. The server rejects it from then on."""
        return documents.TOKEN.json(revoke_token(self.database, id))

    def clean_up(
        self,
        *,
        older_than_seconds: int,
        dry_run: bool = False,
        confirm_warehouse: bool = False,
        confirm_clock: bool = False,
    ) -> documents.Json:
        """Condemn content that nothing needs, and sweep what was condemned at least a day before.

        :param older_than_seconds: minimum age of content to condemn.
        :param dry_run: report, and change nothing.
        :param confirm_warehouse: this catalog owns the warehouse, also if it was restored, copied
            or put over it; see `headgate init --adopt-warehouse`.
        :param confirm_clock: the clock is right, also if nothing was recorded for weeks.
        """
        from headgate.upkeep.cleanup import RetentionPolicy, check_older_than, clean_up  # noqa: PLC0415  (slow)

        if confirm_warehouse and not dry_run:
            warehouse.confirm(self.database, self.objects)
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
            confirm_clock=confirm_clock,
        )
        if self.settings.lakefs_endpoint is None:
            return cleaned.to_json()
        return cleaned.to_json() | {"staging": self.sweep_staging(dry_run=dry_run)}

    def examine(self, *, deep: bool = False) -> documents.Json:
        """Check the store, and return the report of `headgate doctor`. Changes nothing.

        :param deep: read every row and byte. Without it the checks take seconds.
        """
        from headgate.upkeep.doctor import examine  # noqa: PLC0415  (slow)

        return examine(self.settings, deep=deep).to_json()


class _SharedSpark:
    """The Spark that several stores share: started once, at the first use."""

    def __init__(self, start: Callable[[], StoreSpark]) -> None:
        self._start = start
        self._made: StoreSpark | None = None
        self._lock = threading.Lock()

    def get(self) -> StoreSpark:
        """Return the Spark. Concurrent callers wait while it starts."""
        with self._lock:
            if self._made is None:
                self._made = self._start()
            return self._made

    def pop(self) -> StoreSpark | None:
        """Remove and return the Spark, so that the caller can stop it; None if never started."""
        with self._lock:
            made, self._made = self._made, None
            return made


def _of_rows(verb: Callable[Concatenate[Rows, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Return a verb of `Store.rows` as a verb of the store."""

    @wraps(verb)
    def call(self: Store, /, *given: P.args, **named: P.kwargs) -> T:
        result: T = getattr(self.rows, verb.__name__)(*given, **named)
        return result

    return call


# As much of a log as a person reads.
_LOG_BYTES = 1024 * 1024


class Store(StoreQueries, AdminVerbs):
    """An embedded store: a catalog, a warehouse of content, and the verbs on them.

    Open one with `headgate.open`, and close it or use it as a context manager.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        recover_first: bool = True,
        jvm: SharedJvm | Callable[[], SharedJvm] | None = None,
        cold: bool = True,
    ) -> None:
        """Open the store, create or migrate its catalog, and recover.

        :param recover_first: settle the unfinished work of dead processes.
        :param jvm: JVM for builds and sessions, or a function that returns one. By default the
            store starts its own.
        :param cold: False joins the warm Spark of this store, if one runs.
        """
        self.settings = settings
        self._cold = cold
        # Only a server has admins and limits: see `acting_for`.
        self.may_write_protected = False
        self.check_write = None
        self.policy: ReadPolicy | None = None
        # None: this process may supersede any attempt of a key.
        self.check_holder: CheckHolder | None = None
        # JVM of another owner for builds and sessions; None: they start their own.
        self._jvm = jvm
        # Shared by all stores of `acting_for`: a process cannot have a second Spark.
        self._spark = _SharedSpark(self._open_spark)
        # False in a process that another process of the same store has started.
        self._is_first = recover_first
        # `database` may be limited to what the actor may read; a plan checks this by itself.
        self.database = self.full_database = Database(
            settings.catalog, primary=settings.builds.branch
        )
        self.database.on_written = lambda *newest: self._traces.note(*newest)
        ensure_schema(self.database)
        if recover_first:
            self._recover_if_writable()
            self._check_warehouse()

    def _recover_if_writable(self) -> None:
        """Recover, unless the catalog can only be read, and is then shown as it is."""
        if self.database.is_read_only:
            return
        # A PostgreSQL catalog on a standby server.
        with suppress(CatalogReadOnly):
            self.recover()

    def _check_warehouse(self) -> None:
        """Check a local warehouse at once; a bucket at its first use, which needs credentials."""
        if self.settings.warehouse.startswith("s3:"):
            return
        try:
            _ = self.objects
        except HeadgateError:
            # After an error the caller has nothing to close.
            self.database.close()
            raise

    # --- parts ------------------------------------------------------------------------------

    @cached_property
    def objects(self) -> ObjectStore:
        """Object store of the warehouse; the first use checks that it belongs to this catalog."""
        objects = open_store(self.settings.warehouse, self.settings.environ)
        if self._is_first:
            warehouse.check(self.database, objects)
        return objects

    @cached_property
    def _traces(self) -> warehouse.Traces:
        return warehouse.Traces(lambda: self.__dict__.get("objects"))

    @cached_property
    def trees(self) -> FileTrees:
        """Trees of files in the warehouse."""
        return FileTrees(self.objects)

    @cached_property
    def tables(self) -> TableVersions:
        """Table metadata in the warehouse."""
        return TableVersions(
            self.objects,
            remembered=Remembered(partial(self.database.read, remembered_since)),
            options=self.settings.environ,
            allowed=self.settings.allowed_locations,
        )

    @property
    def rules(self) -> RowRules:
        """Validator of the rows that engines commit; it reads also what the actor may not."""
        from headgate.rows.outcome import Parts  # noqa: PLC0415  (slow)
        from headgate.rows.rules import CommitRules  # noqa: PLC0415  (slow)

        parts = Parts(
            database=self.full_database,
            versions=self.tables,
            trees=self.trees,
            options=self.settings.environ,
        )
        return CommitRules(parts, self.evaluators)

    @property
    def contents(self) -> Contents:
        """Content of both kinds of datasets."""
        return self

    @property
    def _shared_jvm(self) -> SharedJvm | None:
        """JVM of another owner; a function that returns one is called only here."""
        return (self._jvm() if callable(self._jvm) else self._jvm) or self._warm_jvm

    @cached_property
    def _warm_jvm(self) -> SharedJvm | None:
        if self._cold or not (self.scratch / "spark.json").exists():
            return None
        from headgate.spark.warm import join_warm  # noqa: PLC0415  (slow: HTTP, Spark)

        return join_warm(self.spark_settings, self.scratch)

    @property
    def spark_settings(self) -> Settings:
        """Settings of the Spark that runs on this machine."""
        return self.settings

    @property
    def spark_runtime(self) -> StoreSpark:
        """Spark of this store, started at the first use."""
        return self._spark.get()

    def _open_spark(self) -> StoreSpark:
        from headgate.spark.workplace import StoreSpark, open_endpoint  # noqa: PLC0415  (slow: HTTP, Spark)

        endpoint = open_endpoint(self.settings, self.database, self.tables, self.rules)
        return StoreSpark(self.settings, endpoint, self.scratch, self._shared_jvm)

    @cached_property
    def build_parts(self) -> Parts:
        """Parts that builds use."""
        from headgate.builds.attempt import Parts  # noqa: PLC0415  (slow)
        from headgate.spark.workplace import Workplace, open_endpoint  # noqa: PLC0415  (slow: HTTP, Spark)

        return Parts(
            settings=self.settings,
            database=self.database,
            objects=self.objects,
            contents=self.contents,
            workplace=Workplace(
                self.settings,
                lambda: open_endpoint(self.settings, self.database, self.tables, self.rules),
                self.scratch,
                self._shared_jvm,
            ),
            listener=self.lineage.receive if self.lineage is not None else None,
        )

    @cached_property
    def lineage(self) -> Lineage | None:
        """Sender of OpenLineage events about builds; None where no receiver is configured."""
        from headgate.lineage.events import Lineage  # noqa: PLC0415  (slow)

        if self.settings.lineage is None:
            return None
        return Lineage(self.settings.lineage, self.database, self.tables)

    @property
    def scratch(self) -> Path:
        """Directory for logs and working directories on this machine."""
        own = self.settings.root / ".headgate"
        is_read_only = own.exists() and not os.access(own, os.W_OK)
        return (self.settings.cache if is_read_only else own) / "work"

    def acting_for(
        self, grant: Grant, *, check_holder: CheckHolder | None = None, reads_only: bool = False
    ) -> Store:
        """Return this store with the actor and the rights of a grant.

        The two share their parts, so the returned store must not be closed.

        :param check_holder: raises unless the actor may supersede the holder of a key.
        :param reads_only: leave out the right to write protected branches.
        """
        # Cached properties are shared only if they are computed before the copy.
        _ = self.objects, self.trees, self.tables, self.contents, self.build_parts
        other = copy.copy(self)
        other.settings = with_actor(self.settings, grant.actor)
        other.may_write_protected = grant.may_write_protected and not reads_only
        other.check_write = write_check(grant)
        other.check_holder = check_holder
        other.policy = grant.policy
        if other.policy is not None:
            other.database = self.full_database.limited_to(other.policy)
        return other

    # --- verbs ------------------------------------------------------------------------------

    def dataset(self, name: str) -> DatasetHandle:
        """Return a dataset by name; it does not have to exist yet."""
        return DatasetHandle(self, names.parse_dataset_name(name))

    def transaction(
        self,
        branch: str,
        *,
        lease_seconds: int = 900,
        actor: str | None = None,
        create: bool = False,
    ) -> UnitHandle:
        """Open a unit: transactions of several datasets that commit in one publication.

        The handle is a context manager: it commits at the end of the block, and aborts on an
        exception.

        :param branch: name of the branch that the unit writes, on every dataset.
        :param lease_seconds: time without use after which another writer may take over.
        :param actor: actor of the unit; that of the store by default.
        :param create: accept a branch that does not exist yet.
        """
        return UnitHandle.open(
            self,
            branch,
            lease_seconds=lease_seconds,
            actor=actor or self.settings.actor,
            create=create,
        )

    def spark(self, context: str) -> SparkSession:
        """Return a SparkSession whose catalog `headgate` shows a context.

        :param context: a branch, a chain such as `feature>master`, or a unit as `txn:<id>`.
        """
        # Before Spark starts, which takes seconds.
        self.database.read(lambda c: check_context(c, parse_context(context)))
        return self.spark_runtime.session(context, actor=self.settings.actor)

    def sql(
        self,
        text: str,
        *,
        branch: str | None = None,
        engine: str = "auto",
        file: Path | str | None = None,
    ) -> SqlAnswer:
        """Run one statement of Spark SQL on a context, and return its rows as JSON values.

        :param branch: branch, chain, moment or `txn:<id>`; the primary branch by default.
        :param engine: `duckdb` (SELECT only), `spark`, or `auto`: DuckDB for statements that it is
            known to answer as Spark does.
        :param file: file to write the rows to: .parquet, .csv, .arrow or .jsonl.
        """
        from headgate.rows.answer import answer_sql  # noqa: PLC0415  (slow)

        context = branch or self.settings.builds.branch
        return answer_sql(
            text,
            self.context_tables(context),
            lambda: self.spark(context),
            engine=engine,
            file=Path(file) if file is not None else None,
            missing=lambda name: self._missing_table(name, context),
        )

    def table(self, name: str, *, branch: str | None = None) -> TableReader:
        """Return a reader of the rows of a table: Arrow, pandas, Polars or DuckDB.

        :param branch: branch, chain, moment or `txn:<id>`; the primary branch by default.
        """
        from headgate.rows.answer import TableReader  # noqa: PLC0415  (slow)

        context = branch or self.settings.builds.branch
        return TableReader(
            name=names.parse_dataset_name(name),
            tables=self.context_tables(context),
            missing=lambda name: self._missing_table(name, context),
        )

    def _missing_table(self, name: str, context: str) -> TableNotFound:
        """Return the error for a table that a context does not show, with the nearest names."""
        known = [str(one.name) for one in self.datasets()]
        # A name that exists on other branches is not a misspelling.
        near = [] if name in known else names.nearest(name, known, n=3)
        return TableNotFound(table=name, context=context, near=near)

    def context_tables(self, context: str) -> ContextTables:
        """Return the tables that a context shows to the caller."""
        from headgate.rows.answer import ShownTables  # noqa: PLC0415  (slow)

        parsed = parse_context(context)
        self.database.read(lambda c: check_context(c, parsed))
        return ShownTables(
            database=self.database,
            versions=self.tables,
            context=parsed,
            options=self.settings.environ,
        )

    def task_tables(
        self, spec: TableSpec, workspace: ports.WorkspaceRef, identity: ports.Identity
    ) -> ports.TableWork:
        """Open the tables of a task for one attempt, with a Spark session."""
        from headgate.tasks.table_work import SparkTables  # noqa: PLC0415  (optional: pydantic)

        def session(context: str, token: str) -> SparkSession:
            return self.spark_runtime.session(context, token)

        return SparkTables(self.database, self.contents, session, spec, workspace, identity)

    def publish_jobspecs(
        self,
        directory: Path,
        *,
        branch: str | None = None,
        allow_dirty: bool = False,
        committed: bool = False,
        fallback: Sequence[str] | None = None,
    ) -> PublishReport:
        """Publish a JobSpec for every transform of the project in a directory.

        :param branch: branch name to publish under; the Git branch by default.
        :param allow_dirty: publish uncommitted changes of the working tree, too.
        :param committed: publish the commit without them. Without both options they are rejected.
        :param fallback: branches that the branch falls back to, by default those of the settings.
            Transforms that the project removed since it left them are marked as removed.
        """
        from headgate.builds.project import (  # noqa: PLC0415  (slow)
            check_new_branch,
            compare_with_fallback,
            discover,
            find_project,
        )

        project = find_project(directory)
        if branch is not None and fallback is None:
            check_new_branch(project, names.check_branch_name(branch), self.jobspecs)
        found = discover(project, branch=branch, allow_dirty=allow_dirty, committed=committed)
        if fallback is None:
            fallback = self.settings.builds.fallback_of(found.source.branch)
        compared = compare_with_fallback(project, found, fallback, self.jobspecs)
        return self.publish_discovery(compared)

    def publish_discovery(self, found: Discovery) -> PublishReport:
        """Publish the transforms that this process or a client discovered in a project."""
        from headgate.builds.project import publish_discovery  # noqa: PLC0415  (slow)

        return publish_discovery(self.database, self.objects, found, actor=self.settings.actor)

    def decide(self, targets: Sequence[str], **asked: Unpack[PlanOptions]) -> Plan:
        """Return the plan of a build with the reasons of its decisions. Takes options of `plan`."""
        from headgate.builds.plan import plan_build  # noqa: PLC0415  (slow)

        return plan_build(self.full_database, self.contents, self._plan_request(targets, asked))

    def _plan_request(self, targets: Sequence[str], asked: PlanOptions) -> PlanRequest:
        from headgate.builds.plan import plan_request  # noqa: PLC0415  (slow)

        request = plan_request(targets, asked, builds=self.settings.builds, policy=self.policy)
        create = asked.get("create")
        if not create:
            is_written = create is None and asked.get("fallback")
            chain = request.chain if is_written else [request.branch]
            remedy = "Create it with --create (in Python, create=True), or name its fallbacks."
            self.database.read(lambda c: check_exists(c, chain, remedy=remedy))
        return request

    def graph(self, plan: Plan) -> Graph:
        """Return the datasets of a plan and their dependencies as a graph."""
        from headgate.builds.report import graph_of  # noqa: PLC0415  (slow)

        primary = self.settings.builds.branch
        return self.database.read(lambda c: graph_of(c, plan, primary=primary))

    def plan(
        self, targets: Sequence[str], *, graph: str | None = None, **asked: Unpack[PlanOptions]
    ) -> PlannedBuild:
        """Return the jobs that a build would execute, with reasons. Changes nothing.

        :param targets: names of the datasets to build, or patterns (`gold.*`; `*` is all).
        :param graph: format of a drawing of the plan; none by default.
        :param asked: options of :class:`PlanOptions`: `branch` (required), `fallback`, `upstream`,
            `force`, `full`, `parameters` and `create`.
        """
        from headgate.builds.report import PlannedBuild, planned_reports  # noqa: PLC0415  (slow)
        from headgate.model.graph_render import GraphFormat, render_json  # noqa: PLC0415  (slow)

        made, drawn = self.decide(targets, **asked), None
        if graph:
            format = names.parse_member(GraphFormat, graph, what="format of a graph")
            drawn = render_json(self.graph(made), format)
        return PlannedBuild(
            branch=made.request.branch,
            fallback=made.request.fallback,
            jobs=planned_reports(made),
            graph=drawn,
        )

    def build(
        self,
        targets: Sequence[str],
        *,
        watch: Watch = lambda jobs: None,
        id: BuildId | None = None,
        client_jobs: ClientJobs | None = None,
        **asked: Unpack[BuildOptions],
    ) -> BuildOutcome:
        """Build datasets on a branch, and return the outcome with the state of each job.

        A failed job is reported in the outcome and does not raise.

        :param targets: names of the datasets to build, or patterns (`gold.*`; `*` is all).
        :param watch: called with the jobs whenever one changes.
        :param id: id of the build; minted by default.
        :param client_jobs: jobs of a client-run build. By default this store's Spark executes them.
        :param asked: options of :class:`BuildOptions`: those of `plan`, and `atomic`, `retries`,
            `abort_on_failure`, `wait_seconds` and `task_key`.
        """
        from headgate.builds import run  # noqa: PLC0415  (slow: HTTP, Spark)
        from headgate.builds.plan import check_limits  # noqa: PLC0415  (slow)

        check_limits(asked)
        request = run.BuildRequest(
            plan=self._plan_request(targets, asked),
            actor=self.settings.actor,
            atomic=asked.get("atomic", False),
            retries=asked.get("retries", 0),
            abort_on_failure=asked.get("abort_on_failure", False),
            wait_seconds=asked.get("wait_seconds", 0),
            task_key=asked.get("task_key"),
            id=id,
            check_holder=self.check_holder,
            reported_by=client_jobs.reported_by if client_jobs is not None else None,
        )
        directory = self.scratch / "builds"
        return run.run_build(self.build_parts, request, directory, watch=watch, jobs=client_jobs)

    def build_logs(self, id: str, job: str | None = None) -> documents.Json:
        """Return the logs of a build's jobs, each with at most its last megabyte.

        :param job: an output of the job, or its number; all jobs by default.
        """
        from headgate.builds.attempt import read_log  # noqa: PLC0415  (slow)

        jobs = list(enumerate(self.build_record(id)["jobs"]))
        if job is not None:
            known = {name: at for at, one in jobs for name in one["outputs"]}
            chosen = known.get(job, int(job) if job.isdecimal() else -1)
            if not 0 <= chosen < len(jobs):
                near = difflib.get_close_matches(job, known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known)}."
                raise NotFound(f"build {id} has no job {job!r}. {hint}", build=id, job=job)
            jobs = [jobs[chosen]]
        home = self.scratch / "builds" / id
        found = []
        for at, one in jobs:
            text, cut = read_log(home, one.get("log"), most_bytes=_LOG_BYTES) or (None, False)
            shown = {"job": at, "outputs": one["outputs"], "state": one["state"]}
            found.append({**shown, "log": text, "cut": cut})
        return {"build": id, "jobs": found}

    def build_on_server(
        self,
        targets: Sequence[str],
        *,
        watch: Callable[[dict[str, Any]], None] = lambda build: None,
        **asked: Unpack[BuildOptions],
    ) -> dict[str, Any]:
        """Build on the workers of a server, and return the document of the build.

        An embedded store has no server and raises `Invalid`.

        :param watch: called with the document as the build progresses.
        """
        raise Invalid("this store has no server to build on: set HEADGATE_URL, or build here.")

    @property
    def overview(self) -> Overview:
        """Summaries of datasets, branches and logic for pages."""
        from headgate.store.overview import Overview  # noqa: PLC0415  (slow)

        return Overview(self)

    # --- rows -------------------------------------------------------------------------------

    @property
    def rows(self) -> Rows:
        """Verbs on the rows of many tables."""
        return Rows(self, self.spark)

    mutate = _of_rows(Rows.mutate)
    load = _of_rows(Rows.load)
    merge = _of_rows(Rows.merge)
    review = _of_rows(Rows.review)

    def recover(self, *, dry_run: bool = False) -> Recovered:
        """Settle the unfinished work of dead processes, and return what was settled.

        :param dry_run: report, and change nothing.
        """
        read_head = None
        if self.settings.lakefs_endpoint:
            from headgate.lakefs.endpoint import HeadReader  # noqa: PLC0415  (slow)

            read_head = HeadReader(self.settings)
        return recover(self.database, read_head, dry_run=dry_run)

    def close(self) -> None:
        """Stop what this store started: Spark, its endpoint and the connections to the catalog."""
        runtime = self._spark.pop()
        if runtime is not None:
            runtime.stop()
        parts = self.__dict__.pop("build_parts", None)
        if parts is not None:
            parts.workplace.close()
        lineage = self.__dict__.pop("lineage", None)
        if lineage is not None:
            lineage.close()
        self._leave_warm_spark()
        if "_traces" in self.__dict__:
            self._traces.leave()
        self.database.close()

    def _leave_warm_spark(self) -> None:
        jvm = self.__dict__.pop("_warm_jvm", None)
        if jvm is not None:
            jvm.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
