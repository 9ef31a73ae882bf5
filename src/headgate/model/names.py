"""What names may look like: datasets, branches, tags, and paths inside a files dataset."""

from __future__ import annotations

import difflib
import enum
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from headgate.errors import Invalid, InvalidName, UnsafePath

_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}\Z")
_PLAIN_PART = re.compile(r"[A-Za-z0-9_-]+\Z")
_PART_LIMIT = 200
# Between commas; one in backticks is part of a name.
_LISTED = re.compile(r"(?:`[^`]*`|[^,`])+")
# Nothing in such a path can be refused but its length; most are such, and there are many.
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}(?:/(?!\Z)|\Z))+")
_PATH_LIMIT_BYTES = 1024
LABEL_LIMIT = 200
_COMPONENT_LIMIT_BYTES = 255


@dataclass(frozen=True, order=True)
class DatasetName:
    """`namespace.name`; the namespace may have several parts."""

    namespace: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        # The name alone, whose hash Python remembers: a plan asks for hundreds of thousands.
        return hash(self.name)

    @cached_property
    def _text(self) -> str:
        return ".".join(_quote(part) for part in (*self.namespace, self.name))


# A plan reads the same few thousand names again and again; what is refused is not kept.
@lru_cache(maxsize=32_768)
def parse_dataset_name(text: str) -> DatasetName:
    """Reads `ns.name`, `a.b.name` or a part in backticks; refuses what could deceive a reader."""
    parts = _split(text)
    if len(parts) < 2:
        raise InvalidName(
            what="dataset", name=text, reason="it needs a namespace, as in `sales.orders`"
        )
    for part in parts:
        check_name_part(part, what="dataset", whole=text)
    return DatasetName(namespace=tuple(parts[:-1]), name=parts[-1])


def parse_namespace(text: str) -> tuple[str, ...]:
    parts = _split(text)
    for part in parts:
        check_name_part(part, what="namespace", whole=text)
    return tuple(parts)


def check_name_part(part: str, *, what: str, whole: str) -> None:
    """One part between dots: short, visible, in one script and in its normal form."""
    if _PLAIN_PART.match(part) and len(part) <= _PART_LIMIT:
        return
    if not part:
        raise InvalidName(what=what, name=whole, reason="a part between dots is empty")
    if len(part) > _PART_LIMIT:
        raise InvalidName(what=what, name=whole, reason=f"a part is over {_PART_LIMIT} characters")
    if part in {".", ".."} or any(c in part for c in "/\\`."):
        raise InvalidName(what=what, name=whole, reason="'/', '\\', '`' and '.' are not allowed")
    if part != part.strip():
        raise InvalidName(what=what, name=whole, reason="a part begins or ends with a space")
    if (unseen := _unseen_character(part)) is not None:
        raise InvalidName(what=what, name=whole, reason=f"it has the character U+{unseen:04X}")
    if unicodedata.normalize("NFKC", part) != part:
        raise InvalidName(
            what=what, name=whole, reason="it has characters that only look like others (not NFKC)"
        )
    if len(scripts := _scripts(part)) > 1:
        raise InvalidName(
            what=what, name=whole, reason=f"it mixes scripts that look alike: {', '.join(scripts)}"
        )


def check_branch_name(name: str, *, what: str = "branch") -> str:
    """`[A-Za-z0-9][A-Za-z0-9._/-]{0,199}`, without `..` or `//`."""
    if not _BRANCH.match(name) or ".." in name or "//" in name or name.endswith("/"):
        raise InvalidName(
            what=what,
            name=name,
            reason="it must match [A-Za-z0-9][A-Za-z0-9._/-]{0,199}, without '..', '//' "
            "or a '/' at the end",
        )
    return name


def check_file_path(path: str) -> str:
    """A relative, forward-slashed path that means the same on every machine, or an error."""
    if len(path) <= _PATH_LIMIT_BYTES and _PLAIN_PATH.fullmatch(path):
        return path
    if not path:
        raise UnsafePath(path=path, reason="it is empty")
    try:
        encoded = path.encode()
    except UnicodeEncodeError as error:
        raise UnsafePath(
            path=path.encode("utf-8", "backslashreplace").decode(), reason="it is not valid Unicode"
        ) from error
    if len(encoded) > _PATH_LIMIT_BYTES:
        raise UnsafePath(path=path, reason=f"it is over {_PATH_LIMIT_BYTES} bytes")
    if path.startswith("/"):
        raise UnsafePath(path=path, reason="it is absolute")
    if "\\" in path:
        raise UnsafePath(path=path, reason="it has a backslash")
    if not (path.isascii() and path.isprintable()):
        _check_plain_to_see(path)
    for component in path.split("/"):
        if component in {"", ".", ".."}:
            raise UnsafePath(path=path, reason=f"it has the component {component!r}")
        if len(component.encode()) > _COMPONENT_LIMIT_BYTES:
            raise UnsafePath(
                path=path, reason=f"a component is over {_COMPONENT_LIMIT_BYTES} bytes"
            )
    return path


