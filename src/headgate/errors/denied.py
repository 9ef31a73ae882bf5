"""The caller may not do this."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors.families import Denied


class BranchProtected(Denied):
    code = "branch_protected"

    def __init__(self, *, branch: str) -> None:
        super().__init__(
            f"branch {branch!r} is protected: it accepts only builds of clean commits and admins. "
            "Build it from a clean commit, or ask an admin.",
            branch=branch,
        )


class TokenRefused(Denied):
    code = "token_refused"

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"the bearer token is refused: {reason}.")


class RoleDenied(Denied):
    code = "role_denied"

    def __init__(self, *, actor: str, role: str, right: str) -> None:
        super().__init__(
            f"{actor} is a {role} and may not {right}. Ask an admin for another token.",
            actor=actor,
            role=role,
        )


class JobReadDenied(Denied):
    code = "job_read_denied"

    def __init__(self, *, job: str, dataset: str) -> None:
        super().__init__(
            f"job {job} did not declare {dataset!r}: a transform reads only its inputs. "
            f"Add Input({dataset!r}) to its declaration and publish it again.",
            job=job,
            dataset=dataset,
        )


class JobWriteDenied(Denied):
    code = "job_write_denied"

    def __init__(self, *, job: str, dataset: str, outputs: Sequence[str]) -> None:
        super().__init__(
            f"job {job} may not write {dataset!r}: its outputs are {', '.join(outputs)}. "
            "A build changes only the outputs that its JobSpecs declare.",
            job=job,
            dataset=dataset,
            outputs=list(outputs),
        )


class ContextReadOnly(Denied):
    code = "context_read_only"

    def __init__(self, *, context: str) -> None:
        super().__init__(
            f"context {context!r} is a moment in the past and can only be read. "
            "Write on a branch, or create one from that moment.",
            context=context,
        )


class ClientCleanupRefused(Denied):
    """A client asked to delete files or history that other branches may share."""

    code = "client_cleanup_refused"

    def __init__(self, *, what: str) -> None:
        super().__init__(
            f"{what} is refused: branches share files, and only `headgate cleanup` knows which are "
            "still needed. Run `headgate cleanup` instead.",
            what=what,
        )
