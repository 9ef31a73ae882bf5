"""From a storage address to the store behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headgate.errors import Invalid, MissingExtra
from headgate.model.ports import ObjectStore
from headgate.storage.local import LocalStore

_FILE = re.compile(r"file:(?://(?:localhost)?)?(?P<path>/(?!/).*)", re.DOTALL)
_S3 = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,61})(?:/(?P<prefix>[^?#]*))?")
# What stands before an @ may be a secret, which no message may repeat.
_SECRETS = re.compile(r"[A-Za-z0-9+.-]+://[^/]*@")
# Two letters at least, so that a drive letter is no scheme.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at a path, `file://` or `s3://` address; `options` are AWS_* variables by name."""
    if _SECRETS.match(url):
        raise Invalid(
            "a storage address has no room for credentials: they come from the AWS_* variables. "
            "Give s3://bucket/prefix alone."
        )
    if match := _S3.fullmatch(url):
        return _open_s3(match["bucket"], (match["prefix"] or "").strip("/"), options or {})
    match = _FILE.fullmatch(url)
    path = match["path"] if match else url
    if not path or "\0" in path or (not match and _SCHEME.match(url)):
        # A signed address has its signature there.
        shown = url.partition("?")[0]
        raise Invalid(
            f"storage address {shown!r} is not supported. Give a directory (warehouse), "
            "file:///srv/warehouse, or s3://bucket/prefix.",
            url=shown,
        )
    return LocalStore(Path(path))


def _open_s3(bucket: str, prefix: str, options: Mapping[str, str]) -> ObjectStore:
    try:
        from headgate.storage.s3 import S3Store  # noqa: PLC0415 - obstore is an optional extra
    except ImportError as error:
        raise MissingExtra(feature="S3 storage", extra="s3") from error
    return S3Store(bucket=bucket, prefix=prefix, options=options)
