"""What was asked for cannot be done by anybody: change the request."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors.families import Invalid


class InvalidName(Invalid):
    """The name has signs or a length that no such name may have."""

    code = "invalid_name"

    def __init__(self, *, what: str, name: str, reason: str) -> None:
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        super().__init__(f"{what} name {shown!r} is not allowed: {reason}.", what=what, name=shown)


class UnsafePath(Invalid):
    """A path or a kind of file that cannot be stored faithfully, or leads elsewhere."""

    code = "unsafe_path"

    def __init__(self, *, path: str, reason: str) -> None:
        shown = path if len(path) <= 200 else f"{path[:197]}..."
        super().__init__(f"path {shown!r} is refused: {reason}.", path=shown)


class ContentsGarbled(Invalid):
    """Of many contents that travel together, one is not what its line says."""

    code = "contents_garbled"

    def __init__(self, *, reason: str, digest: str | None = None) -> None:
        super().__init__(
            f"the contents did not arrive as they were sent: {reason}. Send them again.",
            digest=digest,
        )


class TransactionTypeViolated(Invalid):
    """A commit does what the transaction's type forbids; the transaction stays OPEN."""

    code = "transaction_type_violated"

    def __init__(self, *, transaction: str, type: str, reason: str) -> None:
        super().__init__(
            f"transaction {transaction} of type {type} cannot be committed: {reason}. "
            "It is still OPEN: change its content, or abort it.",
            transaction=transaction,
            type=type,
        )


class InvalidParameter(Invalid):
    """A parameter is unknown to the transform, or of another type than it declares."""

    code = "invalid_parameter"

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(f"parameter {name!r} cannot be set so: {reason}.", name=name)


class AncestryViolated(Invalid):
    """A dataset's branches do not descend from each other in the order of the chain."""

    code = "ancestry"

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
            f"{farther!r} is below {nearer!r}: name the branch first and its ancestors after it, "
            "nearest first."
            if below
            else "Change the fallback chain, or mend the record with `headgate branch reparent "
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


class IdempotencyKeyReused(Invalid):
    """The key belongs to another request of the same actor."""

    code = "idempotency_key_reused"

    def __init__(self, *, key: str) -> None:
        super().__init__(
            f"idempotency key {key!r} was used before for a different request. "
            "Use a new key for a new request.",
            key=key,
        )


class StoreTooNew(Invalid):
    """A newer Headgate made this catalog; this one must not write to it."""

    code = "store_too_new"

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"this store has schema version {found}, this Headgate knows {known} and older. "
            "Upgrade Headgate to open it; nothing was changed.",
            found=found,
            known=known,
        )


class StoreTooOld(Invalid):
    """The catalog has an older schema: `headgate migrate`."""

    code = "store_too_old"

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"this store has schema version {found}, this Headgate needs {known}. "
            "Run `headgate migrate` (make a backup first).",
            found=found,
            known=known,
        )


class InvalidContext(Invalid):
    """The text is no context: a branch, a chain, a moment, a unit or a job."""

    code = "invalid_context"

    def __init__(self, *, context: str, reason: str) -> None:
        shown = context if len(context) <= 200 else f"{context[:197]}..."
        super().__init__(
            f"context {shown!r} cannot be read: {reason}. Write a branch (`feature`), a chain "
            "(`feature>master`), a moment (`master@PUBLICATION`), `txn:ID` or `job:ID`.",
            context=shown,
        )


class EndpointNotNamed(Invalid):
    """Spark is on another machine, as far as anybody knows, and nothing says what it can reach."""

    code = "endpoint_not_named"

    def __init__(self, *, remote: str) -> None:
        super().__init__(
            f"[spark] remote is {remote}, and a Spark Connect server cannot reach an endpoint "
            "inside this process by itself. Name one that it can reach as [spark] endpoint: "
            "the URL of a `headgate serve` on this store (http://host:port/iceberg), or "
            "http://THIS-MACHINE:0 to listen here, on a free port, while this process lives.",
            remote=remote,
        )


class MalformedRequest(Invalid):
    """A request's body does not have the shape that the Iceberg protocol gives it."""

    code = "malformed_request"

    def __init__(self, *, what: str, reason: str) -> None:
        super().__init__(f"{what} cannot be read: {reason}.", what=what)


class ImpossibleTableChange(Invalid):
    """A table change that the Iceberg format does not allow, on any version of the table."""

    code = "impossible_table_change"

    def __init__(self, *, change: str, reason: str) -> None:
        super().__init__(f"{change} is refused: {reason}. Nothing was changed.", change=change)


class TablePlaceRefused(Invalid):
    """A table's setting or file names a place that nobody looks after."""

    code = "table_place_refused"

    def __init__(self, *, setting: str, value: str, location: str) -> None:
        shown = value if len(value) <= 200 else f"{value[:197]}..."
        super().__init__(
            f"{setting} = {shown!r} is refused: all files of a table are written below {location}, "
            "where cleanup finds them. Leave it out, or name a place there. Nothing was changed.",
            setting=setting,
            value=shown,
            location=location,
        )


class InvalidDefinition(Invalid):
    """A transform is declared in a way that cannot work."""

    code = "invalid_definition"

    def __init__(self, *, file: str, line: int, reason: str) -> None:
        reason = reason.removesuffix(".")
        super().__init__(f"{file}:{line}: {reason}.", file=file, line=line, reason=reason)


class InvalidChain(Invalid):
    """A chain of branches names one of them twice."""

    code = "invalid_chain"

    def __init__(self, *, chain: Sequence[str], repeated: str) -> None:
        super().__init__(
            f"the chain {' > '.join(chain)} names {repeated!r} twice. "
            "Name each branch once, the build branch first and not among its fallbacks.",
            chain=list(chain),
            repeated=repeated,
        )


class GitUnusable(Invalid):
    """What was asked of a Git repository cannot be answered there."""

    code = "git"

    def __init__(self, *, directory: str, reason: str, remedy: str) -> None:
        super().__init__(f"{directory}: {reason}. {remedy}", directory=directory, reason=reason)


class CyclicJobs(Invalid):
    """Jobs wait for each other in a circle."""

    code = "cycle"

    def __init__(self, *, cycle: Sequence[str]) -> None:
        super().__init__(
            f"the build has a cycle: {' -> '.join(cycle)} (each is read to make the next). "
            "Take one of these inputs out, or pin it with Input(transaction=...).",
            cycle=list(cycle),
        )


class OutputContested(Invalid):
    """Two jobs claim one output."""

    code = "output_contested"

    def __init__(self, *, dataset: str, first: str, second: str) -> None:
        super().__init__(
            f"dataset {dataset!r} is an output of two transforms: {first} and {second}. "
            "Each dataset is made by one transform: remove one, then publish again.",
            dataset=dataset,
            first=first,
            second=second,
        )


class InvalidTaskInput(Invalid):
    """A task's input does not have the shape that the task declares."""

    code = "invalid_task_input"

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"the task's input cannot be used: {reason}.", reason=reason)


class InvalidStatement(Invalid):
    """Spark could not read a statement, or what it says does not fit the tables."""

    code = "invalid_statement"

    def __init__(self, *, reason: str, details: str) -> None:
        super().__init__(f"Spark cannot do this: {reason}", reason=reason, details=details)
