"""Something that the request names does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar

from headgate.errors.families import NotFound


class DatasetNotFound(NotFound, code="dataset_not_found"):
    template = (
        "dataset {dataset!r} does not exist{near:?} `headgate dataset list` shows all datasets."
    )
    dataset: str
    near: Sequence[str] = ()


class BranchNotFound(NotFound, code="branch_not_found"):
    template = (
        "dataset {dataset!r} has no branch {branch!r}{near:?} "
        "`headgate branch list {dataset}` shows its branches."
    )
    dataset: str
    branch: str
    near: Sequence[str] = ()


class BranchNowhere(NotFound, code="no_such_branch"):
    template = "branch {branch!r} does not exist{near:?} {remedy}"
    branch: str
    remedy: InitVar[str]
    near: Sequence[str] = ()


class TagNotFound(NotFound, code="tag_not_found"):
    template = (
        "{owner} a tag {tag!r}{near:?} A context of a tag shows only the datasets that have it. "
        "`headgate tag list` shows all tags."
    )
    tag: str
    dataset: str | None = None
    near: Sequence[str] = ()

    @property
    def owner(self) -> str:
        return f"dataset {self.dataset!r} does not have" if self.dataset else "no dataset has"


class DeletedBranchNotFound(NotFound, code="deleted_branch_not_found"):
    template = (
        "no deleted branch {branch!r}{of} is on record{near:?} `headgate log --kind delete` lists "
        "deletions; those of releases before this one left no record."
    )
    branch: str
    dataset: str | None = None
    near: Sequence[str] = ()

    @property
    def of(self) -> str:
        return f" of {self.dataset}" if self.dataset else ""


class TransactionNotFound(NotFound, code="transaction_not_found"):
    template = "transaction {transaction!r} does not exist. `headgate history` lists transactions."
    transaction: str


class AttemptNotFound(NotFound, code="attempt_not_found"):
    """No attempt has the secret that the request carries."""

    def __init__(self) -> None:
        super().__init__("no attempt has this secret. Dispatch an attempt first.")


class NotInHistory(NotFound, code="not_in_history"):
    template = (
        "transaction {transaction} is not in the history of branch {branch!r} of {dataset!r}. "
        "`headgate history {dataset} --branch {branch}` shows that history."
    )
    dataset: str
    branch: str
    transaction: str


class FileNotInView(NotFound, code="file_not_found"):
    template = (
        "{dataset!r} has no file {path!r} at {where}{near:?} `headgate files ls` shows its files."
    )
    dataset: str
    path: str
    where: str
    near: Sequence[str] = ()


class VersionExpired(NotFound, code="expired"):
    template = (
        "{what} has expired: cleanup has condemned its content. Only tagged versions and those in "
        "a branch's history within `[store] retain` are kept. Choose a newer version."
    )
    what: str


class NamespaceNotFound(NotFound, code="namespace_not_found"):
    template = "Namespace does not exist: {namespace}. Run CREATE NAMESPACE {namespace} first."
    namespace: str


class TableNotFound(NotFound, code="table_not_found"):
    template = (
        "Table does not exist: {table} on {context}.{hint} Create it with CREATE TABLE, "
        "`headgate schema apply`, `headgate load --create` or a build."
    )
    table: str
    context: str
    near: Sequence[str] = ()

    @property
    def hint(self) -> str:
        return f" Did you mean {self.near[0]!r}?" if self.near else ""


class ViewNotFound(NotFound, code="view_not_found"):
    template = "View does not exist: {view} on {context}. Create it with CREATE VIEW."
    view: str
    context: str


class JobSpecNotFound(NotFound, code="jobspec_not_found"):
    template = "no JobSpec makes {dataset!r}{place}{near:?} {remedy}"
    dataset: str
    # Empty for all branches.
    chain: Sequence[str]
    removed_on: str | None
    near: Sequence[str] = ()

    @property
    def place(self) -> str:
        return f" on the chain {' > '.join(self.chain)}" if self.chain else ""

    @property
    def remedy(self) -> str:
        if not self.chain:
            return "`headgate jobspecs list` shows all."
        if self.dataset == "*":
            return "Publish transforms first: `headgate jobspecs publish` in their repository."
        if any(sign in self.dataset for sign in "*?["):
            how = "Correct the pattern"
        elif self.removed_on:
            restore = "Restore the transform there and publish it"
            how = f"Its transform was removed on {self.removed_on!r}. {restore}"
        else:
            how = "Run `headgate jobspecs publish` in the repository that makes it"
        return f"{how}, or remove it from the targets."


class InputNotFound(NotFound, code="input_not_found"):
    template = (
        "input {dataset!r} of {needed_by} has nothing committed on {where}. Write it there, "
        "build it first (or add --upstream), or name another fallback."
    )
    dataset: str
    where: str
    needed_by: str


class ObjectNotFound(NotFound, code="object_not_found"):
    template = (
        "object {location} does not exist: it was never written, or it was deleted. If a version "
        "needs it, restore it from a backup; `headgate doctor` lists what is missing."
    )
    public = (
        "an object does not exist on the server: it was never written, or it was deleted. If a "
        "version needs it, an operator restores it from a backup."
    )
    location: str


class UnknownInStatement(NotFound, code="unknown_in_statement"):
    template = "Spark cannot find a name in the statement: {reason}"
    reason: str
    details: str
