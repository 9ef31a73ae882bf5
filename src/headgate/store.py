"""A store on this machine: the only wiring, from settings to parts to verbs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headgate.attempts.committing import Contents
from headgate.builds.answering import plan_build
from headgate.builds.discovery import Discovery, discover
from headgate.builds.git import find_project
from headgate.builds.graph import graph_of
from headgate.builds.happening import nobody
from headgate.builds.outcome import PlannedBuild
from headgate.builds.parts import Parts
from headgate.builds.plan import Plan
from headgate.builds.publishing import Publishing, publish_discovery
from headgate.builds.report import planned_reports
from headgate.catalog.database import Database
from headgate.catalog.forgetting import Remembered
from headgate.catalog.migrate import ensure_schema
from headgate.catalog.recovery import Recovered, recover
from headgate.catalog.workspaces import WORKSPACE
from headgate.errors import Invalid
from headgate.files.trees import FileTrees
from headgate.handles import DatasetHandle, UnitHandle
from headgate.handles.asking import BuildAsked, PlanAsked, check_patience, plan_request
from headgate.handles.changing import Changing
from headgate.handles.looking import Looking
from headgate.handles.rows import How, Rows
from headgate.lakefs.connecting import LakeFSOutside
from headgate.lineage.telling import Lineage
from headgate.model.graph.drawing import GraphFormat, drawn_json
from headgate.model.graph.nodes import Graph
from headgate.model.ids import BuildId
from headgate.model.names import parse_dataset_name
from headgate.model.options import member
from headgate.model.ports import ObjectStore, Outside
from headgate.model.sharing import Shared
from headgate.settings import Settings, with_actor
from headgate.storage.opening import open_store
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    from headgate.builds.handed import HandedJobs
    from headgate.builds.ledger import Watch
    from headgate.builds.outcome import BuildOutcome
    from headgate.mutations.parts import Outcome
    from headgate.spark.jvm import SharedJvm
    from headgate.spark.workplace import EmbeddedSpark, RemoteSpark, SparkSession
    from headgate.tasks.inputs import WorkspaceRef
    from headgate.tasks.ports import Identity
    from headgate.tasks.table_work import TableWork
    from headgate.tasks.tables import TableSpec


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
        self.outside: dict[str, Outside] = {}
        if settings.lakefs_endpoint is not None:
            self.outside[WORKSPACE] = LakeFSOutside(settings)
        ensure_schema(self.database)
        self._forward_only = False
        self.database.recover = self.recover
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
    def spark_runtime(self) -> EmbeddedSpark | RemoteSpark:
        return self._spark.get()

    def _open_spark(self) -> EmbeddedSpark | RemoteSpark:
        from headgate.spark.workplace import open_spark  # noqa: PLC0415  (slow: HTTP, Spark)

        return open_spark(self.settings, self.database, self.tables, self.scratch, self._shared_jvm)

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
            listen=self.lineage.hear if self.lineage is not None else nobody,
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
        from headgate.tasks.spark_tables import SparkTables  # noqa: PLC0415  (optional: pydantic)

        def session(context: str, token: str) -> SparkSession:
            return self.spark_runtime.session(context, token)

        return SparkTables(self.database, self.contents, session, spec, workspace, identity)

    def publish_jobspecs(
        self, directory: Path, *, branch: str | None = None, allow_dirty: bool = False
    ) -> Publishing:
        """Publishes every transform of a Git repository on its branch's name."""
        found = discover(find_project(directory), branch=branch, allow_dirty=allow_dirty)
        return self.publish_discovery(found)

    def publish_discovery(self, found: Discovery) -> Publishing:
        """Publishes what was found in a Git repository, here or by a client."""
        return publish_discovery(self.database, self.objects, found, actor=self.settings.actor)

    def decide(self, targets: Sequence[str], **asked: Unpack[PlanAsked]) -> Plan:
        """The plan with all that was decided, for those who look into it here."""
        request = plan_request(targets, asked, builds=self.settings.builds)
        return plan_build(self.database, self.contents, request)

    def _drawn(self, plan: Plan, format: str) -> Mapping[str, Any]:
        return drawn_json(self.graph(plan), member(GraphFormat, format, what="format of a graph"))

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
        handed: HandedJobs | None = None,
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
            on_word_of=handed.on_word_of if handed is not None else None,
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
        """Settles what crashed owners left behind."""
        return recover(
            self.database, self.outside, dry_run=dry_run, forward_only=self._forward_only
        )

    def recover_forward_only(self) -> None:
        """From here on this store only rolls forward: others are served while it recovers."""
        self._forward_only = True

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
