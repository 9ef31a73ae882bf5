"""Storage addresses: their spellings, the stores behind them, and S3 settings for clients."""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from headgate.errors import Invalid, MissingExtra, UnsafePath
from headgate.model.object_store import ObjectStore
from headgate.storage.local import LocalStore

# --- spellings ------------------------------------------------------------------------------

# Java writes `file:/x` and `file:///x` for the same file, and some writers omit the scheme.
_FILE_SPELLINGS = re.compile(r"(?:file:(?://(?:localhost)?)?)?(?P<path>/.*)", re.DOTALL)
# Hadoop's S3 clients have schemes of their own for the same objects.
_S3_SPELLINGS = re.compile(r"s3[an]?://(?P<rest>.*)", re.DOTALL)


def canonical(location: str) -> str:
    """Return the address as `file:///…` or `s3://…`; other schemes and relative paths unchanged."""
    if match := _S3_SPELLINGS.fullmatch(location):
        return f"s3://{match['rest']}"
    if match := _FILE_SPELLINGS.fullmatch(location):
        # On a disk `..` leaves a directory; in an object store it is a name like any other.
        return f"file://{posixpath.normpath('/' + match['path'].lstrip('/'))}"
    return location


def key_below(url: str, location: str) -> str | None:
    """Return the key of an address in the store at `url`, or None for an address elsewhere."""
    # Fast path: most addresses have the store's own spelling, and there may be millions.
    plain = location.startswith(f"{url}/") and "/." not in location and "//" not in location[8:]
    root, place = (url, location) if plain else (canonical(url), canonical(location))
    if not place.startswith(f"{root}/"):
        return None
    return place[len(root) + 1 :] or None


def split_address(location: str) -> tuple[str, str]:
    """Return the directory of a file's address, and the name of the file in it."""
    directory, slash, name = location.rpartition("/")
    if not slash or not directory or not name:
        raise UnsafePath(path=location, reason="it does not name a file in a directory")
    return directory, name


# --- stores ---------------------------------------------------------------------------------

_FILE = re.compile(r"file:(?://(?:localhost)?)?(?P<path>/(?!/).*)", re.DOTALL)
_S3 = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,61})(?:/(?P<prefix>[^?#]*))?")
# The part before an @ may be a secret, so no message repeats such an address.
_SECRETS = re.compile(r"[A-Za-z0-9+.-]+://[^/]*@")
# At least two letters: a drive letter is not a scheme.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Open the store at a path, `file://` or `s3://` address; `options` are AWS_* variables."""
    if _SECRETS.match(url):
        raise Invalid(
            "a storage address cannot contain credentials: they come from the AWS_* variables. "
            "Give s3://bucket/prefix alone."
        )
    if match := _S3.fullmatch(url):
        return _open_s3(match["bucket"], (match["prefix"] or "").strip("/"), options or {})
    match = _FILE.fullmatch(url)
    path = match["path"] if match else url
    if not path or "\0" in path or (not match and _SCHEME.match(url)):
        # The query of a presigned address is a credential.
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


def open_outside(directory: str, options: Mapping[str, str]) -> ObjectStore:
    """Open a directory outside the warehouse, in any spelling, for reading."""
    return open_store(canonical(directory), options)


def read_outside(location: str, options: Mapping[str, str]) -> bytes:
    """Return a file outside the warehouse; raise `ObjectNotFound` if there is none."""
    directory, name = split_address(location)
    return open_outside(directory, options).get(name)


# --- S3 settings for clients ----------------------------------------------------------------

# Of two variables the first that is set counts, as in all S3 clients.
_ENDPOINT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Most servers other than Amazon's have no regions, but requests are signed for one.
_ANY_REGION = "us-east-1"
_ANONYMOUS = "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"


def client_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Return endpoint, region and addressing style as Iceberg properties, from AWS_* variables.

    Credentials are never included: a client has its own, or shares this process's environment.
    """
    endpoint, region = first_set(environ, _ENDPOINT), first_set(environ, _REGION)
    found: dict[str, str] = {}
    if endpoint:
        found["s3.endpoint"] = endpoint
        # Virtual-hosted addresses need a name server that resolves the bucket's name.
        virtual = _is_true(environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"))
        found["s3.path-style-access"] = "false" if virtual else "true"
    if region or endpoint:
        found["client.region"] = region or _ANY_REGION
    if _is_true(environ.get("AWS_SKIP_SIGNATURE")):
        found["client.credentials-provider"] = _ANONYMOUS
    return found


def first_set(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Return the value of the first of these variables that is set."""
    return next((environ[name] for name in names if environ.get(name)), None)


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in {"1", "true", "yes"}
