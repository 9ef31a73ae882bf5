"""Values that a build gives to the parameters of its jobs; pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from headgate.errors import InvalidParameter
from headgate.model.jobspecs import JobSpec, ParameterSpec

Value = str | int | float | bool
_TRUTHS = {"true": True, "false": False}


def effective_parameters(spec: JobSpec, given: Mapping[str, Any]) -> dict[str, Value]:
    """The declared defaults, with what this build gives in their place."""
    return {
        parameter.name: parameter_value(parameter, given[parameter.name])
        if parameter.name in given
        else parameter.default
        for parameter in spec.declaration.parameters
    }


def check_parameters(specs: Iterable[JobSpec], given: Mapping[str, Any]) -> None:
    """Refuses a value of the wrong type, and one that no job of the build declares."""
    if not given:
        return
    declared = {p.name: p for spec in specs for p in spec.declaration.parameters}
    for name, value in given.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            known = f"did you mean {near[0]!r}?" if near else _known(declared)
            raise InvalidParameter(name=name, reason=f"no job of this build declares it; {known}")
        parameter_value(declared[name], value)


def parameter_value(parameter: ParameterSpec, given: Any) -> Value:
    """What was given as the declared type; a text, as a command line has it, is read as one."""
    value = given
    if isinstance(given, str) and parameter.kind != "string":
        value = _read(parameter.kind, given.strip())
    fits = {
        "string": isinstance(value, str),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
    }
    if not fits[parameter.kind]:
        raise InvalidParameter(
            name=parameter.name, reason=f"{given!r} is no {parameter.kind}, which it is declared as"
        )
    return float(value) if parameter.kind == "float" else value


def _read(kind: str, text: str) -> Any:
    try:
        if kind == "integer":
            return int(text)
        if kind == "float":
            number = float(text)
            return number if math.isfinite(number) else None
    except ValueError:
        return None
    return _TRUTHS.get(text.lower())


def _known(declared: Mapping[str, ParameterSpec]) -> str:
    if not declared:
        return "none of them declares any"
    return f"declared are {', '.join(sorted(declared))}"
