"""Another writer was first, a fence rejected the change, or the name is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, asdict, dataclass
from typing import Any

from headgate.errors.families import Conflict, Exists


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One difference between the expected and the actual state of a branch."""

    dataset: str
    branch: str
    field: str
    expected: str | None
    actual: str | None

    @property
    def table_key(self) -> str:
        return f"{self.dataset}@{self.branch}"


class ViewConflict(Conflict):
    """A branch is not where the publication expects it; nothing was changed."""

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        first = mismatches[0]
        more = f" (and {len(mismatches) - 1} more)" if len(mismatches) > 1 else ""
        super().__init__(
            f"branch {first.branch!r} of {first.dataset!r}: {first.field} is "
            f"{first.actual or 'none'}, expected {first.expected or 'none'}{more}. Another writer "
            "moved it first; nothing was changed. Read the branch again, then decide.",
            manifest_conflict={
                "table_key": first.table_key,
                "expected": first.expected,
                "actual": first.actual,
            },
            conflicts=[asdict(m) for m in mismatches],
        )
        self.mismatches = tuple(mismatches)


class BranchInUse(Conflict, code="branch_in_use"):
    template = (
        "branch {branch!r} is not deleted: it {uses: and }. To delete it all the same, add --force "
        "(in Python, force=True; over HTTP, ?force=true)."
    )
    branch: str
    uses: Sequence[str]


class OpenTransactionAlreadyExists(Conflict, code="open_transaction_exists"):
    template = (
        "branch {branch!r} of {dataset!r} already has the OPEN transaction {transaction}, "
        "held by {by}; {lease}. {remedy}"
    )
    dataset: str
    branch: str
    transaction: str
    holder: str
    lease_left_seconds: int
    # The running build whose transaction it is.
    build: str | None = None

    @property
    def by(self) -> str:
        return f"build {self.build} of {self.holder}" if self.build else self.holder

    @property
    def remedy(self) -> str:
        if self.build is None:
            return "Commit or abort it, or wait until its lease expires."
        return (
            "Wait for that build (`headgate build … --wait SECONDS`), or end it with "
            f"`headgate builds cancel {self.build}`."
        )

    @property
    def lease(self) -> str:
        left = self.lease_left_seconds
        return f"its lease runs for another {left} s" if left > 0 else "its lease has expired"


class HolderExpired(OpenTransactionAlreadyExists):
    """The same conflict where the lease has expired, so that the next writer may take over."""

    def __init__(self, refusal: OpenTransactionAlreadyExists, *, wanted_by: Any) -> None:
        super().__init__(**refusal.facts)
        # The caller that wants the branch.
        self.wanted_by = wanted_by


class TransactionNotOpen(Conflict, code="transaction_not_open"):
    template = "transaction {transaction} is {state}, not OPEN; nothing was changed. Open another."
    transaction: str
    state: str


class TransactionNotCommitted(Conflict, code="transaction_not_committed"):
    template = (
        "transaction {transaction} is {state}, not COMMITTED: it can be neither read nor reset to. "
        "Choose one that `headgate history` shows as COMMITTED."
    )
    transaction: str
    state: str


class UnitIncomplete(Conflict, code="unit_incomplete", retryable=True):
    template = (
        "unit {unit} also has the OPEN transactions {left_out:, }: all transactions of a unit "
        "commit together. Commit the unit again."
    )
    unit: str
    left_out: Sequence[str]


class AttemptSuperseded(Conflict, code="attempt_superseded"):
    template = (
        "attempt {epoch} of {key!r} may no longer publish: the newest attempt is {newest}, "
        "this one is {state}. Nothing was changed; the newest attempt does the work."
    )
    key: str
    epoch: int
    newest: int
    state: str


class BuildNotRunning(Conflict, code="build_not_running"):
    template = (
        "build {build} has already ended ({state}) and cannot be canceled. "
        "`headgate builds list` shows the builds that are running."
    )
    build: str
    state: str


