"""Checks of what callers give: names of datasets and branches, paths, labels, options, durations.

Names and paths may not deceive a reader: no invisible characters, and one script per name.
"""

import difflib
import enum
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from headgate.errors import Invalid, InvalidName, UnsafePath
from headgate.model.nouns import PLAIN_PART
from headgate.model.nouns import DatasetName as DatasetName

_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}\Z")
_PART_LIMIT = 200
# Text between commas; a comma in backticks is part of a name.
_LISTED = re.compile(r"(?:`[^`]*`|[^,`])+")
# Such a path is valid unless it is too long. Most paths match, and there are many.
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}(?:/(?!\Z)|\Z))+")
_PATH_LIMIT_BYTES = 1024
_COMPONENT_LIMIT_BYTES = 255
LABEL_LIMIT = 200
# The largest integer that a database and an iterator accept.
_LARGEST = 2**63 - 1
LONGEST_LEASE_SECONDS = 7 * 24 * 3600
LONGEST_SECONDS = 100 * 365 * 24 * 3600

E = TypeVar("E", bound=enum.StrEnum)


# Names of datasets, namespaces and branches.


# A plan reads the same few thousand names again and again. Errors are not cached.
@lru_cache(maxsize=32_768)
def parse_dataset_name(text: str) -> DatasetName:
    """Return the name in `ns.name` or `a.b.name`; a part may be in backticks."""
    parts = _split(text)
    if len(parts) < 2:
        raise InvalidName(
            what="dataset", name=text, reason="it needs a namespace, as in `sales.orders`"
        )
    for part in parts:
        check_name_part(part, what="dataset", whole=text)
    return DatasetName(namespace=tuple(parts[:-1]), name=parts[-1])


def split_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names given as a list, or as one text with commas between them."""
    if not isinstance(names, str):
        return tuple(names)
    return tuple(name.strip() for name in _LISTED.findall(names) if name.strip())


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern of names, as `fnmatch` reads it, and not a name."""
    return any(sign in text for sign in "*?[")


def check_name_part(part: str, *, what: str, whole: str) -> None:
    """Raise unless a part between dots is short, visible, of one script and in normal form."""
    if PLAIN_PART.match(part) and len(part) <= _PART_LIMIT:
        return
    if (flaw := _find_flaw(part)) is not None:
        raise InvalidName(what=what, name=whole, reason=flaw)


def _find_flaw(part: str) -> str | None:
    if not part:
        return "a part between dots is empty"
    if len(part) > _PART_LIMIT:
        return f"a part is over {_PART_LIMIT} characters"
    if any(c in part for c in "\\`"):
        return "'\\' and '`' are not allowed"
    if any(piece.strip(".") == "" for piece in part.split("/")):
        return "a part has nothing but dots before, between or after slashes"
    if part != part.strip():
        return "a part begins or ends with a space"
    if (invisible := _invisible_character(part)) is not None:
        return f"it has the character U+{invisible:04X}"
    if unicodedata.normalize("NFKC", part) != part:
        return "it has characters that only look like others (not NFKC)"
    if len(scripts := _scripts(part)) > 1:
        return f"it mixes scripts that look alike: {', '.join(scripts)}"
    return None


def check_branch_name(name: str, *, what: str = "branch") -> str:
    """Return the name if it matches `[A-Za-z0-9][A-Za-z0-9._/-]{0,199}`, without `..` or `//`."""
    if not _BRANCH.match(name) or ".." in name or "//" in name or name.endswith("/"):
        raise InvalidName(
            what=what,
            name=name,
            reason="it must match [A-Za-z0-9][A-Za-z0-9._/-]{0,199}, without '..', '//' "
            "or a '/' at the end",
        )
    return name


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


def _invisible_character(text: str) -> int | None:
    """Return the first control, format (zero width, direction), private or unassigned character."""
    for character in text:
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
            return ord(character)
    return None


def _scripts(text: str) -> list[str]:
    """Return those of Latin, Greek and Cyrillic, whose letters look alike, that occur."""
    found = {
        script
        for character in text
        for script in ("LATIN", "GREEK", "CYRILLIC")
        if unicodedata.name(character, "").startswith(script)
    }
    return sorted(found)


# Paths.


def check_file_path(path: str) -> str:
    """Return a relative, forward-slashed path if it means the same on every machine."""
    if len(path) <= _PATH_LIMIT_BYTES and _PLAIN_PATH.fullmatch(path):
        return path
    try:
        flaw = _find_path_flaw(path, path.encode())
    except UnicodeEncodeError as error:
        raise UnsafePath(
            path=path.encode("utf-8", "backslashreplace").decode(), reason="it is not valid Unicode"
        ) from error
    if flaw is not None:
        raise UnsafePath(path=path, reason=flaw)
    return path


