"""What a call is given in Python, which itself checks none of it: names, members, limits."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from typing import Any, TypeVar

from headgate.errors import Invalid

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
