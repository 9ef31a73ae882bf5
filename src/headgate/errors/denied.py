"""The caller is not allowed to do this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar

from headgate.errors.families import Denied


class BranchProtected(Denied, code="branch_protected"):
    template = (
        "branch {branch!r} is protected{extent}: it accepts only builds of clean commits and "
        "admins. Build it from a clean commit (on the server, if the store is served), use an "
        "admin's token, or remove the protection with `headgate branch protect {branch} --off`."
    )
    branch: str
    # Set where the protection is limited to some datasets.
    dataset: str | None = None

    @property
    def extent(self) -> str:
        return f" on {self.dataset}" if self.dataset else ""


class TokenRefused(Denied, code="token_refused"):
    """The bearer token is unknown, expired or revoked, or is for something else."""

    def __init__(self, *, reason: str, is_good: bool = False) -> None:
        super().__init__(f"the bearer token is rejected: {reason}. Ask an admin for a token.")
        # Whether the token is valid, but for another context.
        self.is_good = is_good


class RoleDenied(Denied, code="role_denied"):
    template = "{actor} is a {role} and may not {right}. Ask an admin for another token."
    actor: str
    role: str
    right: InitVar[str]


class ContentDenied(Denied, code="content_denied"):
    template = (
        "content {digest} is readable only as a part of a tree of files: name the root of the tree "
        "in the header Headgate-Tree, as the reply to a list of its files does."
    )
    digest: str


class BuildInputDenied(Denied, code="build_input_denied"):
    template = (
        "{actor} may not build {job}: it reads a dataset or a branch that the token may not read. "
        "Build with a token that may, or ask an admin."
    )
    actor: InitVar[str]
    job: str


class BuildOfAnother(Denied, code="build_of_another"):
    template = "build {build} was started by {actor}: only {actor} may run its jobs. Start another."
    build: str
    actor: InitVar[str]


class AttemptOfAnother(Denied, code="attempt_of_another"):
    template = (
        "the newest attempt of {key!r} was dispatched by {actor}, and another actor may neither "
        "act for it nor supersede it. Use a task key of your own, or ask an admin."
    )
    key: str
    actor: InitVar[str]


class NoBuildsHere(Denied, code="no_builds_here"):
    """The server was started with `--no-builds`."""

    def __init__(self) -> None:
        super().__init__(
            "this server runs no builds (--no-builds). Omit --on-server to build here."
        )


class JobReadDenied(Denied, code="job_read_denied"):
    template = (
        "job {job} did not declare {dataset!r}: a transform reads only its inputs. "
        "Add Input({dataset!r}) to its declaration and publish it again."
    )
    job: str
    dataset: str


class JobWriteDenied(Denied, code="job_write_denied"):
    template = (
        "job {job} may not write {dataset!r}: its outputs are {outputs:, }, and a build changes "
        "only declared outputs. Declare it as an Output and publish the JobSpec again."
    )
    job: str
    dataset: str
    outputs: Sequence[str]


class ContextReadOnly(Denied, code="context_read_only"):
    template = (
        "context {context!r} is a moment in the past and can only be read. "
        "Write on a branch, or create one from that moment."
    )
    context: str


class ClientCleanupRefused(Denied, code="client_cleanup_refused"):
    template = (
        "{what} is refused: branches share files, and only `headgate cleanup` knows which are "
        "still needed. Run `headgate cleanup` instead."
    )
    what: str


class SigningRefused(Denied, code="signing_refused"):
    template = (
        "{method} {address} is not signed: {reason}. Load the table again for its present places, "
        "or use a token with the right."
    )
    method: str
    address: str
    reason: str


class LakeFSDenied(Denied, code="lakefs_denied"):
    template = (
        "lakeFS denied the request: {doing} ({reason}). Check the policies of the access key. A "
        "protected branch accepts merges but no hard reset, so an unreported publication cannot "
        "be replaced there: leave the target of tasks unprotected, or start again from its current "
        "state."
    )
    doing: str
    reason: str