class BuildNotKept(Conflict, code="build_not_kept"):
    template = (
        "build {build} is not active on this server: it was started elsewhere, or the server has "
        "restarted since. Release it with `headgate builds cancel {build}`, then build again."
    )
    build: str


class PlanChanged(Conflict, code="plan_changed", retryable=True):
    template = "the plan changed while it was made: {reason:.} Nothing was opened; plan again."
    reason: str


class IntentTakenOver(Conflict, code="intent_taken_over"):
    template = (
        "intent {intent} is no longer held at epoch {epoch}: recovery took it over. "
        "Read `headgate log --recoveries` before you repeat the operation."
    )
    intent: str
    epoch: int


class UndoRefused(Conflict, code="undo_refused"):
    template = (
        "operation {operation} merged {merge} into branch {branch!r} of {repository!r} on top of "
        "{below}, which another writer published meanwhile, and did not undo it: {why:.} Its "
        "intent is kept. {remedy}"
    )
    operation: str
    repository: str
    branch: str
    merge: str
    below: str
    why: str
    remedy: str = (
        "Reset the lakeFS branch to the commit that it should show. `headgate recover` records "
        "what the branch shows then, and clears the intent."
    )


_CHANGES = {
    "assert-table-uuid": "UUID does not match: expected",
    "assert-view-uuid": "view UUID does not match: expected",
    "assert-last-assigned-field-id": "last assigned field id changed: expected id",
    "assert-current-schema-id": "current schema changed: expected id",
    "assert-last-assigned-partition-id": "last assigned partition id changed: expected id",
    "assert-default-spec-id": "default partition spec changed: expected id",
    "assert-default-sort-order-id": "default sort order changed: expected id",
}


class RequirementFailed(Conflict, code="requirement_failed", retryable=True):
    template = "Requirement failed: {change}. Nothing was changed; read it again, then decide."
    requirement: str
    expected: Any
    actual: Any

    @property
    def change(self) -> str:
        """Return the failure in the words of Iceberg's reference implementation."""
        kind, _, ref = self.requirement.partition(" ")
        if ref and self.expected is None:
            return f"branch or tag {ref} was created concurrently"
        if ref and self.actual is None:
            return f"branch or tag {ref} is missing, expected {self.expected}"
        known = {"assert-ref-snapshot-id": f"branch or tag {ref} has changed: expected id"}
        known |= _CHANGES
        if kind not in known:
            return f"{self.requirement}: expected {self.expected}, found {self.actual}"
        return f"{known[kind]} {self.expected} != {self.actual}"


class StaleReplacement(Conflict, code="stale_replacement"):
    template = (
        "table {table!r} in {context!r} {state}, and this commit replaces rows: rows that another "
        "writer added would be lost. Nothing was changed; read the table again and repeat the "
        "statement."
    )
    table: str
    context: str
    # None where this server did not send the table to the client.
    read: str | None
    current: str

    @property
    def state(self) -> str:
        if self.read is None:
            return "was not read from this server since it started"
        return "changed after it was read"


class NamespaceNotEmpty(Conflict, code="namespace_not_empty"):
    template = (
        "Namespace is not empty: {namespace}. All branches share it, and it holds {contents}. "
        "Drop these first, or leave the namespace."
    )
    namespace: str
    # Readable by the caller, and the number of the others.
    held: Sequence[str] = ()
    hidden: int = 0

    @property
    def contents(self) -> str:
        named = [*self.held[:5]]
        if more := len(self.held) - len(named) + self.hidden:
            named.append(f"{more} more")
        return ", ".join(named)


class WarehouseOccupied(Conflict, code="warehouse_occupied"):
    template = (
        "warehouse {warehouse} belongs to the store {store}, not to this catalog. Set `[store] "
        "catalog` to the catalog of that store, restore it from a backup, or choose another "
        "warehouse. `headgate init --adopt-warehouse` makes a new catalog over it. Nothing was "
        "changed."
    )
    warehouse: str
    store: str


class WarehouseNotEmpty(Conflict, code="warehouse_not_empty"):
    template = (
        "this catalog is empty, and warehouse {warehouse} has data. If the catalog was lost, "
        "restore it from a backup. Otherwise choose another warehouse, or run `headgate init "
        "--adopt-warehouse`. Nothing was changed."
    )
    warehouse: str


