"""What must hold of a table's rows beyond their types: values, and pure questions about them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class OnDelete(enum.StrEnum):
    """What a delete of a referenced row means for the rows that refer to it."""

    RESTRICT = "restrict"
    CASCADE = "cascade"


class ViolationKind(enum.StrEnum):
    REQUIRED = "required"
    ENUM = "enum"
    KEY = "duplicate_key"
    UNIQUE = "duplicate_unique"
    REFERENCE = "orphan"
    CARDINALITY = "cardinality"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A column whose values are keys of another dataset on the same branch."""

    column: str
    dataset: str
    on_delete: OnDelete = OnDelete.RESTRICT


@dataclass(frozen=True, kw_only=True)
class Cardinality:
    """At most so many rows for each value of a column."""

    per: str
    max: int


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """All that is demanded of one table, by the names its columns have now."""

    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    references: tuple[Reference, ...] = ()
    cardinality: tuple[Cardinality, ...] = ()
    enums: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_other_rows(self) -> bool:
        """Whether a row alone cannot tell if it is allowed."""
        return bool(self.key or self.unique or self.references or self.cardinality)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One row, or group of rows, that breaks a constraint."""

    dataset: str
    kind: ViolationKind
    columns: tuple[str, ...]
    # The values of those columns, as JSON has them.
    values: tuple[Any, ...]
    # What else is known: the other dataset, the limit, the line of a file or of a script.
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The violation as a person reads it."""
        shown = ", ".join(
            f"{column} = {value!r}" for column, value in zip(self.columns, self.values, strict=True)
        )
        return f"{self.dataset}: {_SENTENCES[self.kind].format(shown=shown, **_told(self.detail))}"

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "kind": self.kind,
            "columns": list(self.columns),
            "values": list(self.values),
            **self.detail,
        }


_SENTENCES = {
    ViolationKind.REQUIRED: "a row has no value for the required column ({shown}){where}",
    ViolationKind.ENUM: "{shown} is not one of {allowed}{where}",
    ViolationKind.KEY: "the key {shown} is there {count} times{where}",
    ViolationKind.UNIQUE: "the unique value {shown} is there {count} times{where}",
    ViolationKind.REFERENCE: "{shown} refers to no row of {refers_to}{where}",
    ViolationKind.CARDINALITY: "{count} rows have {shown}, at most {max} may{where}",
}


def _told(detail: Mapping[str, Any]) -> dict[str, Any]:
    known = {"count": "several", "allowed": "", "refers_to": "", "max": "", **detail}
    return {**known, "where": _where(detail)}


def _where(detail: Mapping[str, Any]) -> str:
    if "file" in detail:
        return f" ({detail['file']}:{detail.get('line', '?')})"
    return f" (line {detail['line']} of the script)" if "line" in detail else ""
