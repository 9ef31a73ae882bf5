"""Which datasets refer to a table, noted in its own metadata.

Without the note a delete would have to read the constraints of every table of the branch.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from headgate.tables.shape import Metadata

PROPERTY = "headgate.referred-to-by"


def referring_datasets(metadata: Metadata) -> list[str]:
    """The names of datasets with a reference to this table."""
    text = (metadata.get("properties") or {}).get(PROPERTY)
    return sorted(orjson.loads(text)) if text else []


def referring_property(names: Iterable[str]) -> str:
    return orjson.dumps(sorted(set(names))).decode()
