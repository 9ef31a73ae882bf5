"""Declarations of a transform: inputs, outputs, checks and parameters."""

import copy
import enum
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from headgate.errors import InvalidName
from headgate.model.names import DatasetName, check_branch_name, parse_dataset_name
from headgate.model.nouns import DatasetKind
from headgate.transforms.expectation_tree import Expectation
from headgate.transforms.source_location import SourceLocation, calling_location


class OnError(enum.StrEnum):
    """Effect of a failed check: FAIL stops the job before it publishes, WARN only records it."""

    FAIL = "FAIL"
    WARN = "WARN"


class Check:
    """A named expectation on an input or an output.

    :param expectation: the expectation, built with `headgate.transforms.expectations`.
    :param name: identifies the check in reports; unique within a transform.
    :param on_error: `"FAIL"` stops the job before it publishes, `"WARN"` only records the failure.

    ::

        Output("sales.daily", checks=Check(E.primary_key("day"), "one row per day"))
    """

    def __init__(
        self, expectation: Expectation, name: str, on_error: str = "FAIL", description: str = ""
    ) -> None:
        self.location = location = calling_location()
        if not isinstance(expectation, Expectation):
            raise location.error(f"check {name!r} needs an expectation, not {expectation!r}")
        if not isinstance(name, str) or not name.strip():
            raise location.error("a check needs a name")
        if on_error not in OnError.__members__:
            raise location.error(f"on_error of {name!r} must be 'FAIL' or 'WARN', not {on_error!r}")
        self.expectation = expectation
        self.name = name
        self.on_error = OnError(on_error)
        self.description = description

    def __repr__(self) -> str:
        return f"Check({self.expectation}, {self.name!r}, on_error={self.on_error.value!r})"


class Input:
    """A dataset that a transform reads.

    :param alias: the name of the dataset, as in `"sales.orders"`.
    :param branch: the branch to read; by default the first branch of the build's chain that has
        data.
    :param transaction: a committed transaction to read; by default the newest one.
    :param checks: checks on the data, evaluated before the function is called.
    """

    def __init__(
        self,
        alias: str,
        branch: str | None = None,
        *,
        transaction: str | None = None,
        checks: Check | Iterable[Check] = (),
        description: str = "",
    ) -> None:
        self.location = calling_location()
        self.dataset = _dataset(alias, self.location)
        self.branch = _branch(branch, self.location)
        self.transaction = transaction
        self.checks = _checks(checks, self.location)
        self.description = description

    def __repr__(self) -> str:
        return f"Input({str(self.dataset)!r})"


class Output:
    """A dataset that a transform writes, always on the build branch.

    :param alias: the name of the dataset, as in `"sales.daily"`.
    :param kind: `"table"` or `"files"`.
    :param checks: checks on the written data, evaluated before it is published.
    :param partition_cols: columns by which the table is partitioned.
    :param sort_by: columns by which rows are sorted within each file.
    """

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
        self.location = calling_location()
        self.dataset = _dataset(alias, self.location)
        if kind not in {DatasetKind.TABLE, DatasetKind.FILES}:
            raise self.location.error(f"kind of {alias!r} must be 'table' or 'files', not {kind!r}")
        self.kind = DatasetKind(kind)
        self.checks = _checks(checks, self.location)
        self.partition_cols = names(partition_cols, "partition_cols", self.location)
        self.sort_by = names(sort_by, "sort_by", self.location)
        self.description = description

    def __repr__(self) -> str:
        return f"Output({str(self.dataset)!r})"


class Param:
    """A value that a build may set; the function reads it as `.value`."""

    kind: ClassVar[str]
    accepts: ClassVar[tuple[type, ...]]

    def __init__(self, default: Any, *, description: str = "") -> None:
        self.location = calling_location()
        self.description = description
        self.default = self.checked(default)
        self.value = self.default

    def bind(self, value: Any) -> Self:
        """Return a copy with this value; raise a definition error if its type is wrong."""
        bound = copy.copy(self)
        bound.value = self.checked(value)
        return bound

    def checked(self, value: Any) -> Any:
        # bool is a subclass of int, but not a valid value of a number.
        if not isinstance(value, self.accepts) or (
            isinstance(value, bool) and bool not in self.accepts
        ):
            raise self.location.error(f"{value!r} is not a valid {self.kind} parameter")
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class StringParam(Param):
    """A text parameter, as in `StringParam("EUR")`."""

    kind = "string"
    accepts = (str,)
    value: str


class IntegerParam(Param):
    """An integer parameter."""

    kind = "integer"
    accepts = (int,)
    value: int


class FloatParam(Param):
    """A floating-point parameter; integers are accepted."""

    kind = "float"
    accepts = (float, int)
    value: float

    def checked(self, value: Any) -> float:
        return float(super().checked(value))


class BooleanParam(Param):
    """A boolean parameter."""

    kind = "boolean"
    accepts = (bool,)
    value: bool


def names(given: Iterable[str], what: str, location: SourceLocation) -> tuple[str, ...]:
    """Return a tuple of non-empty strings; reject a single string, which iterates by letter."""
    if isinstance(given, str):
        raise location.error(f"{what} must be a list of strings: write [{given!r}]")
    found = tuple(given)
    if not all(isinstance(name, str) and name for name in found):
        raise location.error(f"{what} must be a list of strings, not {list(found)!r}")
    return found


def _dataset(alias: str, location: SourceLocation) -> DatasetName:
    if not isinstance(alias, str):
        raise location.error(f"a dataset name must be text such as 'sales.orders', not {alias!r}")
    try:
        return parse_dataset_name(alias)
    except InvalidName as error:
        raise location.error(str(error).rstrip(".")) from error


def _branch(branch: str | None, location: SourceLocation) -> str | None:
    try:
        return None if branch is None else check_branch_name(branch)
    except InvalidName as error:
        raise location.error(str(error).rstrip(".")) from error


def _checks(checks: Check | Iterable[Check], location: SourceLocation) -> tuple[Check, ...]:
    found = (checks,) if isinstance(checks, Check) else tuple(checks)
    for check in found:
        if not isinstance(check, Check):
            raise location.error(f"checks contains {check!r}; write Check(expectation, 'name')")
    return found