class CleanupHeld(Conflict, code="cleanup_held"):
    template = (
        "nothing is deleted from warehouse {warehouse}: {reason:.} If no other catalog uses the "
        "warehouse, run `headgate cleanup --confirm-warehouse`."
    )
    warehouse: str
    reason: InitVar[str]


class ClockImplausible(Conflict, code="clock_implausible"):
    template = (
        "nothing is condemned or deleted, because the clock may be wrong: {reason:.} If it is "
        "right, run `headgate cleanup --confirm-clock`."
    )
    reason: InitVar[str]


class BackupRefused(Conflict, code="backup_refused"):
    template = "nothing is written to {directory}: {reason:.} Choose another directory."
    directory: str
    reason: InitVar[str]


class ContentSwept(Conflict, code="content_swept", retryable=True):
    template = "cleanup has deleted the content of {path!r}; nothing was changed. Upload it again."
    path: str


class FileChanged(Conflict, code="file_changed", retryable=True):
    template = (
        "file {path!r} changed while it was being read; nothing of it was stored. "
        "Upload it again when no process writes to it."
    )
    path: str


class StaleAttempt(Conflict, code="stale_attempt"):
    template = (
        "the orchestrator no longer waits for task {task}: its {field} is {actual}, expected "
        "{expected}. Nothing was published; the attempt that it waits for does the work."
    )
    task: str
    field: str
    expected: str
    actual: str


class PublishFenceRefused(Conflict, code="publish_fence"):
    template = (
        "branch {branch!r} of {repository!r} is at {head}, not at the input {input_ref}, and "
        "{why}. Nothing was published; start again from the current state of the branch."
    )
    repository: str
    branch: str
    input_ref: str
    head: str | None
    why: InitVar[str]


class LakeFSConflict(Conflict, code="lakefs_conflict"):
    template = (
        "lakeFS rejected the request because of a conflict or a precondition: {doing} ({reason}). "
        "Nothing was published; resolve it in lakeFS, or start again from the current state of the "
        "branch."
    )
    doing: str
    reason: str


class DatasetExists(Exists, code="dataset_exists"):
    template = "dataset {dataset!r} already exists. Choose another name."
    dataset: str


class BranchExists(Exists, code="branch_exists"):
    template = "dataset {dataset!r} already has a branch {branch!r}. Choose another name."
    dataset: str
    branch: str


class RestoreRefused(Exists, code="restore_refused"):
    template = (
        "branch {branch!r} cannot be restored: a branch of this name exists on {datasets:, }. "
        "Delete it first, restore dataset by dataset, or start another branch at the old view: "
        "`headgate branch create DATASET NAME --at TXN`; `headgate log --branch {branch}` shows it."
    )
    branch: str
    datasets: Sequence[str]


class NamespaceExists(Exists, code="namespace_exists"):
    template = "Namespace already exists: {namespace}. Use it, or choose another name."
    namespace: str


class NameTaken(Exists, code="name_taken"):
    template = (
        "{kind} with same name already exists: {name}. A dataset keeps its kind, on every branch "
        "and in its history; give the {wanted} another name."
    )
    # "Table" or "View", as in the sentence.
    kind: str
    name: str
    wanted: str


class RenameTargetExists(Exists, code="rename_target_exists"):
    template = "Cannot rename {source} to {target}. {kind} already exists; choose another name."
    source: str
    target: str
    kind: str


class ViewExists(Exists, code="view_exists"):
    template = "View already exists: {view} in {context!r}. Replace it, or choose another name."
    view: str
    context: str


class TableExists(Exists, code="table_exists"):
    template = "{exists}: {table} in {context!r}. Drop it, or choose another name."
    table: str
    context: str
    # True if a commit requires that there is no table.
    required: bool = False

    @property
    def exists(self) -> str:
        return (
            "Requirement failed: table already exists" if self.required else "Table already exists"
        )
