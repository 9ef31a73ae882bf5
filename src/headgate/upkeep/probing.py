"""A trial of the store: whether it can be written, read and deleted, and what its clock says."""

from __future__ import annotations

import secrets

from headgate.errors import StorageUnavailable
from headgate.model.ports import ObjectInfo, ObjectStore

# At the top, so that no directory is left behind on a local disk.
PREFIX = ".headgate-probe-"


def probe(objects: ObjectStore) -> ObjectInfo:
    """Writes an object, reads it back and deletes it; `StorageUnavailable` where that fails."""
    key = f"{PREFIX}{secrets.token_hex(8)}"
    content = secrets.token_bytes(16)
    objects.put(key, content)
    try:
        found = objects.find(key)
        if found is None or objects.get(key) != content:
            raise StorageUnavailable(where=objects.url, reason="it lost what was just written")
    finally:
        objects.delete([key])
    return found
