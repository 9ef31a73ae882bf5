"""The request cannot succeed as it is: change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar

from headgate.errors.families import Invalid


class InvalidName(Invalid, code="invalid_name"):
    """A name has characters or a length that such names may not have."""

    def __init__(self, *, what: str, name: str, reason: str) -> None:
        shown = _shortened(name, 80)
        super().__init__(f"{what} name {shown!r} is not allowed: {reason}.", what=what, name=shown)


class UnsafePath(Invalid, code="unsafe_path"):
    """A path, or a kind of file, that cannot be stored faithfully or that points elsewhere."""

    def __init__(self, *, path: str, reason: str) -> None:
        shown = _shortened(path)
        super().__init__(f"path {shown!r} is not allowed: {reason}.", path=shown)


class ContentsGarbled(Invalid, code="contents_garbled"):
    template = "the contents did not arrive as they were sent: {reason:.} Send them again."
    reason: InitVar[str]
    digest: str | None = None


class TransactionTypeViolated(Invalid, code="transaction_type_violated"):
    template = (
        "transaction {transaction} of type {type} cannot be committed: {reason:.} "
        "It is still OPEN: change its content, or abort it."
    )
    transaction: str
    type: str
    reason: InitVar[str]


class InvalidParameter(Invalid, code="invalid_parameter"):
    template = "parameter {name} {reason:.}"
    name: str
    reason: InitVar[str]


class AncestryViolated(Invalid, code="ancestry"):
    """A chain does not follow the ancestry of a dataset's branches."""

    def __init__(
        self,
        *,
        dataset: str,
        chain: Sequence[str],
        ancestry: Sequence[str],
        pair: tuple[str, str],
        below: bool = False,
    ) -> None:
        nearer, farther = pair
        remedy = (
            f"{farther!r} descends from {nearer!r}: name the branch first and its ancestors after "
            "it, nearest first."
            if below
            else "Change the fallback chain, or correct the record with `headgate branch reparent "
            f"{dataset} {nearer} --under {farther}`."
        )
        super().__init__(
            f"dataset {dataset}: the chain {' > '.join(chain)} does not follow the ancestry of "
            f"its branches: {farther!r} is not an ancestor of {nearer!r} "
            f"(ancestry of {nearer!r}: {' < '.join(ancestry)}). {remedy}",
            dataset=dataset,
            chain=list(chain),
            ancestry=list(ancestry),
            pair=list(pair),
        )


class IdempotencyKeyReused(Invalid, code="idempotency_key_reused"):
    template = "idempotency key {key!r} was used for a different request. Use another key."
    key: str


class StoreTooNew(Invalid, code="store_too_new"):
    template = (
        "this store has schema version {found}, this Headgate supports {known} and older. "
        "Upgrade Headgate to open it; nothing was changed."
    )
    found: int
    known: int


class StoreTooOld(Invalid, code="store_too_old"):
    template = (
        "this store has schema version {found}, this Headgate needs {known}. "
        "Make a backup, then run `headgate migrate`."
    )
    found: int
    known: int


class InvalidContext(Invalid, code="invalid_context"):
    """The text is not a context: a branch, a chain, a moment, a unit or a job."""

    def __init__(self, *, context: str, reason: str) -> None:
        shown = _shortened(context)
        super().__init__(
            f"context {shown!r} cannot be read: {reason}. Write a branch (`feature`), a chain "
            "(`feature>master`), a moment (`master@PUBLICATION`), `txn:ID` or `job:ID`.",
            context=shown,
        )


class EndpointNotNamed(Invalid, code="endpoint_not_named"):
    template = (
        "[spark] remote is {remote}, and a Spark Connect server cannot reach an endpoint inside "
        "this process. Set [spark] endpoint to one that it can reach: the URL of a "
        "`headgate serve` on this store (http://host:port/iceberg), or http://THIS-MACHINE:0 to "
        "listen here, on a free port, while this process runs."
    )
    remote: str


class MalformedRequest(Invalid, code="malformed_request"):
    template = "{what} cannot be read: {reason:.}"
    what: str
    reason: InitVar[str]


class ImpossibleTableChange(Invalid, code="impossible_table_change"):
    template = "{change} is refused: {reason:.} Nothing was changed."
    change: str
    reason: InitVar[str]


class ViewHasNoRows(Invalid, code="view_has_no_rows"):
    template = (
        "{view} is a view, not a table: only an engine that knows the dialect of its query "
        "computes its rows. Read it by `headgate sql` or Spark, or use the tables behind it."
    )
    view: str


class InvalidViewVersion(Invalid, code="invalid_view_version"):
    template = "Invalid view version: {reason:.} Nothing was changed."
    reason: InitVar[str]


class ViewDialectLost(Invalid, code="view_dialect_lost"):
    """A new version of a view has no query for a dialect that the current version has."""

    template = (
        "Cannot replace view due to loss of view dialects (replace.drop-dialect.allowed=false):\n"
        "Previous dialects: {before}\nNew dialects: {after}\nNothing was changed; send a query "
        "for {lost:, } too, or set the view's property replace.drop-dialect.allowed to true."
    )
    lost: Sequence[str]
    before: Sequence[str]
    after: Sequence[str]


class UnreadableTableFile(Invalid, code="unreadable_table_file"):
    template = (
        "the new version of the table names the {what} {location}, which cannot be used: "
        "{reason:.} Nothing was changed."
    )
    what: str
    location: str
    reason: InitVar[str]


class TablePlaceRefused(Invalid, code="table_place_refused"):
    """A setting or file of a table names a location that cleanup does not cover."""

    def __init__(self, *, setting: str, value: str, location: str) -> None:
        shown = _shortened(value)
        super().__init__(
            f"{setting} = {shown!r} is refused: all files of a table are written below {location}, "
            "where cleanup finds them. Omit it, or name a location there or below one of `[store] "
            "allowed_locations`. Nothing was changed.",
            setting=setting,
            value=shown,
            location=location,
        )


class InvalidDefinition(Invalid, code="invalid_definition"):
    template = "{file}:{line}: the declaration is invalid: {reason:.}"
    file: str
    line: int
    reason: str


class InvalidChain(Invalid, code="invalid_chain"):
    template = (
        "the chain {chain: > } names {repeated!r} twice. Name each branch once: the build branch "
        "first, then its fallbacks."
    )
    chain: Sequence[str]
    repeated: str


class GitUnusable(Invalid, code="git"):
    template = "Git cannot be used in {directory}: {reason:.} {remedy}"
    directory: str
    reason: str
    remedy: InitVar[str]


class CyclicJobs(Invalid, code="cycle"):
    template = (
        "the build has a cycle: {cycle: -> } (each is an input of the next). "
        "Remove one of these inputs, or pin it with Input(transaction=...)."
    )
    cycle: Sequence[str]


class OutputContested(Invalid, code="output_contested"):
    template = (
        "dataset {dataset!r} is an output of two transforms: {first} and {second}. "
        "Each dataset is made by one transform: remove one, then publish again."
    )
    dataset: str
    first: str
    second: str


class InvalidTaskInput(Invalid, code="invalid_task_input"):
    template = "the task's input cannot be used: {reason:.}"
    reason: str


class LakeFSRejected(Invalid, code="lakefs_rejected"):
    template = (
        "lakeFS rejected the request: {doing} ({reason}). Nothing was published; a retry of the "
        "same request fails too."
    )
    doing: str
    reason: str


class InvalidStatement(Invalid, code="invalid_statement"):
    template = "Spark cannot run this statement: {reason}"
    reason: str
    details: str


def _shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
