"""A required part does not respond, is damaged, or is not installed."""

from __future__ import annotations

from dataclasses import InitVar

from headgate.errors.families import Unavailable


class CatalogUnavailable(Unavailable, code="catalog_unavailable"):
    template = "the catalog {where} does not respond: {reason:.}"
    where: str
    reason: InitVar[str]


class CatalogBroken(Unavailable, code="catalog_broken", retryable=False):
    template = "the catalog {where} cannot be used: {reason:.} {remedy}"
    where: str
    reason: InitVar[str]
    remedy: InitVar[str]


class CommitInterrupted(Unavailable, code="commit_interrupted", retryable=False):
    template = (
        "the connection to the catalog {where} broke at COMMIT ({reason}): the change may or may "
        "not have happened. Look before you repeat it."
    )
    where: str
    reason: str


class OutcomeUnknown(Unavailable, code="outcome_unknown", retryable=False):
    template = (
        "the connection broke while operation {operation} was being committed, and the catalog "
        "does not respond. It may or may not have happened: look with `headgate log` once the "
        "catalog is back, before you repeat it."
    )
    operation: str


class StorageUnavailable(Unavailable, code="storage_unavailable"):
    template = "storage {where} failed: {reason:.} Nothing was published."
    where: str
    reason: InitVar[str]


class BucketMissing(StorageUnavailable, code="bucket_missing", retryable=False):
    reason: InitVar[str] = "the bucket does not exist"


class FileDamaged(StorageUnavailable, code="file_damaged", retryable=False):
    """A file of a table is there, but its bytes are not what they should be."""


class ObjectCorrupted(Unavailable, code="object_corrupted", retryable=False):
    template = (
        "object {location} is damaged: its content has digest {actual}, expected {expected}. "
        "Restore it from a backup; `headgate doctor` lists what else is damaged."
    )
    location: str
    expected: str
    actual: str


class EndpointNotStarted(Unavailable, code="endpoint_not_started"):
    template = "the Iceberg endpoint on {where} did not start: {reason:.} Nothing was changed."
    where: str
    reason: InitVar[str]


class MissingExtra(Unavailable, code="missing_extra", retryable=False):
    template = "{feature} needs an extra that is not installed: pip install 'headgate[{extra}]'."
    feature: str
    extra: str


class SparkUnavailable(Unavailable, code="spark_unavailable", retryable=False):
    template = "Spark cannot be used: {reason:.} {remedy}"
    reason: str
    remedy: InitVar[str]


class NeedsSpark(Unavailable, code="needs_spark", retryable=False):
    template = (
        "the table version at {where} cannot be read without Spark: {reason:.} "
        'Use headgate sql, as in `headgate sql -b BRANCH "select * from NAMESPACE.NAME"`.'
    )
    where: str
    reason: str


class NeedsSparkToWrite(Unavailable, code="needs_spark_to_write", retryable=False):
    template = (
        "the table version at {where} has Iceberg format version {format_version}; without Spark, "
        "{newest} is the newest that can be written. Nothing was changed. Use --engine spark with "
        '`headgate load` or `optimize`, or `headgate sql -b BRANCH "update NAMESPACE.NAME set …"`.'
    )
    where: str
    format_version: int
    newest: InitVar[int]


class OrchestratorUnavailable(Unavailable, code="orchestrator_unavailable"):
    template = (
        "the orchestrator at {url} does not respond as expected: {reason:.} Nothing was decided on "
        "its behalf; check the server, then try again."
    )
    url: str
    reason: str


class LakeFSUnavailable(Unavailable, code="lakefs_unavailable"):
    template = (
        "lakeFS did not complete the request: {doing} ({reason}). Its effect is looked up before "
        "anything is tried again."
    )
    doing: str
    reason: str
