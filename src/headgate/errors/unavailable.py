"""A part that is needed does not answer."""

from __future__ import annotations

from headgate.errors.families import Unavailable


class CatalogUnavailable(Unavailable):
    code = "catalog_unavailable"

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(f"the catalog {where} does not answer: {reason}.", where=where)


class CatalogBroken(Unavailable):
    code = "catalog_broken"
    retryable = False

    def __init__(self, *, where: str, reason: str, remedy: str) -> None:
        super().__init__(f"the catalog {where} cannot be used: {reason}. {remedy}", where=where)


class CommitInterrupted(Unavailable):
    """The connection broke while COMMIT was under way: whether it happened must be looked up."""

    code = "commit_interrupted"
    retryable = False

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(
            f"the connection to the catalog {where} broke at COMMIT ({reason}): the change may or "
            "may not have happened. Look before doing it again.",
            where=where,
            reason=reason,
        )


class OutcomeUnknown(Unavailable):
    """The connection broke at COMMIT and the catalog cannot be asked what became of it."""

    code = "outcome_unknown"
    retryable = False

    def __init__(self, *, operation: str) -> None:
        super().__init__(
            f"the connection broke while operation {operation} was being committed, and the "
            "catalog cannot be asked. It may or may not have happened: look with "
            f"`headgate log` once the catalog is back, before doing it again.",
            operation=operation,
        )


class StorageUnavailable(Unavailable):
    code = "storage_unavailable"

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(f"storage {where} failed: {reason}. Nothing was published.", where=where)


class ObjectCorrupted(Unavailable):
    code = "object_corrupted"
    retryable = False

    def __init__(self, *, location: str, expected: str, actual: str) -> None:
        super().__init__(
            f"object {location} is damaged: its content has digest {actual}, expected {expected}. "
            "Restore it from a backup; `headgate doctor` lists what else is damaged.",
            location=location,
            expected=expected,
            actual=actual,
        )


class EndpointNotStarted(Unavailable):
    code = "endpoint_not_started"

    def __init__(self, *, port: int) -> None:
        super().__init__(
            f"the Iceberg endpoint on port {port} of this machine did not start. "
            "The log says why; nothing was changed.",
            port=port,
        )


class MissingExtra(Unavailable):
    code = "missing_extra"
    retryable = False

    def __init__(self, *, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an extra that is not installed: pip install 'headgate[{extra}]'.",
            feature=feature,
            extra=extra,
        )


class SparkUnavailable(Unavailable):
    """Java, Spark's jars or its JVM could not be had; the remedy says what to do."""

    code = "spark_unavailable"
    retryable = False

    def __init__(self, *, reason: str, remedy: str) -> None:
        super().__init__(f"Spark cannot be used: {reason}. {remedy}", reason=reason)


class NeedsSpark(Unavailable):
    """A table uses what can be read by Spark only."""

    code = "needs_spark"
    retryable = False

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(
            f"the table version at {where} cannot be read without Spark: {reason}. "
            'Use headgate sql, as in `headgate sql -b BRANCH "select * from NAMESPACE.NAME"`.',
            where=where,
            reason=reason,
        )
