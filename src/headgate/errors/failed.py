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
    code = "user_code_timeout"

    def __init__(self, *, doing: str, seconds: float, stderr: str) -> None:
        super().__init__(
            f"{doing} took over {seconds:g} s and was stopped. Move slow work from the top of "
            "the modules into the transform functions.",
            doing=doing,
            seconds=seconds,
            stderr=stderr,
        )


class NothingWritten(WorkFailed):
    code = "nothing_written"

    def __init__(self, *, transform: str, outputs: Sequence[str]) -> None:
        super().__init__(
            f"{transform} ended without writing {', '.join(outputs)}; nothing is published. "
            "Write every output, call ctx.abort_job() to publish nothing on purpose, or declare "
            "@configure(allow_empty=True).",
            transform=transform,
            outputs=list(outputs),
        )


class ChecksFailed(WorkFailed):
    code = "checks_failed"

    def __init__(self, *, before: bool, failed: Sequence[tuple[str, str, str]]) -> None:
        """Takes dataset, name and reason of each check that stops the job."""
        many = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
        when = "before the transform was called" if before else "on what the transform wrote"
        listed = "; ".join(f"{name!r} on {dataset}: {reason}" for dataset, name, reason in failed)
        super().__init__(
            f"{many} failed {when}, and nothing is published: {listed}. Mend the data or the "
            "transform, or declare on_error='WARN' where a failure is only to be recorded.",
            before=before,
            failed=[
                {"dataset": dataset, "name": name, "reason": reason}
                for dataset, name, reason in failed
            ],
        )
