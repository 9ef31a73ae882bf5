"""A required part does not respond, is damaged, or is not installed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import InitVar

from headgate.errors.families import HeadgateError, Unavailable

_SEE_LOG = "An operator finds the cause in the server's log."


class CatalogUnavailable(Unavailable, code="catalog_unavailable"):
    template = "the catalog {where} does not respond: {reason:.}"
    public = f"the catalog does not respond. Try again later. {_SEE_LOG}"
    where: str
    reason: InitVar[str]


class CatalogBroken(Unavailable, code="catalog_broken", retryable=False):
    template = "the catalog {where} cannot be used: {reason:.} {remedy}"
    public = f"the catalog cannot be used. {_SEE_LOG}"
    where: str
    reason: InitVar[str]
    remedy: InitVar[str]


class CatalogFull(CatalogBroken, code="catalog_full"):
    template = "the catalog {where} cannot be written: {reason:.} {remedy}"
    public = "the disk of the catalog is full; nothing was changed. Try again later."
    remedy: InitVar[str] = "Free some space on that disk, then try again; nothing was lost."


class CatalogReadOnly(CatalogBroken, code="catalog_read_only"):
    template = CatalogFull.template
    public = "the catalog can only be read at present; nothing was changed. Try again later."
    remedy: InitVar[str] = (
        "It can be read, but nothing was changed. Make its file and directory writable for this "
        "user, or mount its disk for writing."
    )


class CommitInterrupted(Unavailable, code="commit_interrupted", retryable=False):
    template = (
        "the connection to the catalog {where} broke at COMMIT ({reason}): the change may or may "
        "not have happened. Check `headgate log` before you repeat it."
    )
    public = (
        "the connection to the catalog broke at COMMIT: the change may or may not have happened. "
        "Check `headgate log` before you repeat it."
    )
    where: str
    reason: str


class OutcomeUnknown(Unavailable, code="outcome_unknown", retryable=False):
    template = (
        "the connection broke while operation {operation} was being committed, or after that. It "
        "may or may not have happened: look with `headgate log` before you repeat it."
    )
    operation: str


class StorageUnavailable(Unavailable, code="storage_unavailable"):
    template = "storage {where} failed: {reason:.} Nothing was published."
    public = f"the storage of the server failed; nothing was published. {_SEE_LOG}"
    where: str
    reason: InitVar[str]


class StorageFull(StorageUnavailable, code="storage_full"):
    template = (
        "storage {where} is full: {reason:.} Nothing was published. Free some space there, then "
        "try again."
    )
    public = "the storage of the server is full; nothing was published. Try again later."


class StorageReadOnly(StorageUnavailable, code="storage_read_only", retryable=False):
    template = (
        "storage {where} can only be read: {reason:.} Nothing was published. Mount it for writing, "
        "then try again."
    )
    public = "the storage of the server can only be read at present; nothing was published."


class StorageForbidden(StorageUnavailable, code="storage_forbidden", retryable=False):
    template = (
        "storage {where} denies access to this user: {reason:.} Nothing was published. Change its "
        "owner or mode, or run Headgate as its owner."
    )


class TooManyOpenFiles(StorageUnavailable, code="too_many_open_files"):
    template = (
        "storage {where} cannot be opened: {reason:.} Nothing was published. Raise the limit of "
        "open files (`ulimit -n`, or `LimitNOFILE=` of a systemd unit), or do less at a time."
    )
    public = "the server has too many open files; nothing was published. Try again later."


class BucketMissing(StorageUnavailable, code="bucket_missing", retryable=False):
    reason: InitVar[str] = "the bucket does not exist"


class FileDamaged(StorageUnavailable, code="file_damaged", retryable=False):
    """A file of a table is there, but its bytes are not what they should be."""


class ObjectCorrupted(Unavailable, code="object_corrupted", retryable=False):
    template = (
        "object {location} is damaged: its content has digest {actual}, expected {expected}. "
        "Restore it from a backup; `headgate doctor` lists what else is damaged."
    )
    public = "an object is damaged: its content has digest {actual}, expected {expected}."
    location: str
    expected: str
    actual: str


class BackupIncomplete(Unavailable, code="backup_incomplete"):
    template = (
        "the backup in {directory} is not complete: {reason:.} Run `headgate backup` again; it "
        "copies what is missing."
    )
    directory: str
    reason: InitVar[str]


class EndpointNotStarted(Unavailable, code="endpoint_not_started"):
    template = "the Iceberg endpoint on {where} did not start: {reason:.} Nothing was changed."
    public = f"the Iceberg endpoint of builds did not start; nothing was changed. {_SEE_LOG}"
    where: str
    reason: InitVar[str]


class MissingExtra(Unavailable, code="missing_extra", retryable=False):
    template = "{feature} needs an extra that is not installed: pip install 'headgate[{extra}]'."
    feature: str
    extra: str


class SparkUnavailable(Unavailable, code="spark_unavailable", retryable=False):
    template = "Spark cannot be used: {reason:.} {remedy}"
    public = f"Spark cannot be used on this server. {_SEE_LOG}"
    reason: str
    remedy: InitVar[str]


class SparkStopped(Unavailable, code="spark_stopped"):
    """A JVM that ended or a Connect server that is gone; `reason` names it and its exit code."""

    template = "{reason:.} {remedy}"
    public = "Spark stopped. Try again later."
    reason: str
    remedy: InitVar[str]


class NeedsSpark(Unavailable, code="needs_spark", retryable=False):
    template = (
        "the table version at {where} cannot be read without Spark: {reason:.} "
        'Use headgate sql, as in `headgate sql -b BRANCH "select * from NAMESPACE.NAME"`.'
    )
    public = (
        "this version of the table cannot be read without Spark. "
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
    public = (
        "this version of the table has Iceberg format version {format_version}, which cannot be "
        "written without Spark. Nothing was changed. Use --engine spark with `headgate load` or "
        '`optimize`, or `headgate sql -b BRANCH "update NAMESPACE.NAME set …"`.'
    )
    where: str
    format_version: int
    newest: InitVar[int]


class OrchestratorUnavailable(Unavailable, code="orchestrator_unavailable"):
    template = (
        "the orchestrator at {url} does not respond as expected: {reason:.} Check the server, "
        "then try again."
    )
    public = f"the orchestrator does not respond as expected. {_SEE_LOG}"
    url: str
    reason: str


class LakeFSUnavailable(Unavailable, code="lakefs_unavailable"):
    template = (
        "lakeFS did not complete the request: {doing} ({reason}). Its effect is looked up before "
        "anything is tried again."
    )
    public = f"lakeFS did not complete the request: {{doing}}. {_SEE_LOG}"
    doing: str
    reason: str


# --- failed system calls --------------------------------------------------------------------

_FAILURES: dict[int, type[StorageUnavailable]] = {
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    errno.EROFS: StorageReadOnly,
    errno.EACCES: StorageForbidden,
    errno.EPERM: StorageForbidden,
    errno.EMFILE: TooManyOpenFiles,
    errno.ENFILE: TooManyOpenFiles,
    errno.EIO: StorageUnavailable,
}
# Texts that engines quote from the system, and that mean the same everywhere.
_TEXTS = {
    os.strerror(number): number
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
}
_UNNAMED = "of this machine"


def storage_error(error: OSError, where: object) -> StorageUnavailable:
    """Return the error for a failed system call."""
    kind = _FAILURES.get(error.errno or 0, StorageUnavailable)
    return kind(where=str(where), reason=error.strerror or str(error))


def find_known_error(error: BaseException) -> HeadgateError | None:
    """Return the error itself or the failure of the machine that caused it, such as a full disk.

    None for any other exception: it is a defect.
    """
    if isinstance(error, HeadgateError):
        return error
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _FAILURES:
            return storage_error(cause, cause.filename or _UNNAMED)
        if (quoted := find_quoted_failure(str(cause))) is not None:
            return quoted
    return None


def find_quoted_failure(text: str, where: object = _UNNAMED) -> StorageUnavailable | None:
    """Return the failure of the machine that the message of an engine quotes."""
    for quoted, number in _TEXTS.items():
        if quoted in text:
            return _FAILURES[number](where=str(where), reason=quoted)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
