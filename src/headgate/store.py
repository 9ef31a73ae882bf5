"""`headgate.open()`: the only wiring, from settings to parts to verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headgate.attempts.committing import Contents
from headgate.builds.parts import Parts
from headgate.builds.plan import Plan, PlanRequest, make_plan
from headgate.builds.publishing import Publishing, publish_repository
from headgate.catalog.database import Database
from headgate.catalog.migrate import ensure_schema
from headgate.catalog.recovery import Recovered, recover
from headgate.errors import Invalid, Unavailable
from headgate.files.trees import FileTrees
from headgate.handles import DatasetHandle, UnitHandle
from headgate.model.names import parse_dataset_name
from headgate.model.ports import ObjectStore, Outside
from headgate.settings import Settings, load_settings, with_actor
from headgate.storage.opening import open_store
from headgate.tables.versions import TableVersions

if TYPE_CHECKING:
    from headgate.builds.ledger import Watch
    from headgate.builds.run import BuildOutcome
    from headgate.spark.jvm import SharedJvm
    from headgate.spark.workplace import EmbeddedSpark, SparkSession


class Store:
    """One store: its catalog, its bytes, and everything that can be done with them."""

    def __init__(
        self, settings: Settings, *, recover_first: bool = True, jvm: SharedJvm | None = None
    ) -> None:
        self.settings = settings
        # Where builds run, if somebody else has one; else they start their own.
        self._jvm = jvm
        self.database = Database(settings.catalog)
        self.outside: dict[str, Outside] = {}
        ensure_schema(self.database)
        self.database.recover = lambda: recover(self.database, self.outside)
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
        return TableVersions(self.objects)

    @cached_property
    def contents(self) -> Contents:
        return Contents(trees=self.trees, tables=self.tables)

    @cached_property
    def spark_runtime(self) -> EmbeddedSpark:
        from headgate.spark.workplace import EmbeddedSpark  # noqa: PLC0415  (slow: HTTP, Spark)

        return EmbeddedSpark(self.settings, self.database, self.tables, self._scratch)

    @cached_property
    def build_parts(self) -> Parts:
        from headgate.spark.workplace import Workplace  # noqa: PLC0415  (slow: HTTP, Spark)

        return Parts(
            settings=self.settings,
            database=self.database,
            objects=self.objects,
            contents=self.contents,
            workplace=Workplace(
                self.settings, self.database, self.tables, self._scratch, self._jvm
            ),
        )

    @property
    def _scratch(self) -> Path:
        """Logs and working directories of this machine."""
        return self.settings.root / ".headgate" / "work"

    # --- verbs ------------------------------------------------------------------------------

    def dataset(self, name: str) -> DatasetHandle:
        """A dataset by name, whether it exists yet or not."""
        return DatasetHandle(self, parse_dataset_name(name))

    def transaction(
        self, *, branch: str, lease_seconds: int = 900, actor: str | None = None
    ) -> UnitHandle:
        """Several datasets, one publication: a context manager that commits, or aborts."""
        return UnitHandle.open(
            self, branch, lease_seconds=lease_seconds, actor=actor or self.settings.actor
        )

    def spark(self, context: str) -> SparkSession:
        """A SparkSession whose catalog `headgate` is that context: `feature>master`, `txn:…`."""
        return self.spark_runtime.session(context)

    def publish_jobspecs(
        self, directory: Path, *, branch: str | None = None, allow_dirty: bool = False
    ) -> Publishing:
        """Publishes every transform of a Git repository on its branch's name."""
        return publish_repository(
            self.database,
            self.objects,
            directory,
            branch=branch,
            allow_dirty=allow_dirty,
            actor=self.settings.actor,
        )

    def plan(
        self,
        targets: Sequence[str],
        *,
        branch: str,
        fallback: Sequence[str] = (),
        upstream: bool = False,
        force: bool = False,
        parameters: Mapping[str, Any] | None = None,
    ) -> Plan:
        """What a build would do, and why; no side effect."""
        request = self._plan_request(targets, branch, fallback, upstream, force, parameters)
        return self.database.read(lambda c: make_plan(c, request))

    def build(
        self,
        targets: Sequence[str],
        *,
        branch: str,
        fallback: Sequence[str] = (),
        upstream: bool = False,
        force: bool = False,
        parameters: Mapping[str, Any] | None = None,
        atomic: bool = False,
        retries: int = 0,
        abort_on_failure: bool = False,
        wait_seconds: float = 0,
        task_key: str | None = None,
        watch: Watch = lambda jobs: None,
    ) -> BuildOutcome:
        """Runs JobSpecs on a branch; failed jobs are reported in the outcome, not raised.

        With `atomic` nothing is visible until the whole build has passed.
        """
        from headgate.builds.run import (  # noqa: PLC0415  (slow: HTTP, Spark)
            BuildRequest,
            run_build,
        )

        request = BuildRequest(
            plan=self._plan_request(targets, branch, fallback, upstream, force, parameters),
            actor=self.settings.actor,
            atomic=atomic,
            retries=retries,
            abort_on_failure=abort_on_failure,
            wait_seconds=wait_seconds,
            task_key=task_key,
        )
        return run_build(self.build_parts, request, self._scratch / "builds", watch=watch)

    def _plan_request(
        self,
        targets: Sequence[str],
        branch: str,
        fallback: Sequence[str],
        upstream: bool,
        force: bool,
        parameters: Mapping[str, Any] | None,
    ) -> PlanRequest:
        return PlanRequest(
            targets=tuple(targets),
            branch=branch,
            fallback=tuple(fallback),
            upstream=upstream,
            force=force,
            adopt=self.settings.builds.adopt,
            parameters=parameters or {},
        )

    def recover(self, *, dry_run: bool = False) -> Recovered:
        return recover(self.database, self.outside, dry_run=dry_run)

    def recover_forward_only(self) -> None:
        """From here on this store only rolls forward: others are served while it recovers."""
        self.database.recover = lambda: recover(self.database, self.outside, forward_only=True)

    def close(self) -> None:
        """Ends what this store started: Spark, its endpoint, its connections."""
        runtime = self.__dict__.pop("spark_runtime", None)
        if runtime is not None:
            runtime.stop()
        parts = self.__dict__.pop("build_parts", None)
        if parts is not None:
            parts.workplace.close()
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


def open(
    where: str | Path | None = None,
    *,
    token: str | None = None,
    actor: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Store:
    """Opens the store of the nearest `headgate.toml`, or of the one at a path."""
    text = str(where) if where is not None else None
    if text is not None and text.startswith(("http://", "https://")):
        raise _no_server_yet(text)
    if token is not None:
        raise Invalid("a token goes with the URL of a server; this is a local store.")
    settings = load_settings(Path(text) if text is not None else None, environ)
    if text is None and settings.server_url:
        # Falling back to a local store would write where nobody meant to.
        raise _no_server_yet(settings.server_url)
    return Store(with_actor(settings, actor))


def _no_server_yet(url: str) -> Unavailable:
    return Unavailable(
        f"{url} is a server, and this release opens local stores only. Unset HEADGATE_URL, or "
        "name the store's directory.",
        url=url,
    )
