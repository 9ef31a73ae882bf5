"""Where S3 is, in Iceberg's words: what every client of a store is told, and never a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headgate.errors import Invalid, MissingExtra, UnsafePath
from headgate.model.ports import ObjectStore
from headgate.storage.local import LocalStore

# From a storage address to the store behind it.

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


# Files that lie anywhere, as a person or another catalog names them; read, never written.

# What Hadoop's S3 clients call their addresses.
_S3_ALIASES = ("s3a://", "s3n://")


def read_outside(location: str, options: Mapping[str, str]) -> bytes:
    """The whole file at a path, `file:` or `s3:` address; `ObjectNotFound` where there is none."""
    directory, name = split(location)
    return open_outside(directory, options).get(name)


def open_outside(directory: str, options: Mapping[str, str]) -> ObjectStore:
    """What lies below a directory, to be read."""
    for alias in _S3_ALIASES:
        if directory.startswith(alias):
            return open_store(f"s3://{directory.removeprefix(alias)}", options)
    return open_store(directory, options)


def split(location: str) -> tuple[str, str]:
    """The directory of a file's address, and its name there."""
    directory, slash, name = location.rpartition("/")
    if not slash or not directory or not name:
        raise UnsafePath(path=location, reason="it does not name a file in a directory")
    return directory, name


# Of two variables the first that is set counts, as for all S3 clients.
_ENDPOINT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Servers other than Amazon's mostly have no regions, but requests are signed for one.
_ANY_REGION = "us-east-1"
_ANONYMOUS = "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"


def client_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Endpoint, region and style of addresses by the AWS_* variables.

    Credentials are not among them: a client has its own, or shares the environment of this process.
    """
    endpoint, region = _first(environ, _ENDPOINT), _first(environ, _REGION)
    found: dict[str, str] = {}
    if endpoint:
        found["s3.endpoint"] = endpoint
        # A bucket's name before the host needs a name server that knows it.
        virtual = _is_true(environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"))
        found["s3.path-style-access"] = "false" if virtual else "true"
    if region or endpoint:
        found["client.region"] = region or _ANY_REGION
    if _is_true(environ.get("AWS_SKIP_SIGNATURE")):
        found["client.credentials-provider"] = _ANONYMOUS
    return found


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in {"1", "true", "yes"}
