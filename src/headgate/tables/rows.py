"""The first rows of a table version, read without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.errors import MissingExtra, StorageUnavailable
from headgate.tables.shape import Metadata

# What PyIceberg calls the variables that S3 clients share.
_S3_PROPERTIES = {
    "AWS_ENDPOINT_URL": "s3.endpoint",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_REGION": "s3.region",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    # A primitive's name, or the JSON object of a nested type.
    type: Any
    required: bool


def columns_of(metadata: Metadata) -> list[Column]:
    """The columns of the current schema, in order."""
    current = metadata["current-schema-id"]
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == current)
    return [
        Column(name=f["name"], type=f["type"], required=f["required"]) for f in schema["fields"]
    ]


def read_rows(
    location: str, *, limit: int, options: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """At most `limit` rows of the version whose metadata lies there; which ones is not promised."""
    try:
        from pyiceberg.table import StaticTable  # noqa: PLC0415 - an optional extra, and slow
    except ImportError as error:
        raise MissingExtra(feature="reading rows without Spark", extra="arrow") from error
    properties = {
        name: value
        for variable, name in _S3_PROPERTIES.items()
        if (value := (options or {}).get(variable))
    }
    try:
        table = StaticTable.from_metadata(location, properties)
        return list(table.scan(limit=limit).to_arrow().to_pylist())
    except (OSError, ValueError, NotImplementedError) as error:
        # PyIceberg's own words: a file that is gone, or a feature of the format it cannot read.
        raise StorageUnavailable(where=location, reason=str(error)) from error