def _find_path_flaw(path: str, encoded: bytes) -> str | None:
    if not path:
        return "it is empty"
    if len(encoded) > _PATH_LIMIT_BYTES:
        return f"it is over {_PATH_LIMIT_BYTES} bytes"
    if path.startswith("/"):
        return "it is absolute"
    if "\\" in path:
        return "it has a backslash"
    if (invisible := _invisible_character(path)) is not None:
        return f"it has the character U+{invisible:04X}"
    if unicodedata.normalize("NFC", path) != path:
        return "it is not in Unicode's normal form NFC"
    for component in path.split("/"):
        if component in {"", ".", ".."}:
            return f"it has the component {component!r}"
        if len(component.encode()) > _COMPONENT_LIMIT_BYTES:
            return f"a component is over {_COMPONENT_LIMIT_BYTES} bytes"
    return None


# Labels, options and limits.


def check_label(value: str, *, what: str = "an actor or a key") -> str:
    """Return a text for the log if it is short and has nothing that a terminal would interpret."""
    if not (0 < len(value) <= LABEL_LIMIT and value.isprintable()):
        shown = value[:LABEL_LIMIT]
        raise Invalid(
            f"{shown!r} cannot be {what}: give 1 to {LABEL_LIMIT} printable characters.",
            value=shown,
        )
    return value


# Keys of builds, of their jobs and of tasks never meet: a task cannot supersede a build.
_BUILD_KEYS = re.compile(r"build:.*|(build-[0-9a-z]{22})(/[0-9]+)?", re.DOTALL)


def build_task_key(key: str) -> str:
    """Return the key of the attempts of builds that a scheduler starts with this key."""
    return f"build:{key}"


def find_build_of(key: str) -> str | None:
    """Return the build that a task key belongs to; None for a task, or for a scheduler's key."""
    found = _BUILD_KEYS.fullmatch(key)
    return found[1] if found else None


def check_task_key(key: str) -> str:
    """Return the key of a task; raise for one that belongs to builds."""
    if _BUILD_KEYS.fullmatch(key):
        raise Invalid(
            f"{key!r} cannot be the key of a task: builds use such keys. Choose another.", key=key
        )
    return key


def invalid_text(given: str) -> Invalid:
    """Return the error for a text that neither a database nor a URL can hold."""
    return Invalid(
        f"{given[:LABEL_LIMIT]!a} is not valid text: it has a lone surrogate, as from a name that "
        "is not UTF-8, or a zero byte. Encode it as UTF-8 without zero bytes."
    )


def nearest(name: str, known: Iterable[str], *, n: int = 1) -> list[str]:
    """Return the names that are similar to a misspelled one, the most similar first."""
    lowered = {one.lower(): one for one in known}
    return [lowered[one] for one in difflib.get_close_matches(name.lower(), lowered, n=n)]


def column_hint(name: str, known: Collection[str]) -> str:
    """Return the nearest column as a question; all columns where none is near."""
    near = nearest(name, known)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"


def check_options(given: Mapping[str, Any], known: type, *, needed: tuple[str, ...] = ()) -> None:
    """Raise TypeError for an option that the TypedDict `known` lacks, or that is missing."""
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
    """Raise unless each is a number of items to list or to skip."""
    for limit in limits:
        if limit is not None and not 0 <= limit <= _LARGEST:
            raise Invalid(f"{limit} items cannot be listed: give 0 to 2 ** 63 - 1.", limit=limit)


def parse_member(kinds: type[E], text: str, *, what: str) -> E:
    """Return the member of an enum by its value in any case."""
    for known in kinds:
        if known.lower() == text.lower():
            return known
    raise Invalid(f"{text!r} is not a {what}: it is one of {', '.join(kinds)}.", given=text)


# Durations.


def check_lease_seconds(seconds: int) -> int:
    """Return the lease of a transaction or unit, during which no other writer may take over."""
    return _within(seconds, LONGEST_LEASE_SECONDS, what="a lease", longest="a week")


def check_lifetime_seconds(seconds: int) -> int:
    """Return the lifetime of a token; a token that never expires has none."""
    return _within(seconds, LONGEST_SECONDS, what="a token's lifetime", longest="a hundred years")


def _within(seconds: int, most: int, *, what: str, longest: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= most:
        raise Invalid(f"{what} of {seconds!r} seconds is invalid: give 1 second to {longest}.")
    return seconds
