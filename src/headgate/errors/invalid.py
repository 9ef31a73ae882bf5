"""What was asked for cannot be done by anybody: change the request."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors.families import Invalid


class InvalidName(Invalid):
    code = "invalid_name"

    def __init__(self, *, what: str, name: str, reason: str) -> None:
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        super().__init__(f"{what} name {shown!r} is not allowed: {reason}.", what=what, name=shown)


class UnsafePath(Invalid):
    code = "unsafe_path"

    def __init__(self, *, path: str, reason: str) -> None:
        shown = path if len(path) <= 200 else f"{path[:197]}..."
        super().__init__(f"path {shown!r} is refused: {reason}.", path=shown)


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


class AncestryViolated(Invalid):
    code = "ancestry"

    def __init__(
        self,
        *,
        dataset: str,
        chain: Sequence[str],
        ancestry: Sequence[str],
        pair: tuple[str, str],
    ) -> None:
        super().__init__(
            f"dataset {dataset}: the chain {' > '.join(chain)} does not follow the ancestry of "
            f"its branches: {pair[1]!r} is not an ancestor of {pair[0]!r} "
            f"(ancestry of {pair[0]!r}: {' < '.join(ancestry)}). Change the fallback chain, or "
            f"mend the record with `headgate branch reparent {dataset} {pair[0]} "
            f"--under {pair[1]}`.",
            dataset=dataset,
            chain=list(chain),
            ancestry=list(ancestry),
            pair=list(pair),
        )


class IdempotencyKeyReused(Invalid):
    code = "idempotency_key_reused"

    def __init__(self, *, key: str) -> None:
        super().__init__(
            f"idempotency key {key!r} was used before for a different request. "
            "Use a new key for a new request.",
            key=key,
        )


class StoreTooNew(Invalid):
    code = "store_too_new"

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"this store has schema version {found}, this Headgate knows {known} and older. "
            "Upgrade Headgate to open it; nothing was changed.",
            found=found,
            known=known,
        )


class StoreTooOld(Invalid):
    code = "store_too_old"

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"this store has schema version {found}, this Headgate needs {known}. "
            "Run `headgate migrate` (make a backup first).",
            found=found,
            known=known,
        )


class InvalidContext(Invalid):
    code = "invalid_context"

    def __init__(self, *, context: str, reason: str) -> None:
        shown = context if len(context) <= 200 else f"{context[:197]}..."
        super().__init__(
            f"context {shown!r} cannot be read: {reason}. Write a branch (`feature`), a chain "
            "(`feature>master`), a moment (`master@PUBLICATION`), `txn:ID` or `job:ID`.",
            context=shown,
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


class InvalidDefinition(Invalid):
    """A transform is declared in a way that cannot work."""

    code = "invalid_definition"

    def __init__(self, *, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}.", file=file, line=line, reason=reason)


class InvalidChain(Invalid):
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
