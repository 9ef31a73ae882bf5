"""The caller may not do this."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors.families import Denied


class BranchProtected(Denied):
    """A protected branch takes builds of clean commits and what admins do, nothing else."""

    code = "branch_protected"

    def __init__(self, *, branch: str) -> None:
        super().__init__(
            f"branch {branch!r} is protected: it accepts only builds of clean commits and admins. "
            "Build it from a clean commit, on the server where the store is served, or ask an "
            "admin.",
            branch=branch,
        )


class TokenRefused(Denied):
    """There is no such token, or it has expired or was revoked."""

    code = "token_refused"

    def __init__(self, *, reason: str, is_good: bool = False) -> None:
        super().__init__(f"the bearer token is refused: {reason}.")
        # Good elsewhere, but not for this; any other might as well not have been shown.
        self.is_good = is_good


class RoleDenied(Denied):
    """The token's role or branch patterns do not cover this."""

    code = "role_denied"

    def __init__(self, *, actor: str, role: str, right: str) -> None:
        super().__init__(
            f"{actor} is a {role} and may not {right}. Ask an admin for another token.",
            actor=actor,
            role=role,
        )


class BuildOfAnother(Denied):
    """The jobs of a build are done by whoever started it, and by nobody else."""

    code = "build_of_another"

    def __init__(self, *, build: str, actor: str) -> None:
        super().__init__(
            f"build {build} was started by {actor}, and only {actor} does its jobs. "
            "Start a build of your own.",
            build=build,
        )


class AttemptOfAnother(Denied):
    """An attempt is its dispatcher's; a task key that is held is for those who may write for it."""

    code = "attempt_of_another"

    def __init__(self, *, key: str, actor: str) -> None:
        super().__init__(
            f"the newest attempt of {key!r} was dispatched by {actor}, and it is not yours to act "
            "for or to supersede. Use a task key of your own, or ask an admin.",
            key=key,
        )


class NoBuildsHere(Denied):
    """The server was started with `--no-builds`."""

    code = "no_builds_here"

    def __init__(self) -> None:
        super().__init__(
            "this server runs no builds itself (--no-builds). Build where you are: leave out "
            "--on-server."
        )


class JobReadDenied(Denied):
    """A job reads only what it declared as an input."""

    code = "job_read_denied"

    def __init__(self, *, job: str, dataset: str) -> None:
        super().__init__(
            f"job {job} did not declare {dataset!r}: a transform reads only its inputs. "
            f"Add Input({dataset!r}) to its declaration and publish it again.",
            job=job,
            dataset=dataset,
        )


class JobWriteDenied(Denied):
    """A job writes only what it declared as an output."""

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
    """A moment of the past is only read."""

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


class LakeFSDenied(Denied):
    """lakeFS refused the credentials, or protects the branch."""

    code = "lakefs_denied"

    def __init__(self, *, doing: str, reason: str) -> None:
        super().__init__(
            f"lakeFS refuses this: {doing} ({reason}). A protected branch takes merges and no hard "
            "reset, so a publication that was never reported cannot be replaced there: leave the "
            "target of tasks unprotected, or start again from what it shows now.",
            doing=doing,
            reason=reason,
        )
