"""Files of PyIceberg in S3 by botocore without a key: PyIceberg's own signer signs each request.

PyIceberg's file system with that signer needs s3fs, which no release of botocore as new as the one
of the tests allows.
"""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.fsspec import S3V4RestSigner


def signed_client(properties: Any) -> Any:
    """Return a client of S3 without a key, whose requests the signer of these properties signs."""
    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"})
    client = boto3.client(
        "s3",
        endpoint_url=properties["s3.endpoint"],
        region_name=properties["client.region"],
        config=config,
    )
    client.meta.events.register_last("before-sign.s3", S3V4RestSigner(properties))
    return client


class SignedIO(FileIO):  # type: ignore[misc]  # the library has no types
    def __init__(self, properties: Any) -> None:
        super().__init__(properties)
        self._client = signed_client(properties)

    def new_input(self, location: str) -> InputFile:
        return _File(location, self._client)

    def new_output(self, location: str) -> OutputFile:
        return _File(location, self._client)

    def delete(self, location: Any) -> None:
        raise AssertionError(f"{location} is deleted")


class _File(InputFile, OutputFile):  # type: ignore[misc]
    def __init__(self, location: str, client: Any) -> None:
        super().__init__(location)
        parts = urlsplit(location)
        self._at = {"Bucket": parts.netloc, "Key": parts.path.removeprefix("/")}
        self._client = client

    def __len__(self) -> int:
        return int(self._client.head_object(**self._at)["ContentLength"])

    def exists(self) -> bool:
        try:
            self._client.head_object(**self._at)
        except ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._client.get_object(**self._at)["Body"].read())

    def create(self, overwrite: bool = False) -> OutputStream:
        return _Upload(self._client, self._at)

    def to_input_file(self) -> InputFile:
        return self


class _Upload(io.BytesIO):
    def __init__(self, client: Any, at: dict[str, str]) -> None:
        super().__init__()
        self._client, self._at = client, at

    def close(self) -> None:
        if not self.closed:
            self._client.put_object(**self._at, Body=self.getvalue())
        super().close()
