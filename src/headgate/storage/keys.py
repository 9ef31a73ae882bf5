"""Which keys an object may have: none that could leave the store, whatever made it."""

from __future__ import annotations

from headgate.errors import UnsafePath

# Where the local store keeps what is still being written; no key may reach into it.
INCOMING = ".incoming"


def check_key(key: str) -> str:
    """The key, or an error if it could name anything but an object inside the store.

    Looser than the rule for paths of a files dataset: Spark, too, writes below a warehouse, and
    cleanup must be able to name all that it finds there.
    """
    components = key.split("/")
    for component in components:
        if component in {"", ".", ".."}:
            raise UnsafePath(path=key, reason=f"an object key has the component {component!r}")
    if "\0" in key:
        raise UnsafePath(path=key, reason="an object key has a NUL character")
    if components[0] == INCOMING:
        raise UnsafePath(path=key, reason=f"{INCOMING}/ holds what is still being written")
    return key


def check_prefix(prefix: str) -> str:
    """A directory of keys without slashes at its ends; empty for the whole store."""
    stripped = prefix.rstrip("/")
    return check_key(stripped) if stripped or prefix else ""
