"""A part that is needed does not answer."""

from __future__ import annotations

from headgate.errors.families import Unavailable


class CatalogUnavailable(Unavailable):
    """The catalog's database does not answer, or stays locked."""

    code = "catalog_unavailable"

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(f"the catalog {where} does not answer: {reason}.", where=where)


class CatalogBroken(Unavailable):
    """The catalog's file or database is there and cannot be used as it is."""

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
    """The warehouse cannot be reached, read or written."""

    code = "storage_unavailable"

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(f"storage {where} failed: {reason}. Nothing was published.", where=where)


class BucketMissing(StorageUnavailable):
    """The storage answers, and has no bucket of that name."""

    code = "bucket_missing"
    retryable = False

    def __init__(self, *, where: str) -> None:
        super().__init__(where=where, reason="the bucket does not exist")


class ObjectCorrupted(Unavailable):
    """A stored content is not what its digest says."""

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
    """The Iceberg endpoint of this process could not be started."""

    code = "endpoint_not_started"

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(
            f"the Iceberg endpoint on {where} did not start: {reason}. Nothing was changed.",
            where=where,
        )


class MissingExtra(Unavailable):
    """A part of Headgate is not installed; the message has the line that installs it."""

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


class NeedsSparkToWrite(Unavailable):
    """A table can be read without Spark, but not written."""

    code = "needs_spark_to_write"
    retryable = False

    def __init__(self, *, where: str, format_version: int, newest: int) -> None:
        super().__init__(
            f"the table version at {where} has Iceberg format version {format_version}; without "
            f"Spark, {newest} is the newest that can be written. Nothing was changed. Use "
            "`headgate load --engine spark`, `headgate optimize --engine spark`, or a statement "
            'of Spark\'s: `headgate sql -b BRANCH "update NAMESPACE.NAME set …"`.',
            where=where,
            format_version=format_version,
        )


class OrchestratorUnavailable(Unavailable):
    """The orchestrator of tasks does not answer."""

    code = "orchestrator_unavailable"

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(
            f"the orchestrator at {url} does not answer as it should: {reason}. Nothing was "
            "decided on its behalf; look at the server, then try again.",
            url=url,
            reason=reason,
        )


class LakeFSUnavailable(Unavailable):
    """lakeFS does not answer."""

    code = "lakefs_unavailable"

    def __init__(self, *, doing: str, reason: str) -> None:
        super().__init__(
            f"lakeFS did not do this: {doing} ({reason}). What became of it is looked up before "
            "anything is tried again.",
            doing=doing,
            reason=reason,
        )
