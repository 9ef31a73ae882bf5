"""The work itself failed: user code, a check, a job."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors.families import WorkFailed


class UserCodeFailed(WorkFailed):
    """The user's own code raised; its traceback is kept."""

    code = "user_code"

    def __init__(self, *, doing: str, file: str, line: int, reason: str, traceback: str) -> None:
        super().__init__(
            f"{file}:{line}: {doing} failed: {reason}.",
            doing=doing,
            file=file,
            line=line,
            reason=reason,
            traceback=traceback,
        )


class UserCodeTimedOut(WorkFailed):
    """Modules with transforms were not imported in time."""

    code = "user_code_timeout"

    def __init__(self, *, doing: str, seconds: float, stderr: str) -> None:
        super().__init__(
            f"{doing} took over {seconds:g} s and was stopped. Move slow work from the top of "
            "the modules into the transform functions.",
            doing=doing,
            seconds=seconds,
            stderr=stderr,
        )


class StatementFailed(WorkFailed):
    """Spark could not carry out a statement of SQL; what Java had to say is kept."""

    code = "statement_failed"

    def __init__(self, *, reason: str, details: str) -> None:
        super().__init__(f"Spark did not do it: {reason}", reason=reason, details=details)


class NothingWritten(WorkFailed):
    """A job ended without writing one of its outputs."""

    code = "nothing_written"

    def __init__(self, *, transform: str, outputs: Sequence[str], file: str, line: int) -> None:
        super().__init__(
            f"{transform} ended without writing {', '.join(outputs)}; nothing is published. "
            "Write every output, call ctx.abort_job() to publish nothing on purpose, or declare "
            "@configure(allow_empty=True).",
            transform=transform,
            outputs=list(outputs),
            file=file,
            line=line,
        )


class NotIncremental(WorkFailed):
    """A job that must be incremental would have to read everything."""

    code = "not_incremental"

    def __init__(self, *, transform: str, reason: str, broken_by: str | None) -> None:
        super().__init__(
            f"{transform} declares require_incremental, but would have to read all of its inputs: "
            f"{reason}. Build it once with --full, raise its semantic_version, or reset the input "
            "to where it was.",
            transform=transform,
            reason=reason,
            broken_by=broken_by,
        )


class ChecksFailed(WorkFailed):
    """The rows that a job wrote do not pass its checks; nothing of it was published."""

    code = "checks_failed"

    def __init__(
        self,
        *,
        before: bool,
        failed: Sequence[tuple[str, str, str]],
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        """Takes dataset, name and reason of each check that stops the job; where the first is."""
        many = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
        when = "before the transform was called" if before else "on what the transform wrote"
        listed = "; ".join(f"{name!r} on {dataset}: {reason}" for dataset, name, reason in failed)
        super().__init__(
            f"{many} failed {when}, and nothing is published: {listed}. Mend the data or the "
            "transform, or declare on_error='WARN' where a failure is only to be recorded.",
            before=before,
            file=file,
            line=line,
            failed=[
                {"dataset": dataset, "name": name, "reason": reason}
                for dataset, name, reason in failed
            ],
        )


class TaskFailed(WorkFailed):
    """Raised by a task's own code: this attempt failed, another one may succeed."""

    code = "task_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(_reason(reason, type(self).__name__), reason=reason)


class TaskTerminalError(WorkFailed):
    """Raised by a task's own code: no further attempt can succeed."""

    code = "task_terminal"

    def __init__(self, reason: str) -> None:
        super().__init__(_reason(reason, type(self).__name__), reason=reason)


class WorkspaceCheckFailed(WorkFailed):
    """A workspace does not have what its task declares, before or after the body."""

    code = "workspace_check"

    def __init__(self, *, phase: str, check: str, reason: str) -> None:
        super().__init__(
            f"the {phase} check {check} failed: {reason}.", phase=phase, check=check, reason=reason
        )


class InvalidTaskResult(WorkFailed):
    """A task's code returned what its result model does not take."""

    code = "invalid_task_result"

    def __init__(self, *, task: str, reason: str) -> None:
        super().__init__(
            f"what {task!r} returned does not fit its result model: {reason}.",
            task=task,
            reason=reason,
        )


class TaskDeadlinePassed(WorkFailed):
    """A task's body ran past its deadline and was stopped."""

    code = "task_deadline"

    def __init__(self, *, what: str, seconds: float) -> None:
        super().__init__(
            f"{what} took over {seconds:g} s and was stopped; nothing of it is published.",
            what=what,
            seconds=seconds,
        )


class AttemptDied(WorkFailed):
    """An attempt's process ended without saying how the attempt did."""

    code = "attempt_died"

    def __init__(self, *, how: str) -> None:
        super().__init__(
            f"the attempt's process {how} before it reported anything; what it printed is in its "
            "log.",
            how=how,
        )


def _reason(reason: object, name: str) -> str:
    if not isinstance(reason, str):
        raise TypeError(f"{name} takes a reason in words, not {reason!r}")
    return reason
