"""What a transform declares: inputs, outputs, checks and parameters."""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from headgate.errors import InvalidName
from headgate.model.names import DatasetName, check_branch_name, parse_dataset_name
from headgate.model.nouns import DatasetKind
from headgate.transforms.expectation_tree import Expectation
from headgate.transforms.where import Place, calling_place


class OnError(enum.StrEnum):
    """What a failed check does: FAIL stops the job before it publishes, WARN is only recorded."""

    FAIL = "FAIL"
    WARN = "WARN"


class Check:
    """An expectation with a name that identifies it over time."""

    def __init__(
        self,
        expectation: Expectation,
        name: str,
        on_error: str = "FAIL",
        description: str = "",
    ) -> None:
        self.place = place = calling_place()
        if not isinstance(expectation, Expectation):
            raise place.refuse(f"check {name!r} needs an expectation, got {expectation!r}")
        if not isinstance(name, str) or not name.strip():
            raise place.refuse("a check needs a name")
        if on_error not in OnError.__members__:
            raise place.refuse(f"on_error of check {name!r} is 'FAIL' or 'WARN', not {on_error!r}")
        self.expectation = expectation
        self.name = name
        self.on_error = OnError(on_error)
        self.description = description

    def __repr__(self) -> str:
        return f"Check({self.expectation}, {self.name!r}, on_error={self.on_error.value!r})"


class Input:
    """A dataset that is read; by default where the build's chain finds it."""

    def __init__(
        self,
        alias: str,
        branch: str | None = None,
        *,
        transaction: str | None = None,
        checks: Check | Iterable[Check] = (),
        description: str = "",
    ) -> None:
        self.place = calling_place()
        self.dataset = _dataset(alias, self.place)
        self.branch = _branch(branch, self.place)
        self.transaction = transaction
        self.checks = _checks(checks, self.place)
        self.description = description

    def __repr__(self) -> str:
        return f"Input({str(self.dataset)!r})"


class Output:
    """A dataset that is written, on the build branch and nowhere else."""

    def __init__(
        self,
        alias: str,
        *,
        kind: str = "table",
        checks: Check | Iterable[Check] = (),
        partition_cols: Iterable[str] = (),
        sort_by: Iterable[str] = (),
        description: str = "",
    ) -> None:
        self.place = calling_place()
        self.dataset = _dataset(alias, self.place)
        if kind not in {member.value for member in DatasetKind}:
            raise self.place.refuse(f"kind of {alias!r} is 'table' or 'files', not {kind!r}")
        self.kind = DatasetKind(kind)
        self.checks = _checks(checks, self.place)
        self.partition_cols = names(partition_cols, "partition_cols", self.place)
        self.sort_by = names(sort_by, "sort_by", self.place)
        self.description = description

    def __repr__(self) -> str:
        return f"Output({str(self.dataset)!r})"


class Param:
    """A value that a build may set; the function reads it as `.value`."""

    kind: ClassVar[str]
    accepts: ClassVar[tuple[type, ...]]

    def __init__(self, default: Any, *, description: str = "") -> None:
        self.place = calling_place()
        self.description = description
        self.default = self.checked(default)
        self.value = self.default

    def bind(self, value: Any) -> Self:
        """The same parameter with another value, or a definition error if its type is wrong."""
        bound = copy.copy(self)
        bound.value = self.checked(value)
        return bound

    def checked(self, value: Any) -> Any:
        # bool is an int to Python, never to somebody who declares a number.
        if not isinstance(value, self.accepts) or (
            isinstance(value, bool) and bool not in self.accepts
        ):
            raise self.place.refuse(f"a {self.kind} parameter cannot be {value!r}")
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class StringParam(Param):
    kind = "string"
    accepts = (str,)
    value: str


class IntegerParam(Param):
    kind = "integer"
    accepts = (int,)
    value: int


class FloatParam(Param):
    kind = "float"
    accepts = (float, int)
    value: float

    def checked(self, value: Any) -> float:
        return float(super().checked(value))


class BooleanParam(Param):
    kind = "boolean"
    accepts = (bool,)
    value: bool


def names(given: Iterable[str], what: str, place: Place) -> tuple[str, ...]:
    """A tuple of non-empty strings; one bare string is refused, for it iterates by letter."""
    if isinstance(given, str):
        raise place.refuse(f"{what} is a list of strings: write [{given!r}]")
    found = tuple(given)
    if not all(isinstance(name, str) and name for name in found):
        raise place.refuse(f"{what} is a list of strings, got {list(found)!r}")
    return found


def _dataset(alias: str, place: Place) -> DatasetName:
    if not isinstance(alias, str):
        raise place.refuse(f"a dataset is named by a string, as in 'sales.orders', not {alias!r}")
    try:
        return parse_dataset_name(alias)
    except InvalidName as error:
        raise place.refuse(str(error).rstrip(".")) from error


def _branch(branch: str | None, place: Place) -> str | None:
    try:
        return None if branch is None else check_branch_name(branch)
    except InvalidName as error:
        raise place.refuse(str(error).rstrip(".")) from error


def _checks(checks: Check | Iterable[Check], place: Place) -> tuple[Check, ...]:
    found = (checks,) if isinstance(checks, Check) else tuple(checks)
    for check in found:
        if not isinstance(check, Check):
            raise place.refuse(f"checks holds {check!r}; write Check(expectation, 'its name')")
    return found
