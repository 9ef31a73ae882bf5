"""Parameters of a build, and the conversion of their values."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.cli.build import choose_parameters
from headgate.errors import Invalid, InvalidParameter
from headgate.model.freshness import check_parameters, effective_parameters, parameter_value
from headgate.model.jobspecs import ParameterSpec
from tests.support.jobspecs import spec

DAY = ParameterSpec(name="day", kind="integer", default=1)
MADE = spec("s.b", parameters=(DAY, ParameterSpec(name="zone", kind="string", default="utc")))


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("integer", "5", 5),
        ("integer", 5, 5),
        ("float", " 0.5 ", 0.5),
        ("float", 2, 2.0),
        ("boolean", "True", True),
        ("boolean", False, False),
        ("string", "5", "5"),
    ],
)
def test_value_is_read_as_the_declared_type(kind: str, given: Any, value: Any) -> None:
    found = parameter_value(ParameterSpec(name="p", kind=kind, default=value), given)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("integer", "5.5"),
        ("integer", True),
        ("float", "nan"),
        ("float", "much"),
        ("boolean", "yes"),
        ("boolean", 1),
        ("string", 5),
        ("integer", None),
    ],
)
def test_value_of_another_type_is_refused_by_name(kind: str, given: Any) -> None:
    with pytest.raises(InvalidParameter, match=f"parameter p must be an? {kind}, got"):
        parameter_value(ParameterSpec(name="p", kind=kind, default="x"), given)


def test_defaults_stay_where_nothing_is_given() -> None:
    assert effective_parameters(MADE, {"day": "3"}) == {"day": 3, "zone": "utc"}


def test_name_that_no_job_declares_is_refused_with_the_nearest() -> None:
    check_parameters([MADE], {"day": 2})
    with pytest.raises(InvalidParameter, match="did you mean 'day'"):
        check_parameters([MADE], {"days": 2})
    with pytest.raises(InvalidParameter, match="declared are day, zone"):
        check_parameters([MADE], {"x": 2})
    with pytest.raises(InvalidParameter, match="none of them declares any"):
        check_parameters([spec("s.b")], {"x": 2})


def test_command_line_sets_parameters_by_name() -> None:
    assert choose_parameters(["day=3", "zone=a=b"]) == {"day": "3", "zone": "a=b"}
    assert choose_parameters(None) == {}


@pytest.mark.parametrize("given", [["day"], ["=3"], ["day=1", "day=2"]])
def test_command_line_refuses_what_sets_nothing_or_sets_it_twice(given: list[str]) -> None:
    with pytest.raises(Invalid):
        choose_parameters(given)
