"""Something named does not exist."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors.families import NotFound


class DatasetNotFound(NotFound):
    """There is no dataset of that name."""

    code = "dataset_not_found"

    def __init__(self, *, dataset: str) -> None:
        super().__init__(
            f"there is no dataset {dataset!r}. `headgate dataset list` shows those there are.",
            dataset=dataset,
        )


class BranchNotFound(NotFound):
    """The dataset has no branch of that name."""

    code = "branch_not_found"

    def __init__(self, *, dataset: str, branch: str) -> None:
        super().__init__(
            f"dataset {dataset!r} has no branch {branch!r}. "
            f"`headgate branch list {dataset}` shows those it has.",
            dataset=dataset,
            branch=branch,
        )


class BranchNowhere(NotFound):
    """A branch that is asked for by name alone, and that no dataset has."""

    code = "no_such_branch"

    def __init__(self, *, branch: str, remedy: str) -> None:
        super().__init__(
            f"no dataset has a branch {branch!r}. `headgate branch list` shows those there are. "
            f"{remedy}",
            branch=branch,
        )


class TransactionNotFound(NotFound):
    """No transaction or unit has that id."""

    code = "transaction_not_found"

    def __init__(self, *, transaction: str) -> None:
        super().__init__(f"there is no transaction {transaction!r}.", transaction=transaction)


class AttemptNotFound(NotFound):
    """No attempt has that id."""

    code = "attempt_not_found"

    def __init__(self) -> None:
        super().__init__("there is no attempt with this secret. Dispatch one first.")


class NotInHistory(NotFound):
    """The transaction is no part of the branch's history."""

    code = "not_in_history"

    def __init__(self, *, dataset: str, branch: str, transaction: str) -> None:
        super().__init__(
            f"transaction {transaction} is not in the history of branch {branch!r} of "
            f"{dataset!r}. `headgate history {dataset} --branch {branch}` lists what is.",
            dataset=dataset,
            branch=branch,
            transaction=transaction,
        )


class FileNotInView(NotFound):
    """What the branch or transaction shows has no such file."""

    code = "file_not_found"

    def __init__(self, *, dataset: str, path: str, where: str) -> None:
        super().__init__(
            f"{dataset!r} has no file {path!r} at {where}.", dataset=dataset, path=path, where=where
        )


class VersionExpired(NotFound):
    """It was once shown, and cleanup has taken its files away since."""

    code = "expired"

    def __init__(self, *, what: str) -> None:
        super().__init__(
            f"{what} has expired: cleanup has condemned its content. Only what is on a live "
            "branch's history within `[store] retain`, or tagged, is kept.",
            what=what,
        )


class NamespaceNotFound(NotFound):
    """There is no namespace of that name."""

    code = "namespace_not_found"

    def __init__(self, *, namespace: str) -> None:
        super().__init__(
            f"there is no namespace {namespace!r}. Create it first: CREATE NAMESPACE {namespace}.",
            namespace=namespace,
        )


class TableNotFound(NotFound):
    """The name resolves to no table in the context it was asked in."""

    code = "table_not_found"

    def __init__(self, *, table: str, context: str, near: Sequence[str] = ()) -> None:
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"there is no table {table!r} in {context!r}: none of its branches has a committed "
            f"version of that name.{hint}",
            table=table,
            context=context,
            near=list(near),
        )


class JobSpecNotFound(NotFound):
    """Nobody has published a transform that makes the dataset on the chain."""

    code = "jobspec_not_found"

    def __init__(self, *, dataset: str, chain: Sequence[str], removed_on: str | None) -> None:
        why = (
            f"it was removed on {removed_on!r}" if removed_on else "none was published on any of it"
        )
        super().__init__(
            f"there is no JobSpec that makes {dataset!r} on the chain {' > '.join(chain)}: {why}. "
            "Run `headgate jobspecs publish` in the repository that makes it, or leave it out "
            "of the targets.",
            dataset=dataset,
            chain=list(chain),
            removed_on=removed_on,
        )


class InputNotFound(NotFound):
    """A job's input has nothing to read on any branch of the chain."""

    code = "input_not_found"

    def __init__(self, *, dataset: str, where: str, needed_by: str) -> None:
        super().__init__(
            f"input {dataset!r} of {needed_by} has nothing committed on {where}. Write it there, "
            "build it first (or add --upstream), or name another fallback.",
            dataset=dataset,
            where=where,
            needed_by=needed_by,
        )


class ObjectNotFound(NotFound):
    """A content that should be stored is not there."""

    code = "object_not_found"

    def __init__(self, *, location: str) -> None:
        super().__init__(
            f"there is no object {location}: it was never written, or somebody deleted it. If a "
            "version needs it, restore it from a backup; `headgate doctor` lists what is missing.",
            location=location,
        )


class UnknownInStatement(NotFound):
    """A statement names a table or namespace that its context does not show."""

    code = "unknown_in_statement"

    def __init__(self, *, reason: str, details: str) -> None:
        super().__init__(f"Spark cannot find it: {reason}", reason=reason, details=details)
