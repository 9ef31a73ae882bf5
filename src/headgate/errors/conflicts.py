"""Somebody else was first, or a fence refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headgate.errors.families import Conflict, Exists


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One thing that was not as expected: the facts behind a conflict."""

    dataset: str
    branch: str
    field: str
    expected: str | None
    actual: str | None

    @property
    def table_key(self) -> str:
        return f"{self.dataset}@{self.branch}"


class ViewConflict(Conflict):
    """A branch is not where the publication expected it; nothing was changed."""

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        first = mismatches[0]
        more = f" (and {len(mismatches) - 1} more)" if len(mismatches) > 1 else ""
        super().__init__(
            f"branch {first.branch!r} of {first.dataset!r}: {first.field} is "
            f"{first.actual or 'none'}, expected {first.expected or 'none'}{more}. Somebody "
            "else moved it; nothing was changed. Read it again and decide.",
            manifest_conflict={
                "table_key": first.table_key,
                "expected": first.expected,
                "actual": first.actual,
            },
            conflicts=[asdict(m) for m in mismatches],
        )
        self.mismatches = tuple(mismatches)


class OpenTransactionAlreadyExists(Conflict):
    """The branch has an OPEN transaction of somebody whose lease still runs."""

    code = "open_transaction_exists"

    def __init__(
        self, *, dataset: str, branch: str, transaction: str, holder: str, lease_left_seconds: int
    ) -> None:
        when = (
            f"its lease runs for another {lease_left_seconds} s"
            if lease_left_seconds > 0
            else "its lease has expired"
        )
        super().__init__(
            f"branch {branch!r} of {dataset!r} already has the OPEN transaction {transaction}, "
            f"held by {holder}; {when}. Commit or abort it, or wait for the lease.",
            dataset=dataset,
            branch=branch,
            transaction=transaction,
            holder=holder,
            lease_left_seconds=lease_left_seconds,
        )


class HolderExpired(OpenTransactionAlreadyExists):
    """The same refusal, where whoever adds a transaction may take over and do it again."""

    def __init__(self, refusal: OpenTransactionAlreadyExists, *, wanted_by: str) -> None:
        super().__init__(**refusal.facts)
        self.wanted_by = wanted_by


class TransactionNotOpen(Conflict):
    """The transaction was committed or aborted already."""

    code = "transaction_not_open"

    def __init__(self, *, transaction: str, state: str) -> None:
        super().__init__(
            f"transaction {transaction} is {state}, not OPEN; nothing was changed.",
            transaction=transaction,
            state=state,
        )


class TransactionNotCommitted(Conflict):
    """What was named is no part of any past: it is still OPEN, or was ABORTED."""

    code = "transaction_not_committed"

    def __init__(self, *, transaction: str, state: str) -> None:
        super().__init__(
            f"transaction {transaction} is {state}, not COMMITTED: it can be neither read nor "
            "returned to. Name one that `headgate history` shows as COMMITTED.",
            transaction=transaction,
            state=state,
        )


class UnitIncomplete(Conflict):
    """A unit's transactions commit together; somebody opened another one meanwhile."""

    code = "unit_incomplete"
    retryable = True

    def __init__(self, *, unit: str, left_out: Sequence[str]) -> None:
        super().__init__(
            f"unit {unit} also has the OPEN transactions {', '.join(left_out)}: all of a unit "
            "commits together. Commit the unit again.",
            unit=unit,
            left_out=list(left_out),
        )


class AttemptSuperseded(Conflict):
    """A newer attempt of the same task key exists, or this one has ended."""

    code = "attempt_superseded"

    def __init__(self, *, key: str, epoch: int, newest: int, state: str) -> None:
        super().__init__(
            f"attempt {epoch} of {key!r} may no longer publish: the newest attempt is {newest}, "
            f"this one is {state}. Nothing was changed; let the newer attempt do the work.",
            key=key,
            epoch=epoch,
            newest=newest,
            state=state,
        )


class BuildNotRunning(Conflict):
    """The build has ended already."""

    code = "build_not_running"

    def __init__(self, *, build: str, state: str) -> None:
        super().__init__(
            f"build {build} has ended as {state}: there is nothing to cancel.",
            build=build,
            state=state,
        )


class BuildNotKept(Conflict):
    """A client asks for work of a build that this server does not keep, or not any more."""

    code = "build_not_kept"

    def __init__(self, *, build: str) -> None:
        super().__init__(
            f"build {build} is not kept here for its client to work on: it was started elsewhere, "
            f"or the server was started again since. `headgate builds cancel {build}` frees what "
            "it holds; then build again.",
            build=build,
        )


class PlanChanged(Conflict):
    """What the build would read or write moved while it was opened."""

    code = "plan_changed"
    retryable = True

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            f"the plan changed while it was made: {reason}. Nothing was opened; plan again.",
            reason=reason,
        )


