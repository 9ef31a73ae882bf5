"""One attempt from its input to its outcome: try on a private copy, confirm, or leave no trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from headgate.errors import HeadgateError, Invalid, TaskDeadlinePassed, TaskFailed
from headgate.files.private_copy import Changes, PrivateCopy, changes_of
from headgate.model.failpoints import Failpoint, reach
from headgate.tasks.attempt_directory import (
    AttemptDirectory,
    AttemptLog,
    attempt_directory,
    remove_directory,
)
from headgate.tasks.declare import (
    MetricRecorder,
    Phase,
    TaskDefinition,
    WorkspaceSpec,
    check_workspace,
)
from headgate.tasks.messages import Outcome, completed, failed
from headgate.tasks.ports import (
    Fence,
    Identity,
    Staged,
    TableWork,
    TaskInput,
    Together,
    WorkspaceRef,
    WorkspaceStore,
    read_input,
    read_result,
    write_output,
)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What an attempt is given: where it works, and who answers for the rest of the world."""

    identity: Identity
    root: Path
    log: AttemptLog
    fence: Fence
    store_for: Callable[[WorkspaceRef], WorkspaceStore]
    # Opens a session for a task that declares tables.
    open_tables: Callable[[TaskDefinition, TaskInput], TableWork] | None = None
    marker: Mapping[str, Any] = field(default_factory=dict)