def check_label(value: str, *, what: str = "an actor or a key") -> str:
    """What others will read in the log: short, and nothing that a terminal would obey."""
    if not (0 < len(value) <= LABEL_LIMIT and value.isprintable()):
        shown = value[:LABEL_LIMIT]
        raise Invalid(
            f"{shown!r} cannot be {what}: give 1 to {LABEL_LIMIT} printable characters.",
            value=shown,
        )
    return value


def no_text(given: str) -> Invalid:
    """The refusal of what neither a database nor a URL can hold."""
    return Invalid(
        f"{given[:LABEL_LIMIT]!a} is no text: it holds half a character, as a name in another "
        "encoding than UTF-8 does, or a zero byte."
    )


def _check_plain_to_see(path: str) -> None:
    if (unseen := _unseen_character(path)) is not None:
        raise UnsafePath(path=path, reason=f"it has the character U+{unseen:04X}")
    if unicodedata.normalize("NFC", path) != path:
        raise UnsafePath(path=path, reason="it is not in Unicode's normal form NFC")


def _split(text: str) -> list[str]:
    parts, current, quoted = [], "", False
    for character in text:
        if character == "`":
            quoted = not quoted
        elif character == "." and not quoted:
            parts.append(current)
            current = ""
        else:
            current += character
    if quoted:
        raise InvalidName(what="dataset", name=text, reason="a backtick is not closed")
    return [*parts, current]


def _quote(part: str) -> str:
    return part if _PLAIN_PART.match(part) else f"`{part}`"


def _unseen_character(text: str) -> int | None:
    """Control, format (zero width, direction) and private characters hide from a reader."""
    for character in text:
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
            return ord(character)
    return None


def _scripts(text: str) -> list[str]:
    """Of Latin, Greek and Cyrillic, whose letters look alike, those that occur."""
    found = {
        script
        for character in text
        for script in ("LATIN", "GREEK", "CYRILLIC")
        if unicodedata.name(character, "").startswith(script)
    }
    return sorted(found)


def listed(names: Sequence[str]) -> tuple[str, ...]:
    """Names in a list, or in one text with commas between them, which iterates by letter."""
    if not isinstance(names, str):
        return tuple(names)
    return tuple(name.strip() for name in _LISTED.findall(names) if name.strip())


# What a call is given in Python, which itself checks none of it: names, members, limits.

# What a database and an iterator count to.
_MOST = 2**63 - 1

E = TypeVar("E", bound=enum.StrEnum)


def check_options(given: Mapping[str, Any], known: type, *, needed: tuple[str, ...] = ()) -> None:
    """Raises what a call with a misspelt or missing option raises; `known` is a TypedDict."""
    names = sorted(known.__annotations__)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise TypeError(f"there is no option {name!r}; {hint}")
    for name in needed:
        if name not in given:
            raise TypeError(f"the option {name!r} is missing")


def check_limit(*limits: int | None) -> None:
    """Of how many things a list shows, or leaves out first."""
    for limit in limits:
        if limit is not None and not 0 <= limit <= _MOST:
            raise Invalid(
                f"{limit} cannot be how many to list: give 0 to 2 ** 63 - 1.", limit=limit
            )


def member(kinds: type[E], text: str, *, what: str) -> E:
    """The member of a closed set that a caller named, in any case, or an error that lists them."""
    for known in kinds:
        if known.lower() == text.lower():
            return known
    raise Invalid(f"{text!r} is no {what}: it is one of {', '.join(kinds)}.", given=text)


# How long things may last that a person gives a time to.

LONGEST_LEASE_SECONDS = 7 * 24 * 3600
LONGEST_SECONDS = 100 * 365 * 24 * 3600


def check_lease_seconds(seconds: int) -> int:
    """Of a transaction or unit: nobody else writes on its branches for so long."""
    return _within(seconds, LONGEST_LEASE_SECONDS, what="a lease", longest="a week")


def check_lifetime_seconds(seconds: int) -> int:
    """Of a token; one that never expires has none."""
    return _within(seconds, LONGEST_SECONDS, what="a token's lifetime", longest="a hundred years")


def _within(seconds: int, most: int, *, what: str, longest: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= most:
        raise Invalid(f"{what} of {seconds!r} seconds cannot be: give 1 second to {longest}.")
    return seconds
