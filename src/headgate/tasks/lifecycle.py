"""Runs one attempt: input, download, checks, function, fences, publication, cleanup."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from headgate.errors import HeadgateError, Invalid, TaskDeadlinePassed, TaskFailed
from headgate.files.private_copy import PrivateCopy, changes_of
from headgate.model.failpoints import Failpoint, reach
from headgate.spark.sql import reporting_end
from headgate.tasks import declare, ports
from headgate.tasks.attempt_directory import AttemptLog, attempt_directory, remove_directory
from headgate.tasks.declare import MetricRecorder, Phase, TaskDefinition, WorkspaceSpec
from headgate.tasks.messages import Outcome, Status, failed

OpenTables = Callable[[TaskDefinition, ports.TaskInput, ports.Identity], ports.TableWork]


@dataclass(frozen=True, kw_only=True)
class AttemptEnvironment:
    """Directories and interfaces of an attempt."""

    identity: ports.Identity
    root: Path
    log: AttemptLog
    fence: ports.Fence
    store_for: Callable[[ports.WorkspaceRef], ports.WorkspaceStore]
    open_tables: OpenTables | None = None
    # True if the orchestrator confirms that the workflow of a task key has ended without success.
    has_ended: Callable[[str], bool] | None = None
    marker: Mapping[str, Any] = field(default_factory=dict)


def run_attempt(
    definition: TaskDefinition, data: object, environment: AttemptEnvironment
) -> Outcome:
    """Run an attempt; an exception becomes a failed outcome, logged with its traceback."""
    began = time.perf_counter()
    environment.log.write("attempt begins")
    try:
        output = _Attempt(definition, data, environment).run()
        outcome = Outcome(status=Status.COMPLETED, output=output)
    except Exception as error:
        outcome = failed(error)
    environment.log.write(
        "attempt ended",
        level="info" if outcome.reason is None else "error",
        status=outcome.status,
        reason=outcome.reason,
        code=outcome.code,
        traceback=outcome.traceback,
        seconds=round(time.perf_counter() - began, 3),
    )
    reach(Failpoint.TASK_ENDED)
    return outcome


class _Attempt:
    """The steps of one attempt."""

    def __init__(
        self, definition: TaskDefinition, data: object, environment: AttemptEnvironment
    ) -> None:
        self._definition = definition
        self._data = data
        self._environment = environment
        self._log = environment.log
        self._tables: ports.TableWork | None = None

    def run(self) -> dict[str, Any]:
        given = self._read_input()
        self._find_abandoned(given)
        if self._definition.tables is None:
            return self._work(given)
        if self._environment.open_tables is None:
            raise Invalid("the task declares tables, but this attempt has no Spark session.")
        with self._log.step("open tables"):
            self._tables = self._environment.open_tables(
                self._definition, given, self._environment.identity
            )
        try:
            return self._work(given)
        finally:
            self._clean("tables", self._tables.close)

    def _read_input(self) -> ports.TaskInput:
        with self._log.step("input"):
            given = ports.read_input(self._definition, self._data)
        if given.ignored:
            self._log.write("input has unknown keys", level="warning", keys=list(given.ignored))
        return given

    def _find_abandoned(self, given: ports.TaskInput) -> None:
        """Allow the attempt to replace the head that a workflow left, if the workflow has ended."""
        spec, workspace = self._definition.workspace, given.workspace
        identity, has_ended = self._environment.identity, self._environment.has_ended
        if has_ended is None or spec is None or spec.read_only or workspace is None:
            return
        head = self._environment.store_for(workspace).find_head(workspace)
        if head is None or head.parent != workspace.ref or head.key is None:
            return
        if head.key != identity.attempt.key and has_ended(head.key):
            self._log.write("replaces the head of an ended workflow", head=head.ref, by=head.key)
            identity = replace(identity, replaces=head.ref)
            self._environment = replace(self._environment, identity=identity)

    def _work(self, given: ports.TaskInput) -> dict[str, Any]:
        spec = self._definition.workspace
        if spec is None or given.workspace is None:
            return ports.write_output(None, self._call(given, None))
        workspace = replace(given.workspace, prefix=spec.directory, read_only=spec.read_only)
        marker = {
            "task": self._definition.name,
            "attempt": self._environment.identity.attempt.key,
            "epoch": self._environment.identity.attempt.epoch,
            **self._environment.marker,
        }
        execution = self._environment.identity.execution
        with attempt_directory(self._environment.root, execution, marker) as files:
            copy: list[PrivateCopy] = []
            try:
                return self._in_directory(given, workspace, spec, files, copy)
            finally:
                count = len(copy[0].entries) if copy else 0
                self._clean("workspace", lambda: remove_directory(files.parent, file_count=count))

    def _in_directory(
        self,
        given: ports.TaskInput,
        workspace: ports.WorkspaceRef,
        spec: WorkspaceSpec,
        files: Path,
        copied: list[PrivateCopy],
    ) -> dict[str, Any]:
        store = self._environment.store_for(workspace)
        reach(Failpoint.TASK_DOWNLOADING)
        with self._log.step("download") as facts:
            copy = store.download(workspace, files, self._log.progress("download"))
            copied.append(copy)
            facts |= {"files": len(copy.entries), "bytes": copy.total_bytes}
        reach(Failpoint.TASK_DOWNLOADED)
        with self._log.step("pre checks"):
            declare.check_workspace(spec.pre, files, Phase.PRE)
        result = self._call(given, files)
        with self._log.step("post checks"):
            declare.check_workspace(spec.post, files, Phase.POST)
        table_changes = self._finish_tables()
        if spec.read_only:
            if self._tables is not None and table_changes:
                self._fenced("first fence", Failpoint.TASK_FENCED_FIRST)
                self._tables.publish(table_changes)
            return ports.write_output(workspace, result)
        ref = self._publish(store, workspace, copy, table_changes)
        return ports.write_output(workspace.at(ref), result)

    def _call(self, given: ports.TaskInput, workspace: Path | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"params": given.params}
        if workspace is not None:
            arguments["workspace"] = workspace
        if self._tables is not None:
            arguments["spark"] = self._tables.session
        if self._definition.metrics is not None:
            labels = {"task_name": self._definition.name}
            arguments["metrics"] = MetricRecorder(
                lambda line: self._log.write("metric", **line), labels
            )
        uses_spark = self._tables is not None
        with self._log.step("body"), reporting_end() if uses_spark else nullcontext():
            try:
                returned = self._definition.function(**arguments)
            except Exception:
                raise
            except BaseException as error:
                # sys.exit() or an interrupt must not end the attempt without an outcome.
                reason = f"the function ended by {type(error).__name__}: {error}"
                raise TaskFailed(reason) from error
        reach(Failpoint.TASK_BODY_DONE)
        with self._log.step("result"):
            return ports.read_result(self._definition, returned)

    def _finish_tables(self) -> ports.TableChanges:
        if self._tables is None:
            return ports.TableChanges()
        with self._log.step("tables"):
            return self._tables.finish()

    def _publish(
        self,
        store: ports.WorkspaceStore,
        workspace: ports.WorkspaceRef,
        copy: PrivateCopy,
        table_changes: ports.TableChanges,
    ) -> str:
        with self._log.step("compare") as facts:
            changes = changes_of(copy)
            facts |= {
                "put": len(changes.put),
                "removed": len(changes.remove),
                "bytes": changes.total_bytes,
            }
        self._fenced("first fence", Failpoint.TASK_FENCED_FIRST)
        if not changes:
            with self._log.step("keep"):
                return self._move(store, workspace, None, table_changes)
        with self._log.step("stage"):
            report = self._log.progress("stage")
            staged = store.stage(workspace, changes, self._environment.identity, report)
        try:
            reach(Failpoint.TASK_STAGED)
            self._fenced("second fence", Failpoint.TASK_FENCED_SECOND)
            with self._log.step("publish") as facts:
                ref = self._move(store, workspace, staged, table_changes)
                facts |= {"ref": ref, "paths": len(changes.put) + len(changes.remove)}
            reach(Failpoint.TASK_PUBLISHED)
            return ref
        finally:
            self._clean("staging", lambda: store.discard(staged))

    def _fenced(self, name: str, point: Failpoint) -> None:
        with self._log.step(name):
            self._environment.fence()
        reach(point)

    def _move(
        self,
        store: ports.WorkspaceStore,
        workspace: ports.WorkspaceRef,
        staged: ports.Staged | None,
        table_changes: ports.TableChanges,
    ) -> str:
        """Publish within the budget; a call that takes longer is abandoned."""
        identity = self._environment.identity
        made = ports.Publication(staged=staged, identity=identity, table_changes=table_changes)
        budget = self._definition.controls.publish_budget
        if budget is None:
            return store.publish(workspace, made)
        seconds = float(budget.lakefs_merge_timeout_seconds)
        future: Future[str] = Future()
        bounded = partial(store.publish, workspace, replace(made, timeout_seconds=seconds))
        Thread(target=_resolve, args=(future, bounded), daemon=True).start()
        try:
            return future.result(seconds)
        except FutureTimeout as error:
            raise TaskDeadlinePassed(what="publishing", seconds=seconds) from error

    def _clean(self, what: str, clean: Callable[[], None]) -> None:
        """Clean up; an error is logged and does not change the outcome."""
        try:
            clean()
        except (HeadgateError, OSError) as error:
            self._log.write(f"{what} not cleaned up", level="error", reason=str(error))


def _resolve(future: Future[str], call: Callable[[], str]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
