"""Objects in an S3-compatible store; needs the extra `s3`."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store as Bucket

from headgate.errors import BucketMissing, Invalid, ObjectNotFound, StorageUnavailable
from headgate.model.ids import Instant
from headgate.model.object_store import ObjectInfo
from headgate.storage import local
from headgate.storage.local import HashedFile

if TYPE_CHECKING:  # obstore has these types in its stubs only
    from obstore.store import ClientConfig, RetryConfig, S3Config

# The standard variables that the store reads; it ignores the rest of the environment.
_OPTIONS = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_STS",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
        "AWS_SKIP_SIGNATURE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_SERVER_SIDE_ENCRYPTION",
        "AWS_SSE_KMS_KEY_ID",
        "AWS_REQUEST_PAYER",
        "AWS_UNSIGNED_PAYLOAD",
        "AWS_DISABLE_BULK_DELETE",
    }
)
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ONE_REQUEST_BYTES = 8 * 1024 * 1024
_MAX_PARTS = 9_000  # S3 allows 10,000
_PARTS_AT_ONCE = 4
_DELETES_AT_ONCE = 1_000
_REASON_LIMIT = 300


class S3Store:
    """The `ObjectStore` of a team: a prefix of one bucket."""

    def __init__(self, *, bucket: str, prefix: str, options: Mapping[str, str]) -> None:
        self._prefix = local.check_prefix(prefix)
        self._url = f"s3://{bucket}/{self._prefix}".rstrip("/")
        self._secrets = [options[name] for name in _SECRETS if options.get(name)]
        self._bucket = _open_bucket(bucket, self._prefix, options, self._url)

    @property
    def url(self) -> str:
        return self._url

    def put(self, key: str, data: bytes) -> bool:
        """Put as `ObjectStore` promises; if a reply is lost, the retry may return False."""
        with self._calling(key):
            try:
                obstore.put(self._bucket, local.check_key(key), data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def put_file(self, key: str, source: Path, *, sha256: str | None = None) -> bool:
        """Put as `ObjectStore` promises, except for files of several parts.

        A multipart upload has no create-if-absent: the key is looked up before it, and two
        concurrent uploads may both write, each its whole object.
        """
        if self.find(key) is not None:
            return False
        chunks = local.read_checked(source, sha256)
        with local.storage_errors(source):
            size = source.stat().st_size
        if size <= _ONE_REQUEST_BYTES:
            return self.put(key, b"".join(chunks))
        with self._calling(key):
            obstore.put(
                self._bucket,
                key,
                chunks,
                use_multipart=True,
                chunk_size=max(_ONE_REQUEST_BYTES, size // _MAX_PARTS),
                max_concurrency=_PARTS_AT_ONCE,
            )
        return True

    def put_hashed(self, source: Path, key_of: Callable[[str], str]) -> tuple[str, int]:
        """Put as `ObjectStore` promises; reads twice, since an upload needs its key beforehand."""
        file = HashedFile(source)
        deque(file, maxlen=0)
        self.put_file(key_of(file.sha256), source, sha256=file.sha256)
        return file.sha256, file.size

    def replace(self, key: str, data: bytes) -> None:
        with self._calling(key):
            obstore.put(self._bucket, local.check_key(key), data, mode="overwrite")

    def get(self, key: str) -> bytes:
        with self._calling(key):
            return bytes(obstore.get(self._bucket, local.check_key(key)).bytes())

    def stream(self, key: str) -> Iterator[bytes]:
        with self._calling(key):
            for chunk in obstore.get(self._bucket, local.check_key(key)).stream(local.CHUNK_BYTES):
                yield bytes(chunk)

    def local_path(self, key: str) -> Path | None:
        return None

    def find(self, key: str) -> ObjectInfo | None:
        try:
            with self._calling(key):
                meta = obstore.head(self._bucket, local.check_key(key))
        except ObjectNotFound:
            return None
        return _describe(key, meta["size"], meta["last_modified"])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        below = local.check_prefix(prefix)
        with self._calling(below):
            for batch in obstore.list(self._bucket, prefix=below or None):
                for meta in batch:
                    yield _describe(meta["path"], meta["size"], meta["last_modified"])

    def sync(self, keys: Sequence[str]) -> None:
        # An upload is acknowledged when it is durable.
        pass

    def delete(self, keys: Iterable[str]) -> None:
        remaining = iter(keys)
        while batch := [
            local.check_key(key) for key in itertools.islice(remaining, _DELETES_AT_ONCE)
        ]:
            with self._calling(batch[0]):
                obstore.delete(self._bucket, batch)

    @contextmanager
    def _calling(self, key: str) -> Iterator[None]:
        location = f"{self._url}/{key}"
        try:
            yield
        except (BaseError, OSError) as error:
            if "<Code>NoSuchBucket</Code>" in str(error):
                raise BucketMissing(where=self._url) from error
            if isinstance(error, FileNotFoundError):
                raise ObjectNotFound(location=location) from error
            reason = _first_words(error)
            for secret in self._secrets:
                # Some servers repeat the request in their error message.
                reason = reason.replace(secret, "***")
            raise StorageUnavailable(where=location, reason=reason) from error


def _open_bucket(bucket: str, prefix: str, options: Mapping[str, str], url: str) -> Bucket:
    known = {name: value for name, value in options.items() if name in _OPTIONS and value}
    endpoint = known.pop("AWS_ENDPOINT_URL_S3", None) or known.get("AWS_ENDPOINT_URL")
    if endpoint:
        known["AWS_ENDPOINT_URL"] = endpoint
    # A whole request may carry gigabytes, so the short limit is on the silence within it.
    client: ClientConfig = {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(minutes=2),
        "timeout": timedelta(hours=12),
    }
    retry: RetryConfig = {"max_retries": 6, "retry_timeout": timedelta(minutes=1)}
    try:
        return Bucket(
            bucket,
            prefix=prefix or None,
            config=cast("S3Config", known),
            client_options=client,
            retry_config=retry,
        )
    except BaseError as error:
        raise Invalid(f"storage {url} cannot be opened: {_first_words(error)}.", url=url) from error


def _describe(key: str, size: int, modified: datetime) -> ObjectInfo:
    modified_at = Instant(round(modified.timestamp() * 1_000_000))
    return ObjectInfo(key=key, size=size, modified_at=modified_at)


def _first_words(error: Exception) -> str:
    """Return the message without the library's dump of its own state, which runs over pages."""
    words = " ".join(str(error).partition("Debug source:")[0].split()).rstrip(". ")
    return words if len(words) <= _REASON_LIMIT else f"{words[: _REASON_LIMIT - 3]}..."