def run_attempt(definition: TaskDefinition, data: object, around: Surroundings) -> Outcome:
    """Does the whole attempt; whatever happens is an outcome, logged with its traceback."""
    began = time.perf_counter()
    around.log.say("attempt begins")
    try:
        outcome = completed(_Attempt(definition, data, around).run())
    except Exception as error:
        outcome = failed(error)
    around.log.say(
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
    """The steps of one attempt, in their order."""

    def __init__(self, definition: TaskDefinition, data: object, around: Surroundings) -> None:
        self._definition = definition
        self._data = data
        self._around = around
        self._log = around.log
        self._tables: TableWork | None = None

    def run(self) -> dict[str, Any]:
        given = self._read_input()
        if self._definition.tables is None:
            return self._work(given)
        if self._around.open_tables is None:
            raise Invalid("this attempt has no Spark, and its task declares tables.")
        with self._log.step("open tables"):
            self._tables = self._around.open_tables(self._definition, given)
        try:
            return self._work(given)
        finally:
            self._clean("tables", self._tables.close)

    def _read_input(self) -> TaskInput:
        with self._log.step("input"):
            given = read_input(self._definition, self._data)
        if given.ignored:
            self._log.say("input has unknown keys", level="warning", keys=list(given.ignored))
        return given

    def _work(self, given: TaskInput) -> dict[str, Any]:
        spec = self._definition.workspace
        if spec is None or given.workspace is None:
            return write_output(None, self._call(given, None))
        marker = {
            "task": self._definition.name,
            "attempt": self._around.identity.attempt.key,
            "epoch": self._around.identity.attempt.epoch,
            **self._around.marker,
        }
        execution = self._around.identity.execution
        with attempt_directory(self._around.root, execution, marker) as directory:
            copy: list[PrivateCopy] = []
            try:
                return self._in_directory(given, given.workspace, spec, directory, copy)
            finally:
                count = len(copy[0].entries) if copy else 0
                self._clean("workspace", lambda: remove_directory(directory, file_count=count))

    def _in_directory(
        self,
        given: TaskInput,
        workspace: WorkspaceRef,
        spec: WorkspaceSpec,
        directory: AttemptDirectory,
        copied: list[PrivateCopy],
    ) -> dict[str, Any]:
        store = self._around.store_for(workspace)
        reach(Failpoint.TASK_DOWNLOADING)
        with self._log.step("download") as facts:
            report = self._log.progress("download")
            copy = store.download(workspace, spec.directory, directory.workspace, report)
            copied.append(copy)
            facts |= {"files": len(copy.entries), "bytes": copy.total_bytes}
        reach(Failpoint.TASK_DOWNLOADED)
        with self._log.step("pre checks"):
            check_workspace(spec.pre, directory.workspace, Phase.PRE)
        result = self._call(given, directory.workspace)
        with self._log.step("post checks"):
            check_workspace(spec.post, directory.workspace, Phase.POST)
        together = self._finish_tables()
        if spec.read_only:
            if self._tables is not None and together:
                self._fenced("first fence", Failpoint.TASK_FENCED_FIRST)
                self._tables.publish(together)
            return write_output(workspace, result)
        ref = self._publish(store, workspace, spec, copy, together)
        return write_output(workspace.at(ref), result)

    def _call(self, given: TaskInput, workspace: Path | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"params": given.params}
        if workspace is not None:
            arguments["workspace"] = workspace
        if self._tables is not None:
            arguments["spark"] = self._tables.session
        if self._definition.metrics is not None:
            labels = {"task_name": self._definition.name}
            arguments["metrics"] = MetricRecorder(
                lambda line: self._log.say("metric", **line), labels
            )
        with self._log.step("body"):
            try:
                returned = self._definition.function(**arguments)
            except Exception:
                raise
            except BaseException as error:
                # sys.exit() or an interrupt that the body let through: it must not end the attempt
                # without an outcome.
                raise TaskFailed(f"the body ended by {type(error).__name__}: {error}") from error
        reach(Failpoint.TASK_BODY_DONE)
        with self._log.step("result"):
            return read_result(self._definition, returned)

    def _finish_tables(self) -> Together:
        if self._tables is None:
            return Together()
        with self._log.step("tables"):
            return self._tables.finish()

    def _publish(
        self,
        store: WorkspaceStore,
        workspace: WorkspaceRef,
        spec: WorkspaceSpec,
        copy: PrivateCopy,
        together: Together,
    ) -> str:
        with self._log.step("compare") as facts:
            changes = changes_of(copy)
            facts |= {
                "put": len(changes.put),
                "removed": len(changes.remove),
                "bytes": changes.total_bytes,
            }
        self._fenced("first fence", Failpoint.TASK_FENCED_FIRST)
        identity = self._around.identity
        if not changes:
            with self._log.step("keep"):
                return self._bounded(
                    lambda seconds: store.keep(
                        workspace, identity, timeout_seconds=seconds, together=together
                    )
                )
        with self._log.step("stage"):
            report = self._log.progress("stage")
            staged = store.stage(workspace, spec.directory, changes, identity, report)
        try:
            return self._confirm(store, workspace, staged, together, changes)
        finally:
            self._clean("staging", lambda: store.discard(staged))

    def _confirm(
        self,
        store: WorkspaceStore,
        workspace: WorkspaceRef,
        staged: Staged,
        together: Together,
        changes: Changes,
    ) -> str:
        reach(Failpoint.TASK_STAGED)
        self._fenced("second fence", Failpoint.TASK_FENCED_SECOND)
        with self._log.step("publish") as facts:
            ref = self._bounded(
                lambda seconds: store.publish(
                    workspace,
                    staged,
                    self._around.identity,
                    timeout_seconds=seconds,
                    together=together,
                )
            )
            facts |= {"ref": ref, "paths": len(changes.put) + len(changes.remove)}
        reach(Failpoint.TASK_PUBLISHED)
        return ref

    def _fenced(self, name: str, point: Failpoint) -> None:
        with self._log.step(name):
            self._around.fence()
        reach(point)

    def _bounded(self, publish: Callable[[float | None], str]) -> str:
        """Publishing within its budget; what is still under way afterwards is nobody's any more."""
        budget = self._definition.controls.publish_budget
        if budget is None:
            return publish(None)
        seconds = float(budget.lakefs_merge_timeout_seconds)
        future: Future[str] = Future()
        Thread(target=_resolve, args=(future, lambda: publish(seconds)), daemon=True).start()
        try:
            return future.result(seconds)
        except FutureTimeout as error:
            raise TaskDeadlinePassed(what="publishing", seconds=seconds) from error

    def _clean(self, what: str, clean: Callable[[], None]) -> None:
        """What cannot be cleaned up is told, and never changes how the attempt did."""
        try:
            clean()
        except (HeadgateError, OSError) as error:
            self._log.say(f"{what} not cleaned up", level="error", reason=str(error))


def _resolve(future: Future[str], call: Callable[[], str]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