class IntentPending(Conflict):
    """An earlier operation on the branch has not been settled yet."""

    code = "intent_pending"

    def __init__(self, *, operation: str, branch: str, remedy: str) -> None:
        super().__init__(
            f"branch {branch!r} is held by the unfinished operation {operation}. {remedy}",
            operation=operation,
            branch=branch,
            remedy=remedy,
        )


class IntentTakenOver(Conflict):
    """Recovery, or another recovery, owns the intent now; whoever held it must not act on it."""

    code = "intent_taken_over"

    def __init__(self, *, intent: str, epoch: int) -> None:
        super().__init__(
            f"intent {intent} is no longer held at epoch {epoch}: recovery took it over. "
            "Look at `headgate log --actor headgate:recovery` before doing it again.",
            intent=intent,
            epoch=epoch,
        )


class RecoveryStopped(Conflict):
    """Recovery cannot decide without a person; the intent is kept."""

    code = "recovery_stopped"

    def __init__(self, *, operation: str, classification: str, remedy: str) -> None:
        super().__init__(
            f"operation {operation} is {classification}: recovery changed nothing and kept its "
            f"intent. {remedy}",
            operation=operation,
            classification=classification,
            remedy=remedy,
        )


class RequirementFailed(Conflict):
    """A table is not as the commit requires; nothing was changed."""

    code = "requirement_failed"
    retryable = True

    def __init__(self, *, requirement: str, expected: Any, actual: Any) -> None:
        super().__init__(
            f"requirement {requirement} does not hold: expected {expected}, found {actual}. "
            "Nothing was changed; read the table again and decide.",
            requirement=requirement,
            expected=expected,
            actual=actual,
        )


class StaleReplacement(Conflict):
    """A commit would replace rows that its author has never seen; nothing was changed."""

    code = "stale_replacement"

    def __init__(self, *, table: str, context: str, read: str, current: str) -> None:
        super().__init__(
            f"table {table!r} in {context!r} changed after it was read, and this commit replaces "
            "rows: what the other writer added would be lost. Nothing was changed; read the table "
            "again and repeat the statement.",
            table=table,
            context=context,
            read=read,
            current=current,
        )


class NamespaceNotEmpty(Conflict):
    """A namespace that has tables is not dropped."""

    code = "namespace_not_empty"

    def __init__(self, *, namespace: str) -> None:
        super().__init__(
            f"namespace {namespace!r} is not empty. It is shared by all branches and moments, and "
            "a dataset keeps its history after DROP TABLE: one that ever held any stays.",
            namespace=namespace,
        )


class ContentSwept(Conflict):
    """Cleanup deleted a stored content just before it was to be used again."""

    code = "content_swept"
    retryable = True

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"the content of {path!r} was swept by cleanup before it could be used again; nothing "
            "was changed. Upload it once more.",
            path=path,
        )


class FileChanged(Conflict):
    """Somebody wrote to a local file while it was being read; nothing of it was stored."""

    code = "file_changed"
    retryable = True

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"file {path!r} changed while it was being read; nothing of it was stored. Upload it "
            "again once nobody writes to it.",
            path=path,
        )


class StaleAttempt(Conflict):
    """The orchestrator no longer waits for this attempt; nothing was published."""

    code = "stale_attempt"

    def __init__(self, *, task: str, field: str, expected: str, actual: str) -> None:
        super().__init__(
            f"the orchestrator no longer waits for task {task}: its {field} is {actual}, expected "
            f"{expected}. Nothing was published; the attempt that it waits for does the work.",
            task=task,
            field=field,
            expected=expected,
            actual=actual,
        )


class PublishFenceRefused(Conflict):
    """The target branch is where this attempt may not move it."""

    code = "publish_fence"

    def __init__(
        self, *, repository: str, branch: str, input_ref: str, head: str | None, why: str
    ) -> None:
        super().__init__(
            f"branch {branch!r} of {repository!r} is at {head or 'nothing'}, not at the input "
            f"{input_ref}, and {why}. Nothing was published; start again from what the branch "
            "shows now.",
            repository=repository,
            branch=branch,
            input_ref=input_ref,
            head=head,
        )


# Something with that name is already there.


class DatasetExists(Exists):
    """There is a dataset of that name."""

    code = "dataset_exists"

    def __init__(self, *, dataset: str) -> None:
        super().__init__(f"dataset {dataset!r} exists already.", dataset=dataset)


class BranchExists(Exists):
    """The dataset has a branch of that name."""

    code = "branch_exists"

    def __init__(self, *, dataset: str, branch: str) -> None:
        super().__init__(
            f"dataset {dataset!r} has a branch {branch!r} already.", dataset=dataset, branch=branch
        )


class NamespaceExists(Exists):
    """There is a namespace of that name."""

    code = "namespace_exists"

    def __init__(self, *, namespace: str) -> None:
        super().__init__(f"namespace {namespace!r} exists already.", namespace=namespace)


class TableExists(Exists):
    """The context shows a table of that name."""

    code = "table_exists"

    def __init__(self, *, table: str, context: str) -> None:
        super().__init__(
            f"table {table!r} exists already in {context!r}.", table=table, context=context
        )
