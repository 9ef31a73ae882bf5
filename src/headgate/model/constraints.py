"""Constraints on a table's rows, and violations of them, as values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class OnDelete(enum.StrEnum):
    """The effect on the rows that refer to a deleted row."""

    RESTRICT = "restrict"
    CASCADE = "cascade"


class Enforce(enum.StrEnum):
    """Treatment of a commit of an engine that violates the constraints of a table."""

    REJECT = "reject"
    # The transaction is marked.
    FLAG = "flag"
    OFF = "off"


class ViolationKind(enum.StrEnum):
    REQUIRED = "required"
    ENUM = "enum"
    KEY = "duplicate_key"
    UNIQUE = "duplicate_unique"
    REFERENCE = "orphan"
    CARDINALITY = "cardinality"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A column whose values are keys of another dataset on the same branch (a foreign key)."""

    column: str
    dataset: str
    on_delete: OnDelete = OnDelete.RESTRICT


@dataclass(frozen=True, kw_only=True)
class Cardinality:
    """The maximum number of rows for each value of a column."""

    per: str
    max: int


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """All constraints of one table, by the current names of its columns."""

    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    references: tuple[Reference, ...] = ()
    cardinality: tuple[Cardinality, ...] = ()
    enums: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One row, or group of rows, that breaks a constraint."""

    dataset: str
    kind: ViolationKind
    columns: tuple[str, ...]
    # The values of those columns, as in JSON.
    values: tuple[Any, ...]
    # Further facts: the other dataset, the limit, the line of a file or of a script.
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> object:
        """The violated constraint and the values, whatever the origin of the row."""
        return self.dataset, self.kind, self.columns, self.values

    @property
    def text(self) -> str:
        """The violation as a sentence."""
        shown = ", ".join(
            f"{column} = {value!r}" for column, value in zip(self.columns, self.values, strict=True)
        )
        sentence = _SENTENCES[self.kind].format(shown=shown, **_fields(self.detail))
        return f"{self.dataset}: {sentence}"

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
    ViolationKind.KEY: "the key {shown} occurs {count} times{where}",
    ViolationKind.UNIQUE: "the unique value {shown} occurs {count} times{where}",
    ViolationKind.REFERENCE: "{shown} refers to no row of {refers_to}{where}",
    ViolationKind.CARDINALITY: "{count} rows have {shown}, at most {max} may{where}",
}


def _fields(detail: Mapping[str, Any]) -> dict[str, Any]:
    known = {"count": "several", "allowed": "", "refers_to": "", "max": "", **detail}
    return {**known, "where": _where(detail)}


def _where(detail: Mapping[str, Any]) -> str:
    if "file" in detail:
        return f" ({detail['file']}:{detail.get('line', '?')})"
    return f" (line {detail['line']} of the script)" if "line" in detail else ""
