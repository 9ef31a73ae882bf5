"""Errors that another process told of, as what they were there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from headgate import errors
from headgate.errors.families import HeadgateError


@cache
def kinds_by_code() -> Mapping[str, type[HeadgateError]]:
    """Every kind of error that has a code of its own: some leaves share their family's."""
    named = (getattr(errors, name) for name in errors.__all__)
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, HeadgateError)]
    return {kind.code: kind for kind in kinds if "code" in vars(kind)}


def retold(kind: type[HeadgateError], message: str, facts: Mapping[str, Any]) -> HeadgateError:
    """An error of this kind; a leaf writes its own sentence, and this one was written there."""
    error = kind.__new__(kind)
    HeadgateError.__init__(error, message, **facts)
    return error
