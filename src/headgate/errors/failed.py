"""The work itself failed: user code, a check, a job, a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar

from headgate.errors.families import WorkFailed


class UserCodeFailed(WorkFailed, code="user_code"):
    template = "{file}:{line}: {doing} failed: {reason:.}"
    doing: str
    file: str
    line: int
    reason: str
    traceback: str


class UserCodeTimedOut(WorkFailed, code="user_code_timeout"):
    template = (
        "{doing} took over {seconds:g} s and was stopped. Move slow work from the top of the "
        "modules into the transform functions."
    )
    doing: str
    seconds: float
    stderr: str


class StatementFailed(WorkFailed, code="statement_failed"):
    template = "Spark failed to run the statement: {reason}"
    reason: str
    details: str


class NothingWritten(WorkFailed, code="nothing_written"):
    template = (
        "{transform} ended without writing {outputs:, }; nothing is published. {remedy}, "
        "call ctx.abort_job() to publish nothing on purpose, or declare "
        "@configure(allow_empty=True)."
    )
    remedy: InitVar[str] = "Write every output"
    transform: str
    outputs: Sequence[str]
    file: str
    line: int


class NotIncremental(WorkFailed, code="not_incremental"):
    template = (
        "{transform} declares require_incremental, but would have to read all of its inputs: "
        "{reason:.} Build it once with --full, raise its semantic_version, or reset the input to "
        "where it was."
    )
    transform: str
    reason: str
    broken_by: str | None


class ChecksFailed(WorkFailed, code="checks_failed"):
    """Checks of a job's inputs or outputs failed, each with dataset, name and reason."""

    def __init__(
        self,
        *,
        before: bool,
        failed: Sequence[tuple[str, str, str]],
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        count = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
        when = "before the transform was called" if before else "on what the transform wrote"
        listed = "; ".join(f"{name!r} on {dataset}: {reason}" for dataset, name, reason in failed)
        super().__init__(
            f"{count} failed {when}, and nothing is published: {listed}. Correct the data or the "
            "transform, or declare on_error='WARN' to record failures only.",
            before=before,
            file=file,
            line=line,
            failed=[dict(zip(("dataset", "name", "reason"), each, strict=True)) for each in failed],
        )


class TaskFailed(WorkFailed, code="task_failed"):
    """Raised by a task's own code: this attempt failed, another one may succeed."""

    def __init__(self, reason: str) -> None:
        super().__init__(_checked(self, reason), reason=reason)


class TaskTerminalError(WorkFailed, code="task_terminal"):
    """Raised by a task's own code: no further attempt can succeed."""

    def __init__(self, reason: str) -> None:
        super().__init__(_checked(self, reason), reason=reason)


class WorkspaceCheckFailed(WorkFailed, code="workspace_check"):
    template = "the {phase} check {check} failed: {reason:.}"
    phase: str
    check: str
    reason: str


class InvalidTaskResult(WorkFailed, code="invalid_task_result"):
    template = "the value that {task!r} returned does not fit its result model: {reason:.}"
    task: str
    reason: str


class TaskDeadlinePassed(WorkFailed, code="task_deadline"):
    template = (
        "{what} took over {seconds:g} s and was stopped; nothing of it is published. "
        "Raise the deadline, or give the task less work."
    )
    what: str
    seconds: float


class AttemptDied(WorkFailed, code="attempt_died"):
    template = "the attempt's process {how} before it reported a result. Its output is in its log."
    how: str


def _checked(error: WorkFailed, reason: object) -> str:
    if isinstance(reason, str):
        return reason
    raise TypeError(f"{type(error).__name__} takes its reason as a string, not {reason!r}")
