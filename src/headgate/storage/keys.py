"""Which keys an object may have: none that could leave the store, whatever made it."""

from __future__ import annotations

import posixpath
import re

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


# One place, many spellings: what an address is called below a store.

# Java writes `file:/x` and `file:///x` for the same file, and some writers leave the scheme out.
_FILE = re.compile(r"(?:file:(?://(?:localhost)?)?)?(?P<path>/.*)", re.DOTALL)
# Hadoop's S3 clients have schemes of their own for the same objects.
_S3 = re.compile(r"s3[an]?://(?P<rest>.*)", re.DOTALL)


def key_below(url: str, location: str) -> str | None:
    """The key of an address in the store at `url`; None if it lies elsewhere."""
    # Nearly all are spelled as the store spells itself, and there may be millions.
    plain = location.startswith(f"{url}/") and "/." not in location and "//" not in location[8:]
    root, place = (url, location) if plain else (canonical(url), canonical(location))
    if not place.startswith(f"{root}/"):
        return None
    return place[len(root) + 1 :] or None


def canonical(location: str) -> str:
    """An address as this project spells it: `file:///…` or `s3://…`; others stay as they are."""
    if match := _S3.fullmatch(location):
        return f"s3://{match['rest']}"
    if match := _FILE.fullmatch(location):
        # On a disk `..` leaves a directory; in an object store it is a name like any other.
        return f"file://{posixpath.normpath('/' + match['path'].lstrip('/'))}"
    return location
