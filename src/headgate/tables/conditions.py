"""What is known of the rows that somebody looks for, so that files without them are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Among:
    """The column has one of these values."""

    column: str
    values: frozenset[Any]


@dataclass(frozen=True, kw_only=True)
class Within:
    """The column is neither below nor above; None is no bound."""

    column: str
    low: Any = None
    high: Any = None


# All of them hold together.
Condition: TypeAlias = Among | Within
Conditions: TypeAlias = Sequence[Condition]

# Over so many values a look into each file costs less than the comparison with its statistics.
AMONG_LIMIT = 2_000
