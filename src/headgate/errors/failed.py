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
